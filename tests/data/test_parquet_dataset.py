"""ParquetDataset: case 20 of spec/shards.md, section 9, and the promises of its section 7."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data import XShards
from firesteel.data.image import (
    DType,
    FeatureType,
    ParquetDataset,
    SchemaField,
    parquet_dataset,
    read_parquet,
    write_from_directory,
    write_mnist,
    write_parquet,
)
from firesteel.data.image import rows as shard_rows
from firesteel.data.tf import Dataset, _map_shards

if TYPE_CHECKING:
    from pyspark import SparkContext

NDARRAY, SCALAR, IMAGE = FeatureType.NDARRAY, FeatureType.SCALAR, FeatureType.IMAGE

ID = {"id": SchemaField(SCALAR, DType.INT64, ())}


def ids(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    return ({"id": start + number} for number in range(count))


def all_rows(path: Any) -> list[dict[str, Any]]:
    return list(shard_rows.ShardRows(path, None, None, None, False).rows(0, 0))


def read_ids(path: Any) -> list[int]:
    return [int(row["id"]) for row in all_rows(path)]


def chunks(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def assert_same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for key in one:
            left, right = one[key], other[key]
            if isinstance(right, np.ndarray):
                assert isinstance(left, np.ndarray), key
                assert (left.dtype, left.shape) == (right.dtype, right.shape), key
                assert left.tobytes() == right.tobytes(), key
            else:
                assert left == right, key


# Writing and reading rows

NUMBERS = [dtype for dtype in DType if dtype.is_number]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 1), (0, 2), (-1,), (-1, 4)], ids=str)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_arrays_come_back_bit_for_bit(tmp_path: Path, dtype: DType, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    sizes = [tuple(number % 3 if length == -1 else length for length in shape) for number in range(7)]
    arrays = [random.integers(0, 2, size).astype(dtype.value) for size in sizes]
    rows = [{"x": array, "y": array[..., None].reshape(-1)[0] if array.size else 0} for array in arrays]
    schema = {"x": SchemaField(NDARRAY, dtype, shape), "y": SchemaField(SCALAR, dtype, ())}
    if dtype is DType.BOOL:
        rows = [{"x": row["x"], "y": bool(row["y"])} for row in rows]
    ParquetDataset.write(tmp_path / "d", iter(rows), schema, block_size=3)
    found = all_rows(tmp_path / "d")
    assert_same_rows([{"x": row["x"]} for row in found], [{"x": array} for array in arrays])
    assert [row["y"].dtype for row in found] == [np.dtype(dtype.value)] * 7
    assert [row["y"] for row in found] == [row["y"] for row in rows]
    assert chunks(tmp_path / "d") == ["_orca_metadata", "chunk=0", "chunk=1", "chunk=2"]


def test_strings_bytes_and_images(tmp_path: Path) -> None:
    (tmp_path / "i.jpg").write_bytes(b"\xff\xd8 any bytes \x00\x00")
    schema = {
        "s": SchemaField(SCALAR, DType.STRING),
        "b": SchemaField(SCALAR, DType.BYTES),
        "i": SchemaField(IMAGE, DType.FLOAT32),
    }
    rows = [{"s": "αβ\0", "b": b"\0\0", "i": tmp_path / "i.jpg"}, {"s": None, "b": b"", "i": str(tmp_path / "i.jpg")}]
    ParquetDataset.write(tmp_path / "d", rows, schema)
    image = (tmp_path / "i.jpg").read_bytes()
    assert all_rows(tmp_path / "d") == [{"s": "αβ\0", "b": b"\0\0", "i": image}, {"s": None, "b": b"", "i": image}]


def test_casts_that_lose_no_kind(tmp_path: Path) -> None:
    schema = {"f": SchemaField(NDARRAY, DType.FLOAT32, (2,)), "u": SchemaField(NDARRAY, DType.UINT8, (2,))}
    shared = np.array([0.1, 0.2])

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3):
            shared[0] = number  # an array that is used again: what was written must not change with it
            yield {"f": shared, "u": [number, 255]}

    ParquetDataset.write(tmp_path / "d", rows(), schema)
    found = all_rows(tmp_path / "d")
    assert [row["f"].tolist() for row in found] == [[np.float32(number), np.float32(0.2)] for number in range(3)]
    assert [row["u"].tolist() for row in found] == [[0, 255], [1, 255], [2, 255]]
    assert all(row["f"].flags.writeable for row in found)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"x": np.array([1.5, 2.0]), "s": "a"}, r"'x'.*int32.*float64"),
        ({"x": np.array([1, 2**40]), "s": "a"}, r"'x'.*1099511627776.*int64.*int32"),
        ({"x": np.array([1, 2, 3]), "s": "a"}, r"'x'.*\(2,\).*\(3,\)"),
        ({"x": [[1], [1, 2]], "s": "a"}, r"'x'.*lengths"),
        ({"x": ["1", "2"], "s": "a"}, r"'x'.*int32.*str"),
        ({"x": [1, 2], "s": 3}, r"'s'.*string.*int"),
        ({"x": [1, 2]}, r"row 1 .*missing: s"),
        ({"x": [1, 2], "s": "a", "more": 1}, r"row 1 .*extra: more"),
        ([1, 2], r"row 1 .*list"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_written(tmp_path: Path, row: Any, words: str) -> None:
    schema = {"x": SchemaField(NDARRAY, DType.INT32, (2,)), "s": SchemaField(SCALAR, DType.STRING)}
    good = {"x": np.array([1, 2]), "s": "a"}
    with pytest.raises(PlanError, match=words):
        ParquetDataset.write(tmp_path / "d", [good, row], schema, block_size=1)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_do_not_fit_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"'h'.*too large for float16"):
        ParquetDataset.write(tmp_path / "d", [{"h": 1e6}], {"h": SchemaField(SCALAR, DType.FLOAT16)})
    with pytest.raises(SchemaError, match=r"'u'.*-1.*uint8"):
        ParquetDataset.write(tmp_path / "d", [{"u": -1}], {"u": SchemaField(SCALAR, DType.UINT8)})
    with pytest.raises(SchemaError, match=r"'i'.*absent\.jpg.*does not exist"):
        ParquetDataset.write(
            tmp_path / "d", [{"i": str(tmp_path / "absent.jpg")}], {"i": SchemaField(IMAGE, DType.BYTES)}
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"write_mode": "replace"}, r"write_mode 'replace'.*append, errorifexists, ignore, overwrite"),
        ({"block_size": 0}, r"block_size"),
        ({"schema": {}}, r"schema"),
        ({"schema": {"id": "int"}}, r"SchemaField"),
        ({"generator": 3}, r"iterable"),
        ({"no_such_option": 3}, r"no_such_option"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        ParquetDataset.write(**({"path": tmp_path / "d", "generator": ids(3), "schema": ID} | arguments))


def test_wrong_fields() -> None:
    for make in (
        lambda: SchemaField("IMAGE", DType.FLOAT32, ()),  # type: ignore[arg-type]
        lambda: SchemaField(NDARRAY, "float32", ()),  # type: ignore[arg-type]
        lambda: SchemaField(NDARRAY, DType.FLOAT32, (-2,)),
        lambda: SchemaField(NDARRAY, DType.STRING, (2,)),
    ):
        with pytest.raises(PlanError):
            make()


# Modes, and writes that end too early


def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "d"
    for mode in ("overwrite", "append", "errorifexists", "ignore"):
        ParquetDataset.write(tmp_path / mode, ids(5), ID, write_mode=mode)  # where nothing is, all write
        assert read_ids(tmp_path / mode) == list(range(5))
    path.mkdir()
    ParquetDataset.write(path, ids(5), ID, block_size=2, write_mode="errorifexists")  # an empty folder is nothing
    ParquetDataset.write(path, ids(3, start=5), ID, block_size=2, write_mode="append")
    assert read_ids(path) == list(range(8))
    assert chunks(path) == ["_orca_metadata", *(f"chunk={number}" for number in range(5))]
    with pytest.raises(PlanError, match="exists already"):
        ParquetDataset.write(path, ids(1), ID, write_mode="errorifexists")
    with pytest.raises(FileExistsError):
        ParquetDataset.write(path, ids(1), ID, write_mode="errorifexists")
    ParquetDataset.write(path, ids(1), ID, write_mode="ignore")
    with pytest.raises(SchemaError, match="append"):
        ParquetDataset.write(path, [{"id": 1.0}], {"id": SchemaField(SCALAR, DType.FLOAT32)}, write_mode="append")
    assert read_ids(path) == list(range(8))
    path.chmod(0o700)
    ParquetDataset.write(path, ({"id": -int(row["id"])} for row in all_rows(path)), ID)  # out of itself
    assert read_ids(path) == [-number for number in range(8)]
    assert path.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["append", "d", "errorifexists", "ignore", "overwrite"]


def test_chunks_are_read_by_number(tmp_path: Path) -> None:
    ParquetDataset.write(tmp_path / "d", ids(12), ID, block_size=1)
    assert read_ids(tmp_path / "d") == list(range(12))


def test_a_folder_of_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="no dataset"):
        ParquetDataset.write(tmp_path, ids(3), ID)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_generator_that_fails_leaves_the_old_dataset(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "d"
    ParquetDataset.write(path, ids(5), ID, block_size=2)
    before = sorted(str(found) for found in tmp_path.rglob("*"))

    def broken() -> Iterator[dict[str, Any]]:
        yield from ids(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ParquetDataset.write(path, broken(), ID, block_size=2, write_mode=mode)
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before
    assert read_ids(path) == list(range(5))


DIES = """
import os, sys
from firesteel.data.image import DType, FeatureType, ParquetDataset, SchemaField
def rows():
    for number in range(9):
        if number == 5:
            os._exit(9)
        yield {"id": 100 + number}
schema = {"id": SchemaField(FeatureType.SCALAR, DType.INT64, ())}
ParquetDataset.write(sys.argv[1], rows(), schema, block_size=2, write_mode=sys.argv[2])
"""


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_writer_that_is_killed_leaves_the_old_dataset(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "d"
    ParquetDataset.write(path, ids(5), ID, block_size=2)
    done = subprocess.run([sys.executable, "-c", DIES, str(path), mode], timeout=60)
    assert done.returncode == 9
    assert read_ids(path) == list(range(5))
    ParquetDataset.write(path, ids(2, start=5), ID, write_mode="append")
    assert read_ids(path) == list(range(7))


def test_a_writer_that_is_killed_between_its_renamings(tmp_path: Path) -> None:
    path = tmp_path / "d"
    ParquetDataset.write(path, ids(5), ID)
    path.rename(tmp_path / ".d.old-0123")  # what such a death leaves behind
    assert read_ids(path) == list(range(5))
    ParquetDataset.write(path, ids(2, start=5), ID, write_mode="append")
    assert read_ids(path) == list(range(7))
    assert chunks(tmp_path) == ["d"]


def test_memory_is_one_block(tmp_path: Path) -> None:
    process = psutil.Process()
    sizes = []
    image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(100_000):
            if number % 5_000 == 0:
                sizes.append(process.memory_info().rss)
            yield {"image": image, "id": number}

    schema = {"image": SchemaField(NDARRAY, DType.UINT8, (32, 32, 3)), **ID}
    ParquetDataset.write(tmp_path / "d", rows(), schema, compression="zstd")
    assert max(sizes) - sizes[1] < 40 << 20  # of 300 MB
    shard = shard_rows.ShardRows(tmp_path / "d", None, None, None, False)
    assert shard.count == 100_000
    before = process.memory_info().rss
    most = 0
    for number, row in enumerate(shard.rows(0, 0)):
        assert row["id"] == number
        if number % 5_000 == 0:
            most = max(most, process.memory_info().rss)
    assert most - before < 40 << 20


def test_another_file_system(tmp_path: Path) -> None:
    path = f"memory://{uuid.uuid4().hex}/d"
    ParquetDataset.write(path, ids(5), ID, block_size=2)
    ParquetDataset.write(path, ids(3, start=5), ID, write_mode="append")
    assert read_ids(path) == list(range(8))
    ParquetDataset.write(path, ids(2), ID)
    assert read_ids(path) == [0, 1]


def test_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    for error in (PlanError, FileNotFoundError):
        with pytest.raises(error, match=r"no dataset.*No such file"):
            ParquetDataset.read_as_torch(tmp_path / "absent")


# Orca's datasets


def write_as_orca(path: Path, cells: list[bytes]) -> None:
    field = {"feature_type": {"__enum__": "FeatureType.NDARRAY"}, "dtype": {"__enum__": "DType.FLOAT32"}, "shape": [2]}
    label = {"feature_type": {"__enum__": "FeatureType.SCALAR"}, "dtype": {"__enum__": "DType.INT32"}, "shape": []}
    (path / "chunk=0").mkdir(parents=True)
    (path / "_orca_metadata").write_text(json.dumps({"x": field, "label": label}))
    table = pa.table({"label": pa.array(range(len(cells)), pa.int64()), "x": pa.array(cells, pa.binary())})
    pq.write_table(table, path / "chunk=0" / "part-00000-a.snappy.parquet")
    (path / "chunk=0" / "_SUCCESS").touch()
    (path / "chunk=0" / ".part-00000-a.snappy.parquet.crc").write_bytes(b"crc")


def npz(**arrays: Any) -> bytes:
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def test_datasets_of_orca(tmp_path: Path) -> None:
    arrays = [np.array([number, 0.5], np.float32) for number in range(4)]
    write_as_orca(tmp_path / "d", [npz(arr=array) for array in arrays])
    expected = [{"x": array, "label": number} for number, array in enumerate(arrays)]
    assert_same_rows(all_rows(tmp_path / "d"), expected)
    schema = {"x": SchemaField(NDARRAY, DType.FLOAT32, (2,)), "label": SchemaField(SCALAR, DType.INT32, ())}
    more = {"x": np.array([9.0, 9.0], np.float32), "label": 9}
    ParquetDataset.write(tmp_path / "d", [more], schema, write_mode="append")
    assert_same_rows(all_rows(tmp_path / "d"), [*expected, more])


def test_no_cell_is_unpickled(tmp_path: Path) -> None:
    write_as_orca(tmp_path / "d", [npz(arr=np.array([{"code": 1}], dtype=object))])
    with pytest.raises(SchemaError, match=r"'x'.*allow_pickle"):
        all_rows(tmp_path / "d")


# Shards: every row in exactly one, in every epoch


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row_count=st.integers(0, 40),
    block_size=st.integers(1, 12),
    workers=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    shuffle=st.booleans(),
)
def test_every_row_in_exactly_one_shard(
    tmp_path: Path, row_count: int, block_size: int, workers: list[int], shuffle: bool
) -> None:
    """Ranks with different numbers of workers, seeds and epochs: each row still comes once."""
    path = tmp_path / uuid.uuid4().hex
    ParquetDataset.write(path, ids(row_count), ID, block_size=block_size)
    for epoch in range(2):
        found: list[int] = []
        sizes = []
        for rank, count in enumerate(workers):
            shard = shard_rows.ShardRows(path, len(workers), rank, None, shuffle)
            mine = [int(row["id"]) for w in range(count) for row in shard.rows(epoch + rank, rank, w, count)]
            sizes.append(len(mine))
            found += mine
        assert sorted(found) == list(range(row_count))
        assert shuffle or found == list(range(row_count))
        assert max(sizes) - min(sizes) <= 1


def test_row_groups_are_cut_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_dataset, "_GROUP_BYTES", 24)  # three rows
    ParquetDataset.write(tmp_path / "d", ids(20), ID, block_size=10)
    (one, _) = sorted((tmp_path / "d").rglob("*.parquet"))
    assert [pq.ParquetFile(one).metadata.row_group(group).num_rows for group in range(4)] == [3, 3, 3, 1]
    found = [int(row["id"]) for rank in range(7) for row in ParquetDataset.read_as_torch(tmp_path / "d", 7, rank)]
    assert found == list(range(20))


def test_torch_loaders(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    ParquetDataset.write(tmp_path / "d", ids(50), ID, block_size=8)
    datasets = [ParquetDataset.read_as_torch(tmp_path / "d", 3, rank, shuffle=True, seed=7) for rank in range(3)]
    assert isinstance(datasets[0], IterableDataset)
    assert sum(dataset.num_rows for dataset in datasets) == 50
    loaders = [
        DataLoader(datasets[0], batch_size=4, num_workers=2),
        DataLoader(datasets[1], batch_size=4, num_workers=0),
        DataLoader(datasets[2], batch_size=None, num_workers=1, persistent_workers=True),
    ]
    epochs = [
        [[int(each) for batch in loader for each in batch["id"].reshape(-1)] for loader in loaders] for _ in range(3)
    ]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(50))
    for rank in range(3):
        orders = [epoch[rank] for epoch in epochs]
        assert orders[0] != orders[1] != orders[2] != orders[0]  # another order each time
        assert sorted(orders[0]) == sorted(orders[1])
    again = ParquetDataset.read_as_torch(tmp_path / "d", 3, 1, shuffle=True, seed=7)
    again.set_epoch(2)
    assert [int(row["id"]) for row in again] == epochs[2][1]  # the seed and the epoch say it all


def test_transforms_and_dtypes_in_a_loader(tmp_path: Path) -> None:
    import torch

    schema = {"x": SchemaField(NDARRAY, DType.FLOAT32, (2,)), "y": SchemaField(SCALAR, DType.INT32)}
    ParquetDataset.write(tmp_path / "d", ({"x": [n, n], "y": n} for n in range(10)), schema, block_size=4)
    loader = read_parquet(
        "dataloader",
        tmp_path / "d",
        transforms=lambda row: (row["x"] * 2, row["y"]),
        config={"num_workers": 2, "num_shards": 2, "rank": 1, "lr": 0.1},
        batch_size=2,
        drop_last=False,
    )
    assert isinstance(loader, torch.utils.data.DataLoader)
    batches = list(loader)
    assert all(x.dtype == torch.float32 and y.dtype == torch.int32 for x, y in batches)
    assert sorted(y.item() for _, labels in batches for y in labels) == [5, 6, 7, 8, 9]
    assert all((x[:, 0] == 2 * y).all() for x, y in batches)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_shards": 2}, "belong together"),
        ({"rank": 0}, "belong together"),
        ({"num_shards": 2, "rank": 2}, r"rank=2 of num_shards=2"),
        ({"num_shards": 0, "rank": 0}, "num_shards=0"),
        ({"num_shards": 2, "rank": 0.5}, "rank must be an int"),
        ({"transforms": 3}, "transforms"),
        ({"shuffle": True, "seed": "a"}, "seed"),
    ],
)
def test_wrong_shards(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    ParquetDataset.write(tmp_path / "d", ids(3), ID)
    with pytest.raises(PlanError, match=words):
        ParquetDataset.read_as_torch(tmp_path / "d", **arguments)


@pytest.mark.parametrize(
    ("format", "arguments", "words"),
    [
        ("arrow", {}, r"format 'arrow'.*dataloader, tf_dataset"),
        ("tf_dataset", {}, "output_types"),
        ("tf_dataset", {"output_types": {}, "num_workers": 2}, "does not know num_workers"),
        ("dataloader", {"batch_size": 0}, "batch_size"),
        ("dataloader", {"no_such_option": 0}, "no_such_option"),
        ("dataloader", {"config": 3}, "config"),
    ],
)
def test_wrong_reading(tmp_path: Path, format: str, arguments: dict[str, Any], words: str) -> None:
    ParquetDataset.write(tmp_path / "d", ids(3), ID)
    with pytest.raises(PlanError, match=words):
        read_parquet(format, tmp_path / "d", **arguments)


PROBE = """
import sys
from firesteel.data.image import DType, FeatureType, ParquetDataset, SchemaField, read_parquet
ParquetDataset.write(sys.argv[1], [{"id": 1}], {"id": SchemaField(FeatureType.SCALAR, DType.INT64, ())})
assert not {"torch", "tensorflow", "pyspark", "PIL", "fsspec"} & set(sys.modules), "writing"
options = {"output_types": {"id": "int64"}} if sys.argv[2] == "tf_dataset" else {}
assert len(list(read_parquet(sys.argv[2], sys.argv[1], **options))) == 1
assert sys.argv[3] not in sys.modules and "pyspark" not in sys.modules, "reading"
"""


@pytest.mark.parametrize(
    ("format", "own", "other"), [("dataloader", "torch", "tensorflow"), ("tf_dataset", "tensorflow", "torch")]
)
def test_one_framework_does_not_load_the_other(tmp_path: Path, format: str, own: str, other: str) -> None:
    if importlib.util.find_spec(own) is None:
        pytest.skip(f"{own} is not installed")
    command = [sys.executable, "-c", PROBE, str(tmp_path / "d"), format, other]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# The collections


def write_idx(path: Path, magic: int, array: np.ndarray[Any, Any]) -> None:
    data = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist(tmp_path: Path, ending: str) -> None:
    images = np.random.default_rng(0).integers(0, 255, (7, 28, 28), np.uint8)
    labels = np.arange(7, dtype=np.uint8)
    image_file, label_file = tmp_path / f"images{ending}", tmp_path / f"labels{ending}"
    write_idx(image_file, 2051, images)
    write_idx(label_file, 2049, labels)
    write_mnist(str(image_file), str(label_file), str(tmp_path / "d"), block_size=3)
    found = all_rows(tmp_path / "d")
    assert_same_rows(found, [{"image": images[n, ..., None], "label": labels[n]} for n in range(7)])
    assert found[0]["label"].dtype == np.uint8
    with pytest.raises(PlanError, match=r"labels.*magic number 2049.*2051"):
        write_mnist(label_file, label_file, tmp_path / "e")
    write_idx(label_file, 2049, labels[:5])
    with pytest.raises(PlanError, match=r"7 images.*5 labels"):
        write_mnist(image_file, label_file, tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_an_idx_file_that_ends_too_early(tmp_path: Path) -> None:
    write_idx(tmp_path / "labels", 2049, np.arange(3, dtype=np.uint8))
    (tmp_path / "images").write_bytes(struct.pack(">4I", 2051, 3, 28, 28) + bytes(28 * 28 + 5))
    with pytest.raises(PlanError, match="ends too early"):
        write_mnist(tmp_path / "images", tmp_path / "labels", tmp_path / "d")


def make_class_folders(root: Path) -> dict[str, bytes]:
    contents = {}
    for name in ("cats", "dogs", "others"):
        (root / name).mkdir(parents=True)
        for number in range(3):
            path = root / name / f"{number}.jpg"
            contents[str(path)] = f"{name} {number}".encode()
            path.write_bytes(contents[str(path)])
    (root / "cats" / ".hidden").touch()
    return contents


def test_folders_by_class(tmp_path: Path) -> None:
    contents = make_class_folders(tmp_path / "images")
    label_map = {"dogs": 1, "cats": 0}
    write_from_directory(tmp_path / "images", label_map, tmp_path / "d", shuffle=False)
    found = all_rows(tmp_path / "d")
    assert [row["image_id"] for row in found] == [path for path in sorted(contents) if "others" not in path]
    for row in found:
        assert row["image"] == contents[row["image_id"]]
        assert row["label_str"] == Path(row["image_id"]).parent.name
        assert row["label"] == label_map[row["label_str"]]
        assert row["label"].dtype == np.int32
    write_parquet("image_folder", tmp_path / "e", directory=tmp_path / "images", label_map=label_map)
    mixed = all_rows(tmp_path / "e")
    assert mixed != found
    assert sorted(row["image_id"] for row in mixed) == [row["image_id"] for row in found]
    with pytest.raises(PlanError, match=r"birds.*cats, dogs, others"):
        write_from_directory(tmp_path / "images", {"birds": 0}, tmp_path / "f")


def test_write_parquet_refuses(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"format 'cifar'.*image_folder, mnist, voc"):
        write_parquet("cifar", tmp_path / "d")
    with pytest.raises(PlanError, match=r"label_file"):
        write_parquet("mnist", tmp_path / "d", image_file="images")


# On Spark


def write_mixed(tmp_path: Path) -> list[dict[str, Any]]:
    images = []
    for number in range(10):
        images.append(tmp_path / f"{number}.jpg")
        images[-1].write_bytes(bytes([number]) * number)
    schema = {
        "image": SchemaField(IMAGE, DType.BYTES),
        "x": SchemaField(NDARRAY, DType.FLOAT32, (2,)),
        "boxes": SchemaField(NDARRAY, DType.FLOAT32, (-1, 2)),
        "y": SchemaField(SCALAR, DType.INT32),
        "name": SchemaField(SCALAR, DType.STRING),
    }
    rows = [
        {
            "image": images[n],
            "x": np.array([n, 2 * n], np.float32),
            "boxes": np.full((n % 3, 2), n, np.float32),
            "y": n,
            "name": f"n{n}",
        }
        for n in range(10)
    ]
    ParquetDataset.write(tmp_path / "d", rows, schema, block_size=4)
    return [row | {"image": row["image"].read_bytes()} for row in rows]


def test_xshards(sc: SparkContext, tmp_path: Path) -> None:
    rows = write_mixed(tmp_path)
    shards = ParquetDataset.read_as_xshards(str(tmp_path / "d"))
    assert isinstance(shards, XShards)
    found = shards.collect()
    assert [shard["x"].shape for shard in found] == [(4, 2), (4, 2), (2, 2)]
    assert (found[0]["x"].dtype, found[0]["y"].dtype) == (np.float32, np.int32)
    assert np.concatenate([shard["y"] for shard in found]).tolist() == list(range(10))
    assert [name for shard in found for name in shard["name"]] == [row["name"] for row in rows]
    assert [image for shard in found for image in shard["image"]] == [row["image"] for row in rows]
    boxes = [box for shard in found for box in shard["boxes"]]
    assert [box.shape for box in boxes] == [(n % 3, 2) for n in range(10)]
    doubled = shards.transform_shard(lambda shard: shard["x"].__imul__(2))  # in place: the memory is the shard's own
    assert doubled.collect()[2].tolist() == [[16, 32], [18, 36]]
    assert shards.collect()[2]["x"].tolist() == [[8, 16], [9, 18]]


def test_dict_rdd(sc: SparkContext, tmp_path: Path) -> None:
    rows = write_mixed(tmp_path)
    rdd, schema = ParquetDataset._read_as_dict_rdd(f"file://{tmp_path}/d")
    assert_same_rows(rdd.collect(), rows)
    assert schema["boxes"] == SchemaField(NDARRAY, DType.FLOAT32, [-1, 2])  # type: ignore[arg-type]
    assert (ParquetDataset._read_as_xshards(tmp_path / "d").collect()[0]["y"] == np.arange(4)).all()


def test_tf_rows(sc: SparkContext, tmp_path: Path) -> None:
    write_mixed(tmp_path)
    dataset = ParquetDataset.read_as_tf(tmp_path / "d")
    assert isinstance(dataset, Dataset)
    mapped = dataset.map(lambda row: (row["x"] + 1, {"y": row["y"], "size": len(row["image"])}))
    mapped = mapped.map(lambda x, labels: {"x": x[None], "y": labels["y"] * 2, "size": labels["size"]})
    shards = mapped.xshards.collect()
    assert [shard["x"].shape for shard in shards] == [(4, 1, 2), (4, 1, 2), (2, 1, 2)]
    assert shards[0]["x"].dtype == np.float32
    assert shards[1]["x"][0].tolist() == [[5, 9]]
    assert np.concatenate([shard["y"] for shard in shards]).tolist() == list(range(0, 20, 2))
    assert np.concatenate([shard["size"] for shard in shards]).tolist() == list(range(10))


def test_tf_rows_of_any_shards(sc: SparkContext) -> None:
    source = np.arange(6.0)
    shards = XShards.partition((source, {"y": np.arange(6)}), 2)
    dataset = Dataset.from_tensor_slices(shards)
    assert dataset.xshards is shards
    found = dataset.map(lambda x, rest: (rest["y"], [x, x], f"row {x:.0f}")).xshards.collect()
    assert [part.tolist() for part in found[1]] == [[3, 4, 5], [[3, 3], [4, 4], [5, 5]], ["row 3", "row 4", "row 5"]]
    plain = Dataset.from_tensor_slices(XShards.partition(source, 3)).map(lambda x: 1 if x < 1 else x / 2)
    assert [shard.tolist() for shard in plain.xshards.collect()] == [[1, 0.5], [1, 1.5], [2, 2.5]]
    with pytest.raises(PlanError, match="XShards"):
        Dataset.from_tensor_slices(source)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="function"):
        dataset.map(3)  # type: ignore[arg-type]
    ragged = dataset.map(lambda x, rest: np.zeros(rest["y"]))
    with pytest.raises(Exception, match=r"same shape, found \(\d,\) and \(\d,\)"):
        ragged.xshards.collect()


def test_tasks_read_what_the_driver_named_relatively(sc: SparkContext, tmp_path: Path) -> None:
    ParquetDataset.write(tmp_path / "d", ids(3), ID)
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        shards = ParquetDataset.read_as_xshards("d")
    finally:
        os.chdir(here)
    assert shards.first()["id"].tolist() == [0, 1, 2]


# With TensorFlow


def test_tf_dataset(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    schema = {"x": SchemaField(NDARRAY, DType.FLOAT32, (2,)), "y": SchemaField(SCALAR, DType.INT32)}
    ParquetDataset.write(tmp_path / "d", ({"x": [n, n], "y": n} for n in range(10)), schema, block_size=3)
    types, shapes = {"x": tf.float32, "y": tf.int32}, {"x": (2,), "y": ()}

    def read(rank: int, **more: Any) -> Any:
        config = {"num_shards": 4, "rank": rank}
        return read_parquet(
            "tf_dataset", tmp_path / "d", config=config, output_types=types, output_shapes=shapes, **more
        )

    assert isinstance(read(0), tf.data.Dataset)
    assert read(0).element_spec["x"] == tf.TensorSpec((2,), tf.float32)
    datasets = [read(rank, shuffle=True, seed=1) for rank in range(4)]
    orders = []
    for _ in range(2):
        found = [[int(row["y"]) for row in dataset] for dataset in datasets]
        assert sorted(chain.from_iterable(found)) == list(range(10))
        orders.append(found)
    assert orders[0] != orders[1]
    batch = next(iter(read(0, batch_size=2)))
    assert batch["x"].numpy().tolist() == [[0, 0], [1, 1]]


def test_rows_through_tensorflow() -> None:
    """What a task does with a shard; here, for a task would import TensorFlow first, which takes seconds."""
    tf = pytest.importorskip("tensorflow")
    shard = {"x": np.arange(8, dtype=np.int64).reshape(4, 2), "y": [b"a", b"b\0", b"", b"d"]}

    def scaled(row: Any) -> Any:
        return tf.cast(row["x"], tf.float32) / 2.0, tf.strings.length(row["y"]), row["y"]

    ((x, lengths, y),) = _map_shards((scaled,), 0, iter([shard]))
    assert (type(x), x.dtype, x.tolist()) == (np.ndarray, np.float32, [[0, 0.5], [1, 1.5], [2, 2.5], [3, 3.5]])
    assert (lengths.dtype, lengths.tolist()) == (np.int32, [1, 2, 0, 1])
    assert y.tolist() == shard["y"]
