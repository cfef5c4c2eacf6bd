"""Folders for temporary files that go with whom they were made for, or a little later."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.cluster.scratch import Scratch

_TASK = """
import sys
from firesteel.cluster.scratch import Scratch
scratch = Scratch()
open(scratch.folder + "/left", "w").close()
print(scratch.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The task's own place for temporary files. Its path is short; that of pytest's is not, and must be there first."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(folder)


def other_task() -> tuple[subprocess.Popen[str], str]:
    pipe = subprocess.PIPE
    task = subprocess.Popen([sys.executable, "-c", _TASK], stdin=pipe, stdout=pipe, text=True)
    assert task.stdout is not None
    return task, task.stdout.readline().strip()


def test_it_lies_in_the_tasks_place_and_goes_with_all_that_is_in_it(place: Path) -> None:
    scratch = Scratch()
    assert scratch.folder is not None
    assert Path(scratch.folder).parent == place
    assert scratch.variables()["TMPDIR"] == scratch.folder
    (Path(scratch.folder) / "deep").mkdir()
    (Path(scratch.folder) / "deep" / "file").touch()
    scratch.remove()
    scratch.remove()
    assert list(place.iterdir()) == []


def test_what_a_killed_task_left_is_removed_by_the_next_and_a_living_ones_is_not(place: Path) -> None:
    dead, its_folder = other_task()
    alive, other_folder = other_task()
    assert (os.path.isdir(its_folder), os.path.isdir(other_folder)) == (True, True)
    dead.kill()
    dead.communicate()
    scratch = Scratch()
    assert (os.path.isdir(its_folder), os.path.isdir(other_folder)) == (False, True)
    alive.kill()
    alive.communicate()
    scratch.remove()
    assert list(place.iterdir()) == []


def test_another_ones_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (place / "firesteel-tmp-link").symlink_to(tmp_path)
    Scratch().remove()
    assert (tmp_path / "file").exists()


def test_sockets_in_it_have_names_that_are_short_enough(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = place / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    scratch = Scratch()
    assert (scratch.folder, scratch.variables()) == (None, {})
    scratch.remove()
    assert list(deep.iterdir()) == []


def test_caches_stay_where_they_are(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "the user's")
    scratch = Scratch()
    found = scratch.variables()
    scratch.remove()
    assert found["TFHUB_CACHE_DIR"] == str(place / "tfhub_modules")
    assert "TORCHINDUCTOR_CACHE_DIR" not in found
