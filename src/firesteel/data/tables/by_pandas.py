"""The pandas engine: each task opens whole files itself, on local paths and wherever fsspec reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError
from firesteel.data.shards import XShards
from firesteel.data.shards.context import task_slots
from firesteel.data.shards.kinds import check_columns, listed
from firesteel.data.tables import files, parsing
from firesteel.data.tables.by_spark import session
from firesteel.data.tables.choice import Wanted

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql.types import StructType

__all__ = ["csv", "json", "parquet"]


def csv(paths: Sequence[str], wanted: Wanted, header: bool, options: Mapping[str, Any]) -> XShards:
    """See ``readers.read_csv``."""
    found = files.list_files("read_csv", paths)
    choice = wanted.among(_csv_columns(found, header, options))
    form = parsing.CsvForm(choice, header, wanted.names is not None, options)
    return parsing.csv_shards(_sources("read_csv", found), len(found), form)


def json(paths: Sequence[str], wanted: Wanted, options: Mapping[str, Any]) -> XShards:
    """See ``readers.read_json``."""
    return parsing.json_shards(_sources("read_json", files.list_files("read_json", paths)), wanted, options)


def parquet(
    paths: Sequence[str], columns: Sequence[str] | None, schema: StructType | None, options: Mapping[str, Any]
) -> XShards:
    """See ``readers.read_parquet``."""
    found = files.list_files("read_parquet", paths)
    given = dict(options)
    if schema is not None:
        from pyspark.sql.pandas.types import to_arrow_schema

        given["schema"] = to_arrow_schema(schema)
    elif columns is not None:
        check_columns("read_parquet: columns", columns, _parquet_columns(found[0]))
    form = parsing.ParquetForm(None if columns is None else tuple(columns), given)
    return parsing.parquet_shards(_sources("read_parquet", found), len(found), form)


def _sources(reader: str, found: Sequence[str]) -> RDD[parsing.Source]:
    context = session(reader).sparkContext
    groups = files.group(found, task_slots(context))
    return context.parallelize(groups, len(groups)).flatMap(_as_sources)


def _as_sources(group: Sequence[str]) -> list[parsing.Source]:
    return [parsing.Source(path) for path in group]


def _csv_columns(found: Sequence[str], header: bool, options: Mapping[str, Any]) -> list[str]:
    for path in found:
        try:
            columns = parsing.csv_columns(path, header, options)
        except (ValueError, OSError) as error:
            raise PlanError(f"read_csv: cannot read {path}: {error}") from error
        if columns is not None:
            return columns
    raise PlanError(f"read_csv: no line to read in {listed(found[:3])}")


def _parquet_columns(path: str) -> list[str]:
    from pyarrow import ArrowException, parquet

    from firesteel.data.file import files_of

    system, place = files_of(path)
    try:
        with system.open(place, "rb") as stream:
            return list(parquet.read_schema(stream).names)
    except (ArrowException, OSError) as error:
        raise PlanError(f"read_parquet: cannot read {path}: {error}") from error
