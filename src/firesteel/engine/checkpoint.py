"""Checkpoints: ``model.<step>`` and ``optimMethod-<name>.<step>`` in a dated folder, both safetensors.

The model's file is written last, and its header holds a note: the position, the seed, and the hashes of both files'
content. So a model file means that both are there, and what does not match the note is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.core.errors import CheckpointError
from firesteel.core.plan import Position
from firesteel.engine.files import is_file, local_path, names_in, read_bytes, remove, write_bytes

__all__ = ["Checkpoint", "CheckpointFolder", "find", "latest", "load", "write"]

_FILE = re.compile(r"(?:model|optimMethod-.*)\.(\d+)")
_DATED = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
_NOTE = "firesteel.checkpoint"


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
        self.keep = keep
        self._name = name
        self._folder: str | None = None
        self._written: list[int] = []

    def write(self, checkpoint: Checkpoint) -> str:
        """Write one; the oldest goes when there are more than ``keep``. Returns the model file's path."""
        if self._folder is None:
            self._folder = os.path.join(self._model_dir, time.strftime("%Y-%m-%d_%H-%M-%S"))
        path = write(self._folder, checkpoint, self._name)
        if checkpoint.position.step not in self._written:  # else a gang that was lost wrote it before
            self._written.append(checkpoint.position.step)
        while self.keep is not None and len(self._written) > self.keep:
            self._remove(self._folder, self._written.pop(0))
        return path

    def newest(self) -> Checkpoint | None:
        """The newest whole one of this fit; damaged ones are passed over."""
        return find(self._folder) if self._folder is not None else None

    def _remove(self, folder: str, step: int) -> None:
        # The model's file first: what is left, should we be killed here, does not look like a checkpoint.
        for name in (f"model.{step}", f"optimMethod-{self._name}.{step}"):
            remove(os.path.join(folder, name))


def write(folder: str, checkpoint: Checkpoint, name: str = "Model") -> str:
    """Write a checkpoint's files into ``folder``; the model file's path."""
    step = checkpoint.position.step
    optimizer = f"optimMethod-{name}.{step}"
    note = {
        "position": asdict(checkpoint.position),
        "seed": checkpoint.seed,
        "model": _hash(_split(checkpoint.state["model"])[1]),
    }
    if "optimizer" in checkpoint.state:
        note |= {"file": optimizer, "optimizer": _hash(checkpoint.state["optimizer"])}
        write_bytes(os.path.join(folder, optimizer), checkpoint.state["optimizer"])
    path = os.path.join(folder, f"model.{step}")
    write_bytes(path, _with_note(checkpoint.state["model"], note))
    return path


def latest(path: str) -> str:
    """Path of the newest whole model file at ``path``; ``CheckpointError`` if there is none."""
    return load(path).path


def load(path: str, version: int | None = None) -> Checkpoint:
    """The newest whole checkpoint at ``path`` (of step ``version``, where given); see ``find``."""
    found = find(path, version)
    if found is None:
        what = "" if version is None else f" of version {version}"
        raise CheckpointError(f"no checkpoint{what} in {path}", path=path)
    return found


def find(path: str, version: int | None = None) -> Checkpoint | None:
    """The newest whole checkpoint, ``None`` where there is not any; damaged ones are passed over with a warning.

    ``path`` is a checkpoint's model file, a dated folder, or a ``model_dir``.

    Raises:
        CheckpointError: there are some, and all are damaged; the text names them.
    """
    damaged = []
    for candidate in _candidates(local_path(path) or path, version):
        try:
            return _read(candidate)
        except (CheckpointError, OSError, ValueError, KeyError) as error:
            damaged.append(candidate)
            warnings.warn(f"passed over a damaged checkpoint: {candidate}: {error}", stacklevel=3)
    if damaged:
        raise CheckpointError(f"no whole checkpoint in {path}; damaged: {', '.join(damaged)}", path=path)
    return None


def _candidates(root: str, version: int | None) -> list[str]:
    """Model files, newest first: by folder (its name is its date), then by step. A half one's may be missing."""
    if is_file(root):
        return [root]
    found = set()
    for folder in ["", *filter(_DATED.fullmatch, names_in(root))]:
        for name in names_in(os.path.join(root, folder) if folder else root):
            match = _FILE.fullmatch(name)
            if match and (version is None or int(match[1]) == version):
                found.add((folder, int(match[1])))
    return [os.path.join(root, folder, f"model.{step}") for folder, step in sorted(found, reverse=True)]


def _read(path: str) -> Checkpoint:
    header, content = _split(read_bytes(path))
    if _NOTE not in header.get("__metadata__", {}):
        raise CheckpointError("not a checkpoint's model file: its header has no note", path=path)
    note = json.loads(header["__metadata__"].pop(_NOTE))
    state = {"model": _joined(header, content)}
    if _hash(content) != note["model"]:
        raise CheckpointError("the weights are not those that were written", path=path)
    if "file" in note:
        state["optimizer"] = read_bytes(os.path.join(os.path.dirname(path), note["file"]))
        if _hash(state["optimizer"]) != note["optimizer"]:
            raise CheckpointError(f"{note['file']} is not the one that was written", path=path)
    return Checkpoint(state, Position(**note["position"]), int(note["seed"]), path)


# --- safetensors, as far as a header goes: its length in 8 bytes, JSON, then the tensors ---


def _with_note(data: bytes, note: dict[str, Any]) -> bytes:
    header, content = _split(data)
    header.setdefault("__metadata__", {})[_NOTE] = json.dumps(note)
    return _joined(header, content)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    if not 8 < end <= len(data):
        raise CheckpointError("not a whole safetensors file")
    return json.loads(data[8:end]), data[end:]


def _joined(header: dict[str, Any], content: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors are read in place where they are aligned
    return len(text).to_bytes(8, "little") + text + content


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
