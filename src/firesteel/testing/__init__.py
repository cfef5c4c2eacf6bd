"""The contracts as checks, shipped: run ours on your own bench, or sync."""

from firesteel.testing.contracts import check_framework, check_sync

__all__ = ["check_framework", "check_sync"]
