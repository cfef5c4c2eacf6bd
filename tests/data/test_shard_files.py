"""Shards in files come back as they were, and nothing half-written is ever seen."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark import SparkContext

from firesteel.core.errors import PlanError, SchemaError
from firesteel.data.shards import XShards

SHARDS = [
    pd.DataFrame({"v": [1.5, 2]}, index=["a", "b"]),
    {"x": np.zeros((3, 0, 2), np.float32), "y": np.arange(3)},
    (1, "two", None, [3.0, b"4"]),
    pd.DataFrame({"v": []}),
    7,
]


def shown(shards: XShards) -> list[str]:
    return [f"{type(shard)} {shard!r} {getattr(shard, 'dtypes', '')}" for shard in shards.collect()]


@pytest.fixture
def shards(sc: SparkContext) -> XShards:
    return XShards(sc.parallelize(SHARDS, 4))


def test_parquet_gives_back_shards_and_partitions(shards: XShards, sc: SparkContext, tmp_path: Path) -> None:
    path = str(tmp_path / "saved")
    assert shards.save_parquet(path) is shards
    found = XShards.load_parquet(path)
    assert shown(found) == shown(shards)
    assert found.num_partitions() == 4
    assert found.rdd.glom().map(len).collect() == shards.rdd.glom().map(len).collect()
    more = XShards.load_parquet(path, minPartitions=9)
    assert (shown(more), more.num_partitions()) == (shown(shards), 9)
    XShards(sc.parallelize([], 2)).save_parquet(str(tmp_path / "none"))
    assert XShards.load_parquet(str(tmp_path / "none")).collect() == []


def test_parquet_of_frames_is_plain_parquet_without_pickles(sc: SparkContext, tmp_path: Path) -> None:
    XShards(sc.parallelize(SHARDS[:2], 2)).save_parquet(str(tmp_path / "saved"))
    files = sorted((tmp_path / "saved").iterdir())
    assert [file.suffix for file in files if file.name.startswith("shards-")] == [".parquet", ".parquet"]
    assert not any(b"cpandas" in file.read_bytes() or b"numpy._core" in file.read_bytes() for file in files)


def test_what_is_there_is_replaced_when_told_and_whole(shards: XShards, sc: SparkContext, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with pytest.raises(SchemaError, match="object"):
        XShards(sc.parallelize([object()], 1)).save_parquet(str(path))
    assert not path.exists()
    shards.save_parquet(str(path))
    with pytest.raises(FileExistsError, match="overwrite"):
        shards.save_parquet(str(path))
    names = sorted(file.name for file in path.iterdir())
    with pytest.raises(SchemaError, match=r"object.*partition 1"):
        XShards(sc.parallelize([1, object()], 2)).save_parquet(str(path), overwrite=True)
    assert sorted(file.name for file in path.iterdir()) == names
    assert shown(XShards.load_parquet(str(path))) == shown(shards)
    XShards(sc.parallelize([1, 2], 2)).save_parquet(str(path), overwrite=True)
    assert XShards.load_parquet(str(path)).collect() == [1, 2]
    assert len(list(path.glob("*.parquet"))) == 2


@pytest.mark.parametrize("load", [XShards.load_parquet, XShards.load_pickle])
def test_only_what_was_written_here_is_opened(sc: SparkContext, tmp_path: Path, load: Any) -> None:
    with pytest.raises(PlanError, match=r"Path does not exist.*nowhere"):
        load(str(tmp_path / "nowhere"))
    foreign = tmp_path / "foreign"
    sc.parallelize([1], 1).saveAsPickleFile(str(foreign))
    with pytest.raises(PlanError, match="was not written by save_"):
        load(str(foreign))
    with pytest.raises(PlanError, match="minPartitions"):
        load(str(tmp_path), minPartitions=0)


def test_paths_may_be_objects_and_folders_empty(sc: SparkContext, tmp_path: Path) -> None:
    numbers = XShards(sc.parallelize(range(7), 7))
    (tmp_path / "empty").mkdir()
    numbers.save_parquet(tmp_path / "empty")  # type: ignore[arg-type]
    assert XShards.load_parquet(tmp_path / "empty").collect() == list(range(7))  # type: ignore[arg-type]
    numbers.save_pickle(tmp_path / "pickled")  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="runs code"):
        assert XShards.load_pickle(tmp_path / "pickled").collect() == list(range(7))  # type: ignore[arg-type]


def test_pickle_gives_back_shards_and_one_warning(shards: XShards, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shards.save_pickle(str(tmp_path / "saved"))
        found = shown(XShards.load_pickle(str(tmp_path / "saved")))
    assert found == shown(shards)
    (warning,) = (each for each in caught if issubclass(each.category, UserWarning))
    assert "runs code" in str(warning.message)
    assert warning.filename == __file__
    with pytest.raises(FileExistsError):
        shards.save_pickle(str(tmp_path / "saved"))
