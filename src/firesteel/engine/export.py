"""A trained model in files that other runtimes read."""

from __future__ import annotations

import tempfile
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.spec import Batch
from firesteel.engine.files import exists, write_bytes

__all__ = ["to_onnx", "to_openvino"]


def to_onnx(framework: Any, model: Any, batch: Batch | None, path: str, overwrite: bool) -> str:
    """Write ONNX; ``batch`` has some rows. Driver only, without Spark."""
    if not hasattr(framework, "to_onnx"):
        raise UnsupportedError(f"a model of {framework.name} cannot be written as ONNX")
    write_bytes(str(path), framework.to_onnx(model, batch), overwrite=overwrite)
    return str(path)


def to_openvino(
    framework: Any,
    model: Any,
    batch: Batch | None,
    path: str,
    *,
    is_half: bool,
    calibration: Batch | None,
    overwrite: bool,
) -> str:
    """Write an IR. Driver only, without Spark."""
    if not hasattr(framework, "portable"):
        raise UnsupportedError(f"a model of {framework.name} cannot be written for OpenVINO")
    try:
        bench: Any = registry.framework("openvino")
    except ImportError as error:
        raise PlanError(str(error)) from error
    target = str(path) if str(path).endswith(".xml") else f"{path}.xml"
    if not overwrite and exists(target):
        raise FileExistsError(f"{target} exists already; pass overwrite=True to replace it")
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        parts = framework.portable(model, batch, folder)
        rows = None if calibration is None else _in_order(calibration, parts["input_names"])
        file = bench.convert(**parts, is_half=is_half, calibration=rows)
    write_bytes(f"{target[:-4]}.bin", file.weights)
    write_bytes(target, file.model)  # last, for it is the one that is looked for
    return target


def _in_order(batch: Batch, names: list[str]) -> list[Any]:
    """The arrays in the order of the model's inputs, where they have names."""
    by_name = {name[2:]: values for name, values in batch.items() if name.startswith("x.")}
    return [by_name[name] for name in names] if by_name else list(batch.values())
