"""How fast TFRecord files are read, beside a parser that goes through records and values in a Python loop."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Bench, drain, seconds
from benchmarks.harness import Case, Figure, Goal

__all__ = ["cases"]

_WIDTH, _FILES = 784, 4
_SCHEMA = "image array<float>, label long"
_LOOP, _OURS = "a loop over protobuf", "firesteel"


def cases(bench: Bench) -> Iterator[Case]:
    """The same files read in one process, and as a DataFrame."""
    rows = bench.rows(40_000)
    folder = bench.folder / "tfrecord"
    paths = _write(folder, rows)
    about = f"{rows:,} Examples of {_WIDTH} floats and a label in {_FILES} files, checksums verified on both sides"
    yield Case(
        title="Reading TFRecord files, one process",
        about=f"{about}. The loop has Python lists in the end, Firesteel Arrow columns.",
        figures={"rate": Figure("reading TFRecord", "records/s", _LOOP, {_OURS: Goal(least=5.0)})},
        subjects={
            _LOOP: lambda: {"rate": rows / seconds(lambda: _consume(_loop(paths)))},
            _OURS: lambda: {"rate": rows / seconds(lambda: _consume(_ours(paths)))},
        },
    )

    def frame_by_loop() -> None:
        found = bench.spark.sparkContext.parallelize(paths, len(paths)).mapPartitions(_loop)
        drain(bench.spark.createDataFrame(found, _SCHEMA))

    def frame_by_us() -> None:
        from firesteel.data.tfrecord import read_tfrecords

        drain(read_tfrecords(folder, _SCHEMA, spark=bench.spark))

    yield Case(
        title="Reading TFRecord files into a DataFrame",
        about=f"{about}; two tasks at a time, into a sink that drops the rows. The loop's rows go through an RDD.",
        figures={"rate": Figure("TFRecord to DataFrame", "records/s", _LOOP, {_OURS: Goal(least=5.0)})},
        subjects={
            _LOOP: lambda: {"rate": rows / seconds(frame_by_loop)},
            _OURS: lambda: {"rate": rows / seconds(frame_by_us)},
        },
    )


def _write(folder: Path, rows: int) -> list[str]:
    from firesteel.data.tfrecord import make_example, write_records

    random = np.random.default_rng(1)
    paths = []
    for number, part in enumerate(np.array_split(np.arange(rows), _FILES)):
        images = random.standard_normal((len(part), _WIDTH), dtype=np.float32)
        records = (make_example({"image": image, "label": int(n) % 10}) for n, image in zip(part, images, strict=True))
        paths.append(str(folder / f"{number}.tfrecord"))
        write_records(paths[-1], records)
    return paths


def _consume(found: Iterable[Any]) -> None:
    for _ in found:
        pass


def _ours(paths: Iterable[str]) -> Iterator[Any]:
    import pyarrow as pa

    from firesteel.data.tfrecord.columns import Field
    from firesteel.data.tfrecord.reading import read_blocks

    fields = [Field("image", "float", pa.float32(), True), Field("label", "int64", pa.int64(), False)]
    for path in paths:
        yield from read_blocks(path, fields)


def _loop(paths: Iterable[str]) -> Iterator[tuple[list[float], int]]:
    """What one would write by hand: protobuf's message for each record, and its values one by one."""
    import google_crc32c

    from firesteel.data.tfrecord.messages import messages

    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    example = messages().example
    for path in paths:
        with open(path, "rb") as file:
            while head := file.read(12):
                length, length_crc = struct.unpack("<QI", head)
                data = file.read(length)
                (data_crc,) = struct.unpack("<I", file.read(4))
                if masked(head[:8]) != length_crc or masked(data) != data_crc:
                    raise ValueError(f"{path} is corrupt")
                feature = example.FromString(data).features.feature
                yield list(feature["image"].float_list.value), feature["label"].int64_list.value[0]
