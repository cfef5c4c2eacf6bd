"""``compat``: small differences between TensorFlow's versions, as the document's examples call them."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from firesteel.cluster.devices import free_gpus

__all__ = ["disable_auto_shard", "export_saved_model", "is_gpu_available"]


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write a Keras model as a SavedModel to ``export_dir``, if this node is the chief.

    The other nodes write theirs to a temporary folder that is gone at once, for what writing needs of all of them (a
    strategy's variables) is needed of all of them.
    """
    if is_chief:
        _export(model, export_dir)
        return
    folder = tempfile.mkdtemp(prefix="firesteel-export-")
    try:
        _export(model, os.path.join(folder, "model"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _export(model: Any, export_dir: str) -> None:
    place = export_dir[len("file://") :] if export_dir.startswith("file://") else export_dir
    if hasattr(model, "export"):  # Keras 3
        model.export(place, verbose=False)
    else:
        model.save(place, save_format="tf")


def disable_auto_shard(options: Any) -> None:
    """Let every worker read all of a ``tf.data.Dataset`` with these ``tf.data.Options``: the program shards itself."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Whether TensorFlow sees a GPU in this process."""
    try:
        import tensorflow as tf
    except ImportError:
        return bool(free_gpus())
    return bool(tf.config.list_physical_devices("GPU"))
