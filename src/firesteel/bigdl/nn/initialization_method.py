"""How weights begin: for ``layer.set_init_method(weight, bias)``."""

from __future__ import annotations

from firesteel.frontends.bigdl.initialization import (
    BilinearFiller,
    ConstInitMethod,
    InitializationMethod,
    MsraFiller,
    Ones,
    RandomNormal,
    RandomUniform,
    Xavier,
    Zeros,
)

__all__ = [
    "BilinearFiller",
    "ConstInitMethod",
    "InitializationMethod",
    "MsraFiller",
    "Ones",
    "RandomNormal",
    "RandomUniform",
    "Xavier",
    "Zeros",
]
