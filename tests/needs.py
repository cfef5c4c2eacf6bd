"""Frameworks that not every environment has: a test file that needs one says so, in one line, where it is missing."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

import pytest

__all__ = ["need_horovod", "need_mxnet"]


def need_mxnet() -> Any:
    """MXNet, imported; else the file is skipped."""
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("MXNet is not installed here: make test-mxnet", allow_module_level=True)
    from firesteel.core.numpy_names import put_back

    put_back()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is of 2022, and says so in many ways
        return importlib.import_module("mxnet")


def need_horovod() -> Any:
    """Horovod for torch, imported; else the file is skipped."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not built here: make test-horovod", allow_module_level=True)
    return importlib.import_module("horovod.torch")
