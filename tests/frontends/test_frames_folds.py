"""reduce_rows, reduce_blocks and aggregate: one result, however the rows lie."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, LongType

import firesteel.frames as tfs
from firesteel.core.errors import ReplicaFailed, SchemaError
from frontends.frame_programs import graph, pair_sum, sum_of, values


@pytest.fixture(scope="module")
def pairs(spark):
    """y = [k, -k] for k = 0 … 9, with z a copy, in one partition."""
    rows = [([float(k), -float(k)],) for k in range(10)]
    return spark.createDataFrame(rows, "y array<double>").coalesce(1).withColumn("z", F.col("y"))


def by_key(df, *columns):
    return {row[0]: row[1] if len(row) == 2 else tuple(row[1:]) for row in df.collect()}


def test_rows_in_pairs(spark):
    df = spark.range(0, 5, 1, 2).select(F.col("id").cast("double").alias("x"))
    found = tfs.reduce_rows(pair_sum("x"), df)
    assert (found, type(found)) == (10.0, float)
    assert tfs.reduce_rows(pair_sum("x"), tfs.append_shape(df, F.col("x"), [-1])) == 10.0
    assert tfs.reduce_rows(pair_sum("x"), df.filter("x = 3")) == 3.0
    with graph() as tf:
        one, two = (tf.placeholder(tf.float64, [], name=f"x_{k}") for k in (1, 2))
        assert tfs.reduce_rows(tf.add(one, two, name="x"), df.coalesce(1)) == 10.0


def test_blocks_of_a_graph_in_the_order_of_the_fetches(pairs):
    known = tfs.analyze(pairs)
    with graph() as tf:
        y = tf.reduce_sum(tf.placeholder(tf.float64, [None, 2], name="y_input"), 0, name="y")
        z = tf.reduce_min(tf.placeholder(tf.float64, [None, 2], name="z_input"), 0, name="z")
        first, second = tfs.reduce_blocks([y, z], known)
        assert (first.tolist(), second.tolist()) == ([45.0, -45.0], [0.0, -9.0])
        assert [each.tolist() for each in tfs.reduce_blocks([z, y], known)] == [[0.0, -9.0], [45.0, -45.0]]
        (only,) = tfs.reduce_blocks([y], known)
        assert isinstance(only, np.ndarray)
        assert only.dtype == np.float64
        grouped = tfs.aggregate([z, y], known.withColumn("k", F.col("y")[0] % 2).groupBy("k"))
        assert grouped.columns == ["k", "z", "y"]
        assert by_key(grouped) == {0.0: ([0.0, -8.0], [20.0, -20.0]), 1.0: ([1.0, -9.0], [25.0, -25.0])}


def test_functions_reduce(spark):
    df = spark.range(0, 1000, 1, 4).selectExpr("cast(id as int) n", "cast(id as float) f", "id % 7 = 3 as b")
    both = tfs.program(lambda n_input, f_input, axis=0: {"f": f_input.max(axis), "n": n_input.sum(axis)})
    assert tfs.reduce_blocks(both, df) == [999.0, 499500]  # NumPy's int64 sum is an int again
    assert tfs.reduce_blocks(tfs.program(lambda b_input: {"b": b_input.any()}), df) is True
    torch_sum = tfs.program(lambda f_input: f_input.sum(0), kind="torch", outputs=["f"])
    assert tfs.reduce_blocks(torch_sum, df) == 499500.0
    with pytest.raises(SchemaError, match=r"'n' has the value \d+, which int32 cannot hold"):
        tfs.reduce_blocks(tfs.program(lambda n_input: {"n": n_input.sum() * 100_000}), df)

    def f(f_input):
        assert f_input.max() > 0, "no zeros, please"
        return f_input.max()

    assert tfs.reduce_blocks(f, df.filter("n > 0")) == 999.0  # what it is for is known without a try

    def n(n_input):
        if n_input.max() > 500:
            raise KeyError("no thanks")
        return n_input.sum()

    with pytest.raises(ReplicaFailed, match=r"(?s)no thanks.*in reduce_blocks, partition") as caught:
        tfs.reduce_blocks(n, df)
    assert 'raise KeyError("no thanks")' in str(caught.value)


def test_rows_of_different_shapes_do_not_fold(spark):
    df = spark.createDataFrame([([1.0],), ([1.0, 2.0],)], "y array<double>")
    for frame in (df.coalesce(1), df.repartition(2)):
        with pytest.raises(SchemaError, match="'y' has"):
            tfs.reduce_blocks(sum_of("y"), frame)
    with pytest.raises(SchemaError, match="'y' has a null"):
        tfs.reduce_blocks(sum_of("y"), df.withColumn("y", F.lit(None).cast("array<double>")))


def test_every_partitioning_gives_the_same(spark):
    """Associative is enough: matrices do not commute, and their product keeps the order of the rows."""
    rng = np.random.default_rng(7)
    matrices = rng.integers(-1, 2, (37, 2, 2))
    rows = [("skip", k, matrix.tolist(), [k]) for k, matrix in enumerate(matrices)]
    df = spark.createDataFrame(rows, "name string, k int, m array<array<bigint>>, other array<int>")
    product = np.linalg.multi_dot(matrices)

    def m(m_input):
        whole = m_input[0]
        for each in m_input[1:]:
            whole = whole @ each
        return whole

    pair = tfs.program(lambda m_1, m_2: {"m": m_1 @ m_2})
    for partitions in (1, 5, 40):
        spread = df.repartitionByRange(partitions, "k").sortWithinPartitions("k")
        for frame in (spread, spread.select("other", "m", "name")):
            assert (tfs.reduce_blocks(m, frame) == product).all()
        assert (tfs.reduce_rows(pair, spread.select("m")) == product).all()
        keyed = tfs.aggregate(m, spread.groupBy(F.lit(1).alias("key")))
        assert values(keyed) == [(1, product.tolist())]


def test_large_cells_are_folded_in_a_tree(spark, monkeypatch):
    from firesteel.engine import reduce as engine

    df = spark.range(0, 40, 1, 40).select(F.array_repeat(F.col("id").cast("double"), 3).alias("y"), "id")
    monkeypatch.setattr(engine, "_SMALL_BYTES", 0)
    first = tfs.program(lambda y_input, id_input: {"y": y_input.sum(0), "id": id_input[0]})
    assert [each if isinstance(each, int) else each.tolist() for each in tfs.reduce_blocks(first, df)] == [
        [780.0] * 3,
        0,
    ]

    def y(y_input):
        assert y_input.max() < 20, "no thanks"
        return y_input.sum(0)

    with pytest.raises(ReplicaFailed, match="no thanks"):
        tfs.reduce_blocks(y, df)


# --- keys ---


def test_sums_by_key(spark, jobs):
    df = spark.range(0, 4, 1, 3).select(
        F.col("id").cast("double").alias("x"), (F.col("id") % 2).cast("string").alias("key")
    )
    before = jobs()
    made = tfs.aggregate(sum_of("x"), df.groupBy("key"))
    assert made.columns == ["key", "x"]
    assert (made.schema["x"].dataType, made.schema["x"].nullable) == (DoubleType(), False)
    assert made.schema["x"].metadata["firesteel.shape"] == [-1]
    assert jobs() == before
    assert by_key(made) == {"0": 2.0, "1": 4.0}


def test_any_keys(spark):
    rows = [(k % 3 or None, "ab"[k % 2], [k % 2], {"p": k % 2, "q": None}, float(k)) for k in range(12)]
    kinds = "i int, s string, a array<int>, st struct<p int, q string>, x double"
    df = spark.createDataFrame(rows, kinds).repartition(4)
    fold = sum_of("x")
    assert by_key(tfs.aggregate(fold, df.groupBy("i"))) == {None: 18.0, 1: 22.0, 2: 26.0}
    two = tfs.aggregate(fold, df.groupBy("i", F.upper("s").alias("S")))
    assert two.columns == ["i", "S", "x"]
    assert {(i, s): x for i, s, x in values(two)} == {
        (None, "A"): 6.0, (None, "B"): 12.0, (1, "A"): 14.0, (1, "B"): 8.0, (2, "A"): 10.0, (2, "B"): 16.0,
    }  # fmt: skip
    for key in (
        "a",
        "st",
        F.struct("s", "a"),
        (F.col("x") % 2).cast("timestamp"),
        (F.col("x") % 2).cast("decimal(9,2)"),
    ):
        assert sorted(values(tfs.aggregate(fold, df.groupBy(key)), "x")) == [30.0, 36.0]
    assert values(tfs.aggregate(fold, df.groupBy())) == [66.0]
    assert by_key(tfs.aggregate(fold, df.groupBy((F.col("x") % 2).alias("odd")))) == {0.0: 30.0, 1.0: 36.0}
    expected = {"-0": 6.0, "nan": 15.0}
    odd = spark.createDataFrame(
        [(0.0, 1.0), (-0.0, 2.0), (float("nan"), 7.0), (0.0, 3.0), (float("nan"), 8.0)], "k double, x double"
    )
    found = by_key(tfs.aggregate(fold, odd.repartition(3).groupBy("k")))
    assert sorted(found.values()) == sorted(expected.values())


def test_geometric_mean(spark):
    df = spark.createDataFrame([("a", 1.0), ("b", 1.0), ("a", 2.0), ("b", 9.0), ("a", 4.0)], "key string, v double")
    logs = tfs.map_blocks(tfs.program(lambda v: {"log": np.log(v), "one": np.ones_like(v)}), df)
    sums = tfs.aggregate(
        tfs.program(lambda log_input, one_input: {"log": log_input.sum(), "one": one_input.sum()}), logs.groupBy("key")
    )
    means = {key: np.exp(log / one) for key, log, one in values(sums)}
    assert means == pytest.approx({"a": 2.0, "b": 3.0})


@pytest.mark.parametrize("partitions", [1, 8])
def test_a_step_of_k_means(spark, partitions):
    rng = np.random.default_rng(3)
    points, centres = rng.standard_normal((1000, 4)), rng.standard_normal((3, 4))
    df = spark.createDataFrame([(point.tolist(),) for point in points], "p array<double>").repartition(partitions)

    def assign(p):
        nearest = ((p[:, None, :] - centres) ** 2).sum(-1).argmin(1)
        return {"nearest": nearest, "one": np.ones(len(p), np.int64)}

    assigned = tfs.map_blocks(tfs.program(assign), tfs.append_shape(df, "p", [None, 4]))
    step = tfs.program(lambda p_input, one_input: {"p": p_input.sum(0), "one": one_input.sum()})
    sums = tfs.aggregate(step, assigned.groupBy("nearest"))
    assert sums.schema["p"].dataType == ArrayType(DoubleType(), False)
    assert sums.schema["one"].dataType == LongType()
    found = {nearest: (np.array(p) / one, one) for nearest, p, one in values(sums)}
    own = ((points[:, None, :] - centres) ** 2).sum(-1).argmin(1)
    for k in range(3):
        np.testing.assert_allclose(found[k][0], points[own == k].mean(0), atol=1e-9, rtol=0)
        assert found[k][1] == (own == k).sum()


def test_many_keys_in_few_calls(spark, sc):
    """Twenty thousand keys of a few rows each: blocks of one size go through the function together."""
    df = spark.range(0, 60_000, 1, 2).select((F.col("id") % 20_000).alias("k"), F.col("id").alias("n"))
    calls = sc.accumulator(0)

    def n(n_input):
        calls.add(1)
        return n_input.sum(axis=0)

    made = tfs.aggregate(n, df.groupBy("k"))
    assert made.agg(F.count("k"), F.sum("n"), F.sum(F.col("n") - 3 * F.col("k"))).first() == (
        20_000,
        59_999 * 30_000,
        20_000 * 60_000,
    )
    assert 0 < calls.value < 200


def test_more_keys_than_a_task_holds(spark, monkeypatch):
    """Results that are too many are handed on half done, and folded after the shuffle."""
    from firesteel.engine import aggregate as engine

    df = spark.range(0, 3000, 1, 2).select((F.col("id") % 1000).alias("k"), F.col("id").alias("n"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    monkeypatch.setattr(engine, "_WAITING_ROWS", 100)
    try:
        made = by_key(tfs.aggregate(sum_of("n"), df.groupBy("k")))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert made == {k: 3 * k + 3000 for k in range(1000)}


def test_what_is_not_associative_gets_all_rows_of_a_key(spark):
    df = spark.createDataFrame(
        [(k % 2, float(v)) for k, v in enumerate([5, 1, 9, 2, 100, 3])], "k int, x double"
    ).repartition(3)
    median = tfs.program(lambda x_input: {"x": np.median(x_input)}, algebraic=False)
    assert by_key(tfs.aggregate(median, df.groupBy("k"))) == {0: 9.0, 1: 2.0}
    assert tfs.reduce_blocks(median, df) == 4.0


def test_strings_fold(spark):
    df = spark.createDataFrame([("b", 1), ("c", 2), ("a", 1)], "s string, k int").repartition(2)
    assert tfs.reduce_blocks(tfs.program(lambda s_input: {"s": max(s_input)}), df) == "c"
    assert by_key(tfs.aggregate(tfs.program(lambda s_input: {"s": max(s_input)}), df.groupBy("k"))) == {1: "b", 2: "c"}


def test_vectors_fold_into_arrays(spark):
    from pyspark.ml.linalg import Vectors

    df = spark.createDataFrame(
        [(Vectors.dense([1.0, 2.0]), 1), (Vectors.sparse(2, {1: 5.0}), 1)], ["v", "k"]
    ).repartition(2)
    assert tfs.reduce_blocks(sum_of("v"), df).tolist() == [1.0, 7.0]
    assert by_key(tfs.aggregate(sum_of("v"), df.groupBy("k"))) == {1: [1.0, 7.0]}
