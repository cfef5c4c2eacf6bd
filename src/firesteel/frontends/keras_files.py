"""Keras models and weights as files: at the very path that was asked for, whole or not at all, on any file system."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firesteel.core.errors import UnsupportedError
from firesteel.engine.files import exists, local_path, read_bytes, write_bytes

__all__ = ["load_model", "load_weights", "save_model", "save_weights"]

_FILES = (".keras", ".h5", ".hdf5")
_WEIGHTS = ".weights.h5"
# Where a SavedModel may hold what it knows nothing of: here, the model by which Keras can go on.
_INSIDE = Path("assets.extra", "model.keras")


def save_model(model: Any, path: str, *, overwrite: bool, include_optimizer: bool, save_format: str | None) -> str:
    """As ``.keras`` or ``.h5``, or, for any other path, as a folder: a SavedModel to serve, with the model inside."""
    ending = {"keras": ".keras", "h5": ".h5"}.get(save_format or "", "")
    target = path if not ending or path.endswith(ending) else path + ending

    def write(place: str) -> None:
        if place.endswith(_FILES):
            with _without_warnings("You are saving your model as an HDF5 file"), _kept_compiled(model):
                model.save(place, include_optimizer=include_optimizer)
            return
        model.export(place, verbose=False)
        inside = Path(place) / _INSIDE
        inside.parent.mkdir(parents=True, exist_ok=True)
        model.save(inside, include_optimizer=include_optimizer)

    return _write(target, Path(target).name, write, overwrite)


def load_model(path: str, custom_objects: Any, compile: bool) -> Any:
    """What ``save_model`` or Keras itself wrote."""
    import keras

    with _at_hand(path, Path(path).name) as place:
        if os.path.isdir(place):
            if not (Path(place) / _INSIDE).exists():
                raise UnsupportedError(
                    f"{path} is a SavedModel without a Keras model inside; Keras cannot load it. Load a .keras file"
                )
            place = str(Path(place) / _INSIDE)
        return keras.saving.load_model(place, custom_objects=custom_objects, compile=compile)


def save_weights(model: Any, path: str, *, overwrite: bool) -> str:
    """The weights alone, in Keras's own form, whatever the path's ending."""
    return _write(path, f"model{_WEIGHTS}", model.save_weights, overwrite)


def load_weights(model: Any, path: str, *, by_name: bool) -> None:
    """What ``save_weights`` or Keras itself wrote, also Keras 2's ``.h5``."""
    if not exists(path) and exists(path + _WEIGHTS):
        path += _WEIGHTS
    name = Path(path).name
    known = name if name.endswith((".keras", _WEIGHTS)) else None
    # Keras writes the optimizer's state along, and this model may have another optimizer.
    with _at_hand(path, known) as place, _without_warnings("Skipping variable loading for optimizer"):
        if _is_of_keras_2(place):
            model.load_weights(place, by_name=by_name, skip_mismatch=by_name)
            return
        with _named(place, f"model{_WEIGHTS}") as linked:
            model.load_weights(linked, skip_mismatch=by_name)


def _write(path: str, name: str, write: Callable[[str], None], overwrite: bool) -> str:
    """Write under another name first, so that what is there stays until the new one is whole."""
    if not overwrite and exists(path):
        raise FileExistsError(f"{path} exists already; pass overwrite=True to replace it")
    target = local_path(path)
    folder = None if target is None else os.path.dirname(os.path.abspath(target))
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".firesteel-") as beside:
        made = os.path.join(beside, name)
        write(made)
        if target is None:
            _upload(Path(made), path)
        else:
            if os.path.isdir(target):
                shutil.rmtree(target)
            os.replace(made, target)
    return path


def _upload(made: Path, path: str) -> None:
    if made.is_file():
        write_bytes(path, made.read_bytes())
        return
    for file in made.rglob("*"):
        if file.is_file():
            write_bytes(f"{path.rstrip('/')}/{file.relative_to(made)}", file.read_bytes())


@contextmanager
def _at_hand(path: str, name: str | None) -> Iterator[str]:
    """The file or folder on this machine; one of another file system as a copy that goes away."""
    if not exists(path):
        raise FileNotFoundError(f"No such file or directory: {path}")
    local = local_path(path)
    if local is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        copy = Path(folder, name or "model.h5")
        if str(copy).endswith((*_FILES, _WEIGHTS)):
            copy.write_bytes(read_bytes(path))
        else:  # of a folder only the model inside is wanted
            inside = copy / _INSIDE
            inside.parent.mkdir(parents=True)
            inside.write_bytes(read_bytes(f"{path.rstrip('/')}/{_INSIDE.as_posix()}"))
        yield str(copy)


@contextmanager
def _named(place: str, name: str) -> Iterator[str]:
    """The same file under a name by which Keras knows what it is."""
    if place.endswith((".keras", _WEIGHTS)):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
        linked = os.path.join(folder, name)
        os.symlink(os.path.abspath(place), linked)
        yield linked


def _is_of_keras_2(place: str) -> bool:
    if place.endswith((".keras", _WEIGHTS)):
        return False
    h5py: Any = importlib.import_module("h5py")  # Keras brings it along; it has no types

    with h5py.File(place, "r") as file:
        return "layer_names" in file.attrs or "model_weights" in file


@contextmanager
def _kept_compiled(model: Any) -> Iterator[None]:
    """Writing HDF5, Keras 3.15 takes the optimizer out of the model's own record of how it was compiled."""
    config = getattr(model, "_compile_config", None)
    before = dict(config.config) if config is not None else {}
    try:
        yield
    finally:
        if config is not None:
            config.config.update(before)


@contextmanager
def _without_warnings(text: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", text)
        yield
