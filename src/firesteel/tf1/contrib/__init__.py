"""What is left of ``tf.contrib``: ``slim``."""

from __future__ import annotations

from firesteel.tf1.contrib import slim

__all__ = ["slim"]
