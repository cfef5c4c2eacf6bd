"""What may be trained on, each kind once; and what may not, told before Spark does any work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from firesteel import Estimator, XShards
from firesteel.core.errors import NotEnoughSlots, PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.learn.pytorch.callbacks import MainCallback
from frontends.modules import Apply, Pair, linear

COUNT = 22
X = np.random.default_rng(3).random((COUNT, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32) + 0.1).astype(np.float32)
TENSORS = torch.from_numpy(X), torch.from_numpy(Y)
RATE = 0.1


def estimator(model: Any = None, **parts: Any) -> Any:
    model = linear() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE) if list(model.parameters()) else None
    return Estimator.from_torch(**{"model": model, "optimizer": optimizer, "loss": nn.MSELoss(), **parts})


def one_step() -> np.ndarray:
    """The weights that plain torch has after one step on all rows."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    nn.MSELoss()(model(TENSORS[0])[:, 0], TENSORS[1]).backward()
    optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


# --- each kind of data, with as many rows as the batch: the step is that of plain torch ---


def own_rows(config: dict[str, Any], batch_size: int) -> Any:
    mine = slice(config["rank"], None, config["num_shards"])
    return DataLoader(TensorDataset(TENSORS[0][mine], TENSORS[1][mine]), batch_size=batch_size)


def columns(spark: SparkSession) -> DataFrame:
    rows = [(*map(float, x), float(y)) for x, y in zip(X, Y, strict=True)]
    return spark.createDataFrame(rows, "a double, b float, c double, y double").repartition(4)


def table() -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y})


def shards(sc: SparkContext, make: Callable[[slice], Any]) -> XShards:
    cuts = [slice(0, 2), slice(2, 2), slice(2, 20), slice(20, COUNT)]
    return XShards(sc.parallelize([make(cut) for cut in cuts], 3))


ABC = {"feature_cols": ["a", "b", "c"], "label_cols": ["y"]}
KINDS: dict[str, Callable[[SparkSession], tuple[Any, dict[str, Any]]]] = {
    "columns": lambda spark: (columns(spark), ABC),
    "dict shards": lambda spark: (shards(spark.sparkContext, lambda cut: {"x": X[cut], "y": Y[cut]}), {}),
    "pandas shards": lambda spark: (shards(spark.sparkContext, lambda cut: table()[cut]), ABC),
    "rows of an RDD": lambda spark: (spark.sparkContext.parallelize(list(zip(X, Y, strict=True)), 3), {}),
    "arrays": lambda spark: ((X, Y), {}),
    "loader": lambda spark: (DataLoader(TensorDataset(*TENSORS), batch_size=COUNT), {"batch_size": None}),
    "sharded loader": lambda spark: (
        DataLoader(TensorDataset(*TENSORS), batch_size=COUNT, sampler=DistributedSampler(range(COUNT), 1, 0)),
        {"batch_size": None},
    ),
    "creator of a loader": lambda spark: (
        lambda config, batch_size: DataLoader(TensorDataset(*TENSORS), batch_size=batch_size),
        {},
    ),
    "creator of its own rows": lambda spark: (own_rows, {"auto_shard": False}),
}
"""What differs on its way into a training; other kinds share one of these ways, and test_evaluate has them all."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_all_rows_is_that_of_plain_torch(spark: SparkSession, kind: str) -> None:
    data, options = KINDS[kind](spark)
    est = estimator(workers_per_node=2)
    history = est.fit(data, **{"batch_size": COUNT, "verbose": 0, **options})
    assert history[0]["num_samples"] == COUNT
    assert history[0]["batch_count"] == 1
    found = nn.utils.parameters_to_vector(est.get_model().parameters()).detach().numpy()
    np.testing.assert_allclose(found, one_step(), atol=1e-6)


def test_two_inputs_and_weights(spark: SparkSession) -> None:
    """Two replicas, arrays in a list, and weights that make half of the rows count for nothing."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.scale * (left + right)

    est = estimator(Sum(), workers_per_node=2)
    one = np.ones(4, np.float32)
    est.fit(([one, one], 0 * one, np.array([1, 0, 1, 0], np.float32)), batch_size=4, verbose=0)
    assert est.get_model().scale.item() == pytest.approx(1 - RATE * 2 * 2 * 2 / 2)


# --- what is wrong is told at the call ---


@pytest.fixture(scope="module")
def endless(spark: SparkSession) -> DataFrame:
    """So many rows that nobody looks at all of them."""
    return spark.range(0, 10**12, 1, 4).select(
        F.col("id").cast("double").alias("x"),
        F.col("id").cast("double").alias("y"),
        F.current_date().alias("day"),
        F.col("id").cast("string").alias("word"),
        F.array(F.lit(1.0)).alias("many"),
        F.map_from_arrays(F.array(F.lit("k")), F.array("id")).alias("map"),
        F.encode(F.lit("a"), "utf-8").alias("raw"),
    )


XY = {"feature_cols": "x", "label_cols": "y"}
FRAME_ERRORS: dict[str, tuple[type[Exception], str, Callable[[Any, DataFrame], Any]]] = {
    "no features in fit": (
        SchemaError,
        "feature columns is None.*training",
        lambda est, df: est.fit(df, label_cols="y"),
    ),
    "no labels in fit": (SchemaError, "label columns is None.*training", lambda est, df: est.fit(df, feature_cols="x")),
    "no labels in evaluate": (SchemaError, "label columns is None", lambda est, df: est.evaluate(df, feature_cols="x")),
    "no features in predict": (SchemaError, "feature columns is None.*prediction", lambda est, df: est.predict(df)),
    "no such feature": (
        SchemaError,
        "'z'.*x, y, day",
        lambda est, df: est.fit(df, feature_cols=["x", "z"], label_cols="y"),
    ),
    "no such label": (SchemaError, "label column 'z'", lambda est, df: est.fit(df, feature_cols="x", label_cols="z")),
    "no such weight": (SchemaError, "'z'", lambda est, df: est.fit(df, sample_weight_col="z", **XY)),
    "weights that are arrays": (SchemaError, "'many'", lambda est, df: est.fit(df, sample_weight_col="many", **XY)),
    "a date": (SchemaError, "'day'.*date.*unix_date", lambda est, df: est.predict(df, feature_cols="day")),
    "a string": (SchemaError, "'word'.*string.*cast", lambda est, df: est.predict(df, feature_cols=["x", "word"])),
    "a map among others": (SchemaError, "'map'", lambda est, df: est.predict(df, feature_cols=["x", "map"])),
    "bytes": (SchemaError, "'raw'.*as_tensor_column", lambda est, df: est.predict(df, feature_cols="raw")),
    "not a name": (SchemaError, "feature_cols.*3", lambda est, df: est.predict(df, feature_cols=3)),
    "no names": (SchemaError, "feature_cols", lambda est, df: est.predict(df, feature_cols=[])),
    "one column for two inputs": (
        SchemaError,
        "takes 2 inputs.*1 feature col",
        lambda est, df: estimator(Pair()).predict(df, feature_cols="x"),
    ),
    "three columns for two inputs": (
        SchemaError,
        "takes 2 inputs.*3 feature col",
        lambda est, df: estimator(Pair()).predict(df, feature_cols=["x", "y", "x"]),
    ),
    "batch_size in fit": (PlanError, "batch_size.*0", lambda est, df: est.fit(df, batch_size=0, **XY)),
    "batch_size in evaluate": (PlanError, "batch_size.*2.5", lambda est, df: est.evaluate(df, batch_size=2.5, **XY)),
    "batch_size in predict": (PlanError, "batch_size.*-1", lambda est, df: est.predict(df, -1, "x")),
    "epochs": (PlanError, "epochs.*0", lambda est, df: est.fit(df, epochs=0, **XY)),
    "epochs as a string": (PlanError, "epochs.*'3'", lambda est, df: est.fit(df, epochs="3", **XY)),
    "steps_per_epoch": (PlanError, "steps_per_epoch", lambda est, df: est.fit(df, steps_per_epoch=0, **XY)),
    "max_steps": (PlanError, "max_steps", lambda est, df: est.fit(df, max_steps=True, **XY)),
    "num_steps": (PlanError, "num_steps", lambda est, df: est.evaluate(df, num_steps=0, **XY)),
    "steps": (PlanError, "steps", lambda est, df: est.predict(df, feature_cols="x", steps=0)),
    "validation_freq": (
        PlanError,
        "validation_freq",
        lambda est, df: est.fit(df, validation_data=df, validation_freq=0, **XY),
    ),
    "validation data": (UnsupportedError, "float.*takes", lambda est, df: est.fit(df, validation_data=1.5, **XY)),
    "validation columns": (SchemaError, "'y'", lambda est, df: est.fit(df, validation_data=df.drop("y"), **XY)),
    "a trigger": (
        PlanError,
        "sometimes",
        lambda est, df: est.fit(df, validation_data=df, validation_trigger="sometimes", **XY),
    ),
    "no model_dir": (PlanError, "model_dir", lambda est, df: est.fit(df, checkpoint_trigger="everyepoch", **XY)),
    "nothing to resume from": (PlanError, "model_dir", lambda est, df: est.fit(df, resume=True, **XY)),
    "class_weight": (PlanError, "class_weight", lambda est, df: est.fit(df, class_weight={0: -1.0}, **XY)),
    "class_weight as a list": (
        PlanError,
        r"class_weight maps .*not \[1\]",
        lambda est, df: est.fit(df, class_weight=[1], **XY),
    ),
    "classes that are names": (PlanError, "class_weight", lambda est, df: est.fit(df, class_weight={"a": 1}, **XY)),
    "weights that are names": (PlanError, "class_weight", lambda est, df: est.fit(df, class_weight={0: "a"}, **XY)),
    "early_stopping": (
        PlanError,
        "early_stopping must be an EarlyStopping, not 3",
        lambda est, df: est.fit(df, early_stopping=3, **XY),
    ),
    "verbose in fit": (PlanError, "verbose must be .*'z'", lambda est, df: est.fit(df, verbose="z", **XY)),
    "verbose in evaluate": (PlanError, "verbose must be", lambda est, df: est.evaluate(df, verbose=None, **XY)),
    "verbose in predict": (PlanError, "verbose must be", lambda est, df: est.predict(df, None, "x", verbose=-1)),
    "seed": (PlanError, "seed must be a non-negative int, not 'q'", lambda est, df: est.fit(df, seed="q", **XY)),
    "seed as a truth": (PlanError, "seed must be", lambda est, df: est.fit(df, seed=True, **XY)),
    "half a seed": (PlanError, "seed must be", lambda est, df: estimator(linear(1), seed=1.5)),
    "validation_freq without data": (
        PlanError,
        "validation_freq",
        lambda est, df: est.fit(df, validation_freq=0, **XY),
    ),
    "validation_steps without data": (
        PlanError,
        "validation_steps",
        lambda est, df: est.fit(df, validation_steps="a", **XY),
    ),
    "data_config in fit": (PlanError, "data_config must be a dict", lambda est, df: est.fit(df, data_config=3, **XY)),
    "data_config in evaluate": (PlanError, "data_config", lambda est, df: est.evaluate(df, data_config=[1], **XY)),
    "data_config in predict": (PlanError, "data_config", lambda est, df: est.predict(df, None, "x", data_config="a")),
    "no callback": (PlanError, "callbacks", lambda est, df: est.fit(df, callbacks=[3], **XY)),
    "two main callbacks": (
        PlanError,
        "one MainCallback",
        lambda est, df: est.evaluate(df, callbacks=[MainCallback(), MainCallback()], **XY),
    ),
    "no optimizer": (PlanError, "optimizer", lambda est, df: estimator(linear(1), optimizer=None).fit(df, **XY)),
    "no loss": (PlanError, "loss", lambda est, df: estimator(linear(1), loss=None).fit(df, **XY)),
    "a graph's feed_dict": (UnsupportedError, "feed_dict", lambda est, df: est.fit(df, feed_dict={}, **XY)),
    "more replicas than slots": (
        NotEnoughSlots,
        "99 replicas.*3 tasks",
        lambda est, df: estimator(linear(1), workers_per_node=99).fit(df, validation_data=df, **XY),
    ),
}


@pytest.mark.parametrize("wrong", FRAME_ERRORS)
def test_wrong_requests_cost_no_job(endless: DataFrame, jobs: Callable[[], int], wrong: str) -> None:
    error, words, call = FRAME_ERRORS[wrong]
    before = jobs()
    with pytest.raises(error, match=f"(?s){words}") as caught:
        call(estimator(linear(1)), endless)
    assert caught.type is error
    assert jobs() == before


lock = threading.Lock()
PAIRS = [(x, y) for x, y in zip(X, Y, strict=True)]
OTHER_ERRORS: dict[str, tuple[type[Exception], str, Callable[[Any, SparkContext], Any]]] = {
    "a path": (UnsupportedError, "str.*DataFrame.*XShards.*DataLoader", lambda est, sc: est.fit("hdfs://rows")),
    "nothing": (UnsupportedError, "NoneType", lambda est, sc: est.evaluate(None)),
    "tensors": (UnsupportedError, "Tensor", lambda est, sc: est.predict(TENSORS[0])),
    "features alone": (UnsupportedError, "ndarray.*training", lambda est, sc: est.fit(X)),
    "a dict without labels": (UnsupportedError, "dict.*training", lambda est, sc: est.fit({"x": X})),
    "lengths that differ": (PlanError, "first dimension.*22.*21", lambda est, sc: est.fit((X, Y[:-1]))),
    "strings in an array": (SchemaError, "dtype", lambda est, sc: est.fit((X.astype(str), Y))),
    "a scalar": (UnsupportedError, "ndarray", lambda est, sc: est.predict(np.array(1.0))),
    "two arrays for one input": (SchemaError, "1 inputs.*2 feature arrays", lambda est, sc: est.predict([X, X])),
    "one array for two inputs": (
        SchemaError,
        "2 inputs.*1 feature arrays",
        lambda est, sc: estimator(Pair()).evaluate((X, Y)),
    ),
    "a loader has its batches": (
        PlanError,
        "batch_size",
        lambda est, sc: est.fit(DataLoader(TensorDataset(*TENSORS)), batch_size=4),
    ),
    "a pandas column of words": (
        SchemaError,
        "'y'",
        lambda est, sc: est.fit(table().assign(y="word"), feature_cols=["a"], label_cols="y"),
    ),
    "a pandas column with gaps": (
        SchemaError,
        "'a'.*null",
        lambda est, sc: est.predict(table().assign(a=[None, *X[1:, 0]]), feature_cols=["a", "b", "c"]),
    ),
    "pandas dates": (
        SchemaError,
        "'a'.*timestamp",
        lambda est, sc: est.predict(table().assign(a=pd.Timestamp("2024-01-01")), feature_cols=["a"]),
    ),
    "a lock in a creator": (PlanError, "'lock'", lambda est, sc: est.evaluate(lambda config, batch_size: (lock, X))),
    "output_cols without columns": (PlanError, "output_cols", lambda est, sc: est.predict(X, output_cols="p")),
}


@pytest.mark.parametrize("wrong", OTHER_ERRORS)
def test_wrong_data_costs_no_job(sc: SparkContext, jobs: Callable[[], int], wrong: str) -> None:
    error, words, call = OTHER_ERRORS[wrong]
    before = jobs()
    with pytest.raises(error, match=f"(?s){words}") as caught:
        call(estimator(), sc)
    assert caught.type is error
    assert jobs() == before


SHARD_ERRORS: dict[str, tuple[type[Exception], str, list[Any], dict[str, Any]]] = {
    "pairs": (UnsupportedError, "stack_feature_labels", [(X[0], Y[0])], {}),
    "pairs of lists": (UnsupportedError, "stack_feature_labels", [([1.0], 2.0)], {}),
    "no labels": (SchemaError, "'y'.*x", [{"x": X}], {}),
    "arrays alone": (UnsupportedError, "ndarray.*training", [X], {}),
    "two inputs for one": (SchemaError, "1 inputs.*2 feature arrays", [{"x": [X, X], "y": Y}], {}),
    "lengths that differ": (PlanError, "first dimension", [(X, Y[:3])], {}),
    "pandas without columns": (SchemaError, "feature columns is None", [table()], {}),
    "pandas without that column": (SchemaError, "'z'.*a, b, c, y", [table()], {"feature_cols": "z", "label_cols": "y"}),
}


@pytest.mark.parametrize("wrong", SHARD_ERRORS)
def test_wrong_shards_cost_a_look_at_the_first(sc: SparkContext, jobs: Callable[[], int], wrong: str) -> None:
    error, words, first, options = SHARD_ERRORS[wrong]
    before = jobs()
    with pytest.raises(error, match=f"(?s){words}") as caught:
        estimator().fit(XShards(sc.parallelize(first, 1)), **options)
    assert caught.type is error
    assert jobs() == before + 1


def test_shards_that_differ_are_told(sc: SparkContext) -> None:
    mixed = XShards(sc.parallelize([{"x": X, "y": Y}, {"x": X, "y": Y, "w": Y * Y}], 2))
    for verb in ("evaluate", "fit"):
        with pytest.raises(SchemaError, match="shards differ"):
            getattr(estimator(), verb)(mixed)


@pytest.mark.parametrize(
    ("error", "words", "parts"),
    [
        (PlanError, "model", {"model": None}),
        (PlanError, "model", {"model": 3}),
        (UnknownName, "'mesos'.*bigdl.*torch_distributed", {"backend": "mesos"}),
        (PlanError, "batch_size", {"config": {"batch_size": 3}}),
        (PlanError, "config", {"config": [1]}),
        (PlanError, "workers_per_node", {"workers_per_node": 0}),
        (PlanError, "AUC", {"metrics": "auc"}),
        (PlanError, "optimizer", {"optimizer": "sgd"}),
        (PlanError, "not this model's", {"optimizer": torch.optim.SGD(linear().parameters(), lr=1.0)}),
        (PlanError, "loss", {"loss": 0.5}),
        (PlanError, "scheduler_step_freq", {"scheduler_creator": lambda o, c: None, "scheduler_step_freq": None}),
    ],
)
def test_wrong_parts_are_told_when_the_estimator_is_made(error: type[Exception], words: str, parts: Any) -> None:
    with pytest.raises(error, match=words):
        Estimator.from_torch(**{"model": Apply(), **parts})


def test_rows_of_an_rdd_are_scored_in_order(spark: SparkSession) -> None:
    est = estimator()
    expected = est.predict(X)
    for rows in (list(X), list(zip(X, Y, strict=True)), [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]):
        found = est.predict(spark.sparkContext.parallelize(rows, 3)).collect()
        assert np.allclose(np.stack(found), expected)
    figures = est.evaluate(spark.sparkContext.parallelize(list(zip(X, Y, strict=True)), 3), verbose=0)
    assert figures["num_samples"] == COUNT


def test_rows_of_an_rdd_that_differ_are_refused(spark: SparkSession) -> None:
    context = spark.sparkContext
    with pytest.raises(PlanError, match="no elements"):
        estimator().fit(context.parallelize([], 2), epochs=1, batch_size=4)
    with pytest.raises(UnsupportedError, match=r"RDD of int.*rows \(x, y\)"):
        estimator().fit(context.parallelize([1]))
    ragged = [(X[0], Y[0]), (X[1][:2], Y[1])]
    with pytest.raises(SchemaError, match=r"differ in shape: \(2,\), \(3,\)"):
        estimator().fit(context.parallelize(ragged, 1), epochs=1, batch_size=2, verbose=0)
