"""How a DataFrame's columns become a model's inputs, for ``Estimator.from_bigdl``."""

from __future__ import annotations

from firesteel.frontends.bigdl.preprocessing import (
    ArrayToTensor,
    ChainedPreprocessing,
    MLlibVectorToTensor,
    Preprocessing,
    ScalarToTensor,
    SeqToMultipleTensors,
    SeqToTensor,
)

__all__ = [
    "ArrayToTensor",
    "ChainedPreprocessing",
    "MLlibVectorToTensor",
    "Preprocessing",
    "ScalarToTensor",
    "SeqToMultipleTensors",
    "SeqToTensor",
]
