"""The contracts as checks, shipped: run ours on your own bench."""

from firesteel.testing.contracts import check_framework

__all__ = ["check_framework"]
