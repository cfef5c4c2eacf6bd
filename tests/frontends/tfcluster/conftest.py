"""What the tests of clusters share: programs leave notes in a folder, and nothing else may be left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from processes import below, left, words


class Notes:
    """A folder in which nodes write what they found, and the driver reads it. Travels to them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, number: int, value: Any) -> None:
        """In a node: leave a note, under its number."""
        path = os.path.join(self.folder, f"{number}.json")
        with open(f"{path}.part", "w") as file:
            json.dump(value, file)
        os.rename(f"{path}.part", path)

    def read(self) -> list[Any]:
        """On the driver: all notes, in the order of numbers."""
        paths = sorted(Path(self.folder).glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    folder = tmp_path / "notes"
    folder.mkdir()
    return Notes(str(folder))


def own_processes() -> list[str]:
    """Processes of clusters that were started from here. A keeper is nobody's child, but names its executor."""
    mine = psutil.Process().children(recursive=True)
    numbers = {str(process.pid) for process in mine}
    keepers = below("firesteel.cluster.keeper", psutil.process_iter())
    keepers = [process for process in keepers if numbers & set(words(process)[-1:])]
    return [*left(mine), *(" ".join(words(process)) for process in (*below("tensorboard", mine), *keepers))]


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test: no process of a cluster, and the SparkContext works."""
    yield
    assert own_processes() == []
    if "sc" in request.fixturenames:
        assert request.getfixturevalue("sc").range(10).count() == 10
