"""The three readers: words in, XShards of pandas out.

With ``engine="spark"`` Spark finds the files, on any file system that it reads, and cuts large ones. Lines are then
parsed by pandas in the tasks, so a shard is what pandas makes of the same rows; where an option of Spark's own parser
is given, that parser reads them. With ``engine="pandas"`` each task opens whole files itself.
"""

from __future__ import annotations

from typing import Any

from firesteel.core.errors import PlanError
from firesteel.data.shards import XShards
from firesteel.data.tables import by_pandas, by_spark, files, options
from firesteel.data.tables.choice import Wanted, check_names

__all__ = ["read_csv", "read_json", "read_parquet"]


def read_csv(
    file_path: Any,
    *,
    engine: str = "spark",
    header: Any = "infer",
    names: Any = None,
    usecols: Any = None,
    dtype: Any = None,
    index_col: str | None = None,
    squeeze: bool = False,
    sep: str | None = None,
    quotechar: str = '"',
    escapechar: str | None = None,
    comment: str | None = None,
    parse_dates: Any = False,
    **kwargs: Any,
) -> XShards:
    """CSV files as XShards of pandas frames, in order of the files' names, then of lines.

    Looks at the first line, and at all rows where more than one task reads them, so that a column has one dtype in
    all shards; the shards themselves are read when they are used.

    Args:
        file_path: a file, a list of files, a folder or a pattern.
        engine: ``"spark"``, which splits large files, or ``"pandas"``, which reads them whole.
        header: ``0``, ``None``, or ``"infer"``: 0 without ``names``, else ``None``. Without header and ``names``
            columns are called ``"0"``, ``"1"``, ….
        names: as many names as the file has columns, or as ``usecols`` chooses. Under ``"spark"`` also a DDL string,
            whose types Spark then reads.
        usecols: names, positions, or a function of the name. The file's order is kept.
        dtype: a type, or a dict by name or by position in the file.
        index_col: the name of the column that becomes the index.
        squeeze: whether shards of a single column are Series.
        sep: as for pandas, and so are the next three.
        quotechar: the character around cells that hold others.
        escapechar: the character before one that would mean something else.
        comment: the character after which a line is not read.
        parse_dates: as for pandas; under ``"spark"`` only ``False``.
        **kwargs: under ``"pandas"`` what ``pandas.read_csv`` takes; under ``"spark"`` options of Spark's CSV reader,
            such as ``multiLine=True`` for cells with line ends in them: then Spark's parser reads the files.

    Raises:
        PlanError: a path that does not exist, no file, or options that do not fit the file.
    """
    options.check_engine("read_csv", engine)
    if isinstance(header, bool) or header not in ("infer", 0, None):
        raise PlanError(f'read_csv: header must be "infer", 0 or None, found {header!r}')
    _check_character("quotechar", quotechar)
    _check_character("escapechar", escapechar)
    _check_character("comment", comment)
    wanted = Wanted("read_csv", names, usecols, dtype, index_col, squeeze)
    has_header = header == 0 or (header == "infer" and names is None)
    if "delimiter" in kwargs:
        sep = kwargs.pop("delimiter") if sep is None else sep
    form = {"sep": "," if sep is None else sep, "quotechar": quotechar}
    form |= {key: given for key, given in (("escapechar", escapechar), ("comment", comment)) if given is not None}
    paths = files.as_paths("read_csv", file_path)
    if engine == "pandas":
        form |= options.of_pandas("csv", kwargs)
        if parse_dates is not False:
            form["parse_dates"] = parse_dates
        return by_pandas.csv(paths, wanted, has_header, form)
    if parse_dates is not False:
        raise PlanError('read_csv: parse_dates is not offered by engine="spark"; engine="pandas" has it')
    return by_spark.csv(paths, wanted, has_header, form, options.of_spark("csv", kwargs))


def read_json(
    file_path: Any,
    *,
    engine: str = "spark",
    names: Any = None,
    usecols: Any = None,
    dtype: Any = None,
    index_col: str | None = None,
    squeeze: bool = False,
    orient: str | None = None,
    lines: bool | None = None,
    **kwargs: Any,
) -> XShards:
    """JSON files as XShards of pandas frames, in order of the files' names, then of records.

    Columns come in order of their first appearance. All rows are looked at when this is called, for any of them may
    have another column; the shards themselves are read when they are used.

    Args:
        file_path: a file, a list of files, a folder or a pattern.
        engine: ``"spark"``: one record a line, or ``multiLine=True``; ``"pandas"``: as ``orient`` and ``lines`` say.
        names: as many names as there are columns, or as ``usecols`` chooses.
        usecols: names, positions, or a function of the name. The file's order is kept.
        dtype: a type, or a dict by name or by position.
        index_col: the name of the column that becomes the index.
        squeeze: whether shards of a single column are Series.
        orient: as for pandas.
        lines: as for pandas; under ``"spark"`` lines are the default.
        **kwargs: under ``"pandas"`` what ``pandas.read_json`` takes; under ``"spark"`` options of Spark's JSON reader:
            then Spark's parser reads the files.

    Raises:
        PlanError: a path that does not exist, no file, or options that do not fit the file.
    """
    options.check_engine("read_json", engine)
    if isinstance(names, str):
        raise PlanError("read_json: names must be a list of column names; pass Spark's types as schema=")
    wanted = Wanted("read_json", names, usecols, dtype, index_col, squeeze)
    paths = files.as_paths("read_json", file_path)
    if engine == "pandas":
        form = options.of_pandas("json", kwargs)
        form |= {key: given for key, given in (("orient", orient), ("lines", lines)) if given is not None}
        return by_pandas.json(paths, wanted, form)
    given = options.of_spark("json", kwargs)
    if orient not in (None, "records"):
        raise PlanError(f'read_json: orient={orient!r} is not offered by engine="spark"; use engine="pandas"')
    if lines is False and not options.is_true(given, "multiLine"):
        raise PlanError(
            'read_json: engine="spark" reads a record a line, or pass multiLine=True; engine="pandas" reads other files'
        )
    return by_spark.json(paths, wanted, given)


def read_parquet(
    file_path: Any, columns: list[str] | None = None, schema: Any = None, *, engine: str = "spark", **kwargs: Any
) -> XShards:
    """Parquet files as XShards of pandas frames, in order of the files' names, then of rows.

    Args:
        file_path: a file, a list of files, a folder or a pattern.
        columns: these columns, in this order.
        schema: a ``StructType`` or a DDL string: what to read the files as.
        engine: ``"spark"``, which splits large files, or ``"pandas"``, which reads them whole.
        **kwargs: options of Spark's Parquet reader, or of ``pandas.read_parquet``.

    Raises:
        PlanError: a path that does not exist, no file, or columns that are not there.
    """
    options.check_engine("read_parquet", engine)
    given: object = columns
    if given is not None and (not isinstance(given, (list, tuple)) or not given):
        raise PlanError(f"read_parquet: columns must be a list of column names, found {given!r}")
    wanted = None if columns is None else check_names("read_parquet: columns", columns)
    kind = None if schema is None else by_spark.struct("read_parquet", schema)
    paths = files.as_paths("read_parquet", file_path)
    if engine == "pandas":
        return by_pandas.parquet(paths, wanted, kind, options.of_pandas("parquet", kwargs))
    return by_spark.parquet(paths, wanted, kind, options.of_spark("parquet", kwargs))


def _check_character(name: str, given: object) -> None:
    if given is not None and (not isinstance(given, str) or len(given) != 1):
        raise PlanError(f"read_csv: {name} must be one character, found {given!r}")
