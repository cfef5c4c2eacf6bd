"""What a task writes, its child reads; nothing has a name on disk; memory has a bound."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firesteel.core.errors import ClusterError, SchemaError
from firesteel.data.packed import pack, unpack
from firesteel.data.spool import Block, SpoolReader, SpoolWriter, files_for, spool_directory

DTYPES = ["<f4", "<f8", "<i8", "|i1", "|b1"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8),
    st.sampled_from(DTYPES),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3) | st.just(()),
    st.data(),
)
@settings(deadline=None, max_examples=150)
def test_rows_come_back_by_number(pieces, dtype: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    pieces = sorted(pieces)  # a partition's rows come in one piece
    random = np.random.default_rng(0)
    batches = [
        (partition, {"x": random.integers(0, 2, (rows, *shape)).astype(dtype), "y": random.random(rows)})
        for partition, rows in pieces
    ]
    with SpoolWriter(("x", "y")) as writer:
        for partition, batch in batches:
            writer.append(partition, batch)
        total = sum(rows for _, rows in pieces)
        if total == 0:
            assert writer.signature is None
            assert writer.blocks == ()
            return
        sizes = {p: sum(rows for q, rows in pieces if q == p) for p, _ in pieces}
        assert {block.partition: block.rows for block in writer.blocks} == {p: n for p, n in sizes.items() if n}
        reader = SpoolReader(writer.descriptors, writer.signature, writer.blocks)
        wanted = np.array(data.draw(st.lists(st.integers(0, total - 1), max_size=20)), dtype=np.int64)
        found = reader.take(wanted)
        for name in ("x", "y"):
            whole = np.concatenate([batch[name] for _, batch in batches])
            np.testing.assert_array_equal(found[name], whole[wanted])
            np.testing.assert_array_equal(reader.arrays()[name], whole)
            assert found[name].dtype == whole.dtype
            assert reader.empty()[name].shape == (0, *whole.shape[1:])


@given(st.lists(st.lists(st.binary(max_size=9), max_size=5), max_size=5))
@settings(deadline=None, max_examples=60)
def test_strings_and_bytes_come_back_as_bytes(pieces: list[list[bytes]]) -> None:
    batches = []
    for cells in pieces:
        values = np.empty(len(cells), object)
        values[:] = cells
        batch = {"s": values, "n": np.arange(float(len(cells)))}
        again = unpack(*pack(batch))
        assert again["s"].tolist() == cells
        assert np.array_equal(again["n"], batch["n"])
        batches.append(again)
    flat = [cell for cells in pieces for cell in cells]
    with SpoolWriter(("s", "n", "s/heap")) as writer:
        assert all(files_for(batch) == ("s", "n", "s/heap") for batch in batches)
        for partition, batch in enumerate(batches):
            writer.append(partition, batch)
        if not flat:
            return
        reader = SpoolReader(writer.descriptors, writer.signature, writer.blocks)
        order = np.random.default_rng(0).permutation(len(flat))
        assert reader.take(order)["s"].tolist() == [flat[place] for place in order]
        assert reader.arrays()["s"].tolist() == flat
        assert reader.empty()["s"].shape == (0,)
    assert unpack(*pack({"s": np.array([["ä", b"b"]], object)}))["s"].tolist() == [["ä".encode(), b"b"]]


def test_blocks_know_where_they_begin() -> None:
    with SpoolWriter(("x",)) as writer:
        for partition, rows in ((5, 2), (5, 3), (1, 4)):
            writer.append(partition, {"x": np.zeros(rows)})
        assert writer.blocks == (Block(5, 0, 5), Block(1, 5, 4))


def test_a_copy_is_given_not_the_file() -> None:
    with SpoolWriter(("x",)) as writer:
        writer.append(0, {"x": np.arange(3.0)})
        reader = SpoolReader(writer.descriptors, writer.signature, writer.blocks)
        reader.take(np.array([0]))["x"][:] = 9
        assert reader.take(np.array([0]))["x"] == 0


def test_a_child_reads_through_its_descriptors(tmp_path: Path) -> None:
    with SpoolWriter(("x",), str(tmp_path)) as writer:
        writer.append(0, {"x": np.arange(1000, dtype=np.int64)})
        number = writer.descriptors["x"]
        text = (
            "import numpy as np; from firesteel.core.spec import Signature, TensorSpec; "
            "from firesteel.data.spool import Block, SpoolReader; "
            f"r = SpoolReader({{'x': {number}}}, Signature((TensorSpec('x', '<i8', ()),)), (Block(0, 0, 1000),)); "
            "print(r.take(np.array([999, 3]))['x'])"
        )
        found = subprocess.run(
            [sys.executable, "-c", text], pass_fds=[number], capture_output=True, text=True, check=True
        )
    assert found.stdout == "[999   3]\n"


def test_nothing_has_a_name_even_while_it_is_open(tmp_path: Path) -> None:
    with SpoolWriter(("x", "y"), str(tmp_path)) as writer:
        writer.append(0, {"x": np.zeros((1000, 50)), "y": np.zeros(1000)})
        assert list(tmp_path.iterdir()) == []
        descriptors = list(writer.descriptors.values())
        assert sum(os.fstat(number).st_size for number in descriptors) == 1000 * 51 * 8
    for number in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_rows_of_another_shape_are_refused_with_the_column() -> None:
    with SpoolWriter(("x",)) as writer:
        writer.append(0, {"x": np.zeros((2, 3))})
        with pytest.raises(SchemaError, match=r"'x'.*\(3,\).*\(4,\)") as caught:
            writer.append(1, {"x": np.zeros((2, 4))})
    assert caught.value.column == "x"


def test_a_full_disk_is_named_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = partial(open, "/dev/full", "wb", buffering=0)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir, buffering: full())
    with SpoolWriter(("x",), str(tmp_path)) as writer, pytest.raises(ClusterError) as caught:
        writer.append(0, {"x": np.zeros(10)})
    assert str(tmp_path) in str(caught.value)
    assert "No space left" in str(caught.value)
    assert "spark.local.dir" in str(caught.value)


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="gone"):
        SpoolWriter(("x",), str(tmp_path / "gone"))


def test_sparks_own_scratch_place_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/no/such/place,{tmp_path}")
    assert spool_directory() == str(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    assert spool_directory() == tempfile.gettempdir()


def test_reading_all_of_a_large_spool_leaves_little_resident() -> None:
    """Mapped pages count as resident until they are let go of."""
    text = """
import numpy as np, resource
from firesteel.data.spool import SpoolReader, SpoolWriter
writer = SpoolWriter(("x",))
piece = np.ones((1000, 2500), np.float32)  # 10 MB
for _ in range(50):
    writer.append(0, {"x": piece})
reader = SpoolReader(writer.descriptors, writer.signature, writer.blocks)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for begin in range(0, 50_000, 500):
    reader.take(np.arange(begin, begin + 500))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    grown = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 150  # of 500 MB
