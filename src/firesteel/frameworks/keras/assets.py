"""What layers know beside their weights: vocabularies, and statistics that they work out once."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras

__all__ = ["load_assets", "pack_assets", "refresh"]

Assets = dict[int, dict[str, bytes]]


def pack_assets(model: Any) -> Assets:
    """The files that layers write about themselves (a lookup's vocabulary), by the layer's place in the model."""
    found: Assets = {}
    for place, layer in enumerate(model._flatten_layers()):
        if hasattr(layer, "save_assets") and layer.built:
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                files = {name: _read(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}
            if files:
                found[place] = files
    return found


def load_assets(model: Any, assets: Assets) -> None:
    """Let a model of the same configuration read what ``pack_assets`` found."""
    layers = list(model._flatten_layers())
    for place, files in assets.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            layers[place].load_assets(folder)


def refresh(model: Any) -> None:
    """After weights were put in from outside: a ``Normalization`` computes with numbers that it derives from them."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
