"""``Sample``, ``JTensor`` and ``EvaluatedResult``."""

from __future__ import annotations

from firesteel.frontends.bigdl.samples import (
    EvaluatedResult,
    JTensor,
    Sample,
)

__all__ = [
    "EvaluatedResult",
    "JTensor",
    "Sample",
]
