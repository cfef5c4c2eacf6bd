"""What ``DLModel`` needs of OpenVINO: graphs that came as files of another format. They score, and are not trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import UnsupportedError
from firesteel.core.program import Program
from firesteel.data.reading import Reading
from firesteel.frontends.pipeline.persistence import Fetch

__all__ = ["OpenVINOSide"]

_XML, _BIN = "model.xml", "model.bin"
_ROWS = 64  # of one inference


class OpenVINOSide:
    """See the module."""

    name = "openvino"

    @staticmethod
    def accepts(model: object) -> bool:
        """An ``openvino.Model``, or the file of one."""
        return "openvino" in sys.modules and bool(_bench().accepts(model))  # who has a model has loaded it

    @staticmethod
    def own(model: Any) -> Any:
        """``UnsupportedError``: a model of one's own is for training."""
        raise UnsupportedError(
            "an ONNX, TorchScript or OpenVINO model only predicts: wrap it in a DLModel, and train in torch or Keras"
        )

    @staticmethod
    def program(model: Any) -> Program:
        """What scores with this model."""
        inputs, outputs = _ends(model)
        names = ["prediction"] if len(outputs) == 1 else [port.name for port in outputs]
        program: Program = _bench().capture(model, batch_size=_ROWS, places=range(len(inputs)), outputs=names)
        return program

    @staticmethod
    def inputs(model: Any) -> tuple[int, int | None]:
        """How many inputs the model takes, at least and at most."""
        count = len(_ends(model)[0])
        return count, count

    @staticmethod
    def adapted(reading: Reading, model: Any) -> Reading:
        """Rows in the model's shapes, where it says them, and whole numbers as real ones where it wants those."""
        tensors = []
        for tensor, port in zip(reading.tensors, _ends(model)[0], strict=True):
            columns, shape = tensor.columns, tensor.shape
            if port.dtype.startswith("float"):
                columns = tuple(
                    replace(c, dtype="float32") if c.kind != "image" and c.dtype in ("int64", "bool") else c
                    for c in columns
                )
            if port.shape is not None and None not in port.shape[1:]:
                shape = tuple(port.shape[1:])
            tensors.append(replace(tensor, columns=columns, shape=shape))
        return Reading(tuple(tensors))

    @staticmethod
    def save(
        model: Any, samples: Sequence[tuple[Sequence[int], str]] | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Facts, and the two files of an IR."""
        content = OpenVINOSide.program(model).content
        return {"form": "ir"}, {_XML: content.file.model, _BIN: content.file.weights}

    weights = staticmethod(lambda model: OpenVINOSide.save(model, None)[1])

    @staticmethod
    def load(form: str, fetch: Fetch, made: Any = None) -> Any:
        """The model that was saved."""
        return made if made is not None else _bench().read(_bench().make_file(fetch(_XML), fetch(_BIN)))


def _bench() -> Any:
    return registry.framework("openvino")


def _ends(model: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    inputs, outputs = _bench().describe(model)
    return inputs, outputs
