"""A checkpoint folder: which one is the newest, what is whole, what damage is noticed. No Spark."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import fs
from safetensors import safe_open
from safetensors.torch import load, save

from firesteel.core.errors import CheckpointError
from firesteel.core.plan import Position
from firesteel.engine import files
from firesteel.engine.checkpoint import Checkpoint, CheckpointFolder, find, latest, write
from firesteel.engine.checkpoint import load as load_checkpoint

STATE = {"model": save({"w": torch.arange(5.0)}, {"a": "b"}), "optimizer": save({"0": torch.ones(2)}, {"tree": "x"})}


def at(step: int, **more: Any) -> Checkpoint:
    return Checkpoint(STATE, Position(epoch=1, step=step, pass_step=2, loss_sum=0.5), 7, **more)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(str(tmp_path), at(4))
    assert path == str(tmp_path / "model.4")
    for where in (tmp_path, path, f"file://{tmp_path}"):
        found = load_checkpoint(str(where))
        assert (found.position, found.seed, found.path) == (at(4).position, 7, path)
        assert found.state["optimizer"] == STATE["optimizer"]
        torch.testing.assert_close(load(found.state["model"]), load(STATE["model"]))
    with safe_open(path, "pt") as file:
        assert file.metadata()["a"] == "b"
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_weights_alone_are_a_checkpoint_too(tmp_path: Path) -> None:
    write(str(tmp_path), Checkpoint({"model": STATE["model"]}, Position(step=1), 0))
    assert list(load_checkpoint(str(tmp_path)).state) == ["model"]


def test_the_newest_is_by_date_then_by_step(tmp_path: Path) -> None:
    for folder, steps in {"2026-01-02_10-00-00": (3, 12), "2026-01-03_09-00-00": (5,), "notes": (99,)}.items():
        for step in steps:
            write(str(tmp_path / folder), at(step))
    assert latest(str(tmp_path)).endswith("2026-01-03_09-00-00/model.5")
    assert latest(str(tmp_path / "2026-01-02_10-00-00")).endswith("model.12")
    assert load_checkpoint(str(tmp_path), 3).position.step == 3
    assert find(str(tmp_path), 99) is None
    with pytest.raises(CheckpointError, match="version 99"):
        load_checkpoint(str(tmp_path), 99)


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "header", "optimizer", "no optimizer", "half"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    write(str(tmp_path), at(4))
    write(str(tmp_path), at(8))
    model, optimizer = tmp_path / "model.8", tmp_path / "optimMethod-Model.8"
    data = model.read_bytes()
    match damage:
        case "cut":
            model.write_bytes(data[:-1])
        case "flipped":
            model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "emptied":
            model.write_bytes(b"")
        case "header":
            model.write_bytes(data[:8] + b"#" + data[9:])
        case "optimizer":
            optimizer.write_bytes(optimizer.read_bytes()[:-1])
        case "no optimizer":
            optimizer.unlink()
        case "half":
            model.unlink()
    with pytest.warns(UserWarning, match=r"damaged checkpoint: .*model\.8"):
        assert load_checkpoint(str(tmp_path)).position.step == 4
    warnings.simplefilter("ignore")
    with pytest.raises(CheckpointError, match=r"damaged: .*model\.8"):
        find(str(tmp_path), 8)


def test_nothing_there(tmp_path: Path) -> None:
    assert find(str(tmp_path)) is None
    assert find(str(tmp_path / "nowhere")) is None
    with pytest.raises(CheckpointError, match="no checkpoint"):
        latest(str(tmp_path))


def test_a_folder_keeps_the_newest(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=2)
    assert list(tmp_path.iterdir()) == []  # no folder before there is a checkpoint
    for step in (1, 2, 3):
        folder.write(at(step))
    (dated,) = tmp_path.iterdir()
    assert {path.name for path in dated.iterdir()} == {
        "model.2",
        "model.3",
        "optimMethod-Model.2",
        "optimMethod-Model.3",
    }


def test_another_file_system_is_written_listed_and_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(files, "_remote", lambda path: (system, path.removeprefix("far://")))
    folder = CheckpointFolder("far://run", keep=1)
    for step in (3, 4):
        folder.write(at(step))
    assert latest("far://run").endswith("/model.4")
    assert find("far://run").position.step == 4
    assert find("far://run", version=3) is None
    assert find("far://nothing") is None
    assert load_checkpoint(latest("far://run")).position.step == 4
