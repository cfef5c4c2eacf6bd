"""``TFPredictor``: a graph's outputs, or a Keras model's, for every row of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError, UnsupportedError
from firesteel.core.plan import Map
from firesteel.core.program import Program
from firesteel.data.sources import Frame, Streamed
from firesteel.data.sources.kinds import Columns as Asked
from firesteel.engine.job import Stream
from firesteel.engine.rows import score_each
from firesteel.engine.score import score_frame
from firesteel.engine.scorer import make_scorer
from firesteel.frontends.graph_estimator import flattened
from firesteel.frontends.tfpark.dataset import TFDataset, dataset_of
from firesteel.frontends.tfpark.matching import check_model, keras_estimator
from firesteel.frontends.tfpark.origins import Columns, Streams
from firesteel.frontends.training import TrainingEstimator

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["TFPredictor", "check_scoring", "score_dataset"]

_ROWS = 256
_URI = "uri"


class TFPredictor:
    """Puts all rows of a dataset through a graph.

    The variables' values are taken from the session now: it may be closed afterwards.

    Args:
        sess: holds the values.
        outputs: tensors of one graph.
        inputs: the placeholders that rows are fed to; default the dataset's own.
        dataset: default the one whose tensors the outputs depend on.
    """

    def __init__(self, sess: Any, outputs: Any, inputs: Any = None, dataset: TFDataset | None = None) -> None:
        framework: Any = registry.framework("tfgraph")
        wanted = flattened(outputs)
        if not wanted or not all(framework.accepts(each) for each in wanted):
            raise PlanError("outputs must be tensors of a graph")
        found = dataset
        if found is None:
            found = dataset_of(flattened(inputs) or framework.placeholders(wanted))
        if found is None:
            raise PlanError("the outputs depend on no tensor of a TFDataset: build them on dataset.tensors")
        check_scoring(found)
        if inputs is None:
            feeds = found.feeds()
        else:
            given = flattened(inputs)
            if len(given) > len(found.layout.fields):
                raise PlanError(f"inputs are {len(given)} tensors, and the dataset has {len(found.layout.fields)}")
            feeds = dict(zip(found.layout.fields, given, strict=False))
        self.dataset = found
        self._names = [_op_name(tensor) for tensor in wanted]
        self._types = [(tensor.dtype.name, tensor.shape.rank) for tensor in wanted]
        self._program: Program = framework.capture(
            wanted,
            inputs=feeds,
            outputs={tensor.name: tensor for tensor in wanted},
            session=sess,
            initialize=False,
            is_by_row=not found.has_batch,
            rows=found.static_rows(),
        )
        self._estimator: TrainingEstimator | None = None

    @classmethod
    def from_outputs(cls, sess: Any, outputs: Any) -> TFPredictor:
        """The constructor."""
        return cls(sess, outputs)

    @classmethod
    def from_keras(cls, keras_model: Any, dataset: TFDataset) -> TFPredictor:
        """A Keras model's outputs for every row."""
        check_scoring(dataset, needs_batch=True)
        check_model(keras_model, dataset.layout, has_labels=False)
        made = cls.__new__(cls)
        made.dataset = dataset
        made._estimator = keras_estimator(keras_model)
        made._program = made._estimator.program(is_trained=False)
        made._names, made._types = [], []
        return made

    def predict(self) -> RDD[Any]:
        """One element for each row, lazily, in the rows' order and partitions: an array, or a list for several outputs.

        Images that have uris come as pairs of uri and prediction.
        """
        return score_dataset(self.dataset, self._program, self._estimator)

    def predict_dataframe(self, output_cols: Any = None) -> DataFrame:
        """The dataset's DataFrame with a column for each output appended; nothing runs.

        Args:
            output_cols: names for them; default the names of the outputs' ops.
        """
        origin = self.dataset.origin
        if not isinstance(origin, Columns):
            raise UnsupportedError("predict_dataframe is for a dataset made by from_dataframe; predict() gives an RDD")
        if self._estimator is not None:
            raise UnsupportedError("predict_dataframe is for graphs; a Keras model's Estimator predicts on DataFrames")
        names = self._names if output_cols is None else flattened(output_cols)
        if len(names) != len(self._names):
            raise SchemaError(f"output_cols has {len(names)} names, and there are {len(self._names)} outputs")
        spark = origin.session()
        scorer = make_scorer(spark, Map(self._program, _rows(self.dataset), tuple(map(str, names))))
        return score_frame(origin.df, origin.reading, scorer, tuple(map(str, names)), self._schema(names))

    def _schema(self, names: list[Any]) -> StructType:
        from pyspark.sql.types import ArrayType, StructField, StructType

        fields = []
        for name, (dtype, rank) in zip(names, self._types, strict=True):
            if rank is None:
                raise SchemaError(
                    f"output {name!r} has no known number of axes, so no column type; ensure_shape tells it"
                )
            kind: DataType = _spark_type(dtype, str(name))
            for _ in range(rank - (1 if self.dataset.has_batch else 0)):
                kind = ArrayType(kind)
            fields.append(StructField(str(name), kind))
        return StructType(fields)


def score_dataset(dataset: TFDataset, program: Program, estimator: TrainingEstimator | None = None) -> RDD[Any]:
    """A program's outputs for every row, lazily; a Keras model's come with its estimator."""
    origin, rows = dataset.origin, _rows(dataset)
    spark = origin.session()
    scorer = make_scorer(spark, Map(program, rows))
    if estimator is not None and isinstance(origin, Streams):
        source = estimator.source_of(origin.plain()[0], Asked.of(None, None, None, "prediction"))
    else:
        source = origin.source(rows)
    if isinstance(source, Streamed):
        return score_each(spark, scorer, source, Stream(source.source, source.is_creator, {}, rows))
    predictions = score_each(spark, scorer, source)
    if isinstance(origin, Columns) and _URI in origin.df.columns and isinstance(source, Frame):
        return origin.df.select(_URI).rdd.map(lambda row: row[0]).zip(predictions)
    return predictions


def check_scoring(dataset: Any, *, needs_batch: bool = False) -> None:
    """Whether a dataset is one for prediction and evaluation."""
    if not isinstance(dataset, TFDataset):
        raise PlanError(f"dataset must be a TFDataset, not {type(dataset).__qualname__}")
    if dataset.batch_size > 0 or (needs_batch and not dataset.has_batch):
        raise PlanError("prediction and evaluation need a dataset with batch_per_thread, not batch_size: set it there")


def _rows(dataset: TFDataset) -> int:
    return dataset.batch_per_thread if dataset.batch_per_thread > 0 else _ROWS


def _op_name(tensor: Any) -> str:
    name, _, place = tensor.name.partition(":")
    return name if place in ("", "0") else f"{name}_{place}"


def _spark_type(dtype: str, name: str) -> DataType:
    from pyspark.sql import types

    known: dict[str, type[DataType]] = {
        "float64": types.DoubleType,
        "float32": types.FloatType,
        "float16": types.FloatType,
        "bfloat16": types.FloatType,
        "int64": types.LongType,
        "int32": types.IntegerType,
        "int16": types.ShortType,
        "int8": types.ByteType,
        "uint8": types.ShortType,
        "bool": types.BooleanType,
        "string": types.BinaryType,
    }
    if dtype not in known:
        raise SchemaError(f"output {name!r} is of {dtype}, for which Spark has no column type; cast it in the graph")
    return known[dtype]()
