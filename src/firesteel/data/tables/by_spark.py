"""The Spark engine: Spark finds files wherever it can read, and cuts them; who parses them depends on the options."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.data.file import files_of
from firesteel.data.shards import XShards
from firesteel.data.shards.context import task_slots
from firesteel.data.shards.kinds import check_columns, listed, type_name
from firesteel.data.tables import options, parsing, pieces, typed
from firesteel.data.tables.choice import Choice, Wanted, choose

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["csv", "json", "parquet", "session", "struct"]

_PLAIN_CSV = {"sep": ",", "quotechar": '"'}
_WRITTEN = {"quoteAll": "true", "escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""How cells that Spark parsed become a line again, exactly: pandas is to find their dtypes."""
_HINT = "; where cells have line ends in them, pass multiLine=True"
_CORRUPT = "_corrupt_record"


def session(reader: str) -> SparkSession:
    """The session, which must have RDDs."""
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise UnsupportedError(
            f"{reader} makes XShards, which need RDDs, and Spark Connect has none. A Spark DataFrame works under Spark "
            f"Connect: read the files with spark.read."
        )
    return SparkSession.builder.getOrCreate()


def struct(reader: str, schema: Any) -> StructType:
    """A schema that was given as such, or as DDL."""
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise PlanError(f"{reader}: schema must be a StructType or a DDL string, found {type_name(schema)}")
    session(reader)  # Spark itself reads DDL
    try:
        parsed = StructType.fromDDL(schema)
    except pieces.spark_errors() as error:
        raise PlanError(f"{reader}: {schema!r} is no DDL string: {pieces.said(error)}") from error
    if not isinstance(parsed, StructType):
        raise PlanError(f"{reader}: {schema!r} is a type and names no columns; write name type, name type, …")
    return parsed


@dataclass(frozen=True)
class _Found:
    """The files that Spark found, and how it is to read them."""

    reader: str
    spark: SparkSession
    paths: list[str]
    files: list[str]
    options: dict[str, Any]
    slots: int

    @classmethod
    def of(cls, reader: str, paths: Sequence[str], given: dict[str, Any]) -> _Found:
        """Look for the files."""
        spark = session(reader)
        found = pieces.list_files(spark, reader, paths, options.of_files(given))
        # Several paths may name a file twice; the files themselves do not.
        read = list(paths) if len(paths) == 1 else [pieces.as_path(file) for file in found]
        return cls(reader, spark, read, found, given, task_slots(spark.sparkContext))

    @property
    def parses(self) -> bool:
        """Whether an option of Spark's own parser was given."""
        return len(options.of_files(self.options)) < len(self.options)

    def read(self, form: str, given: Mapping[str, Any], schema: Any = None, file: str | None = None) -> DataFrame:
        """What Spark reads, lazily: all files, or one."""
        reader = self.spark.read.format(form).options(**given)
        try:
            reader = reader if schema is None else reader.schema(schema)
            return reader.load(self.paths if file is None else pieces.as_path(file))
        except pieces.spark_errors() as error:
            raise self.error(error) from error

    def lines(self) -> DataFrame:
        """All lines."""
        return self.read("text", options.of_files(self.options))

    def first(self, form: str, given: Mapping[str, Any], *columns: Any, where: Any = None) -> Any:
        """The first row of the first file that has one (and one that is wanted)."""
        for file in self.files:
            df = self.read(form, given, file=file)
            try:
                row = (df if where is None else df.where(where)).select(*columns).first()
            except pieces.spark_errors() as error:
                raise self.error(error) from error
            if row is not None:
                return row
        raise PlanError(f"{self.reader}: no line to read in {listed(self.files[:3])}")

    def texts(self, df: DataFrame, value: Column) -> tuple[RDD[parsing.Source], int]:
        """A column of lines as sources, and how many these are."""
        partitions = df.rdd.getNumPartitions()
        if len(self.files) == 1:
            plan = pieces.one_file(self.files[0], partitions)
        else:
            try:
                plan = pieces.plan(pieces.measure(df), partitions, self.slots)
            except pieces.spark_errors() as error:
                raise self.error(error) from error
        cells = pieces.in_order(df, [value], plan, parsing.text_cell)
        return cells.mapPartitions(partial(parsing.sources, plan.pieces)), len(plan.pieces)

    def error(self, error: Exception) -> PlanError:
        """What Spark said, as ours."""
        return PlanError(f"{self.reader}: {pieces.said(error)}")


def csv(paths: Sequence[str], wanted: Wanted, header: bool, form: Mapping[str, Any], given: dict[str, Any]) -> XShards:
    """See ``readers.read_csv``."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = next((value for name, value in given.items() if name.lower() == "schema"), None)
    given = options.without(given, "schema")
    if isinstance(wanted.names, str):
        schema = wanted.names
    if schema is not None:
        schema = struct("read_csv", schema)
        wanted = Wanted(
            wanted.reader, schema.fieldNames(), wanted.usecols, wanted.dtype, wanted.index_col, wanted.squeeze
        )
    found = _Found.of("read_csv", paths, given)
    named = wanted.names is not None
    if schema is None and not found.parses:
        is_line = F.col("value").rlike(r"\S")
        if "comment" in form:
            is_line &= ~F.col("value").startswith(form["comment"])
        first = found.first("text", options.of_files(given), "value", where=is_line)
        choice = wanted.among(_columns(first[0], header, form))
        rdd, count = found.texts(found.lines(), F.col("value"))
        return parsing.csv_shards(rdd, count, parsing.CsvForm(choice, header, named, form, hint=_HINT))

    parser = {**_parser(form), **given}
    plain = {**options.without(parser, "inferSchema"), "header": False}
    as_line = F.to_csv(F.struct("*"), _WRITTEN).alias("value")
    columns = _columns(found.first("csv", plain, as_line)[0], header, _PLAIN_CSV)
    choice = wanted.among(columns)
    if schema is not None or options.is_true(given, "inferSchema"):
        parser["header"] = header
        whole = _wide(found.read("csv", parser).schema) if schema is None else _whole(schema, choice, columns)
        df = found.read("csv", parser, whole)
        return typed.to_shards("read_csv", df, df.columns, choice, found.slots)
    cells = [f"cell {position}" for position in range(len(columns))]
    df = found.read("csv", plain, ", ".join(f"`{cell}` string" for cell in cells))
    rdd, count = found.texts(df, F.to_csv(F.struct(*cells), _WRITTEN))
    return parsing.csv_shards(rdd, count, parsing.CsvForm(choice, header, named, _PLAIN_CSV))


def _columns(line: str, header: bool, form: Mapping[str, Any]) -> list[str]:
    try:
        columns = parsing.csv_columns(io.StringIO(line + "\n"), header, form)
    except ValueError as error:
        raise PlanError(f"read_csv: the first line cannot be read: {error}{_HINT}") from error
    assert columns is not None  # the line is not blank
    return columns


def _parser(form: Mapping[str, Any]) -> dict[str, Any]:
    """Spark's words for the form of a CSV file, from pandas'."""
    sep = form["sep"]
    if not isinstance(sep, str) or (len(sep) > 1 and re.escape(sep) != sep):
        raise PlanError(
            f"read_csv: sep={sep!r} is a regular expression, which Spark's own parser does not take; leave out the "
            f'options of Spark\'s, or use engine="pandas"'
        )
    # A quote inside quotes is doubled unless the caller says otherwise: pandas' rule, and everybody's but Spark's.
    given = {"sep": sep, "quote": form["quotechar"], "escape": form.get("escapechar", form["quotechar"])}
    return {**given, "comment": form["comment"]} if "comment" in form else given


def _whole(schema: StructType, choice: Choice, columns: Sequence[str]) -> StructType:
    """A schema for all columns of the file, of which the caller's may be some. Under old names: Spark compares them."""
    from pyspark.sql.types import StringType, StructField, StructType

    kinds = {field.name: field.dataType for field in schema.fields}
    return StructType(
        [StructField(old, kinds.get(new, StringType())) for old, new in zip(columns, choice.names, strict=True)]
    )


def _wide(schema: StructType) -> StructType:
    """What Spark inferred, with the integers that pandas would have."""
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    kinds = [LongType() if isinstance(field.dataType, IntegerType) else field.dataType for field in schema.fields]
    return StructType([StructField(field.name, kind) for field, kind in zip(schema.fields, kinds, strict=True)])


def json(paths: Sequence[str], wanted: Wanted, given: dict[str, Any]) -> XShards:
    """See ``readers.read_json``."""
    from pyspark.sql import functions as F  # noqa: N812

    schema = next((value for name, value in given.items() if name.lower() == "schema"), None)
    schema = None if schema is None else struct("read_json", schema)
    given = options.without(given, "schema")
    found = _Found.of("read_json", paths, given)
    if schema is None and not found.parses:
        rdd, _ = found.texts(found.lines(), F.col("value"))
        return parsing.json_shards(
            rdd, wanted, {"lines": True}, hint="; each line must be a record, or pass multiLine=True"
        )
    df = found.read("json", given, schema)
    if schema is None:
        _refuse_corrupt(found, df, given)
    names = df.columns if schema is not None else _in_file_order(found, df)
    return typed.to_shards("read_json", df, names, wanted.among(names), found.slots)


def _refuse_corrupt(found: _Found, df: DataFrame, given: Mapping[str, Any]) -> None:
    """Spark makes a column of what it could not read, where the caller did not ask for that."""
    from pyspark.sql import functions as F  # noqa: N812

    if _CORRUPT not in df.columns or len(options.without(given, "mode", "columnNameOfCorruptRecord")) < len(given):
        return
    rows = df.select("*", F.col("_metadata.file_path").alias("path")).where(F.col(_CORRUPT).isNotNull())
    row = rows.first()
    where = listed(found.files[:3]) if row is None else row["path"]
    raise PlanError(f"read_json: {where} holds what is no JSON; mode= says what Spark is to do with it")


def _in_file_order(found: _Found, df: DataFrame) -> list[str]:
    """The columns as the first record has them, where Spark sorts by name; then those that it does not have."""
    from pyspark.sql import functions as F  # noqa: N812

    whole = {**options.of_files(found.options), "wholetext": options.is_true(found.options, "multiLine")}
    keys = F.expr("json_object_keys(coalesce(get_json_object(value, '$[0]'), value))")
    first = found.first("text", whole, keys, where=F.col("value").rlike(r"\S"))[0] or []
    known = [name for name in first if name in df.columns]
    return [*known, *(name for name in df.columns if name not in known)]


def parquet(
    paths: Sequence[str], columns: Sequence[str] | None, schema: StructType | None, given: dict[str, Any]
) -> XShards:
    """See ``readers.read_parquet``."""
    found = _Found.of("read_parquet", paths, given)
    nanos: list[str] = []
    try:
        df = found.read("parquet", given, schema)
    except PlanError as error:
        if schema is not None or "TIMESTAMP(NANOS" not in str(error):
            raise
        # pandas writes nanoseconds, which Spark does not read as times; as whole numbers it does.
        numbers, nanos = _with_numbers(found)
        df = found.read("parquet", given, numbers)
    choice = choose("read_parquet", df.columns)
    if columns is not None:
        check_columns("read_parquet: columns", columns, df.columns)
        choice = Choice(choice.names, tuple(df.columns.index(name) for name in columns))
    return typed.to_shards("read_parquet", df, df.columns, choice, found.slots, nanos)


def _with_numbers(found: _Found) -> tuple[StructType, list[str]]:
    """The first file's schema with numbers in the place of nanosecond times, and the names of those."""
    import pyarrow as pa
    from pyarrow import parquet as files
    from pyspark.sql.pandas.types import from_arrow_schema

    system, place = files_of(found.files[0])
    with system.open(place, "rb") as stream:
        schema = files.read_schema(stream)
    nanos = [field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.unit == "ns"]
    fields = [pa.field(each.name, pa.int64() if each.name in nanos else each.type) for each in schema]
    return from_arrow_schema(pa.schema(fields)), nanos
