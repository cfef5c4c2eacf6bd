"""Models of other frameworks as OpenVINO's: converted, named, and where asked for quantized."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import openvino as ov

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.frameworks.openvino.private import private
from firesteel.frameworks.openvino.program import ModelFile, as_file

__all__ = ["convert"]


def convert(
    model: Any,
    *,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    is_half: bool = False,
    calibration: Sequence[Any] | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> ModelFile:
    """An IR of ``model`` (a program that torch exported, TorchScript, or the path of a SavedModel). Driver only.

    Args:
        model: what OpenVINO's own converter takes.
        input_names: in order; as many as the model has. ``None``: the model's own.
        output_names: likewise.
        is_half: keep weights as float16.
        shapes: of a row of each input, where the model does not say it: TorchScript. It takes real numbers then.
        calibration: an array of rows for each input, by whose values weights and activations become int8.
    """
    try:
        with private(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the converter says about its own use of torch
            made = ov.convert_model(model)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise UnsupportedError(f"OpenVINO cannot convert this model: {lines[-1]}") from error
    if input_names is not None and output_names is not None:
        made = _named(made, input_names, output_names)
    if shapes is not None:
        parameters = made.get_parameters()
        if len(parameters) != len(shapes):
            raise PlanError(f"the model has {len(parameters)} inputs, and shapes names {len(shapes)}")
        for each, row in zip(parameters, shapes, strict=True):
            each.set_partial_shape(ov.PartialShape([-1, *row]))
            if each.get_element_type().is_dynamic():
                each.set_element_type(ov.Type.f32)
        made.validate_nodes_and_infer_types()
    if calibration is not None:
        made = _quantized(made, calibration)
    return as_file(made, is_half=is_half)


def _named(model: ov.Model, input_names: Sequence[str], output_names: Sequence[str]) -> ov.Model:
    """The model with inputs and outputs of these names, in this order: a SavedModel keeps its own by the alphabet."""
    inputs = _in_order(model.inputs, input_names)
    outputs = _in_order(model.outputs, output_names)
    for ports, names in ((inputs, input_names), (outputs, output_names)):
        for port, name in zip(ports, names, strict=True):
            port.get_tensor().set_names({name})
    return ov.Model([port.get_node() for port in outputs], [port.get_node() for port in inputs], model.get_name())


def _in_order(ports: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The ports in the order of the names, where they go by these already; else as they come."""
    known = {name: port for port in ports for name in port.get_names()}
    return [known[name] for name in names] if all(name in known for name in names) else list(ports)


def _quantized(model: ov.Model, rows: Sequence[Any]) -> ov.Model:
    try:
        with private():
            import nncf
    except ModuleNotFoundError as error:
        raise PlanError("int8 needs nncf, which is not installed: pip install 'firesteel[int8]'") from error
    count = len(rows[0])
    if count == 0 or any(len(values) != count for values in rows):
        raise PlanError("int8 needs rows to calibrate with, as many for each input")
    names = [port.get_any_name() for port in model.inputs]
    samples = [{name: values[row : row + 1] for name, values in zip(names, rows, strict=True)} for row in range(count)]
    logger = logging.getLogger("nncf")
    before = logger.level
    nncf.set_log_level(logging.ERROR)
    try:
        with private(), contextlib.redirect_stdout(io.StringIO()):  # a library does not print
            return nncf.quantize(model, nncf.Dataset(samples), subset_size=count)
    finally:
        logger.setLevel(before)
