"""Checkpoints: ``model.<step>`` and ``optimMethod-<name>.<step>`` in a dated folder, both safetensors.

The optimizer's file is written first, the model's last, so a model file means that both are there. A third, small
file ``checkpoint.<step>.json`` holds the position and both hashes: what does not match them is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from dataclasses import asdict, dataclass

from firesteel.core.errors import CheckpointError
from firesteel.core.plan import Position
from firesteel.engine.files import exists, local_path, read_bytes, write_bytes

__all__ = ["Checkpoint", "CheckpointFolder", "latest", "load"]

_MODEL = re.compile(r"model\.(\d+)$")
_DATED = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")


@dataclass(frozen=True)
class Checkpoint:
    """A training at one moment."""

    state: dict[str, bytes]
    position: Position
    seed: int
    path: str = ""


class CheckpointFolder:
    """A dated folder under ``model_dir``, made when the first checkpoint is written. Driver only."""

    def __init__(self, model_dir: str, keep: int | None = None, name: str = "Model") -> None:
        self._model_dir = local_path(model_dir) or model_dir
        self._keep = keep
        self._name = name
        self._folder: str | None = None
        self._written: list[int] = []

    def write(self, checkpoint: Checkpoint) -> str:
        """Write one; the oldest goes when there are more than ``keep``. Returns the model file's path."""
        if self._folder is None:
            self._folder = os.path.join(self._model_dir, time.strftime("%Y-%m-%d_%H-%M-%S"))
        step = checkpoint.position.step
        path = write(self._folder, checkpoint, self._name)
        if step not in self._written:
            self._written.append(step)
        while self._keep is not None and len(self._written) > self._keep:
            self._remove(self._written.pop(0))
        return path

    def _remove(self, step: int) -> None:
        assert self._folder is not None
        for name in _names(step, self._name):
            path = os.path.join(self._folder, name)
            if os.path.exists(path):
                os.remove(path)


def _names(step: int, name: str) -> tuple[str, str, str]:
    return f"model.{step}", f"optimMethod-{name}.{step}", f"checkpoint.{step}.json"


def write(folder: str, checkpoint: Checkpoint, name: str = "Model") -> str:
    """Write a checkpoint's files into ``folder``; the model file's path."""
    model, optimizer, facts = _names(checkpoint.position.step, name)
    data = checkpoint.state.get("optimizer", b"")
    note = {
        "position": asdict(checkpoint.position),
        "seed": checkpoint.seed,
        "optimizer": optimizer,
        "hashes": {"model": _hash(checkpoint.state["model"]), "optimizer": _hash(data)},
    }
    write_bytes(os.path.join(folder, optimizer), data)
    write_bytes(os.path.join(folder, facts), json.dumps(note).encode())
    path = os.path.join(folder, model)
    write_bytes(path, checkpoint.state["model"])
    return path


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def latest(path: str) -> str:
    """Path of the newest model file under ``path``: a checkpoint file, a dated folder, or a ``model_dir``."""
    found = _candidates(path, None)
    if not found:
        raise CheckpointError(f"no checkpoint in {path}", path=path)
    return found[0]


def load(path: str, version: int | None = None) -> Checkpoint:
    """The newest whole checkpoint at ``path`` (of step ``version``, where given); damaged ones are passed over with a warning."""
    damaged = []
    for candidate in _candidates(path, version):
        try:
            return _read(candidate)
        except (CheckpointError, OSError, ValueError, KeyError) as error:
            damaged.append(candidate)
            warnings.warn(f"passed over a damaged checkpoint: {candidate}: {error}", stacklevel=3)
    what = f" of version {version}" if version is not None else ""
    if damaged:
        raise CheckpointError(f"no whole checkpoint{what} in {path}; damaged: {', '.join(damaged)}", path=path)
    raise CheckpointError(f"no checkpoint{what} in {path}", path=path)


def _candidates(path: str, version: int | None) -> list[str]:
    """Model files, newest first: by folder (its name is its date), then by step."""
    root = local_path(path) or path
    if os.path.isfile(root):
        return [root]
    if not os.path.isdir(root):
        return []
    folders = [root, *(os.path.join(root, name) for name in os.listdir(root) if _DATED.match(name))]
    found = []
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            match = _MODEL.match(name)
            if match and (version is None or int(match[1]) == version):
                found.append((os.path.basename(folder) if folder != root else "", int(match[1]), os.path.join(folder, name)))
    return [model for _, _, model in sorted(found, reverse=True)]


def _read(model_path: str) -> Checkpoint:
    match = _MODEL.search(os.path.basename(model_path))
    if match is None:
        raise CheckpointError("not a checkpoint's model file (model.<step>)", path=model_path)
    folder = os.path.dirname(model_path)
    facts_path = os.path.join(folder, f"checkpoint.{match[1]}.json")
    if not exists(facts_path):
        raise CheckpointError("its checkpoint.<step>.json is missing", path=model_path)
    note = json.loads(read_bytes(facts_path))
    state = {"model": read_bytes(model_path), "optimizer": read_bytes(os.path.join(folder, note["optimizer"]))}
    for part, expected in note["hashes"].items():
        if _hash(state[part]) != expected:
            raise CheckpointError(f"its {part} file is not the one that was written", path=model_path)
    if not state["optimizer"]:
        del state["optimizer"]
    return Checkpoint(state, Position(**note["position"]), int(note["seed"]), model_path)
