"""``dfutil``: what is saved comes back, and TensorFlow understands the files, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

from firesteel.core.errors import PlanError, SchemaError
from firesteel.tfcluster import dfutil

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SCHEMA = (
    "k int, yes boolean, tiny tinyint, small smallint, big bigint, f float, d double, s string, b binary, "
    "longs array<bigint>, floats array<float>, strings array<string>, blobs array<binary>"
)
ROWS: list[Any] = [
    (1, True, 1, -2, 2**40, 0.5, 0.25, "é", b"\xff\x00", [1, 2], [0.5], ["a", "b"], [b"\x01"]),
    (2, False, -1, 2, -(2**40), -1.5, 2.0, "", b"", [], [], [], []),
    (3, None, None, None, None, None, None, None, None, None, None, None, None),
    (4, True, 0, 0, 0, 0.0, 0.0, "x", b"y", [7], [1.0, 2.0, 3.0], ["one"], [b"", b"z"]),
]


def test_every_type_comes_back_as_it_was(spark: SparkSession, sc: SparkContext, tmp_path: Path) -> None:
    tf: Any = __import__("tensorflow")
    folder = str(tmp_path / "records")
    df = spark.createDataFrame(ROWS, SCHEMA).repartition(3)
    dfutil.saveAsTFRecords(df, folder)
    files = sorted(str(path) for path in Path(folder).glob("part-*"))
    assert len(files) == 3
    loaded = dfutil.loadTFRecords(sc, folder)
    assert loaded.schema == df.schema
    assert sorted(loaded.collect(), key=lambda row: row.k) == [Row(*row) for row in ROWS]
    assert dfutil.isLoadedDF(loaded)
    assert not dfutil.isLoadedDF(loaded.filter("k > 0"))
    assert not dfutil.isLoadedDF(df)
    seen = [tf.train.Example.FromString(each.numpy()) for each in tf.data.TFRecordDataset(files)]
    first = next(each for each in seen if each.features.feature["k"].int64_list.value[0] == 1)
    assert list(first.features.feature["longs"].int64_list.value) == [1, 2]
    assert list(first.features.feature["b"].bytes_list.value) == [b"\xff\x00"]
    with pytest.raises(PlanError, match="exists"):
        dfutil.saveAsTFRecords(df, folder)


def test_a_folder_of_tensorflows_loads_with_the_schema_of_all_records(spark: SparkSession, tmp_path: Path) -> None:
    tf: Any = __import__("tensorflow")

    def example(**features: Any) -> bytes:
        made = {}
        for name, values in features.items():
            if isinstance(values[0], bytes):
                made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
            elif isinstance(values[0], float):
                made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
            else:
                made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return bytes(tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString())

    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(example(z=[1], x=[0.5], name=[b"a"], raw=[b"q"]))
        writer.write(example(x=[0.5, 1.5], name=[b"b"], raw=[b"r"]))
    df = dfutil.loadTFRecords(spark, str(tmp_path), binary_features=["raw"])
    assert df.dtypes == [("name", "string"), ("raw", "binary"), ("x", "array<double>"), ("z", "bigint")]
    assert df.collect() == [Row("a", b"q", [0.5], 1), Row("b", b"r", [0.5, 1.5], None)]
    given = dfutil.loadTFRecords(spark, str(tmp_path), schema="x array<float>, z int")
    assert given.dtypes == [("x", "array<float>"), ("z", "int")]
    assert dfutil.infer_schema(
        tf.train.Example.FromString(example(n=[1], f=[0.5, 1.0], s=[b"a"])), ["s"]
    ).simpleString() == ("struct<f:array<double>,n:bigint,s:binary>")


def test_the_functions_for_map_partitions(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [(1, [0.5, 1.5], "a", True), (2, [2.5], None, False)], "n int, f array<float>, s string, y boolean"
    )
    records = df.rdd.mapPartitions(dfutil.toTFExample(df.dtypes))
    assert records.mapPartitions(dfutil.fromTFExample).collect() == [
        Row(f=[0.5, 1.5], n=1, s="a", y=1),
        Row(f=2.5, n=2, y=0),
    ]
    assert next(iter(dfutil.fromTFExample([records.first()[0]], ["s"]))).s == bytearray(b"a")
    with pytest.raises(SchemaError, match="column 'm' is of type map<string,int>"):
        dfutil.toTFExample([("m", "map<string,int>")])
    with pytest.raises(ValueError, match="column 't' is of type"):
        dfutil.saveAsTFRecords(spark.sql("select current_timestamp() as t"), "/tmp/never")
