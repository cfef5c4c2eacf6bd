"""A torch model in forms that other runtimes read: ONNX, and what OpenVINO's converter takes."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.spec import Batch, rows_of

__all__ = ["portable", "to_onnx"]


def to_onnx(model: nn.Module, batch: Batch | None) -> bytes:
    """An ONNX file of the model in inference mode, for any number of rows like these. Driver only."""
    model, tensors, names = _prepared(model, batch)
    try:
        import onnxscript  # noqa: F401 - torch's exporter writes with it
    except ModuleNotFoundError as error:
        raise PlanError("ONNX needs onnx and onnxscript: pip install 'firesteel[openvino]'") from error
    exported = _exported(model, tensors)
    with _quiet():
        program = torch.onnx.export(
            exported, dynamo=True, input_names=names, output_names=_output_names(model, tensors), verbose=False
        )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def portable(model: nn.Module, batch: Batch | None, folder: str) -> dict[str, Any]:
    """The model and the names of its inputs and outputs, as OpenVINO's bench converts it. Driver only."""
    model, tensors, names = _prepared(model, batch)
    outputs = _output_names(model, tensors)
    return {"model": _exported(model, tensors), "input_names": names, "output_names": outputs}


def _exported(model: nn.Module, tensors: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """The model's whole graph, its number of rows free. Tracing would take one row's way through an ``if`` for all."""
    rows = torch.export.Dim("rows")
    # By position, whatever forward calls its parameters: also where it takes any number of them.
    names = inspect.signature(model.forward).parameters.values()
    free: Any = tuple({0: rows} for _ in tensors)
    if any(name.kind is name.VAR_POSITIONAL for name in names):
        free = (free,)
    try:
        with _quiet():
            return torch.export.export(model, tuple(tensors), dynamic_shapes=free)
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"torch cannot export this model: {text}") from error


def _prepared(model: nn.Module, batch: Batch | None) -> tuple[nn.Module, list[torch.Tensor], list[str]]:
    """A copy in inference mode, its inputs for at least two rows, and their names."""
    if batch is None:
        raise PlanError("a torch model does not say what its inputs look like: pass inputs=, one row of data or more")
    model = copy.deepcopy(model).cpu().eval()
    parameters = list(inspect.signature(model.forward).parameters.values())
    if next(iter(batch)).startswith("x."):
        given = {name[2:]: values for name, values in batch.items()}
        order = [p.name for p in parameters if p.name in given]
        if sorted(order) != sorted(given):
            raise UnsupportedError("a model that takes a dict cannot be exported; give forward one parameter for each")
        names, arrays = order, [given[name] for name in order]
    else:
        arrays = list(batch.values())
        plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        names = plain[: len(arrays)] if len(plain) >= len(arrays) else [f"x{place}" for place in range(len(arrays))]
    if rows_of(batch) < 2:
        # An example of one row would make its number a constant.
        arrays = [values.repeat(2, axis=0) for values in arrays]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    tensors = [torch.from_numpy(values.copy()) for values in arrays]
    return model, [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors], names


def _output_names(model: nn.Module, tensors: Sequence[torch.Tensor]) -> list[str]:
    with torch.no_grad():
        output = model(*tensors)
    if isinstance(output, dict):
        return [str(key) for key in output]
    return [f"output_{place}" for place in range(len(output))] if isinstance(output, (list, tuple)) else ["output"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says about itself: operators of packages that are not there, its own deprecations."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
