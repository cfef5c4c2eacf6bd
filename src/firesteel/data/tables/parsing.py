"""Text and files to frames, by pandas' own parsers, so that a shard is what pandas makes of the same rows.

A *form* says how; a *source* is a whole file, or a piece of one with its text at hand. Tasks run this; the driver asks
them first what they find, so that a column has one dtype in all shards.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.shards import XShards
from firesteel.data.shards.frames import dress
from firesteel.data.shards.kinds import listed
from firesteel.data.tables.choice import Choice, Wanted
from firesteel.data.tables.dtypes import AS_WRITTEN, cast, kinds_of, one_dtype

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark import RDD

    from firesteel.data.tables.pieces import Piece

__all__ = [
    "CsvForm",
    "Form",
    "JsonForm",
    "ParquetForm",
    "Source",
    "csv_columns",
    "csv_shards",
    "dtypes_of",
    "json_shards",
    "look",
    "parquet_shards",
    "shards",
    "sources",
    "text_cell",
]


@dataclass(frozen=True)
class Source:
    """A file to read whole, or the text of a piece of it; ``first``: whether the file begins here."""

    path: str
    first: bool = True
    text: bytes | None = None

    @property
    def stream(self) -> Any:
        """What pandas reads: the text, or the path for it to open."""
        return self.path if self.text is None else io.BytesIO(self.text)


class Form(Protocol):
    """How a source becomes a frame."""

    @property
    def choice(self) -> Choice | None:
        """What of the columns is wanted; ``None``: all."""
        ...

    @property
    def booleans_are_numbers(self) -> bool:
        """See ``dtypes.one_dtype``."""
        ...

    @property
    def hint(self) -> str:
        """What to say where a source cannot be read."""
        ...

    def read(self, source: Source, dtypes: Mapping[str, str]) -> pd.DataFrame:
        """The chosen columns; those that ``dtypes`` has as written are not converted."""
        ...


@dataclass(frozen=True)
class CsvForm:
    """Lines with separators.

    Attributes:
        choice: the columns.
        header: whether each file's first line is its header.
        named: whether the user gave the names; else every file's header must have these.
        options: pandas' own.
    """

    choice: Choice
    header: bool
    named: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""
    booleans_are_numbers: bool = False

    def read(self, source: Source, dtypes: Mapping[str, str]) -> pd.DataFrame:
        """See ``Form``."""
        import pandas as pd

        choice = self.choice
        begins = self.header and source.first
        names = None if begins and not self.named else list(choice.names)
        whole = len(choice.positions) == len(choice.names)
        try:
            frame = pd.read_csv(
                source.stream,
                header=0 if begins else None,
                names=names,
                usecols=None if whole else list(choice.positions),
                dtype=self._dtype(dtypes),
                **_csv_engine(self.options),
            )
        except pd.errors.EmptyDataError:  # a file or piece without a line
            return pd.DataFrame(columns=choice.chosen, dtype=object)
        if not isinstance(frame.index, pd.RangeIndex):
            raise PlanError(f"a row has more cells than the {len(choice.names)} columns that there are names for")
        if list(frame.columns) != choice.chosen:
            raise PlanError(f"its header has {listed(frame.columns)}, where the first file has {listed(choice.chosen)}")
        return frame

    def _dtype(self, dtypes: Mapping[str, str]) -> Any:
        asked = self.choice.dtype
        as_written = {name: str for name, dtype in dtypes.items() if dtype == AS_WRITTEN}
        return {**(asked or {}), **as_written} if as_written else asked


def _csv_engine(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the one of pandas' parsers that they need; it would warn where it had to choose itself."""
    sep = options.get("sep", ",")
    plain = sep is not None and (sep == r"\s+" or len(sep.encode()) == 1)
    ascii_quote = len(str(options.get("quotechar", '"')).encode()) == 1
    if plain and ascii_quote and not options.get("skipfooter"):
        # Not low memory, which finds dtypes chunk by chunk and makes columns of mixed types.
        return {"engine": "c", "low_memory": False, **options}
    return {"engine": "python", **options}


@dataclass(frozen=True)
class JsonForm:
    """Records, a line each, or as pandas' ``orient`` says.

    Attributes:
        columns: the files' columns, in order of first appearance; ``None`` while nobody has looked.
        choice: among these.
        options: pandas' own.
    """

    columns: tuple[str, ...] | None = None
    choice: Choice | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""
    booleans_are_numbers: bool = True

    def read(self, source: Source, dtypes: Mapping[str, str]) -> pd.DataFrame:
        """See ``Form``."""
        import pandas as pd

        options = dict(self.options)
        if self.columns is not None and self.choice is not None:
            old = dict(zip(self.choice.names, self.columns, strict=True))
            options["dtype"] = self._dtype(dtypes, old)
            if dtypes and "convert_dates" not in options:
                # pandas converts columns with certain names; where that failed in one source it must not in another.
                moments = [name for name, dtype in dtypes.items() if dtype.startswith("datetime64")]
                held = {old[name] for name in dtypes}
                options["convert_dates"] = [name for name in self.columns if name not in held and _is_date_name(name)]
                options["convert_dates"] += [old[name] for name in moments]
                options["keep_default_dates"] = False
        frame = pd.read_json(source.stream, **options)
        frame.columns = frame.columns.map(str)
        if self.columns is None or self.choice is None:
            return frame
        frame = frame.reindex(columns=list(self.columns))
        frame.columns = pd.Index(self.choice.names)
        frame = frame.iloc[:, list(self.choice.positions)]
        # Asked for again: pandas' reader keeps silent where a value does not fit.
        return frame if self.choice.dtype is None else frame.astype(self.choice.dtype)

    def _dtype(self, dtypes: Mapping[str, str], old: Mapping[str, str]) -> Any:
        asked = self.choice.dtype if self.choice is not None else None
        if asked is not None and not isinstance(asked, dict):
            return asked
        as_written = {old[name]: object for name, dtype in dtypes.items() if dtype == AS_WRITTEN}
        by_old_name = {**{old[name]: kind for name, kind in (asked or {}).items()}, **as_written}
        return by_old_name or self.options.get("dtype", True)


def _is_date_name(name: str) -> bool:
    """Whether pandas takes a JSON column of this name for dates."""
    low = name.lower()
    return low.endswith(("_at", "_time")) or low in ("modified", "date") or low.startswith("timestamp")


@dataclass(frozen=True)
class ParquetForm:
    """Parquet files, read whole."""

    columns: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    choice: Choice | None = None
    hint: str = ""
    booleans_are_numbers: bool = False

    def read(self, source: Source, dtypes: Mapping[str, str]) -> pd.DataFrame:
        """See ``Form``."""
        import pandas as pd

        columns = None if self.columns is None else list(self.columns)
        return pd.read_parquet(source.path, columns=columns, **self.options)


# In tasks


def text_cell(batch: pa.RecordBatch) -> bytes:
    """A batch of one column of lines as text."""
    import pyarrow as pa
    from pyarrow import compute

    # As bytes: pandas says what is wrong with text that is none.
    lines = batch.column(0).cast(pa.large_binary())
    nothing, end = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
    ended = compute.binary_join_element_wise(lines, nothing, end)
    _, offsets, data = ended.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[ended.offset : ended.offset + len(ended) + 1]
    return bytes(memoryview(data)[bounds[0] : bounds[-1]])


def sources(pieces: Sequence[Piece], cells: Iterable[tuple[int, Any]]) -> Iterator[Source]:
    """The cells of each piece as one text."""
    for number, group in groupby(cells, key=lambda numbered: numbered[0]):
        piece = pieces[number]
        yield Source(piece.path, piece.first, b"".join(cell for _, cell in group))


def look(form: Form, given: Iterable[Source]) -> Iterator[dict[str, str] | PlanError]:
    """What each source has in its columns; an error is returned, so that the driver can raise it."""
    for source in given:
        try:
            yield kinds_of(_read(form, source, {}))
        except PlanError as error:
            yield error


def shards(form: Form, dtypes: Mapping[str, str], given: Iterable[Source]) -> Iterator[Any]:
    """The sources of a partition as one shard; none where there are no sources."""
    import pandas as pd

    frames = [cast(_read(form, source, dtypes), dtypes) for source in given]
    if not frames:
        return
    # An empty frame says nothing of dtypes, and pandas would heed it.
    full = [frame for frame in frames if len(frame)] or frames[:1]
    frame = full[0]
    if len(full) > 1:
        counted = all(isinstance(each.index, pd.RangeIndex) for each in full)
        frame = pd.concat(full, ignore_index=counted)
        if form.choice is not None and form.choice.dtype is not None:
            frame = frame.astype(form.choice.dtype)  # categories that differ have become objects
    choice = form.choice
    yield frame if choice is None else dress(choice.squeeze, choice.index_col, None, frame)


def _read(form: Form, source: Source, dtypes: Mapping[str, str]) -> pd.DataFrame:
    try:
        return form.read(source, dtypes)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OSError) as error:
        # pandas' parsers raise all of these for text that is not what they expect.
        hint = "" if isinstance(error, PlanError) else form.hint
        raise PlanError(f"cannot read {source.path}: {str(error).strip()}{hint}") from error


# On the driver


def csv_columns(stream: Any, header: bool, options: Mapping[str, Any]) -> list[str] | None:
    """The names of a CSV file's columns, from its first line; ``None`` where there is no line."""
    import pandas as pd

    unwanted = ("nrows", "skipfooter", "parse_dates", "converters")
    given = {name: value for name, value in options.items() if name not in unwanted}
    try:
        found = pd.read_csv(stream, header=0 if header else None, nrows=0 if header else 1, **_csv_engine(given))
    except pd.errors.EmptyDataError:
        return None
    return [str(name) for name in found.columns]


def csv_shards(rdd: RDD[Source], count: int, form: CsvForm) -> XShards:
    """Shards from ``count`` sources; where these are several they are looked at first."""
    known = all(map(form.choice.has_dtype, form.choice.chosen))
    return _shards(rdd, form, {} if count == 1 or known else dtypes_of(form, _look(rdd, form)))


def json_shards(rdd: RDD[Source], wanted: Wanted, options: Mapping[str, Any], hint: str = "") -> XShards:
    """Shards from sources of which nobody knows the columns yet."""
    found = _look(rdd, JsonForm(options=options, hint=hint))
    columns = list(dict.fromkeys(name for kinds in found for name in kinds))
    if not columns:
        raise PlanError(f"{wanted.reader}: no record to read in the files")
    choice = wanted.among(columns)
    form = JsonForm(tuple(columns), choice, options, hint)
    new_names = {columns[position]: choice.names[position] for position in choice.positions}
    renamed = [{new: kinds.get(old, "null") for old, new in new_names.items()} for kinds in found if kinds]
    return _shards(rdd, form, dtypes_of(form, renamed))


def parquet_shards(rdd: RDD[Source], count: int, form: ParquetForm) -> XShards:
    """Shards from ``count`` files; where these are several they are looked at first."""
    return _shards(rdd, form, {} if count == 1 else dtypes_of(form, _look(rdd, form)))


def _shards(rdd: RDD[Source], form: Form, dtypes: Mapping[str, str]) -> XShards:
    return XShards(rdd.mapPartitions(partial(shards, form, dtypes)))


def _look(rdd: RDD[Source], form: Form) -> list[dict[str, str]]:
    found = []
    for kinds in rdd.mapPartitions(partial(look, form)).collect():
        if isinstance(kinds, PlanError):
            raise kinds
        found.append(kinds)
    return found


def dtypes_of(form: Form, found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The dtype of each column for which sources differ and the user said nothing."""
    dtypes = {}
    for name in dict.fromkeys(name for kinds in found for name in kinds):
        if form.choice is None or not form.choice.has_dtype(name):
            dtype = one_dtype(
                (kinds.get(name, "null") for kinds in found), booleans_are_numbers=form.booleans_are_numbers
            )
            if dtype is not None:
                dtypes[name] = dtype
    return dtypes
