"""``Estimator.from_openvino``: an OpenVINO model as plans for the engine. It only predicts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.plan import Map, positive
from firesteel.core.spec import Batch
from firesteel.data.frame import prediction_field
from firesteel.data.reading import Tensor
from firesteel.data.shards import XShards
from firesteel.data.sources import Columns, Frame, Local, as_dataset, is_frame, is_pandas
from firesteel.engine import local
from firesteel.engine.files import exists, local_path, read_bytes
from firesteel.engine.outputs import add_columns, contained
from firesteel.engine.score import score_frame
from firesteel.engine.scorer import make_scorer
from firesteel.frontends.estimator import Estimator
from firesteel.frontends.session import session_of

__all__ = ["OpenVINOEstimator"]

_KINDS = "an ndarray, a list of ndarrays (one for each input), an XShards, or a DataFrame with feature_cols"
_BLOCK_ROWS = 4096  # rows that a replica is given at once, to have several inferences in flight
_RENAMED = {"CPU_THREADS_NUM": "INFERENCE_NUM_THREADS"}
_DROPPED = ("CPU_BIND_THREAD",)


def _refusal(name: str) -> Callable[..., NoReturn]:
    """A method that is here because every estimator is asked for it, and says why there is nothing behind it."""

    def refuse(self: OpenVINOEstimator, *args: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"OpenVINO models only predict: there is no {name} for them. Train in torch or Keras, and export the model "
            f"with its estimator's to_openvino"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Not for OpenVINO models: ``UnsupportedError``."
    vars(refuse)["is_refused"] = True  # the support table asks
    return refuse


class OpenVINOEstimator(Estimator):
    """See ``Estimator.from_openvino``."""

    def __init__(self, model_path: str) -> None:
        try:
            self._framework: Any = registry.framework("openvino")
        except ImportError as error:
            raise PlanError(str(error)) from error
        self.load(model_path)

    # --- the model ---

    def load(self, model_path: str) -> None:
        """Another model in the place of this one."""
        path = os.fspath(model_path)
        file = _read(self._framework, path)
        self._model = self._framework.read(file, path)
        self._inputs, self._outputs = self._framework.describe(self._model)
        self._file = file

    def get_model(self) -> Any:
        """The ``openvino.Model``."""
        return self._model

    @property
    def inputs(self) -> list[str]:
        """Names of the model's inputs, in its order."""
        return [port.name for port in self._inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the model's outputs, in its order."""
        return [port.name for port in self._outputs]

    # --- prediction ---

    def predict(
        self,
        data: Any,
        feature_cols: Any = None,
        batch_size: int = 4,
        input_cols: Any = None,
        config: Mapping[str, Any] | None = None,
        *,
        output_cols: Any = None,
    ) -> Any:
        """Outputs for every row, in the shape of what was given: a DataFrame for a DataFrame, an array for an array.

        Data with one axis more than the model's input counts batches on the first and rows on the second; the result
        keeps both. On a DataFrame and an XShards it is lazy, and a DataFrame's schema comes from the model.

        Args:
            data: an ndarray, a list of them (one for each input), an XShards of ``{"x": …}`` or of pandas, a DataFrame.
            feature_cols: the columns of a DataFrame; as many as the model has inputs, or all joined into one.
            batch_size: rows of one inference. It never shows in the result.
            input_cols: which of the model's inputs each array or column is; default in the model's order.
            config: OpenVINO's properties, such as ``{"PERFORMANCE_HINT": "LATENCY"}``.
            output_cols: names for the output columns, one for each output; default ``prediction``.
        """
        size = positive(batch_size, "batch_size") or 1
        names = Columns.of(output_cols, None, None, "prediction").features
        columns = Columns.of(feature_cols, None, None, "prediction")
        places = self._places(input_cols)
        settings = self._settings(config)
        if not (isinstance(data, (np.ndarray, list, XShards)) or is_frame(data) or is_pandas(data)):
            raise UnsupportedError(
                f"data of type {type(data).__qualname__} cannot be used for prediction; this door takes {_KINDS}"
            )
        inputs = (len(self._inputs), len(self._inputs))
        source = None
        if not isinstance(data, XShards):
            source = as_dataset(data, columns, inputs=lambda: inputs, is_loader=lambda _: False, kinds=_KINDS)
        if names is not None and isinstance(source, Local) and not is_pandas(data):
            raise PlanError("output_cols names columns, and this data has none")
        # A table's outputs go by their names; those of arrays come in a list.
        is_table = isinstance(source, Frame) or is_pandas(data) or (source is None and columns.features is not None)
        program = self._framework.capture(
            self._file,
            batch_size=size,
            places=places,
            outputs=self._output_names(is_named=is_table),
            config=settings,
        )
        check = partial(self._check, places)
        if isinstance(source, Local):
            check(source.batch)
        elif isinstance(source, Frame):
            lead = self._lead(places, [_shape(tensor) for tensor in source.reading.tensors])
        spark = session_of(data)
        scorer = make_scorer(spark, Map(program, _BLOCK_ROWS, names))
        if source is None:
            return local.score_shards(data, scorer, columns, lambda: inputs, names, check)
        if isinstance(source, Frame):
            return score_frame(source.df, source.reading, scorer, names, self._schema(names, lead))
        assert isinstance(source, Local)
        batch = self._cast(places, source.batch)
        outputs = local.score_arrays(spark, scorer, batch, _slots(spark))
        return add_columns(data, outputs, names) if is_pandas(data) else contained(outputs)

    def shutdown(self) -> None:
        """Nothing is held between calls. May be called twice."""

    def __enter__(self) -> OpenVINOEstimator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    fit = _refusal("fit")
    evaluate = _refusal("evaluate")
    save = _refusal("save")
    save_checkpoint = _refusal("save_checkpoint")
    load_checkpoint = _refusal("load_checkpoint")
    load_orca_checkpoint = _refusal("load_orca_checkpoint")
    set_tensorboard = _refusal("set_tensorboard")
    get_train_summary = _refusal("get_train_summary")
    get_validation_summary = _refusal("get_validation_summary")
    set_constant_gradient_clipping = _refusal("set_constant_gradient_clipping")
    set_l2_norm_gradient_clipping = _refusal("set_l2_norm_gradient_clipping")
    clear_gradient_clipping = _refusal("clear_gradient_clipping")

    # --- from words to plans ---

    def _places(self, input_cols: Any) -> list[int]:
        """The number of the model's input that each array is."""
        if input_cols is None:
            return list(range(len(self._inputs)))
        wanted = [input_cols] if isinstance(input_cols, str) else list(input_cols)
        known = {name: place for place, port in enumerate(self._inputs) for name in port.names}
        places = [known.get(name) for name in wanted]
        if sorted(place for place in places if place is not None) != list(range(len(self._inputs))):
            raise PlanError(
                f"input_cols must name each of the model's inputs once, in any order: {', '.join(self.inputs)}; "
                f"not {', '.join(map(str, wanted)) or 'nothing'}"
            )
        return [place for place in places if place is not None]

    def _settings(self, config: Mapping[str, Any] | None) -> dict[str, Any]:
        if config is None:
            return {}
        if not isinstance(config, Mapping):
            raise PlanError(f"config must be a dict of OpenVINO's properties, not {type(config).__qualname__}")
        settings = {str(key): _plain(value) for key, value in config.items()}
        for old, new in _RENAMED.items():
            if old in settings:
                warnings.warn(f"{old} is now {new}, and taken as that", FutureWarning, stacklevel=3)
                value = settings.pop(old)
                settings.setdefault(new, int(value))
        for old in _DROPPED:
            if old in settings:
                warnings.warn(f"{old} has no meaning any more, and is left out", FutureWarning, stacklevel=3)
                del settings[old]
        self._framework.check_config(settings)
        return settings

    def _output_names(self, *, is_named: bool) -> list[str]:
        if len(self._outputs) == 1:
            return ["prediction"]
        return self.outputs if is_named else [f"_{place}" for place in range(len(self._outputs))]

    def _check(self, places: Sequence[int], batch: Batch) -> None:
        """Whether these arrays are what the model takes."""
        if any("." in name for name in batch):
            keys = ", ".join(name[2:] for name in batch)
            raise SchemaError(f"x must be an ndarray, or a list with one for each input; it is a dict with {keys}")
        self._lead(places, [values.shape for values in batch.values()])

    def _lead(self, places: Sequence[int], shapes: Sequence[Sequence[int | None]]) -> int:
        """How many axes come before a row's own: 1, or 2 where the data counts batches of rows."""
        ports = [self._inputs[place] for place in places]
        found = {self._framework.lead_axes(shape, port) for shape, port in zip(shapes, ports, strict=True)}
        if len(found) > 1:
            raise SchemaError(f"either all inputs have an axis that counts batches, or none; shapes: {shapes}")
        return int(found.pop())

    def _schema(self, names: tuple[str, ...] | None, lead: int) -> Any:
        """What the outputs become in a DataFrame; ``None`` where the model itself does not know."""
        from pyspark.sql.types import StructField, StructType

        if any(port.shape is None for port in self._outputs):
            return None
        fields = [
            prediction_field(name, (0,) * (len(port.shape) - 2 + lead), port.dtype)
            for name, port in zip(self.outputs, self._outputs, strict=True)
        ]
        if len(fields) > 1 and names is None:
            return StructType([StructField("prediction", StructType(fields))])
        return StructType(
            [StructField("prediction", field.dataType) for field in fields] if len(fields) == 1 else fields
        )

    def _cast(self, places: Sequence[int], batch: Batch) -> Batch:
        """The arrays in the model's own types, which are seldom wider: they are to travel."""
        kinds = [self._inputs[place].dtype for place in places]
        return {
            name: values.astype(kind, copy=False) for (name, values), kind in zip(batch.items(), kinds, strict=True)
        }


def _plain(value: Any) -> Any:
    """A property's value as it can travel: OpenVINO's own enumerations and types by their names."""
    if isinstance(value, (str, int, float)):
        return value
    return value.to_string() if hasattr(value, "to_string") else getattr(value, "name", str(value))


def _read(framework: Any, path: str) -> Any:
    """The model's files. An ONNX file on this machine is read by OpenVINO, which finds weights that lie beside it."""
    stem, ending = os.path.splitext(path)
    if ending not in (".xml", ".onnx"):
        raise PlanError(f"model_path must be an IR's .xml or an .onnx file, not {path}")
    files = [path] if ending == ".onnx" else [path, f"{stem}.bin"]
    for each in files:
        if not exists(each):
            beside = f"; an IR has its weights beside its .xml, here {path}" if each != path else ""
            raise FileNotFoundError(f"No such file: {each}{beside}")
    here = local_path(path)
    if ending == ".onnx" and here is not None:
        return framework.from_path(here)
    return framework.make_file(*(read_bytes(each) for each in files))


def _shape(tensor: Tensor) -> tuple[int | None, ...]:
    """What is known of the shape that columns become."""
    ranks = {"scalar": 0, "vector": 1, "image": 3}
    shapes = [
        column.shape if column.shape is not None else (None,) * ranks.get(column.kind, column.depth)
        for column in tensor.columns
    ]
    if len(shapes) == 1:
        return (None, *shapes[0])
    return (None, *(None,) * max(1, *(len(shape) for shape in shapes)))


def _slots(spark: Any) -> int:
    from firesteel.cluster.preflight import slots

    return slots(spark)
