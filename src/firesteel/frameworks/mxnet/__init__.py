"""The MXNet bench. Registered under ``firesteel.frameworks``; nobody imports it by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firesteel.core.numpy_names import put_back
from firesteel.core.program import Program
from firesteel.core.spec import Batch

put_back()  # before MXNet is imported, here and in every process that wakes a replica

from firesteel.frameworks.mxnet.figures import MXNetFigures, metric_names  # noqa: E402
from firesteel.frameworks.mxnet.program import capture, input_range, is_model, is_module, make_model  # noqa: E402
from firesteel.frameworks.mxnet.replica import MXNetReplica  # noqa: E402
from firesteel.frameworks.mxnet.state import pack_file, read_params, unpack_file  # noqa: E402
from firesteel.frameworks.mxnet.stream import create, stream, take_shard  # noqa: E402

__all__ = ["MXNetFramework", "framework"]


class MXNetFramework:
    """How MXNet programs are captured on the driver and brought to life in a process; see ``core.ports.Framework``."""

    name = "mxnet"
    packages = ("mxnet",)

    def accepts(self, model: object) -> bool:
        """A Gluon block or a symbolic module."""
        return is_model(model)

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        return capture(model, **parts)

    def ahead(self, program: Program) -> tuple[str, ...]:
        """MXNet starts its engine's threads when it is imported."""
        return ()

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> MXNetReplica:
        """A replica in this process."""
        return MXNetReplica(program, device, threads)

    def create(self, stream: Any, rank: int, size: int) -> Any:
        """See ``stream.create``."""
        return create(stream, rank, size)

    def stream(
        self, source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
    ) -> Iterator[Batch]:
        """See ``stream.stream``."""
        return stream(source, batch_size, seed, epoch, has_labels)

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """See ``stream.take_shard``."""
        return take_shard(source)

    def is_loader(self, source: object) -> bool:
        """Nothing is taken as a loader: creators make them, in the replicas."""
        return False

    def input_range(self, model: object) -> tuple[int, int | None]:
        """See ``program.input_range``."""
        return input_range(model)

    # What the driver does with a model in its own hands.
    figures = staticmethod(MXNetFigures)
    is_module = staticmethod(is_module)
    make_model = staticmethod(make_model)
    metric_names = staticmethod(metric_names)
    pack_file = staticmethod(pack_file)
    read_params = staticmethod(read_params)
    unpack_file = staticmethod(unpack_file)


framework = MXNetFramework()
