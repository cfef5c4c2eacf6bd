"""Files: the same answers for local paths and for a file system of fsspec's."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np
import pytest

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.data import file as files


@pytest.fixture(params=["plain", "file://", "memory://"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder, as users name it."""
    if request.param == "memory://":
        return f"memory://{uuid.uuid4().hex}"
    folder = tmp_path / "root"
    folder.mkdir()
    return str(folder) if request.param == "plain" else f"file://{folder}"


def test_text_round_trip(root: str) -> None:
    path = f"{root}/notes.txt"
    assert not files.exists(path)
    assert files.write_text(path, "α β\nsecond\r\n\n  kept  ") == 21
    assert files.open_text(path) == ["α β", "second", "", "  kept  "]
    assert files.write_text(path, "one\n") == 4
    assert files.open_text(path) == ["one"]
    assert files.exists(path)
    assert files.is_file(path)
    assert files.exists(root)
    assert not files.is_file(root)


def test_folders(root: str) -> None:
    files.makedirs(f"{root}/a/b")
    files.makedirs(f"{root}/a/b")
    files.write_text(f"{root}/a/z.txt", "z")
    files.write_text(f"{root}/a/b/y.txt", "y")
    assert files.listdir(f"{root}/a") == ["b", "z.txt"]
    with pytest.raises(NotADirectoryError, match=r"z\.txt"):
        files.rmdir(f"{root}/a/z.txt")
    files.rmdir(f"{root}/a")
    assert not files.exists(f"{root}/a/b/y.txt")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        files.rmdir(f"{root}/a")


def test_arrays_without_pickles(root: str, tmp_path: Path) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", x=array, y=np.arange(3))
    np.save(tmp_path / "c.npy", np.array([{"code": 1}], dtype=object))
    for name in ("a.npy", "b.npz", "c.npy"):
        files.put_local_file_to_remote(tmp_path / name, f"{root}/{name}")
    assert (files.load_numpy(f"{root}/a.npy") == array).all()
    assert (files.load_numpy(f"{root}/b.npz")["x"] == array).all()
    with pytest.raises(ValueError, match="allow_pickle"):
        files.load_numpy(f"{root}/c.npy")


def test_images(root: str, tmp_path: Path) -> None:
    from PIL import Image, UnidentifiedImageError

    Image.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / "i.png")
    files.put_local_file_to_remote(tmp_path / "i.png", f"{root}/i.png")
    image = files.open_image(f"{root}/i.png")
    assert (image.size, image.getpixel((2, 1))) == ((3, 2), (1, 2, 3))
    files.write_text(f"{root}/no.png", "no image")
    with pytest.raises(UnidentifiedImageError, match=r"no\.png"):
        files.open_image(f"{root}/no.png")


def test_one_file_there_and_back(root: str, tmp_path: Path) -> None:
    local = tmp_path / "local.txt"
    local.write_text("one")
    files.put_local_file_to_remote(local, f"{root}/deep/er/remote.txt")
    with pytest.raises(FileExistsError, match="over_write"):
        files.put_local_file_to_remote(local, f"{root}/deep/er/remote.txt")
    local.write_text("two")
    files.put_local_file_to_remote(local, f"{root}/deep/er/remote.txt", over_write=True)
    files.put_local_file_to_remote(local, f"{root}/deep/er")  # into the folder
    assert files.listdir(f"{root}/deep/er") == ["local.txt", "remote.txt"]
    with pytest.raises(FileExistsError, match=r"local\.txt"):
        files.get_remote_file_to_local(f"{root}/deep/er/remote.txt", local)
    files.get_remote_file_to_local(f"{root}/deep/er/remote.txt", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_text() == "two"
    with pytest.raises(FileNotFoundError, match=r"absent\.txt"):
        files.get_remote_file_to_local(f"{root}/absent.txt", tmp_path / "absent.txt")


def test_folders_there_and_back(root: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "in/c.txt"):
        (source / name).write_text(name)
    files.put_local_dir_to_remote(source, f"{root}/flat")
    assert files.listdir(f"{root}/flat") == ["a.txt", "b.txt"]
    files.put_local_dir_tree_to_remote(source, f"{root}/tree")
    assert files.open_text(f"{root}/tree/in/c.txt") == ["in/c.txt"]

    (source / "a.txt").write_text("changed")
    (source / "d.txt").write_text("new")
    with pytest.raises(FileExistsError):
        files.put_local_dir_tree_to_remote(source, f"{root}/tree")
    assert not files.exists(f"{root}/tree/d.txt")  # found out before anything was copied
    files.put_local_dir_tree_to_remote(source, f"{root}/tree", over_write=True)
    assert files.open_text(f"{root}/tree/a.txt") == ["changed"]

    files.get_remote_dir_to_local(f"{root}/tree", tmp_path / "back")
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*.txt")) == [
        "a.txt",
        "b.txt",
        "d.txt",
        "in/c.txt",
    ]
    with pytest.raises(FileExistsError):
        files.get_remote_dir_to_local(f"{root}/tree", tmp_path / "back")


def test_prefixes(root: str, tmp_path: Path) -> None:
    for name in ("model.index", "model.data", "other"):
        (tmp_path / name).write_text(name)
    files.put_local_files_with_prefix_to_remote(tmp_path / "model", f"{root}/kept")
    assert files.listdir(f"{root}/kept") == ["model.data", "model.index"]
    target = tmp_path / "back"
    assert files.get_remote_files_with_prefix_to_local(f"{root}/kept/model", target) == str(target / "model")
    assert sorted(path.name for path in target.iterdir()) == ["model.data", "model.index"]
    with pytest.raises(FileNotFoundError, match="begins with"):
        files.get_remote_files_with_prefix_to_local(f"{root}/kept/nothing", target)


def test_permissions_where_there_are_any(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    files.put_local_file_to_remote(tmp_path / "a", tmp_path / "b", filemode=0o600)
    assert os.stat(tmp_path / "b").st_mode & 0o777 == 0o600
    with pytest.raises(UnsupportedError, match="filemode"):
        files.put_local_file_to_remote(tmp_path / "a", "memory://modes/b", filemode=0o600)


def test_paths_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nosuchscheme"):
        files.exists("nosuchscheme://a/b")
    with pytest.raises(PlanError, match="not empty"):
        files.exists("")
    with pytest.raises(PlanError, match="local path"):
        files.put_local_file_to_remote("memory://a", tmp_path / "b")
