"""What is fed arrives: every item once, in batches as asked for, until somebody has had enough."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from firesteel.core.errors import PlanError
from firesteel.tfcluster import InputMode, TFCluster, TFNode
from frontends.tfcluster.conftest import Notes

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def start(sc: SparkContext, program: Any, nodes: int = 2, **options: Any) -> TFCluster:
    return TFCluster.run(sc, program, options.pop("args", {}), nodes, 0, input_mode=InputMode.SPARK, **options)


def collecting(notes: Notes, batch_size: int = 7, **options: Any) -> Any:
    """A program that writes down all it gets."""

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(**options)
        found: list[Any] = []
        while not feed.should_stop():
            found += feed.next_batch(batch_size)
        notes.write(ctx.executor_id, found)

    return program


def square(args: Any, ctx: Any) -> None:
    feed = TFNode.DataFeed(ctx.mgr, train_mode=False)
    while not feed.should_stop():
        feed.batch_results([item[0] ** 2 for item in feed.next_batch(args["batch"])])


def test_inference_in_order_on_two_clusters_at_the_same_time(sc: SparkContext) -> None:
    numbers = sc.parallelize([[number] for number in range(1000)], 10)
    sizes = [1, 2, 0, 3, 4, 5, 6, 0, 7, 8, 9, 10]
    uneven = sc.parallelize(range(12), 12).flatMap(lambda n: [[100 * n + each] for each in range(sizes[n])])
    with start(sc, square, 3, args={"batch": 10}) as one, start(sc, square, 2, args={"batch": 4}) as two:
        found = one.inference(numbers)
        assert found.sum() == 332_833_500
        assert two.inference(numbers).collect() == [number**2 for number in range(1000)]
        assert found.getNumPartitions() == 10
        wanted = [[(100 * n + each) ** 2 for each in range(size)] for n, size in enumerate(sizes)]
        assert two.inference(uneven).glom().collect() == wanted
        assert one.inference(uneven).map(lambda value: value + 1).take(2) == [1, 10001]


def test_batches_then_the_end(sc: SparkContext, notes: Notes) -> None:
    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        found = []
        for size in (2, 4, 10):
            assert not feed.done_feeding
            found.append(feed.next_batch(size))
        notes.write(0, [found, feed.should_stop(), feed.done_feeding])
        with pytest.raises(PlanError, match="batch_size"):
            feed.next_batch(0)

    cluster = start(sc, program, 1)
    cluster.train(sc.parallelize(range(10), 1))  # returns, though the last batch is not full
    cluster.shutdown()
    assert notes.read() == [[[[0, 1], [2, 3, 4, 5], [6, 7, 8, 9]], True, True]]


def test_every_item_once_for_each_epoch_and_each_call(sc: SparkContext, notes: Notes) -> None:
    with start(sc, collecting(notes)) as cluster:
        cluster.train(sc.parallelize(range(100), 5), num_epochs=3)
        cluster.train(sc.parallelize(["x"], 1))
        cluster.train(sc.emptyRDD())
    found = notes.read()
    counts = Counter(found[0] + found[1])
    assert counts == {**dict.fromkeys(range(100), 3), "x": 1}
    assert min(map(len, found)) > 0


def test_rows_of_a_dataframe_are_tuples_and_columns_have_names(
    spark: SparkSession, sc: SparkContext, notes: Notes
) -> None:
    rows: list[Any] = [(1, [0.5, 1.5], "a", b"\x01", None), (2, [], "é", b"", 2.5)]
    frame = spark.createDataFrame(rows, "n int, f array<double>, s string, b binary, d double").coalesce(1)
    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, [1], [3.0]),)], ["v"]).coalesce(1)

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        assert feed.next_batch(10) == [(1, [0.5, 1.5], "a", b"\x01", None), (2, [], "é", b"", 2.5)]
        assert feed.next_batch(10) == [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, [1], [3.0]),)]
        mapped = ctx.get_data_feed(input_mapping={"col2": "y", "col1": "x"})
        assert mapped.next_batch(3) == {"x": [1, 2, 3], "y": ["a", "b", "c"]}
        assert mapped.next_batch(2) == {"x": [4, 5], "y": [[1.0], (2,)]}
        with pytest.raises(PlanError, match=r"names 2 columns \(col1, col2\), and an item of the feed has 3 values"):
            mapped.next_batch(1)

    cluster = start(sc, program, 1)
    cluster.train(frame)
    cluster.train(vectors)
    cluster.train(sc.parallelize([(1, "a"), (2, "b"), (3, "c"), (4, [1.0]), [5, (2,)], (1, 2, 3)], 1))
    cluster.shutdown()
    with start(sc, collecting(notes), 1) as cluster, pytest.raises(TypeError, match="column 'd' is of type date"):
        cluster.train(spark.sql("select current_date() as d"))


def test_enough_is_enough(sc: SparkContext, notes: Notes) -> None:
    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        count = 0
        while not feed.should_stop():
            count += len(feed.next_batch(50))
            if count >= args["limit"] and ctx.executor_id == 0:
                feed.terminate()
        notes.write(ctx.executor_id, count)

    began = time.monotonic()
    with start(sc, program, 2, args={"limit": 1000}) as cluster:
        cluster.train(sc.range(10_000_000, numSlices=200), num_epochs=0)
        cluster.train(sc.range(1000))  # nobody wants it
    assert time.monotonic() - began < 30
    assert 1000 <= notes.read()[0] < 5000


def test_a_worker_that_returns_takes_no_more_and_the_others_go_on(sc: SparkContext, notes: Notes) -> None:
    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        found = feed.next_batch(5)
        while ctx.executor_id == 1 and not feed.should_stop():
            found += feed.next_batch(10)
        notes.write(ctx.executor_id, found)

    with start(sc, program) as cluster:
        cluster.train(sc.range(1000, numSlices=4))
    first, second = notes.read()
    assert len(first) == 5
    assert sorted(first + second) == list(range(1000))
    with start(sc, lambda args, ctx: ctx.get_data_feed().next_batch(1)) as cluster:
        cluster.train(sc.range(1000, numSlices=4), num_epochs=0)  # until all have returned


def test_a_chief_that_exports_for_long_is_waited_for_and_others_are_not(sc: SparkContext, tmp_path: Path) -> None:
    target = tmp_path / "export"

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(10)
        if ctx.job_name == "chief":
            time.sleep(3)
            target.write_text("whole")

    cluster = start(sc, program, 2, master_node="chief")
    cluster.train(sc.range(100))
    cluster.shutdown(grace_secs=0)
    assert target.read_text() == "whole"
    began = time.monotonic()
    cluster.shutdown(grace_secs=30)
    assert time.monotonic() - began < 5


def test_memory_is_bounded_where_a_node_is_slow(sc: SparkContext, tmp_path: Path) -> None:
    """A partition of a gigabyte: of what nobody takes, only a few megabytes are made."""
    progress = tmp_path / "made"

    def megabytes(_: Any) -> Any:
        for number in range(1024):
            progress.write_text(str(number + 1))
            yield np.zeros(1 << 18, np.float32)

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        assert len(feed.next_batch(20)) == 20
        time.sleep(1.5)
        assert int(progress.read_text()) < 40
        feed.terminate()

    with start(sc, program, 1) as cluster:
        cluster.train(sc.parallelize([0], 1).mapPartitions(megabytes))


def test_items_that_cannot_be_fed_are_named_on_the_driver(sc: SparkContext, notes: Notes) -> None:
    def fails(_: Any) -> None:
        raise KeyError("the user's own")

    with start(sc, collecting(notes), 1) as cluster:
        with pytest.raises(TypeError, match="a set cannot be fed"):
            cluster.train(sc.parallelize([1, {2}], 1))
        with pytest.raises(TypeError, match="a set cannot be fed"):
            cluster.inference(sc.parallelize([{2}], 1)).count()
        with pytest.raises(Exception, match="the user's own"):
            cluster.train(sc.parallelize([1]).map(fails))


def test_a_node_that_takes_nothing_is_named(sc: SparkContext) -> None:
    def program(args: Any, ctx: Any) -> None:
        time.sleep(100)

    cluster = start(sc, program, 1)
    with pytest.raises(TimeoutError, match=r"node 0 \(worker:0\) .* 1 s \(feed_timeout\) .* partition 0"):
        cluster.train(sc.parallelize(range(10), 1), feed_timeout=1)
    with pytest.raises(TimeoutError, match=r"after 1 s \(timeout\).* node 0 \(worker:0\)"):
        cluster.shutdown(timeout=1)


@pytest.mark.filterwarnings("ignore:DStream is deprecated:FutureWarning")
def test_micro_batches_of_a_stream(sc: SparkContext, notes: Notes) -> None:
    from pyspark.streaming import StreamingContext

    def program(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        found: list[int] = []
        while not feed.should_stop():
            found += feed.next_batch(10)
            if len(found) >= 60:
                feed.terminate()
        notes.write(ctx.executor_id, sorted(found))

    stream = StreamingContext(sc, 1)
    cluster = start(sc, program, 1)
    cluster.train(stream.queueStream([sc.range(20 * n, 20 * n + 20) for n in range(3)]))
    stream.start()
    cluster.shutdown(ssc=stream)
    assert notes.read() == [list(range(60))]


def test_encrypted_where_spark_is_told_to(spark: SparkSession, sc: SparkContext) -> None:
    spark.conf.set("spark.firesteel.tls", "true")
    try:
        with start(sc, square, 1, args={"batch": 3}) as cluster:
            assert cluster.inference(sc.parallelize([[1], [2]])).collect() == [1, 4]
    finally:
        spark.conf.unset("spark.firesteel.tls")


def test_two_threads_may_feed_two_queues(sc: SparkContext, notes: Notes) -> None:
    def program(args: Any, ctx: Any) -> None:
        feeds = [ctx.get_data_feed(qname_in=name) for name in ("input", "more")]
        notes.write(0, [feed.next_batch(5) for feed in feeds])

    with start(sc, program, 1, queues=["more"]) as cluster:
        other = threading.Thread(target=lambda: cluster.train(sc.parallelize(["a"] * 5, 1), qname="more"))
        other.start()
        cluster.train(sc.parallelize([1] * 5, 1))
        other.join()
    assert notes.read() == [[[1] * 5, ["a"] * 5]]
