"""An OpenVINO program: the two files of an IR as bytes, and how rows are put through them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov

from firesteel.core.errors import PlanError
from firesteel.core.program import Program

__all__ = [
    "ModelFile",
    "OpenVINOContent",
    "Port",
    "as_file",
    "capture",
    "check_config",
    "describe",
    "from_path",
    "read",
]


@dataclass(frozen=True)
class ModelFile:
    """A model as it lies in files: an IR's ``.xml`` and ``.bin``, or an ONNX file that has all its weights inside."""

    model: bytes = field(repr=False)
    weights: bytes = field(repr=False, default=b"")


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        names: all names it goes by; the first is the one that is shown.
        dtype: NumPy's name of its elements' type.
        shape: with the rows' axis; ``None`` where a length is free. ``None`` altogether: not even the rank is known.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def name(self) -> str:
        """The one that is shown."""
        return self.names[0]


@dataclass(frozen=True)
class OpenVINOContent:
    """What travels.

    Attributes:
        file: the model.
        batch_size: rows of one inference.
        places: the number of the model's input that each array is.
        outputs: the names that the outputs get; one alone is ``prediction``.
        config: OpenVINO's properties, over what a replica sets itself.
    """

    file: ModelFile
    batch_size: int
    places: tuple[int, ...]
    outputs: tuple[str, ...]
    config: tuple[tuple[str, Any], ...] = ()


def read(file: ModelFile, path: str = "the model") -> ov.Model:
    """The model of these bytes; ``PlanError`` where they are none. ``path`` is for the message."""
    try:
        return ov.Core().read_model(file.model, file.weights)
    except (RuntimeError, TypeError) as error:
        raise _unreadable(path, error) from error


def from_path(path: str) -> ModelFile:
    """An ONNX file on this machine as an IR. Weights may lie in files beside it, as most exporters now leave them."""
    try:
        return as_file(ov.Core().read_model(path))
    except (RuntimeError, TypeError) as error:
        raise _unreadable(path, error) from error


def as_file(model: ov.Model, *, is_half: bool = False) -> ModelFile:
    """A model in this process as the two files of an IR; ``is_half``: with its weights as float16."""
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        path = os.path.join(folder, "model.xml")
        ov.save_model(model, path, compress_to_fp16=is_half)
        with open(path, "rb") as xml, open(path[:-3] + "bin", "rb") as weights:
            return ModelFile(xml.read(), weights.read())


def _unreadable(path: str, error: Exception) -> PlanError:
    # OpenVINO reports from the outside in, a line for each of its files: the last one says what it is.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return PlanError(f"{path} is no model that OpenVINO can read: {lines[-1]}")


def describe(model: ov.Model) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """A model's inputs and outputs, in its own order."""
    return (
        tuple(_port(port, place, "input") for place, port in enumerate(model.inputs)),
        tuple(_port(port, place, "output") for place, port in enumerate(model.outputs)),
    )


def _port(port: Any, place: int, kind: str) -> Port:
    names = sorted(port.get_names(), key=lambda name: (len(name), name)) or [f"{kind}_{place}"]
    if port.element_type.to_string() == "string":
        raise PlanError(f"{kind} {names[0]!r} of the model holds strings; only numbers can be fed and fetched")
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return Port(tuple(names), _dtype(port), None)
    return Port(tuple(names), _dtype(port), tuple(None if d.is_dynamic else d.get_length() for d in shape))


def _dtype(port: Any) -> str:
    """bfloat16, which NumPy does not know, goes in and out as float32; see ``replica``."""
    kind = port.element_type.to_string()
    return "float32" if kind == "bf16" else np.dtype(port.element_type.to_dtype()).name


def capture(
    model: object,
    *,
    batch_size: int,
    places: Sequence[int],
    outputs: Sequence[str],
    config: Mapping[str, Any] | None = None,
) -> Program:
    """The program of a model; see ``OpenVINOContent``. Driver only."""
    file = model if isinstance(model, ModelFile) else as_file(model)
    content = OpenVINOContent(file, batch_size, tuple(places), tuple(outputs), tuple(sorted((config or {}).items())))
    return Program("openvino", content)


def check_config(config: Mapping[str, Any]) -> None:
    """Whether OpenVINO's CPU plugin takes these properties; ``PlanError`` with its own words where not."""
    core = ov.Core()
    core.get_versions("CPU")  # loads the plugin; until then properties are put by unseen
    try:
        core.set_property("CPU", dict(config))
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise PlanError(f"config has a property that OpenVINO refuses: {lines[-1]}") from error
