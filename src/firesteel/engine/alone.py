"""Scoring and folding in this process, by a replica that is alive here: for models in their user's hands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.core.metrics import Metric
from firesteel.core.spec import Batch
from firesteel.engine.fold import Fold
from firesteel.engine.scorer import Outputs, join_rows, pieces

__all__ = ["fold_batch", "score_batch"]


def score_batch(replica: Any, batch: Batch, size: int) -> Outputs:
    """Outputs for all rows, at most ``size`` at a time."""
    return join_rows([dict(replica.forward(piece)) for piece in pieces(batch, size)])


def fold_batch(replica: Any, batch: Batch, size: int, metrics: Mapping[str, Metric]) -> Fold:
    """Loss and metrics over all rows, at most ``size`` at a time."""
    fold = Fold.fresh(metrics)
    for piece in pieces(batch, size):
        fold.feed(replica, piece)
    return fold
