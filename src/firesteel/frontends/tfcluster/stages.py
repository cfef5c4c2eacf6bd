"""``TFEstimator`` and ``TFModel``: a cluster's program, and what it exports, as stages of Spark ML."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLWritable

from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.imports import follow
from firesteel.core.plan import Map
from firesteel.core.spec import TensorSpec
from firesteel.data.arrow import Column
from firesteel.data.frame import columns_of
from firesteel.data.reading import Reading, Tensor
from firesteel.engine.score import score_frame
from firesteel.engine.scorer import Scorer, make_scorer
from firesteel.frontends.pipeline.persistence import Fetch, StageReader, StageWriter
from firesteel.frontends.pipeline.references import refer
from firesteel.frontends.tfcluster import parallel, params
from firesteel.frontends.tfcluster.cluster import InputMode, TFCluster
from firesteel.frontends.tfcluster.folders import local_folder, read_folder, write_folder
from firesteel.frontends.tfcluster.params import Namespace, TFParams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

__all__ = ["TFEstimator", "TFModel"]

_TYPES = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "uint8": "short",
    "uint16": "integer",
    "uint32": "long",
    "bfloat16": "float",
    "float16": "float",
    "float32": "float",
    "float64": "double",
    "string": "string",
}
"""By a tensor's dtype: Spark's type of one value."""


class TFEstimator(
    TFParams,
    params.HasInputMapping,
    params.HasClusterSize,
    params.HasNumPS,
    params.HasInputMode,
    params.HasMasterNode,
    params.HasProtocol,
    params.HasReaders,
    params.HasGraceSecs,
    params.HasTensorboard,
    params.HasModelDir,
    params.HasExportDir,
    params.HasTFRecordDir,
    params.HasBatchSize,
    params.HasEpochs,
    params.HasSteps,
    params.HasTimeouts,
    Estimator["TFModel"],
    MLReadable[Any],
    MLWritable,
):
    """A program that is fed a DataFrame on a cluster, and exports a model.

    Args:
        train_fn: ``train_fn(args, ctx)``, as for ``TFCluster.run``. Its ``args`` are ``tf_args`` with all Params.
        tf_args: a dict, an ``argparse.Namespace``, a ``Namespace``, or a list of words, which goes on as it is.
        export_fn: ``export_fn(args)``, run once on one node after the training; needs ``export_dir``.
    """

    __module__ = "firesteel.tfcluster"

    def __init__(
        self, train_fn: Callable[[Any, Any], Any], tf_args: Any, export_fn: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        self.train_fn = train_fn
        self.args = Namespace(tf_args)
        self.export_fn = export_fn
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            readers=1,
            grace_secs=30.0,
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            steps=1000,
            feed_timeout=600.0,
            reservation_timeout=600.0,
        )

    def _fit(self, dataset: DataFrame) -> TFModel:
        """Train on the mapped columns, in sorted order; all of them, in the DataFrame's, where none is mapped."""
        if self.getOrDefault("input_mode") != InputMode.SPARK:
            raise PlanError("TFEstimator feeds its program: input_mode must be InputMode.SPARK")
        self._positive("cluster_size", "batch_size", "epochs")
        if self.export_fn is not None and self.getOrDefault("export_dir") is None:
            raise PlanError("export_fn needs a place to export to: setExportDir")
        wanted = sorted(self.getOrDefault("input_mapping")) or dataset.columns
        _require_columns(dataset, wanted)
        context = dataset.sparkSession.sparkContext
        merged = self.merge_args_params()
        arguments: Any = merged if merged.argv is None else merged.argv
        with TFCluster.run(
            context,
            self.train_fn,
            arguments,
            self.getOrDefault("cluster_size"),
            self.getOrDefault("num_ps"),
            self.getOrDefault("tensorboard"),
            InputMode.SPARK,
            driver_ps_nodes=self.getOrDefault("driver_ps_nodes"),
            master_node=self.getOrDefault("master_node"),
            reservation_timeout=self.getOrDefault("reservation_timeout"),
        ) as cluster:
            cluster.train(
                dataset.select(*map(_quoted, wanted)), self.getOrDefault("epochs"), self.getOrDefault("feed_timeout")
            )
        if self.export_fn is not None:
            parallel.run(context, partial(_export, self.export_fn), arguments, 1)
        model: TFModel = self._copyValues(TFModel(self.args))
        return model

    def write(self) -> StageWriter:
        """Spark's writer. Functions are saved as their import paths."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        facts = {"train_fn": refer(self.train_fn, "train_fn"), "export_fn": refer(self.export_fn, "export_fn")}
        return {**facts, "tf_args": _arguments(self.args)}, {}, set()

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch) -> TFEstimator:
        export_fn = facts["export_fn"]
        return cls(
            follow(facts["train_fn"]["import"]),
            facts["tf_args"],
            None if export_fn is None else follow(export_fn["import"]),
        )


def _export(export_fn: Callable[[Any], Any], arguments: Any, ctx: Any) -> None:
    export_fn(arguments)


class TFModel(
    TFParams,
    params.HasInputMapping,
    params.HasOutputMapping,
    params.HasModelDir,
    params.HasExportDir,
    params.HasBatchSize,
    params.HasSignatureDefKey,
    params.HasTagSet,
    Model,
    MLReadable[Any],
    MLWritable,
):
    """A SavedModel (``export_dir``), or a TensorFlow 1 checkpoint (``model_dir``), that adds columns to a DataFrame.

    Args:
        tf_args: as for ``TFEstimator``; kept, and not used.
    """

    __module__ = "firesteel.tfcluster"

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._kept: _Kept | None = None
        self._scorers: dict[str, tuple[Scorer, list[TensorSpec], list[TensorSpec]]] = {}
        self._setDefault(
            input_mapping={},
            output_mapping={},
            model_dir=None,
            export_dir=None,
            batch_size=100,
            signature_def_key=None,
            tag_set=None,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """The DataFrame's columns, then the mapped tensors', in their sorted order."""
        inputs, outputs = self.getOrDefault("input_mapping"), self.getOrDefault("output_mapping")
        if not inputs or not outputs:
            raise PlanError(
                "TFModel needs to know what is what: setInputMapping({column: tensor}) and "
                "setOutputMapping({tensor: column})"
            )
        self._positive("batch_size")
        names = [outputs[tensor] for tensor in sorted(outputs)]
        _require_columns(dataset, inputs)
        _require_new(dataset, names)
        scorer, fed, made = self._open(dataset)
        by_tensor = {tensor: column for column, tensor in inputs.items()}
        reading = Reading(tuple(_tensor(dataset, by_tensor[spec.name], spec) for spec in fed))
        from pyspark.sql.types import StructType

        schema = StructType([_field(name, spec) for name, spec in zip(names, made, strict=True)])
        return score_frame(dataset, reading, scorer, tuple(names), schema)

    def _open(self, dataset: DataFrame) -> tuple[Scorer, list[TensorSpec], list[TensorSpec]]:
        """The model, packed for the workers, and its ends; kept, so that their processes know it again."""
        spark = dataset.sparkSession
        inputs, outputs = self.getOrDefault("input_mapping"), self.getOrDefault("output_mapping")
        names = (sorted(inputs.values()), sorted(outputs))
        settings = [self.getOrDefault(name) for name in ("batch_size", "signature_def_key", "tag_set")]
        with self._folder(spark) as (folder, is_saved_model, mark):
            key = json.dumps([names, settings, mark, spark.sparkContext.applicationId])
            if key not in self._scorers:
                bench: Any = registry.framework("tfgraph")
                tags = (self.getOrDefault("tag_set") or "serve").split(",")
                signature = self.getOrDefault("signature_def_key") or "serving_default"
                opened = (
                    bench.open_saved_model(folder, tags, signature) if is_saved_model else bench.open_checkpoint(folder)
                )
                fed, made = bench.specs_of(opened, names[0], "inputs"), bench.specs_of(opened, names[1], "outputs")
                ends = {
                    side: {spec.name: getattr(opened, side).get(spec.name, spec.name) for spec in specs}
                    for side, specs in (("inputs", fed), ("outputs", made))
                }
                program = bench.capture(opened, **ends)
                scorer = make_scorer(spark, Map(program, self.getOrDefault("batch_size"), tuple(outputs)))
                self._scorers[key] = (scorer, fed, made)
            return self._scorers[key]

    @contextlib.contextmanager
    def _folder(self, spark: Any) -> Iterator[tuple[str, bool, Any]]:
        """A local folder with the model, whether it is a SavedModel, and what tells it from another one."""
        place = self._place()
        if self._kept is not None and self._kept.place == place:
            with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
                write_folder(folder, self._kept.files)
                yield folder, self._kept.is_saved_model, place
            return
        if place is None:
            raise PlanError("TFModel needs a model: setExportDir to a SavedModel, or setModelDir to a checkpoint")
        is_saved_model = self.getOrDefault("export_dir") is not None
        with local_folder(spark, place) as folder:
            stamps = sorted((name, os.stat(os.path.join(folder, name)).st_mtime_ns) for name in os.listdir(folder))
            yield folder, is_saved_model, [place, stamps]

    def _place(self) -> str | None:
        found = self.getOrDefault("export_dir") or self.getOrDefault("model_dir")
        return None if found is None else str(found)

    def write(self) -> StageWriter:
        """Spark's writer. The model's own files are saved with the stage."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        from pyspark.sql import SparkSession

        with self._folder(SparkSession.builder.getOrCreate()) as (folder, is_saved_model, _):
            files = read_folder(folder)
        facts = {"tf_args": _arguments(self.args), "place": self._place(), "is_saved_model": is_saved_model}
        return facts, {f"model/{name}": data for name, data in files.items()}, set()

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch) -> TFModel:
        made = cls(facts["tf_args"])
        files = {name.removeprefix("model/"): fetch(name) for name in facts["files"]}
        made._kept = _Kept(facts["place"], facts["is_saved_model"], files)
        return made


class _Kept:
    """The files of a model that was saved with its stage, in place of the folder that they came from."""

    def __init__(self, place: str | None, is_saved_model: bool, files: Mapping[str, bytes]) -> None:
        self.place, self.is_saved_model, self.files = place, is_saved_model, files


def _arguments(args: Namespace) -> Any:
    """A program's arguments as JSON has them; ``PlanError`` names one that it cannot have."""
    if args.argv is not None:
        return [str(word) for word in args.argv]
    for name, value in vars(args).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise PlanError(f"tf_args has a {name!r} that cannot be saved as JSON: {value!r}") from error
    return dict(vars(args))


def _require_columns(dataset: DataFrame, names: Sequence[str] | Mapping[str, Any]) -> None:
    for name in names:
        if name not in dataset.columns:
            raise SchemaError(
                f"input_mapping names a column {name!r} that is not there; there are: {', '.join(dataset.columns)}",
                column=name,
            )


def _require_new(dataset: DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name in dataset.columns or names.count(name) > 1:
            raise SchemaError(
                f"output_mapping would make a column {name!r} that is there already; there are: "
                f"{', '.join(dataset.columns)}",
                column=name,
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _tensor(dataset: DataFrame, name: str, spec: TensorSpec) -> Tensor:
    """The tensor that a column is fed to; numbers are read as the model has them."""
    (column,) = columns_of(dataset.schema, [name], role="input", allow_strings=True)
    return Tensor(spec.name, (_widened(column, spec),))


def _widened(column: Column, spec: TensorSpec) -> Column:
    """Doubles stay doubles where the model takes them."""
    return replace(column, dtype="float64") if (column.dtype, spec.dtype) == ("float32", "float64") else column


def _field(name: str, spec: TensorSpec) -> StructField:
    """The column of an output: a value, or arrays as deep as a row has dimensions."""
    from pyspark.sql.types import ArrayType, DataType, StructField, _parse_datatype_string

    if spec.dtype not in _TYPES:
        raise SchemaError(
            f"output {spec.name!r} is of dtype {spec.dtype}, for which Spark has no column type", column=name
        )
    kind: DataType = _parse_datatype_string(_TYPES[spec.dtype])
    for _ in spec.shape:
        kind = ArrayType(kind)
    return StructField(name, kind)
