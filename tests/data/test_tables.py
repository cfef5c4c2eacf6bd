"""CSV, JSON and Parquet as XShards: what pandas reads from the same files, in the order of names and lines."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.pandas import read_csv, read_json, read_parquet
from firesteel.data.shards import XShards
from firesteel.data.tables import parsing
from firesteel.data.tables.choice import choose
from firesteel.data.tables.dtypes import one_dtype
from firesteel.data.tables.pieces import plan

ENGINES = ["spark", "pandas"]


def joined(shards: XShards) -> Any:
    """All rows; every shard must have the same dtypes and a partition to itself."""
    found = shards.collect()
    assert len(found) == shards.num_partitions()
    assert len({str(getattr(each, "dtypes", None)) for each in found}) == 1
    kept = isinstance(found[0].index, pd.RangeIndex)
    return pd.concat(found, ignore_index=kept)


def same(found: Any, expected: Any) -> None:
    compare = pd.testing.assert_series_equal if isinstance(expected, pd.Series) else pd.testing.assert_frame_equal
    compare(found, expected)


# Which columns: no Spark


def test_names_and_usecols_choose_columns() -> None:
    found = ["x", "y", "z"]
    all_of_them = choose("r", found)
    assert (all_of_them.chosen, all_of_them.positions) == (found, (0, 1, 2))
    assert choose("r", found, usecols=["z", "x"]).chosen == ["x", "z"]
    assert choose("r", found, usecols=[2, np.int64(0)]).chosen == ["x", "z"]
    assert choose("r", found, usecols=lambda name: name > "x").chosen == ["y", "z"]
    renamed = choose("r", found, names=["a", "b", "c"], usecols=["c", "a"])
    assert (renamed.chosen, renamed.positions) == (["a", "c"], (0, 2))
    some = choose("r", found, names=["y", "x"], usecols=["z", "x"], dtype={2: int}, index_col="x")
    assert (some.chosen, some.positions, some.dtype) == (["y", "x"], (0, 2), {"x": int})
    assert choose("r", found, names=["a", "b"], usecols=["a", "b"]).positions == (0, 1)
    assert choose("r", found, names=["a"], usecols=lambda name: name == "y").positions == (1,)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"names": ["a"]}, "names has 1 names.*3 columns"),
        ({"names": ["a", "b", "c", "d"]}, "names has 4 names.*3 columns"),
        ({"names": ["a"], "usecols": [0, 1]}, "names has 1 names.*3 columns.*chooses 2"),
        ({"names": ["a", "a", "b"]}, "duplicate names.*a"),
        ({"names": "abc"}, "names must be a list"),
        ({"names": [1, 2, 3]}, "names must be a list of strings"),
        ({"usecols": ["x", "no"]}, "usecols do not match.*no.*x, y, z"),
        ({"usecols": [0, 3]}, "usecols do not match.*3.*x, y, z"),
        ({"usecols": ["x", 1]}, "all names or all positions.*int, str"),
        ({"usecols": "x"}, "usecols must be a list"),
        ({"usecols": []}, "usecols chooses no column"),
        ({"usecols": lambda _: False}, "usecols chooses no column.*x, y, z"),
        ({"usecols": ["x"], "dtype": {"y": int}}, "'y' is not in current dataframe.*x"),
        ({"usecols": ["x"], "dtype": {1: int}}, "1 is not in current dataframe.*x"),
        ({"index_col": "no"}, "'no' does not exist.*x, y, z"),
        ({"index_col": 0}, "index_col must be a column's name"),
    ],
)
def test_columns_that_do_not_fit_are_named(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        choose("r", ["x", "y", "z"], **asked)


# One dtype for all: no Spark


CELLS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-2",
        "9007199254740993",
        "1.5",
        "-0.25",
        "1e3",
        "inf",
        "nan",
        "NA",
        "true",
        "False",
        "x",
        "x y",
        "007",
    ]
)
KINDS = [CELLS, st.sampled_from(["1", "-5", ""]), st.sampled_from(["True", "False", ""]), st.sampled_from(["1", "0.5"])]


@st.composite
def tables(draw: Any) -> tuple[str, list[int]]:
    """A CSV text, and how many lines each piece of it has."""
    columns = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*columns), min_size=1, max_size=12))
    lines = [",".join((*row, "end")) for row in rows]
    header = ",".join((*(f"c{place}" for place in range(len(columns))), "end"))
    cuts = sorted(draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    return "\n".join([header, *lines]) + "\n", cuts


@settings(max_examples=150, deadline=None)
@given(tables())
def test_pieces_have_the_dtypes_that_pandas_finds_in_the_whole(table: tuple[str, list[int]]) -> None:
    text, cuts = table
    expected = pd.read_csv(io.StringIO(text))
    header, *lines = text.splitlines(keepends=True)
    first, *others = ["".join(lines[begin:end]) for begin, end in pairwise([0, *cuts, len(lines)])]
    sources = [parsing.Source("f", True, (header + first).encode())]
    sources += [parsing.Source("f", False, other.encode()) for other in others if other]
    form = parsing.CsvForm(choose("r", list(expected.columns)), header=True, named=False)
    dtypes = parsing.dtypes_of(form, list(parsing.look(form, sources)))
    found = [next(parsing.shards(form, dtypes, [source])) for source in sources]
    if len(found) > 1:
        assert len({str(each.dtypes) for each in found}) == 1
    same(pd.concat(found, ignore_index=True), expected)


def test_kinds_make_one_dtype() -> None:
    assert one_dtype({"int"}) is None
    assert one_dtype({"int", "empty"}) == "int64"
    assert one_dtype({"int", "null"}) == one_dtype({"negative", "float"}) == one_dtype({"null", "empty"}) == "float64"
    assert one_dtype({"int", "uint"}) == "uint64"
    assert one_dtype({"bool", "null"}) == one_dtype({"object", "null"}) == "object"
    assert one_dtype({"bool", "null"}, booleans_are_numbers=True) == "float64"
    assert one_dtype({"datetime64[ns]", "null"}) == "datetime64[ns]"
    for mixed in ({"int", "object"}, {"bool", "int"}, {"negative", "uint"}):
        assert one_dtype(mixed) == "as written"


# Where pieces go: no Spark


def test_pieces_go_by_name_then_by_place() -> None:
    rows = [("b", 100, 0, 11, 5), ("b", 0, 0, 10, 5), ("a%20", 0, 1, 12, 5)]
    placed = plan(rows, 2, slots=2)
    assert [(piece.path, piece.first) for piece in placed.pieces] == [("a ", True), ("b", True), ("b", False)]
    assert placed.partitions == (0, 1, 2)
    assert placed.keys == (12, 10, 11)
    assert not placed.stays
    assert plan([("a", 0, 0, 1, 5), ("a", 9, 1, 2, 5)], 2, slots=1).stays
    assert not plan([("a", 0, 0, 1, 5), ("a", 9, 1, 2, 5)], 3, slots=1).stays  # one of Spark's is empty


def test_files_are_joined_only_where_they_are_more_than_slots() -> None:
    files = [(f"{place:03}", 0, 0, place, 10) for place in range(100)]
    assert plan(files, 1, slots=100).partitions == tuple(range(100))
    few = plan(files, 1, slots=4).partitions
    assert list(few) == sorted(few)
    assert [few.count(group) for group in range(4)] == [25] * 4
    assert plan([], 1, slots=4).pieces == ()


# CSV, both engines


TEXT = """id,price,name,flag,zip
1,0.5,"a, ""quoted"" one",True,00501
2,,b,False,10001
-3,1e3,,True,02134
4,7,NA,False,

5,2.25,é # no comment,True,99950
"""


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    (folder / "t.csv").write_text(TEXT, encoding="utf-8")
    (folder / "bare.csv").write_text(TEXT.partition("\n")[2], encoding="utf-8")
    odd = TEXT.replace(",", ";").replace('"', "'").replace("# no", "~ a")
    (folder / "odd.csv").write_text("~ first\n" + odd + "6;1;it\\'s \\; so;True;1~ more\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("file", "asked"),
    [
        ("t.csv", {}),
        ("t.csv", {"header": 0, "names": list("abcde")}),
        ("t.csv", {"usecols": ["zip", "id"], "dtype": {"zip": str, "id": "float32"}}),
        ("t.csv", {"usecols": lambda name: "i" in name, "index_col": "id"}),
        ("bare.csv", {"names": list("abcde"), "usecols": ["e", "b"], "dtype": {"e": str}}),
        ("bare.csv", {"header": None, "names": ["k", "n"], "usecols": [2, 0], "index_col": "k"}),
        ("t.csv", {"dtype": str}),
        ("odd.csv", {"sep": ";", "quotechar": "'", "escapechar": "\\", "comment": "~"}),
    ],
)
def test_a_file_is_what_pandas_reads(
    spark: SparkSession, csv: Path, engine: str, file: str, asked: dict[str, Any]
) -> None:
    path = csv / file
    same(joined(read_csv(str(path), engine=engine, **asked)), pd.read_csv(path, **asked))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_pandas_has_otherwise(spark: SparkSession, csv: Path, engine: str) -> None:
    path = str(csv / "bare.csv")
    found = joined(
        read_csv(Path(path).as_uri(), header=None, usecols=[0, 4], dtype={4: str}, index_col="0", engine=engine)
    )
    expected = pd.read_csv(path, header=None, dtype={4: str})
    expected.columns = expected.columns.map(str)
    same(found, expected[["0", "4"]].set_index("0"))
    series = read_csv(path, names=["n"], usecols=[2], squeeze=True, engine=engine)
    same(joined(series), expected["2"].rename("n"))


def test_options_of_pandas(spark: SparkSession, csv: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.csv.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("skipped\nd|v\n2020-01-02|1,5\n2021-01-02|2,5\n")
    asked: dict[str, Any] = {"sep": "|", "skiprows": 1, "decimal": ",", "parse_dates": ["d"]}
    same(joined(read_csv(path, engine="pandas", **asked)), pd.read_csv(path, **asked))
    blanks = tmp_path / "blanks.csv"
    blanks.write_text("a  b\n1   2\n3 4\n")
    for engine in ENGINES:
        same(joined(read_csv(blanks, sep=r"\s+", engine=engine)), pd.read_csv(blanks, sep=r"\s+"))
        same(joined(read_csv(blanks, sep=" +", engine=engine)), pd.read_csv(blanks, sep=" +", engine="python"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files, more than task slots, the largest neither first nor last; columns whose dtype no file alone shows."""
    folder = tmp_path_factory.mktemp("files")
    cells = {"i": "5", "f": "7", "b": "True", "s": "12", "n": ""}
    others = [{}, {"f": ""}, {}, {"s": "x"}, {"b": "", "f": "0.5"}]
    for place, (rows, other) in enumerate(zip([3, 2000, 1, 700, 40], others, strict=True)):
        lines = [
            ",".join({**cells, **(other if row == rows - 1 else {}), "i": str(row)}.values()) for row in range(rows)
        ]
        (folder / f"part {place}.csv").write_text("\n".join([",".join(cells), *lines]) + "\n")
    (folder / "zz.csv").write_text("")
    (folder / "_SUCCESS").write_text("not,for\nreading")
    (folder / ".hidden.csv").write_text("a\n1\n")
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_files_come_in_order_of_their_names(spark: SparkSession, folder: Path, engine: str) -> None:
    names = [f"part {place}.csv" for place in range(5)]
    texts = [(folder / name).read_text().partition("\n")[2] for name in names]
    expected = pd.read_csv(io.StringIO("i,f,b,s,n\n" + "".join(texts)))
    assert expected.dtypes.astype(str).tolist() == ["int64", "float64", "object", "object", "float64"]
    whole = read_csv(str(folder), engine=engine)
    same(joined(whole), expected)
    assert whole.num_partitions() == 3  # as many as slots
    some = [str(folder / name) for name in names[:3]]
    listed = read_csv(some[::-1], engine=engine)
    assert [len(frame) for frame in listed.collect()] == [3, 2000, 1]
    same(joined(listed), expected[:2004].astype({"b": bool, "s": int}))
    pattern = read_csv(str(folder / "part [1-2]*"), usecols=["i", "s"], dtype={"s": str}, engine=engine)
    same(joined(pattern), expected.loc[3:2003, ["i", "s"]].reset_index(drop=True))


@pytest.fixture
def small_splits(spark: SparkSession) -> Iterator[None]:
    """Spark cuts files that are larger than this."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    yield
    spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_a_large_file_is_split_and_loses_no_line(small_splits: None, tmp_path: Path) -> None:
    lines = [f"{row},{row / 8},{'' if row == 20_499 else row},s{row}" for row in range(20_500)]
    (tmp_path / "a.csv").write_text("k,f,n,s\n" + "\n".join(lines[:15_000]))
    (tmp_path / "b.csv").write_text("k,f,n,s\n" + "\n".join(lines[15_000:]))
    expected = pd.concat(map(pd.read_csv, (tmp_path / "a.csv", tmp_path / "b.csv")), ignore_index=True)
    one = read_csv(str(tmp_path / "a.csv"))
    assert one.num_partitions() > 3
    same(joined(one), expected[:15_000].astype({"n": int}))
    both = read_csv(str(tmp_path))
    assert both.num_partitions() > 5
    same(joined(both), expected)
    same(joined(read_csv(str(tmp_path), engine="pandas")), expected)


# CSV, Spark's own options


def test_cells_with_line_ends(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"the\nfirst",b\n 1,"two\nlines, ""so"""\n2,\n3,"\n"\n4," \\ ,  "\n')
    same(joined(read_csv(str(path), multiLine=True)), pd.read_csv(path))
    path.write_text("a|b\n1|-\n-|x\n 3|y|z\n")
    found = joined(read_csv(str(path), sep="|", nullValue="-", mode="DROPMALFORMED"))
    same(found, pd.DataFrame({"a": [1, np.nan], "b": [np.nan, "x"]}))


def test_types_of_spark(spark: SparkSession, folder: Path) -> None:
    found = joined(read_csv(str(folder), header=0, names="row INT, f DOUBLE, b BOOLEAN, s STRING, n INT"))
    assert found.dtypes.astype(str).tolist() == ["int32", "float64", "object", "object", "float64"]
    assert found["row"].tolist()[:4] == [0, 1, 2, 0]
    some = joined(read_csv(str(folder / "part 0.csv"), header=0, names="row SHORT, flag BOOLEAN", usecols=[2, 0]))
    assert some.dtypes.astype(str).to_dict() == {"row": "int16", "flag": "bool"}
    inferred = joined(read_csv(str(folder / "part 0.csv"), inferSchema=True, usecols=["i", "b"]))
    assert inferred.dtypes.astype(str).tolist() == ["int64", "bool"]


# JSON


RECORDS = [
    {"z": 1, "s": "x", "list": [1, 2], "b": True},
    {"z": 2, "s": None, "list": [], "b": False, "late": 5},
    {"z": 3, "s": "y", "b": True, "late": 6, "nested": {"k": "v"}},
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    (folder / "lines").mkdir()
    (folder / "lines" / "b.json").write_text("\n".join(json.dumps(each) for each in RECORDS))
    (folder / "lines" / "c.json").write_text('{"z": 4, "s": "12", "late": 0.5}\n')
    (folder / "whole.json").write_text(json.dumps(RECORDS[:2], indent=1))
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_json_is_what_pandas_reads(spark: SparkSession, records: Path, engine: str) -> None:
    lines: dict[str, Any] = {"lines": True} if engine == "pandas" else {}
    path = records / "lines" / "b.json"
    expected = pd.read_json(path, lines=True)
    same(joined(read_json(str(path), engine=engine, **lines)), expected)
    some = read_json(
        str(path), usecols=["s", "z"], names=["k", "t"], dtype={"k": float}, index_col="t", engine=engine, **lines
    )
    same(joined(some), expected[["z", "s"]].set_axis(["k", "t"], axis=1).astype({"k": float}).set_index("t"))
    series = read_json(str(path), usecols=[0], squeeze=True, engine=engine, **lines)
    same(joined(series), expected["z"])
    both = joined(read_json(str(records / "lines"), engine=engine, **lines))
    assert list(both) == ["z", "s", "list", "b", "late", "nested"]
    assert both["s"].tolist() == ["x", None, "y", "12"]
    assert both["late"].fillna(9).tolist() == [9, 5, 6, 0.5]


def test_json_of_other_forms(spark: SparkSession, records: Path, tmp_path: Path) -> None:
    expected = pd.DataFrame(RECORDS[:2])
    found = joined(read_json(str(records / "whole.json"), multiLine=True))
    same(found, expected)
    same(joined(read_json(str(records / "whole.json"), engine="pandas", orient="records")), expected)
    named = joined(read_json(str(records / "lines"), schema="s STRING, z INT"))
    assert (list(named), named["z"].tolist(), named["z"].dtype) == (["s", "z"], [1, 2, 3, 4], np.int32)


# Parquet


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    moment = pd.Timestamp("2020-02-29 12:30")
    for place, rows in enumerate([3, 3000, 1, 50]):
        frame = pd.DataFrame({"i": np.arange(rows), "s": [f"{place} {row}" for row in range(rows)], "t": moment})
        numbers = [None if place == 1 and not row else row for row in range(rows)]
        frame["b"] = [None if place == 3 and not row else True for row in range(rows)]
        table = pa.Table.from_pandas(frame.astype({"i": "int32"}), preserve_index=False)
        table = table.append_column("n", pa.array(numbers, pa.int64())).replace_schema_metadata(None)
        pq.write_table(table, folder / f"{place}.parquet", coerce_timestamps="us")
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_parquet_in_order(spark: SparkSession, parquet: Path, engine: str) -> None:
    files = sorted(parquet.glob("*.parquet"))
    expected = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    expected = expected.astype({"t": "datetime64[ns]", "n": float, "b": object})
    found = read_parquet(str(parquet), engine=engine)
    assert found.num_partitions() == 3
    same(joined(found).astype({"t": "datetime64[ns]"}), expected)
    three = read_parquet([str(file) for file in files[:3]], ["s", "i"], engine=engine)
    assert [len(frame) for frame in three.collect()] == [3, 3000, 1]
    same(joined(three), expected.loc[:3003, ["s", "i"]])
    wide = joined(read_parquet(str(files[0]), schema="s STRING, i INT", engine=engine))
    assert list(wide) == ["s", "i"]
    with pytest.raises(SchemaError, match=r"'no' does not exist.*i, s, t, b, n"):
        read_parquet(str(parquet), columns=["i", "no"], engine=engine)


def test_parquet_in_folders_that_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    for key in (2, 1):
        (tmp_path / f"k={key}").mkdir()
        pd.DataFrame({"v": [key, key * 10]}).to_parquet(tmp_path / f"k={key}" / "p.parquet")
    found = joined(read_parquet(str(tmp_path)))
    assert found.to_dict("list") == {"v": [1, 10, 2, 20], "k": [1, 1, 2, 2]}
    with pytest.raises(PlanError, match="no file found"):
        read_parquet(str(tmp_path), engine="pandas")


# What is wrong


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reader", [read_csv, read_json, read_parquet])
def test_paths_that_lead_nowhere(spark: SparkSession, tmp_path: Path, reader: Any, engine: str) -> None:
    with pytest.raises(PlanError, match=r"(Path does not exist|No such file).*/nowhere\.x"):
        reader(str(tmp_path / "nowhere.x"), engine=engine)
    for nothing in (tmp_path, tmp_path / "*.x"):
        with pytest.raises(PlanError, match=tmp_path.name):
            reader(str(nothing), engine=engine)
    with pytest.raises(PlanError, match="file_path"):
        reader(3, engine=engine)
    with pytest.raises(PlanError, match=r'"spark" or "pandas", found .dask'):
        reader(str(tmp_path), engine="dask")


def test_options_that_an_engine_does_not_have(spark: SparkSession, csv: Path) -> None:
    path = str(csv / "t.csv")
    for option, value in {"nrows": 3, "na_values": ["x"], "orient": "records"}.items():
        with pytest.raises(PlanError, match=f'{option}.*engine="pandas"'):
            read_csv(path, **{option: value})
    with pytest.raises(PlanError, match=r'parse_dates.*engine="pandas"'):
        read_csv(path, parse_dates=["id"])
    with pytest.raises(PlanError, match=r'orient.*engine="pandas"'):
        read_json(path, orient="split")
    with pytest.raises(PlanError, match="multiLine=True"):
        read_json(path, lines=False)
    with pytest.raises(PlanError, match=r'filters.*engine="pandas"'):
        read_parquet(path, filters=[])
    with pytest.raises(PlanError, match=r'multiLine.*engine="spark"'):
        read_csv(path, multiLine=True, engine="pandas")
    with pytest.raises(PlanError, match="chunksize"):
        read_csv(path, chunksize=2, engine="pandas")
    for wrong in (1, True, [0, 1], "0"):
        with pytest.raises(PlanError, match="header must be"):
            read_csv(path, header=wrong)
    with pytest.raises(PlanError, match="comment must be one character"):
        read_csv(path, comment="//")
    with pytest.raises(PlanError, match="no DDL"):
        read_csv(path, names="a INT b")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_file_is_named(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    lines: dict[str, Any] = {"lines": True} if engine == "pandas" else {}
    for name, text in {"a.csv": "x,y\n1,2\n", "bad.csv": "x,y\n1,2\n1,2,3\n"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(PlanError, match=r"cannot read .*bad\.csv: .*Expected 2 fields in line 3"):
        read_csv(str(tmp_path), engine=engine)
    (tmp_path / "bad.csv").write_text("x,z\n1,2\n")
    with pytest.raises(PlanError, match=r"bad\.csv: .*header has x, z, .*x, y"):
        read_csv(str(tmp_path), engine=engine)
    (tmp_path / "bad.csv").write_text("x,y\n1,2,3\n")
    with pytest.raises(PlanError, match=r"bad\.csv: .*more cells than the 2 columns"):
        read_csv(str(tmp_path), engine=engine)
    (tmp_path / "bad.json").write_text('{"x": 1}\n{"x": \n')
    with pytest.raises(PlanError, match=r"cannot read .*bad\.json"):
        read_json(str(tmp_path / "*.json"), engine=engine, **lines)
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(PlanError, match=r"bad\.parquet"):
        read_parquet(str(tmp_path / "bad.parquet"), columns=["x"], engine=engine)


@pytest.mark.parametrize("columns", [None, ["i"], ["t", "i"]])
def test_parquet_as_pandas_writes_it_has_its_times(spark: SparkSession, tmp_path: Path, columns: Any) -> None:
    times = pd.to_datetime(["2020-01-01 00:00:00.000000001", None, "1969-12-31 23:59:59"], format="ISO8601")
    frame = pd.DataFrame({"i": [1, 2, 3], "t": times, "s": ["a", None, "c"]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = read_parquet(str(tmp_path / "t.parquet"), columns=columns).concat_to_pdf()
    pd.testing.assert_frame_equal(found, frame if columns is None else frame[columns])
