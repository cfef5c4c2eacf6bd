"""Anything that users train on or score, as one of four forms.

A kind of input is a file here: its ``take(data, asked)`` gives a ``Source`` for what it knows and ``None`` for the
rest. Adding a kind is adding a file, and its name to the list below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firesteel.core.errors import UnsupportedError
from firesteel.data.sources import arrays, frames, pandas_frames, rdds, shards, streams
from firesteel.data.sources.frames import is_frame
from firesteel.data.sources.kinds import Asked, Columns, Frame, Local, Packed, Source, Streamed
from firesteel.data.sources.pandas_frames import is_pandas, pandas_reading, read_pandas
from firesteel.data.sources.rdds import is_rdd
from firesteel.data.sources.shards import shard_batch

__all__ = [
    "Asked",
    "Columns",
    "Frame",
    "Local",
    "Packed",
    "Source",
    "Streamed",
    "as_dataset",
    "is_frame",
    "is_pandas",
    "is_rdd",
    "pandas_reading",
    "read_pandas",
    "shard_batch",
]

# In this order: a loader may be callable, a container of arrays comes last for it looks at what is inside.
_KINDS = (frames, shards, rdds, pandas_frames, streams, arrays)


def as_dataset(
    data: Any,
    columns: Columns,
    *,
    inputs: Callable[[], tuple[int, int | None]],
    is_loader: Callable[[object], bool],
    kinds: str,
    counts_inputs: bool = True,
    takes_strings: bool = False,
    dtypes: Mapping[str, str] | None = None,
    outputs: int | None = None,
) -> Source:
    """``data`` as one of the four forms. Runs no job, but for the first shard of an XShards or row of an RDD.

    Args:
        data: what the user gave.
        columns: what the user said about columns.
        inputs: see ``Asked``, as the two others.
        is_loader: see there.
        kinds: what this door takes, for the message when ``data`` is none of it.
        counts_inputs: see there.
        takes_strings: see there.
        dtypes: see there.
        outputs: see there.
    """
    asked = Asked(columns, inputs, is_loader, counts_inputs, takes_strings, dtypes, outputs)
    for kind in _KINDS:
        source: Source | None = kind.take(data, asked)
        if source is not None:
            return source
    raise UnsupportedError(
        f"data of type {type(data).__qualname__} cannot be used for {columns.verb}; this door takes {kinds}"
    )
