"""The Keras 3 bench. Registered under ``firesteel.frameworks``; nobody imports it by name.

Keras fixes its backend when it is imported. So nothing here imports it before a program has said which one it was made
with: replicas then run on that one too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firesteel.core.optimizers import OptimMethod
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

    def ahead(self, program: Program) -> tuple[str, ...]:
        """Keras on the program's backend; JAX has threads of its own as soon as it is asked anything."""
        backend = program.content.backend
        return (f"firesteel.frameworks.keras.start:on_{backend}",) if backend in ("tensorflow", "torch") else ()

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

    def seed_process(self, seed: int) -> None:
        """Let data creators of all ranks draw the same numbers."""
        import keras

        keras.utils.set_random_seed(seed % 2**32)

    def is_loader(self, source: object) -> bool:
        """A ``tf.data.Dataset`` or a ``keras.utils.PyDataset``."""
        from firesteel.frameworks.keras.stream import is_dataset

        return is_dataset(source)

    # --- what the door asks of a model on the driver ---

    def check_can_train(self, model: object) -> None:
        """See ``program.check_can_train``."""
        from firesteel.frameworks.keras.program import check_can_train

        check_can_train(model)

    def make_model(self, content: Any) -> Any:
        """A model of its own, from a program's content."""
        from firesteel.frameworks.keras.program import make_model

        return make_model(content)

    def input_range(self, model: object) -> tuple[int, int | None]:
        """See ``program.input_range``."""
        from firesteel.frameworks.keras.program import input_range

        return input_range(model)

    def input_names(self, model: object) -> list[str] | None:
        """See ``program.input_names``."""
        from firesteel.frameworks.keras.program import input_names

        return input_names(model)

    def output_names(self, model: object) -> list[str] | None:
        """See ``program.output_names``."""
        from firesteel.frameworks.keras.program import output_names

        return output_names(model)

    def output_count(self, model: object) -> int | None:
        """See ``program.output_count``."""
        from firesteel.frameworks.keras.program import output_count

        return output_count(model)

    def string_inputs(self, model: object) -> dict[str, str]:
        """See ``program.string_inputs``."""
        from firesteel.frameworks.keras.program import string_inputs

        return string_inputs(model)

    def pack_state(self, model: object, *, with_optimizer: bool = True) -> dict[str, bytes]:
        """See ``state.pack_state``."""
        from firesteel.frameworks.keras.state import pack_state

        return pack_state(model, with_optimizer=with_optimizer)

    def load_state(self, model: object, state: dict[str, bytes]) -> None:
        """See ``state.load_state``."""
        from firesteel.frameworks.keras.state import load_state

        load_state(model, state)

    def figures(self) -> Any:
        """A model's loss and metrics as one metric of ours; see ``figures``."""
        from firesteel.frameworks.keras.figures import KerasFigures

        return KerasFigures()

    def values(self, model: object, figures: Any) -> dict[str, Any]:
        """What measured figures come to, by their names in Keras."""
        from firesteel.frameworks.keras.feeding import build_metrics

        build_metrics(model, figures.about)
        found: dict[str, Any] = figures.values(model)
        return found

    def optimizer(self, method: OptimMethod) -> Any:
        """One of our optimizers as a Keras one."""
        from firesteel.frameworks.keras.optimizers import build

        return build(method)

    def travelling(self, data: object, model: object, seed: int) -> object:
        """A ``tf.data.Dataset`` as something that can leave this process; other data as it is."""
        from firesteel.frameworks.keras.stream import travelling

        return travelling(data, model, seed)

    def together(self, model: object, group: Any, is_starved: Any) -> Any:
        """A user's own model whose ``fit`` works with others'; see ``together.Together``."""
        from firesteel.frameworks.keras.together import Together

        return Together(model, group, is_starved)

    def to_onnx(self, model: object, batch: Batch | None) -> bytes:
        """See ``export.to_onnx``."""
        from firesteel.frameworks.keras.export import to_onnx

        return to_onnx(model, batch)

    def portable(self, model: object, batch: Batch | None, folder: str) -> dict[str, Any]:
        """See ``export.portable``."""
        from firesteel.frameworks.keras.export import portable

        return portable(model, batch, folder)


framework = KerasFramework()
