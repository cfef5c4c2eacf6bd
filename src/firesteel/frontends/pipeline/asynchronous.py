"""``SparkAsyncDL``: a TensorFlow graph trained asynchronously against a parameter server, as a stage of Spark ML."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLWritable

from firesteel.core.errors import PlanError
from firesteel.core.plan import Map, Turns
from firesteel.data.sources import Frame
from firesteel.engine.score import sample, score_frame
from firesteel.engine.scorer import Scorer, make_scorer
from firesteel.engine.servers import check_reachable
from firesteel.engine.turns import train_in_turns
from firesteel.frontends.pipeline.columns import Finish, check_new
from firesteel.frontends.pipeline.failures import as_failures
from firesteel.frontends.pipeline.graphs import (
    bench,
    feeds_of,
    open_text,
    read_columns,
    scoring_program,
    training_program,
)
from firesteel.frontends.pipeline.optimizers import check_optimizer, options_of
from firesteel.frontends.pipeline.params import Stage, declare, flag, optional, real, size, text, whole
from firesteel.frontends.pipeline.persistence import Fetch, StageReader, StageWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkAsyncDL", "SparkAsyncDLModel"]

_log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_GRAPH, _WEIGHTS = "graph.json", "weights.safetensors"


class SparkAsyncDL(Stage, Estimator[Any], MLReadable[Any], MLWritable):
    """Trains a graph of ``build_graph`` on the partitions of a DataFrame, each on its own.

    A parameter server beside the driver holds the weights: partitions pull them, push gradients, and do not wait for
    each other; with ``acquireLock`` a pull never sees weights in the middle of an update. Params by keyword; see
    ``explainParams``.
    """

    __module__ = "firesteel.pipeline"

    inputCol = declare("inputCol", "feature column: vector, array or number", text, "transformed")
    labelCol = declare("labelCol", "label column: number, vector or array", optional(text), None)
    predictionCol = declare("predictionCol", "column that the model adds", text, "predicted")
    tensorflowGraph = declare("tensorflowGraph", "the graph, from build_graph", text, "")
    tfInput = declare("tfInput", "placeholder fed with features", text, "x:0")
    tfLabel = declare("tfLabel", "placeholder fed with labels; None: unsupervised", optional(text), None)
    tfOutput = declare("tfOutput", "tensor that transform evaluates", text, "out/Sigmoid:0")
    tfOptimizer = declare("tfOptimizer", "name of the optimizer", check_optimizer, "adam")
    tfLearningRate = declare("tfLearningRate", "learning rate of the optimizer", real, 0.01)
    optimizerOptions = declare("optimizerOptions", "JSON object of the optimizer's options", optional(text), None)
    iters = declare("iters", "passes over each partition, in a round", whole, 1000)
    partitions = declare("partitions", "at most so many partitions train", whole, 5)
    miniBatchSize = declare("miniBatchSize", "rows of a step in one partition; -1: all of them", size, 128)
    miniStochasticIters = declare(
        "miniStochasticIters", "random mini-batches in an iter; -1: all mini-batches in turn", size, -1
    )
    shufflePerIter = declare("shufflePerIter", "a new order of the rows in each iter", flag, True)
    partitionShuffles = declare("partitionShuffles", "rounds; between them rows are spread anew", whole, 1)
    acquireLock = declare("acquireLock", "False: Hogwild; True: a readers-writer lock at the server", flag, False)
    tfDropout = declare("tfDropout", "dropout placeholder, fed in transform only", optional(text), None)
    toKeepDropout = declare("toKeepDropout", "whether the dropout placeholder means what is kept", flag, False)
    verbose = declare("verbose", "above 0: the loss after each iter, on the driver", whole, 0)
    port = declare("port", "preferred port of the server; taken, or 0: any free one", whole, 5000)
    seed = declare("seed", "of orders, random batches and initial weights", whole, 0)

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.setParams(**params)

    def getAqcuireLock(self) -> bool:
        """``getAcquireLock`` under its old spelling."""
        return bool(self._value("acquireLock"))

    # --- training ---

    def _fit(self, dataset: DataFrame) -> SparkAsyncDLModel:
        spark = dataset.sparkSession
        check_reachable(spark, "SparkAsyncDL.fit")
        for name in ("iters", "partitions", "partitionShuffles"):
            if self._value(name) < 1:
                raise PlanError(f"{name} must be at least 1, not {self._value(name)}")
        label, column = self._value("tfLabel"), self._value("labelCol")
        if label is not None and column is None:
            raise PlanError(f"tfLabel={label!r} needs a labelCol to be fed from; the DataFrame has: {_names(dataset)}")
        graph = self._value("tensorflowGraph")
        opened = open_text(graph)
        _check_dropout(opened, self._value("tfDropout"))
        options = options_of(self._value("optimizerOptions"), self._value("tfLearningRate"))
        program, feeds = training_program(
            graph,
            inputs=self._value("tfInput"),
            label=label,
            output=self._value("tfOutput"),
            optimizer=bench().optimizer(self._value("tfOptimizer"), options),
            seed=self._value("seed"),
        )
        rows, draws = self._value("miniBatchSize"), self._value("miniStochasticIters")
        plan = Turns(
            program,
            partitions=self._value("partitions"),
            iters=self._value("iters"),
            rows=None if rows == -1 else rows,
            draws=None if draws == -1 else draws,
            shuffle=self._value("shufflePerIter"),
            rounds=self._value("partitionShuffles"),
            is_locked=self._value("acquireLock"),
            seed=self._value("seed"),
            reports=self._value("verbose") > 0,
            port=self._value("port"),
        )
        reading = read_columns(dataset, self._value("inputCol"), None if label is None else column, feeds)
        with as_failures():
            state = train_in_turns(spark, plan, Frame(dataset, reading), _print_loss if plan.reports else None)
        model = SparkAsyncDLModel(modelJson=graph)
        model._values = bench().unpack(state["model"])
        self._copyValues(model)
        return model

    # --- Spark ML ---

    def write(self) -> StageWriter:
        """Spark's writer; see ``persistence``."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        return {}, {_GRAPH: self._value("tensorflowGraph").encode()}, {"tensorflowGraph"}

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch) -> SparkAsyncDL:
        graph = fetch(_GRAPH).decode()
        return cls(tensorflowGraph=graph) if graph else cls()


class SparkAsyncDLModel(Stage, Model, MLReadable[Any], MLWritable):
    """A trained graph that adds its output to a DataFrame. Made by ``SparkAsyncDL.fit``, or from texts.

    Params by keyword: ``modelJson`` is a graph's text, ``modelWeights`` a JSON list of nested lists, one for each
    trainable variable in the graph's order.
    """

    __module__ = "firesteel.pipeline"

    inputCol = declare("inputCol", "feature column: vector, array or number", text, "encoded")
    modelJson = declare("modelJson", "the graph, from build_graph", text, "")
    modelWeights = declare("modelWeights", "weights as JSON, one nested list for each trainable variable", text, "")
    tfInput = declare("tfInput", "placeholder fed with features", text, "x:0")
    tfOutput = declare("tfOutput", "tensor that is evaluated", text, "out/Sigmoid:0")
    tfDropout = declare("tfDropout", "dropout placeholder", optional(text), None)
    toKeepDropout = declare("toKeepDropout", "True: it is fed 1.0; False: it is fed 0.0", flag, False)
    predictionCol = declare("predictionCol", "column that is added", text, "predicted")
    batchSize = declare("batchSize", "rows of a call", whole, 1024)

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._values: dict[str, Array] | None = None
        self._scorers: dict[Any, tuple[Scorer, Any]] = {}
        self.setParams(**params)

    def getWeights(self) -> list[Array]:
        """The trainable variables' values, in the graph's order."""
        opened = open_text(self._value("modelJson"))
        values = self._all_values(opened)
        names = bench().trainable(opened) or list(values)
        return [values[name].copy() for name in names if name in values]

    def saveTensorflow(self, path: str) -> str:
        """Write a SavedModel with the signature ``serving_default``: input ``x0``, output ``prediction``."""
        bench().save(self._program(), path)
        return path

    # --- scoring ---

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if self._value("batchSize") < 1:
            raise PlanError(f"batchSize must be at least 1, not {self._value('batchSize')}")
        name = self._value("predictionCol")
        finish = Finish((name,))
        check_new(dataset, [name])
        scorer, program = self._scorer(dataset, finish)
        reading = read_columns(dataset, self._value("inputCol"), None, feeds_of(program))
        schema = self._schema(dataset, reading, scorer, finish, program)
        return score_frame(dataset, reading, scorer, (name,), schema)

    def _program(self) -> Any:
        opened = open_text(self._value("modelJson"))
        _check_dropout(opened, self._value("tfDropout"), needs_default=False)
        return scoring_program(
            opened,
            inputs=self._value("tfInput"),
            output=self._value("tfOutput"),
            dropout=self._value("tfDropout"),
            keeps=self._value("toKeepDropout"),
            values=self._all_values(opened),
        )

    def _scorer(self, dataset: DataFrame, finish: Finish) -> tuple[Scorer, Any]:
        """Packed once, so that processes know it again."""
        spark = dataset.sparkSession
        told = ("modelJson", "modelWeights", "tfInput", "tfOutput", "tfDropout", "toKeepDropout", "batchSize")
        key = (finish, str(getattr(spark, "session_id", id(spark))), *(self._value(name) for name in told))
        if key not in self._scorers:
            program = self._program()
            scorer = make_scorer(spark, Map(program, self._value("batchSize"), finish.names, finish))
            self._scorers[key] = scorer, program
        return self._scorers[key]

    def _schema(self, dataset: DataFrame, reading: Any, scorer: Scorer, finish: Finish, program: Any) -> Any:
        """The column's type: as the graph says it, else from a row of zeros on the driver."""
        known = bench().output_shape(program)
        if known is not None:
            return finish.schema({finish.columns[0]: np.zeros((0, *known) if np.prod(known) != 1 else 0)})
        feed = feeds_of(program)["x0"]
        if feed.shape is not None and None not in feed.shape[1:]:
            batch: Any = {"x0": np.zeros((1, *feed.shape[1:]), np.float32)}
        else:
            batch = sample(dataset, reading)
        if batch is None:
            raise PlanError("neither the graph nor the DataFrame, which has no rows, says what the output looks like")
        return finish.schema(scorer.try_out(batch))

    def _all_values(self, opened: Any) -> dict[str, Array]:
        if self._values is not None:
            return self._values
        given = self._value("modelWeights")
        if not given:
            return {}
        names = bench().trainable(opened)
        try:
            listed = json.loads(given)
        except ValueError as error:
            raise PlanError(f"modelWeights is not JSON: {error}") from error
        if not isinstance(listed, list) or len(listed) != len(names):
            found = len(listed) if isinstance(listed, list) else type(listed).__name__
            raise PlanError(
                f"modelWeights must be a JSON list of {len(names)} arrays, one for each of {', '.join(names)}, not "
                f"{found}"
            )
        return {name: np.asarray(value, np.float32) for name, value in zip(names, listed, strict=True)}

    # --- Spark ML ---

    def write(self) -> StageWriter:
        """Spark's writer; see ``persistence``."""
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """Spark's reader."""
        return StageReader(cls)

    def _contents(self) -> tuple[dict[str, Any], dict[str, bytes], set[str]]:
        files = {_GRAPH: self._value("modelJson").encode()}
        if self._values is not None:
            files[_WEIGHTS] = bench().pack(self._values)
        return {"has_values": self._values is not None}, files, {"modelJson"}

    @classmethod
    def _from_contents(cls, facts: dict[str, Any], fetch: Fetch) -> SparkAsyncDLModel:
        graph = fetch(_GRAPH).decode()
        found = cls(modelJson=graph) if graph else cls()
        if facts["has_values"]:
            found._values = bench().unpack(fetch(_WEIGHTS))
        return found


def _print_loss(loss: float, iteration: int, partition: int) -> None:
    print(f"partition {partition}, iteration {iteration}: loss {loss:.6g}")  # noqa: T201 - what verbose asks for


def _check_dropout(opened: Any, dropout: str | None, *, needs_default: bool = True) -> None:
    """A dropout placeholder that training could not feed is refused."""
    if dropout is None:
        return
    kind = bench().kind_of(opened, dropout)
    if needs_default and kind in ("Placeholder", "PlaceholderV2"):
        raise PlanError(
            f"the dropout placeholder {dropout!r} has no default, and nothing feeds it in training: make it with "
            f"tf.placeholder_with_default"
        )


def _names(dataset: DataFrame) -> str:
    return ", ".join(dataset.columns)
