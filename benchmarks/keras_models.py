"""The Keras models that all subjects train or score."""

from __future__ import annotations

from typing import Any

__all__ = ["mlp", "small"]


def mlp() -> Any:
    """784 → 256 → 128 → 10, about 235,000 weights; plain SGD."""
    return _model([(256, "relu"), (128, "relu"), (10, "softmax")])


def small() -> Any:
    """784 → 32 → 10, for scoring."""
    return _model([(32, "relu"), (10, "softmax")])


def _model(layers: list[tuple[int, str]]) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((784,)), *(keras.layers.Dense(size, kind) for size, kind in layers)])
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model
