"""The Keras 3 bench. Registered under ``firesteel.frameworks``; nobody imports it by name.

Keras fixes its backend when it is imported. So nothing here imports it before a program has said which one it was made
with: replicas then run on that one too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firesteel.core.program import Program
from firesteel.core.spec import Batch

__all__ = ["KerasFramework", "framework"]


class KerasFramework:
    """How Keras programs are captured on the driver and brought to life in a process; see ``core.ports.Framework``."""

    name = "keras"
    packages = ("keras",)

    def accepts(self, model: object) -> bool:
        """A Keras 3 model."""
        from firesteel.frameworks.keras.program import is_model

        return is_model(model)

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        from firesteel.frameworks.keras.program import capture

        return capture(model, **parts)

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> Any:
        """A replica in this process."""
        from firesteel.frameworks.keras.start import wake

        wake(program.content.backend, threads)
        from firesteel.frameworks.keras.replica import KerasReplica

        return KerasReplica(program)

    def stream(
        self, source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
    ) -> Iterator[Batch]:
        """See ``stream.stream``."""
        from firesteel.frameworks.keras.stream import stream

        return stream(source, batch_size, epoch, has_labels, inputs)

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """Nothing here shards itself."""
        return False

    def is_loader(self, source: object) -> bool:
        """A ``tf.data.Dataset`` or a ``keras.utils.PyDataset``."""
        from firesteel.frameworks.keras.stream import is_dataset

        return is_dataset(source)

    def input_range(self, model: object) -> tuple[int, int | None]:
        """See ``program.input_range``."""
        from firesteel.frameworks.keras.program import input_range

        return input_range(model)

    def to_onnx(self, model: object, batch: Batch | None) -> bytes:
        """See ``export.to_onnx``."""
        from firesteel.frameworks.keras.export import to_onnx

        return to_onnx(model, batch)

    def portable(self, model: object, batch: Batch | None, folder: str) -> dict[str, Any]:
        """See ``export.portable``."""
        from firesteel.frameworks.keras.export import portable

        return portable(model, batch, folder)


framework = KerasFramework()
