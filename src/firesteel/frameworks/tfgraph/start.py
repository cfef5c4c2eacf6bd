"""TensorFlow in a process that runs graphs and nothing else."""

from __future__ import annotations

from firesteel.core.imports import importing

__all__ = ["lean"]

# TensorFlow imports Keras and a converter from JAX, and Keras what it can take data from: a third of the time, and no
# graph has a use for any of them.
_UNUSED = ("jax", "pandas", "sklearn")


def lean() -> None:
    """Import TensorFlow without what graphs do not need; Keras may still be used, but not on pandas' frames."""
    with importing(without=_UNUSED):
        import tensorflow  # noqa: F401
