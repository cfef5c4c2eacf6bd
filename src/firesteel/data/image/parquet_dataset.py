"""ParquetDataset: rows of images, arrays and scalars as Parquet files, written once and read by many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.file import Files, Path
from firesteel.data.image import layout
from firesteel.data.image.cells import Block, arrow_schema, plain_columns, row_of, rows_in
from firesteel.data.image.layout import Piece, Target
from firesteel.data.image.schema import Schema, SchemaField, check_schema, encode_schema
from firesteel.data.image.spread import spread
from firesteel.data.shards import XShards
from firesteel.data.shards.kinds import check_positive

if TYPE_CHECKING:
    from pyspark import RDD

    from firesteel.data.image.torch_dataset import ParquetIterableDataset
    from firesteel.data.tf import Dataset

__all__ = ["ParquetDataset"]

_WRITE_MODES = ("append", "errorifexists", "ignore", "overwrite")
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 8 << 20
"""A row group's size. Readers hold one at a time (shuffling, some more), so it is what their memory is made of."""
_PARTITIONS_PER_SLOT = 4


class ParquetDataset:
    """Datasets as folders of Parquet files, written and read by pyarrow: Spark is needed for XShards only."""

    @staticmethod
    def write(
        path: Path,
        generator: Iterable[dict[str, Any]],
        schema: dict[str, SchemaField],
        block_size: int = 1000,
        write_mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Write rows, on the driver, one block at a time: memory does not grow with their number.

        A write that fails, or is interrupted, changes nothing: an old dataset stays what it was.

        Args:
            path: the dataset's folder.
            generator: dicts with the schema's keys. An IMAGE is given as a file's path. An NDARRAY is cast to the
                declared dtype unless that loses the kind (float to int, for instance) or a number does not fit; its
                shape must be the declared one. A SCALAR is a number, string or bytes.
            schema: the fields by name.
            block_size: rows in one ``chunk=…`` folder.
            write_mode: ``"overwrite"`` puts the new dataset in the place of an old one, ``"append"`` adds rows to it,
                ``"errorifexists"`` raises where anything is there, ``"ignore"`` then does nothing.
            **kwargs: options of ``pyarrow.parquet.ParquetWriter``, such as ``compression="zstd"``.

        Raises:
            PlanError: a schema, mode, block size or row that is wrong; the message names the row's key.
        """
        checked = check_schema(schema)
        check_positive("block_size", block_size)
        if write_mode not in _WRITE_MODES:
            raise UnknownName("write_mode", write_mode, _WRITE_MODES)
        if not isinstance(generator, Iterable):
            raise PlanError(f"generator must be an iterable of dicts, found {type(generator).__qualname__}")
        target = layout.target_of(path)
        if target.exists and write_mode == "ignore":
            return
        with _destination(target, checked, write_mode) as folder:
            first = target.chunks if target.exists and write_mode == "append" else 0
            _write_chunks(target.files, folder, first, generator, checked, int(block_size), kwargs)
            if not target.exists or write_mode != "append":
                with target.files.open(f"{folder}/{layout.METADATA}", "wb") as stream:
                    stream.write(encode_schema(checked).encode("utf-8"))

    @staticmethod
    def read_as_xshards(path: Path) -> XShards:
        """The rows as XShards of dicts, a row group to a shard, read in tasks.

        Arrays and numbers are stacked, strings are an array of objects; images are a list of bytes, and arrays of
        several shapes a list of arrays.
        """
        schema, pieces = layout.read_dataset(path)
        return XShards._over(
            spread(pieces, _PARTITIONS_PER_SLOT).map(partial(layout.read_piece, schema=schema)), unshared=True
        )

    @staticmethod
    def read_as_dict_rdd(path: Path) -> tuple[RDD[dict[str, Any]], Schema]:
        """An RDD of rows, each a dict, and the schema."""
        schema, pieces = layout.read_dataset(path)
        return spread(pieces, _PARTITIONS_PER_SLOT).flatMap(partial(_rows_of, schema)), schema

    _read_as_xshards = read_as_xshards
    _read_as_dict_rdd = read_as_dict_rdd

    @staticmethod
    def read_as_tf(path: Path) -> Dataset:
        """The rows as a ``firesteel.data.tf.Dataset``."""
        from firesteel.data.tf import Dataset

        return Dataset.from_tensor_slices(ParquetDataset.read_as_xshards(path))

    @staticmethod
    def read_as_torch(
        path: Path,
        num_shards: int | None = None,
        rank: int | None = None,
        transforms: Any = None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> ParquetIterableDataset:
        """The rows as a ``torch.utils.data.IterableDataset`` of dicts. Needs no Spark.

        Every row is in exactly one shard, in every epoch, whatever the number of shards and of loader workers. A
        shard is never in memory as a whole.

        Args:
            path: the dataset's folder.
            num_shards: into how many parts the rows are cut; ``rank`` is given with it.
            rank: which part this one is, from 0.
            transforms: a function of a row's dict; what it returns is given out.
            shuffle: another order in each epoch. Rows stay in their shard: ranks need not agree on the epoch.
            seed: fixes the orders. Default: drawn from torch's own generator.
        """
        from firesteel.data.image.torch_dataset import ParquetIterableDataset

        return ParquetIterableDataset(path, num_shards, rank, transforms, shuffle, seed)


def _destination(target: Target, schema: Schema, write_mode: str) -> AbstractContextManager[str]:
    """A folder to write into, or the reason why not."""
    if not target.exists:
        return layout.replaced(target)
    if write_mode == "errorifexists":
        raise layout.DatasetExists(f"{target.path} exists already; write_mode='overwrite' would replace it")
    if not target.is_dataset:
        raise layout.DatasetExists(f"{target.path} exists and is no dataset; give the path of a new or empty folder")
    if write_mode == "overwrite":
        return layout.replaced(target)
    if target.schema != schema:
        raise SchemaError(
            f"rows to append must have the schema of {target.path}",
            expected=encode_schema(target.schema),
            found=encode_schema(schema),
        )
    return layout.extended(target)


def _write_chunks(
    files: Files,
    folder: str,
    first: int,
    rows: Iterable[dict[str, Any]],
    schema: Schema,
    block_size: int,
    options: dict[str, Any],
) -> None:
    block = Block(schema, min(block_size, _GROUP_ROWS), _GROUP_BYTES)
    numbered = enumerate(rows)
    number = first
    for start in numbered:
        chunk = layout.chunk_folder(folder, number)
        files.make_folder(chunk)
        with files.open(f"{chunk}/part-00000.parquet", "wb") as stream:
            _write_chunk(stream, chain([start], islice(numbered, block_size - 1)), block, schema, options)
        number += 1


def _write_chunk(
    stream: Any, rows: Iterable[tuple[int, Any]], block: Block, schema: Schema, options: dict[str, Any]
) -> None:
    import pyarrow.parquet as pq

    plain: Any = plain_columns(schema) or False
    defaults = {"use_dictionary": plain, "write_statistics": plain}
    try:
        writer = pq.ParquetWriter(stream, arrow_schema(schema), **(defaults | options))
    except TypeError as error:
        raise PlanError(f"an option is not one of pyarrow.parquet.ParquetWriter's: {error}") from error
    with writer:
        for number, row in rows:
            if block.is_full:
                writer.write_batch(block.take())
            block.add(row, number)
        writer.write_batch(block.take())


def _rows_of(schema: Schema, piece: Piece) -> Iterator[dict[str, Any]]:
    columns = layout.read_piece(piece, schema)
    for index in range(rows_in(columns)):
        yield row_of(columns, schema, index)
