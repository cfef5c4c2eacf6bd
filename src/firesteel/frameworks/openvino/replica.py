"""An OpenVINO program living in a process: compiled once, then any number of rows in batches of one size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from firesteel.core.errors import SchemaError
from firesteel.core.program import Program
from firesteel.core.spec import Batch
from firesteel.frameworks.openvino.program import ModelFile, OpenVINOContent, Port, describe, read

__all__ = ["OpenVINOReplica", "compiled", "lead_axes"]

Array = npt.NDArray[Any]

_KEPT = 3  # as many as a worker keeps replicas

# Under the user's own. Scoring is about rows per second; and a model keeps its own precision: on processors that have
# bfloat16 OpenVINO would else compute in that, and the numbers would depend on the machine. Threads are not pinned to
# cores: every Python worker of an executor would pin its own to the same first ones.
_DEFAULTS = {"PERFORMANCE_HINT": "THROUGHPUT", "EXECUTION_MODE_HINT": "ACCURACY", "ENABLE_CPU_PINNING": False}


class OpenVINOReplica:
    """One replica; see ``core.ports.Replica``. It has ``forward`` alone."""

    def __init__(self, program: Program, threads: int = 1) -> None:
        content: OpenVINOContent = program.content
        self._content = content
        self._compiled, self._fixed, self._inputs = compiled(content.file, content.config, threads)
        self._requests = int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs for these rows, or batches of rows, where the arrays have one axis more than the model's inputs."""
        given = dict(zip(self._content.places, batch.values(), strict=True))
        pairs = [(given[place], port) for place, port in enumerate(self._inputs)]
        leads = {values.shape[: lead_axes(values.shape, port)] for values, port in pairs}
        if len(leads) > 1:
            shapes = ", ".join(str(values.shape) for values, _ in pairs)
            raise SchemaError(f"the inputs must have the same rows: their shapes are {shapes}")
        (lead,) = leads
        rows = int(np.prod(lead))
        # Of nothing a model may make anything; each knows what it makes of one row.
        outputs = self._run([_as_rows(values, port, rows, len(lead)) for values, port in pairs])
        outputs = [values[:rows].reshape(*lead, *values.shape[1:]) for values in outputs]
        return dict(zip(self._content.outputs, outputs, strict=True))

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        rows = len(arrays[0])
        size = self._fixed or self._content.batch_size
        outputs: list[Array] = []

        def keep(request: Any, begin: int) -> None:
            count = min(size, rows - begin)
            found = [tensor.data for tensor in request.output_tensors]
            for name, values in zip(self._content.outputs, found, strict=True):
                if values.ndim == 0 or len(values) != (self._fixed or count):
                    raise SchemaError(
                        f"the model must give one row of output for each row of input: for {self._fixed or count} rows "
                        f"its output {name!r} has shape {values.shape}"
                    )
            if not outputs:
                outputs.extend(np.empty((rows, *values.shape[1:]), values.dtype) for values in found)
            for kept, values in zip(outputs, found, strict=True):
                kept[begin : begin + count] = values[:count]

        feeds = ((begin, self._feed(arrays, begin, begin + size)) for begin in range(0, rows, size))
        if self._requests == 1:
            self._one_by_one(feeds, keep)
        else:
            self._at_once(feeds, keep)
        return outputs

    def _one_by_one(self, feeds: Iterator[tuple[int, dict[int, Array]]], keep: Any) -> None:
        """Where one inference at a time is all there is room for: a queue would only add a change of threads."""
        request = self._compiled.create_infer_request()
        for begin, feed in feeds:
            request.infer(feed, share_inputs=True)
            keep(request, begin)

    def _at_once(self, feeds: Iterator[tuple[int, dict[int, Array]]], keep: Any) -> None:
        """As many inferences in flight as OpenVINO finds best for its streams."""
        requests = [self._compiled.create_infer_request() for _ in range(self._requests)]
        flying: list[tuple[Any, int, Any] | None] = [None] * len(requests)
        for number, (begin, feed) in enumerate(feeds):
            place = number % len(requests)
            self._land(flying, place, keep)
            requests[place].start_async(feed, share_inputs=True)
            flying[place] = (requests[place], begin, feed)  # the feed's memory is in use until it has landed
        for place in range(len(requests)):
            self._land(flying, place, keep)

    def _land(self, flying: list[tuple[Any, int, Any] | None], place: int, keep: Any) -> None:
        one = flying[place]
        if one is not None:
            one[0].wait()
            keep(one[0], one[1])
            flying[place] = None

    def _feed(self, arrays: Sequence[Array], begin: int, end: int) -> dict[int, Array]:
        feed = {}
        for place, (values, port) in enumerate(zip(arrays, self._inputs, strict=True)):
            rows = values[begin:end].astype(port.dtype, copy=False)
            if self._fixed and len(rows) < self._fixed:  # the surplus is cut off again
                rows = np.concatenate([rows, np.repeat(rows[-1:], self._fixed - len(rows), axis=0)])
            feed[place] = rows
        return feed


def lead_axes(shape: Sequence[int | None], port: Port) -> int:
    """How many axes of an array of this shape come before a row of this input: 1, or 2 for batches of rows.

    A length that is ``None`` is not known yet. Numbers count as rows of length 1 where the model wants these.
    """
    if port.shape is None:
        return 1
    row = port.shape[1:]
    extra = len(shape) - len(port.shape)
    if extra == -1 and row == (1,):
        return 1
    if extra in (0, 1) and all(
        want is None or have is None or want == have for want, have in zip(row, shape[1 + extra :], strict=True)
    ):
        return 1 + extra
    wanted, found = _shown(("rows", *row)), _shown(shape)
    raise SchemaError(
        f"input {port.name!r} of the model takes {wanted}, or one axis more in front for batches of rows; "
        f"the data has shape {found}",
        expected=wanted,
        found=found,
    )


def _shown(shape: Sequence[Any]) -> str:
    return f"({', '.join('?' if length is None else str(length) for length in shape)})"


def _as_rows(values: Array, port: Port, rows: int, axes: int) -> Array:
    """The array with one axis for all rows; a row of zeros where there is none."""
    row = values.shape[axes:]
    if not row and port.shape is not None and len(port.shape) == 2:
        row = (1,)  # numbers, where the model wants rows of length 1
    return np.ascontiguousarray(values.reshape(rows, *row)) if rows else np.zeros((1, *row), values.dtype)


@lru_cache(maxsize=_KEPT)
def compiled(
    file: ModelFile, config: tuple[tuple[str, Any], ...], threads: int
) -> tuple[ov.CompiledModel, int | None, tuple[Port, ...]]:
    """The model ready to run, its number of rows where that cannot be free, and its inputs. Once for each process.

    ``threads`` = 0 leaves their number to OpenVINO.
    """
    model, fixed = _free_rows(read(file))
    model = _in_numpy_types(model)
    own = dict(_DEFAULTS)
    if threads:
        own["INFERENCE_NUM_THREADS"] = threads
    if "INFERENCE_PRECISION_HINT" in dict(config):
        del own["EXECUTION_MODE_HINT"]
    return ov.Core().compile_model(model, "CPU", own | dict(config)), fixed, describe(model)[0]


def _free_rows(model: ov.Model) -> tuple[ov.Model, int | None]:
    """The model with a free number of rows; where that cannot be, as it is, with the number."""
    sizes = {_rows(port) for port in model.inputs}
    if sizes <= {None}:
        return model, None
    try:
        free = model.clone()
        free.reshape({port: _with_free_rows(port.partial_shape) for port in free.inputs})
        # An operation inside may insist on its rows. It then shows in what comes out.
        if all(_rows(port) is None for port in free.outputs):
            return free, None
    except RuntimeError:
        pass
    return model, max(size for size in sizes if size is not None)


def _rows(port: Any) -> int | None:
    shape = port.partial_shape
    return None if shape.rank.is_dynamic or len(shape) == 0 or shape[0].is_dynamic else shape[0].get_length()


def _with_free_rows(shape: Any) -> Any:
    return shape if shape.rank.is_dynamic else ov.PartialShape([ov.Dimension(), *list(shape)[1:]])


def _in_numpy_types(model: ov.Model) -> ov.Model:
    """bfloat16 ports speak float32, for NumPy has no such type."""
    steps = ov.preprocess.PrePostProcessor(model)
    is_changed = False
    for ports, part in ((model.inputs, steps.input), (model.outputs, steps.output)):
        for place, port in enumerate(ports):
            if port.element_type.to_string() == "bf16":
                part(place).tensor().set_element_type(ov.Type.f32)
                is_changed = True
    return steps.build() if is_changed else model
