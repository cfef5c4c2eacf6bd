"""TFRecord files as DataFrames: what was written comes back, and what cannot be is told with file and offset."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.tfrecord import (
    RecordError,
    infer_schema,
    make_example,
    parse_example,
    read_records,
    read_tfrecords,
    write_records,
    write_tfrecords,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_TYPE = (
    "flag boolean, tiny byte, small short, number int, big long, single float, double double, text string, "
    "data binary, flags array<boolean>, numbers array<int>, bigs array<long>, singles array<float>, "
    "doubles array<double>, texts array<string>, datas array<binary>"
)
ROWS: list[tuple[Any, ...]] = [
    (
        *(True, -128, 32767, -(2**31), 2**63 - 1, 0.5, 0.1, "naïve", b"\x00\xff"),
        *([True, False], [1], [-(2**63), 300], [1.5, -0.0], [0.25], ["a", "", "b"], [b"\xff", b""]),
    ),
    tuple([None] * 16),
    (*(False, 0, 0, 0, 0, 0.0, float("inf"), "", b""), *([], [], [], [], [], [], [])),
    (*(True, 1, 2, 3, 4, 5.0, 6.0, "one", b"one"), *([True], [1], [2], [3.0], [4.0], ["one"], [b"one"])),
]


def rows_of(df: DataFrame) -> list[tuple[Any, ...]]:
    """In order, whatever they hold."""
    return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in df.collect()]


def narrowed(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Floats as 32 bits have them."""

    def narrow(value: Any) -> Any:
        if isinstance(value, list):
            return [narrow(each) for each in value]
        return float(np.float32(value)) if isinstance(value, float) else value

    return [tuple(narrow(value) for value in row) for row in rows]


@pytest.fixture(scope="module")
def every_type(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, EVERY_TYPE).coalesce(1)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_what_was_written_comes_back(
    spark: SparkSession, every_type: DataFrame, tmp_path: Path, compression: str | None
) -> None:
    path = tmp_path / "out"
    write_tfrecords(every_type, path, compression=compression)
    name = "part-r-00000.gz" if compression else "part-r-00000"
    assert sorted(each.name for each in path.iterdir()) == ["_SUCCESS", "_schema.json", name]
    found = read_tfrecords(path)
    assert found.schema == every_type.schema
    assert rows_of(found) == narrowed(ROWS)
    assert type(every_type.schema).fromJson(json.loads((path / "_schema.json").read_text())) == every_type.schema
    # A null is a feature that is not there, an empty array one without values.
    empty, full = [parse_example(record) for record in read_records(path / name)][1:3]
    assert empty == {}
    assert len(full) == 16
    assert full["texts"] == []


def test_without_the_stored_schema_it_is_inferred_from_all_records(
    spark: SparkSession, every_type: DataFrame, tmp_path: Path
) -> None:
    write_tfrecords(every_type, tmp_path / "out")
    os.remove(tmp_path / "out" / "_schema.json")
    found = read_tfrecords(tmp_path / "out", float_type="double", binary_features=["text"])
    assert found.schema.simpleString() == (
        "struct<big:bigint,bigs:array<bigint>,data:binary,datas:array<binary>,double:double,doubles:array<double>,"
        "flag:bigint,flags:array<bigint>,number:bigint,numbers:array<bigint>,single:double,singles:array<double>,"
        "small:bigint,text:binary,texts:array<string>,tiny:bigint>"
    )
    assert infer_schema(tmp_path / "out")["single"].dataType.simpleString() == "float"
    assert [row[0] for row in rows_of(found.select("big"))] == [2**63 - 1, None, 0, 4]


def test_one_record_among_many_decides(spark: SparkSession, tmp_path: Path) -> None:
    one = make_example({"a": 1, "b": b"x", "c": 1.0})
    write_records(tmp_path / "1.tfrecord", [one] * 500)
    write_records(tmp_path / "2.tfrecord", [one] * 499 + [make_example({"a": [1, 2], "b": b"\xff", "d": "late"})])
    found = read_tfrecords([tmp_path / "1.tfrecord", tmp_path / "2.tfrecord"])
    assert found.schema.simpleString() == "struct<a:array<bigint>,b:binary,c:float,d:string>"
    rows = rows_of(found)
    assert rows[0] == ([1], b"x", 1.0, None)
    assert rows[-1] == ([1, 2], b"\xff", None, "late")
    assert len(rows) == 1000


def test_a_given_schema_chooses_columns(spark: SparkSession, every_type: DataFrame, tmp_path: Path) -> None:
    write_tfrecords(every_type, tmp_path / "out")
    found = read_tfrecords(tmp_path / "out", "nothing string, texts array<binary>, big array<long>")
    assert rows_of(found)[0] == (None, [b"a", b"", b"b"], [2**63 - 1])
    with pytest.raises(Exception, match=r"part-r-00000, record at byte 0: feature 'number' .* does not fit into int16"):
        read_tfrecords(tmp_path / "out", "number short").collect()
    with pytest.raises(SchemaError, match="column 'x' is of type date, which TFRecord cannot hold"):
        read_tfrecords(tmp_path / "out", "x date")


def test_paths_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("b 1%", "a", "c#2", "_hidden", ".hidden"):
        write_records(tmp_path / name, [make_example({"x": name})])
    (tmp_path / "more").mkdir()
    write_records(tmp_path / "more" / "d", [make_example({"x": "d"})])

    def read(path: Any) -> list[str]:
        return [row[0] for row in read_tfrecords(path).collect()]

    assert read(tmp_path) == ["a", "b 1%", "c#2"]
    assert read(f"file://{tmp_path}") == ["a", "b 1%", "c#2"]
    assert read(str(tmp_path / "[ac]*")) == ["a", "c#2"]
    assert read([tmp_path / "more", tmp_path / "a"]) == ["a", "d"]
    with pytest.raises(PlanError, match=f"Path does not exist: file:{tmp_path}/no"):
        read(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match=f"no TFRecord files in {tmp_path}/empty"):
        read(tmp_path / "empty")
    with pytest.raises(PlanError, match="path must be a path"):
        read(3)


def test_folders_become_columns(spark: SparkSession, tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    rows = [(1, "01", day, [1.0]), (2, "a/b=c %", None, [2.0, 3.0]), (3, None, day, []), (4, "01", day, [4.0])]
    df = spark.createDataFrame(rows, "x long, kind string, day date, y array<float>").repartition(2)
    path = tmp_path / "out"
    write_tfrecords(df, path, partition_by=["kind", "day"])
    assert sorted(each.name for each in path.iterdir() if each.is_dir()) == [
        "kind=01",
        "kind=__HIVE_DEFAULT_PARTITION__",
        "kind=a%2Fb%3Dc %25",
    ]
    found = read_tfrecords(path)
    assert found.schema == df.schema
    assert sorted(rows_of(found)) == rows
    assert rows_of(found.where("kind = '01' and x > 1")) == [rows[3]]
    # Features alone are in the files; without the stored schema Spark's own guess types the folders.
    (file,) = (path / "kind=a%2Fb%3Dc %25").glob("day=*/part*")
    assert sorted(parse_example(next(iter(read_records(file))))) == ["x", "y"]
    os.remove(path / "_schema.json")
    assert read_tfrecords(path).schema.simpleString() == "struct<x:bigint,y:array<float>,kind:string,day:date>"
    kinds = [row[0] for row in rows_of(read_tfrecords(path, "kind string"))]
    assert kinds == ["01", "01", None, "a/b=c %"]  # in the order of the folders' names


def test_modes(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    first, second = spark.range(3).coalesce(1), spark.range(3, 5).coalesce(1)
    write_tfrecords(first, path)
    with pytest.raises(PlanError, match="out already exists; pass mode="):
        write_tfrecords(second, path)
    write_tfrecords(second, path, mode="ignore")
    assert rows_of(read_tfrecords(path)) == [(0,), (1,), (2,)]
    write_tfrecords(second, path, mode="append", compression="gzip")
    assert sorted(rows_of(read_tfrecords(path))) == [(0,), (1,), (2,), (3,), (4,)]
    with pytest.raises(SchemaError, match="other columns than the DataFrame to be appended: id bigint; not id string"):
        write_tfrecords(second.selectExpr("cast(id as string) id"), path, mode="append")
    write_tfrecords(read_tfrecords(path).where("id > 2"), path, mode="overwrite")  # also what is being read
    assert rows_of(read_tfrecords(path)) == [(3,), (4,)]
    assert not any("temporary" in each.name for each in path.iterdir())
    with pytest.raises(UnknownName, match="unknown mode 'new'"):
        write_tfrecords(first, path, mode="new")


def test_a_write_that_fails_leaves_the_old_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_tfrecords(spark.range(3), path)
    before = sorted(os.listdir(path))
    bad = spark.createDataFrame([([1.0, None],)], "id array<float>")
    with pytest.raises(SchemaError, match="column 'id' has an array with a null in it"):
        write_tfrecords(bad, path, mode="overwrite")
    assert sorted(os.listdir(path)) == before
    for df, message in (
        (spark.createDataFrame([(Decimal(1),)], "d decimal(3,1)"), r"column 'd' is of type decimal\(3,1\)"),
        (spark.range(1).selectExpr("id", "id as id"), "2 columns called 'id'"),
        (spark.range(1).selectExpr("struct(id) as s"), "column 's' is of type struct<id:bigint>"),
    ):
        with pytest.raises(SchemaError, match=message):
            write_tfrecords(df, tmp_path / "never")
    with pytest.raises(SchemaError, match="no column 'day' to partition by; the DataFrame has: id"):
        write_tfrecords(spark.range(1), tmp_path / "never", partition_by="day")
    with pytest.raises(SchemaError, match="column 'Path' cannot be a folder: Spark has columns of that name"):
        write_tfrecords(spark.range(1).selectExpr("id", "id as Path"), tmp_path / "never", partition_by="Path")
    with pytest.raises(SchemaError, match="no column is left"):
        write_tfrecords(spark.range(1), tmp_path / "never", partition_by="id")
    assert not (tmp_path / "never").exists()


def test_no_rows_at_all(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3).where("id > 5").selectExpr("id", "array(id) as ids")
    write_tfrecords(df, tmp_path / "out")
    assert read_tfrecords(tmp_path / "out").schema == df.schema
    assert read_tfrecords(tmp_path / "out").collect() == []
    write_records(tmp_path / "nothing", [])
    with pytest.raises(SchemaError, match="no record with a feature"):
        read_tfrecords(tmp_path / "nothing")
    assert read_tfrecords(tmp_path / "nothing", "x long").collect() == []


def test_damage_reaches_the_driver_as_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    record = make_example({"x": 1})
    write_records(path, [record] * 3)
    size = len(record) + 16
    good = path.read_bytes()
    path.write_bytes(good[:-3])
    sentence = f"{path}, record at byte {2 * size}: truncated: "
    with pytest.raises(RecordError, match=sentence) as caught:  # while the schema is inferred
        read_tfrecords(path)
    assert (caught.value.path, caught.value.offset) == (str(path), 2 * size)
    with pytest.raises(Exception, match=sentence):  # while rows are read
        read_tfrecords(path, "x long").collect()
    path.write_bytes(good + good[:-1] + b"\x00")
    with pytest.raises(RecordError, match=f"{path}, record at byte {5 * size}: corrupt: "):
        infer_schema(path)
    write_records(path, [record, make_example({"x": 1.5})])
    with pytest.raises(
        SchemaError, match=f"'x' holds floats .*byte {size}.* and integers .*byte 0.*; one column cannot"
    ):
        read_tfrecords(path)
    (tmp_path / "_schema.json").write_text('{"fields": [{"name": "x", "type": {"type": "udt", "pyClass": "os.x"}}]}')
    with pytest.raises(SchemaError, match="is not a schema that was written with TFRecord files"):
        read_tfrecords(path)


def test_an_estimator_trains_on_it(spark: SparkSession, tmp_path: Path) -> None:
    import torch

    from firesteel import Estimator

    random = np.random.default_rng(1)
    features = random.standard_normal((64, 3)).astype(np.float32)
    for part in (0, 1):
        rows = features[part::2]
        write_records(
            tmp_path / f"{part}.tfrecord",
            [make_example({"x": row, "y": float(row.sum()), "name": f"row {n}"}) for n, row in enumerate(rows)],
        )
    df = read_tfrecords(tmp_path)
    assert df.schema.simpleString() == "struct<name:string,x:array<float>,y:float>"
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    estimator = Estimator.from_torch(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=torch.nn.MSELoss()
    )
    estimator.fit(df, epochs=10, batch_size=16, feature_cols=["x"], label_cols=["y"])
    predicted = estimator.predict(df, feature_cols=["x"]).select("y", "prediction").collect()
    assert len(predicted) == 64
    assert max(abs(row["y"] - row["prediction"]) for row in predicted) < 0.5


# TensorFlow, in a process of its own: its Example and ours must not meet unless they get along, and it is slow to load.

THEIRS = """
import json, sys
import numpy as np, tensorflow as tf
from firesteel.data.tfrecord import make_example, read_records, write_records

folder = sys.argv[1]
rows = [
    {"image": np.linspace(-1, 1, 784, dtype="f4"), "label": np.array([3]), "png": [b"\\x89PNG\\xff"]},
    {"image": np.array([], "f4"), "label": np.array([-1, 2**63 - 1, -(2**63), 300]), "words": [b"a", b"", b"b"]},
    {},
]

def feature(values):
    if isinstance(values, list):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values.dtype == "f4":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))

seen = {}
features = [tf.train.Features(feature={name: feature(values) for name, values in row.items()}) for row in rows]
records = [tf.train.Example(features=each).SerializeToString(deterministic=True) for each in features]
seen["same_message"] = records == [make_example(row) for row in rows]
seen["same_file"], seen["read_by_us"], seen["read_by_them"] = [], [], []
for name, options in (("plain", ""), ("packed", "GZIP")):
    theirs, ours = f"{folder}/theirs/{name}", f"{folder}/ours-{name}"
    with tf.io.TFRecordWriter(theirs, options) as writer:
        for record in records:
            writer.write(record)
    write_records(ours, records, compression="gzip" if options else None)
    seen["same_file"].append(open(theirs, "rb").read() == open(ours, "rb").read())
    seen["read_by_us"].append(list(read_records(theirs)) == records)
    seen["read_by_them"].append([each.numpy() for each in tf.data.TFRecordDataset(ours, options)] == records)
seen["written_by_spark"] = []
for record in tf.data.TFRecordDataset(f"{folder}/spark/part-r-00000"):
    example = tf.train.Example.FromString(record.numpy())
    assert example.SerializeToString(deterministic=True) == record.numpy()
    found = example.features.feature.items()
    seen["written_by_spark"].append({name: len(getattr(v, v.WhichOneof("kind")).value) for name, v in found})
wanted = {"image": tf.io.FixedLenFeature([784], tf.float32)}
seen["parsed"] = float(tf.io.parse_single_example(records[0], wanted)["image"].numpy()[0])
print("SEEN", json.dumps(seen))
"""


def test_tensorflow_reads_and_writes_the_same_bytes(spark: SparkSession, every_type: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    write_tfrecords(every_type, tmp_path / "spark")
    options = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", THEIRS, str(tmp_path)],
        env=os.environ | options,
        capture_output=True,
        text=True,
        timeout=200,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")] or [done.stderr]
    seen = json.loads(line[5:])
    assert seen["same_message"]
    assert seen["same_file"][0]  # two packers may pack the same in other bytes
    assert seen["read_by_us"] == seen["read_by_them"] == [True, True]
    assert seen["parsed"] == -1.0
    # Every type as TensorFlow sees it: scalars have one value, arrays as many as they had, nulls are not there.
    lengths = [[1] * 9 + [2, 1, 2, 2, 1, 3, 2], None, [1] * 9 + [0] * 7, [1] * 16]
    assert seen["written_by_spark"] == [
        {} if row is None else dict(zip(every_type.columns, row, strict=True)) for row in lengths
    ]
    rows = rows_of(read_tfrecords(tmp_path / "theirs").select("image", "label", "png", "words"))
    image = np.linspace(-1, 1, 784, dtype="f4").tolist()
    assert rows == 2 * [
        (image, [3], b"\x89PNG\xff", None),
        ([], [-1, 2**63 - 1, -(2**63), 300], None, ["a", "", "b"]),
        (None, None, None, None),
    ]
    assert (
        gzip.decompress((tmp_path / "theirs" / "packed").read_bytes()) == (tmp_path / "theirs" / "plain").read_bytes()
    )
