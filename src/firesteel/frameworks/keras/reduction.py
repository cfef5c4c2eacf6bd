"""What a compiled loss divides by, and so what part of a step's loss a replica's own is.

Keras's losses are means over rows unless told otherwise: a replica's mean counts by its share of the step's rows. A sum
counts whole; a mean by weight counts by its share of the weights. What layers add (regularization) is no row's: the
shares of all replicas add up to one of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firesteel.core.errors import UnsupportedError

__all__ = ["Reduction"]

_MEANS = ("sum_over_batch_size", "mean")


@dataclass(frozen=True)
class Reduction:
    """How the losses of a model's outputs come from those of its rows."""

    kind: str = "mean"

    @classmethod
    def of(cls, model: Any) -> Reduction:
        """That of a compiled model; ``UnsupportedError`` where its losses differ in it."""
        losses = getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or []
        kinds = {"mean" if kind in _MEANS else str(kind) for kind in (_reduction(each.loss) for each in losses)}
        if len(kinds) > 1:
            raise UnsupportedError(
                f"the losses of this model's outputs are reduced in different ways ({', '.join(sorted(kinds))}), which "
                f"replicas cannot share; compile them with one reduction"
            )
        return cls(kinds.pop()) if kinds else cls()

    @property
    def is_by_weight(self) -> bool:
        """Whether the divisor is the sum of the rows' weights."""
        return self.kind == "mean_with_sample_weight"

    def weigh(self, loss: Any, layers: Any, share: Any) -> Any:
        """This replica's part of the step's loss; ``layers`` is what of ``loss`` belongs to no row."""
        return (loss - layers) + layers * share if self.kind == "sum" else loss * share


def _reduction(loss: Any) -> str:
    return str(getattr(loss, "reduction", None) or "mean")
