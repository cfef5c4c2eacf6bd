"""Files by path or URL: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firesteel.engine import files


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/a/b", "/a/b"),
        ("a", "a"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("dbfs:/x/y", "/dbfs/x/y"),
        ("hdfs://host/x", None),
        ("s3://bucket/x", None),
    ],
)
def test_which_paths_are_local(path: str, local: str | None) -> None:
    assert files.local_path(path) == local


def test_written_whole_into_folders_that_are_made(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/new/folder/file"
    assert not files.exists(path)
    files.write_bytes(path, b"one")
    files.write_bytes(path, b"two")
    assert files.read_bytes(path) == b"two"
    assert files.exists(path)
    assert os.listdir(tmp_path / "new" / "folder") == ["file"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        files.write_bytes(path, b"three", overwrite=False)
    assert files.read_bytes(path) == b"two"
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{path}.other")


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_bytes(str(path), b"old")

    def full(number: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.write_bytes(str(path), b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import fs

    monkeypatch.setattr(
        files, "_remote", lambda path: (fs.LocalFileSystem(), str(tmp_path) + path.removeprefix("hdfs://h"))
    )
    files.write_bytes("hdfs://h/deep/file", b"data")
    assert files.exists("hdfs://h/deep/file")
    assert not files.exists("hdfs://h/deep/other")
    assert files.read_bytes("hdfs://h/deep/file") == b"data"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]
