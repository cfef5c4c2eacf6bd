"""The torch bench. Registered under ``firesteel.frameworks``; nobody imports it by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from firesteel.core.errors import missing_extra
from firesteel.core.program import Program
from firesteel.core.spec import Batch

try:
    import torch as _torch
except ModuleNotFoundError as error:  # pragma: no cover - shown by the error's text
    raise missing_extra("torch", "torch") from error

from firesteel.frameworks.torch.export import portable, to_onnx
from firesteel.frameworks.torch.exported import ExportedModule, export_module, open_exported
from firesteel.frameworks.torch.program import capture, input_range, make, make_model
from firesteel.frameworks.torch.replica import TorchReplica, load_into
from firesteel.frameworks.torch.state import pack_file, pack_model, pack_tree, read_state_dict, unpack_file, unpack_tree
from firesteel.frameworks.torch.stream import is_sharded, stream, take_shard
from firesteel.frameworks.torch.structure import describe, rebuild

__all__ = ["TorchFramework", "device_of", "framework"]


def device_of(device: str) -> str:
    """The device of this name; ``"auto"`` is this rank's GPU if there is one."""
    if device != "auto":
        return device
    count = _torch.cuda.device_count()
    return f"cuda:{int(os.environ.get('RANK', '0')) % count}" if count else "cpu"


class TorchFramework:
    """How torch programs are captured on the driver and brought to life in a process; see ``core.ports.Framework``."""

    name = "torch"
    packages = ("torch",)

    def accepts(self, model: object) -> bool:
        """A module, or a class of one."""
        return isinstance(model, _torch.nn.Module) or (isinstance(model, type) and issubclass(model, _torch.nn.Module))

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        return capture(model, **parts)

    def ahead(self, program: Program) -> tuple[str, ...]:
        """This bench, which loads torch."""
        return ("firesteel.frameworks.torch",)

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> TorchReplica:
        """A replica in this process, on this device (``"auto"``: a GPU if there is one)."""
        return TorchReplica(program, device_of(device), threads)

    def stream(
        self, source: object, batch_size: int | None, seed: int, epoch: int, has_labels: bool = True, inputs: int = 1
    ) -> Iterator[Batch]:
        """See ``stream.stream``."""
        return stream(source, batch_size, seed, epoch, has_labels, inputs)

    def is_sharded(self, source: object) -> bool:
        """See ``stream.is_sharded``."""
        return is_sharded(source)

    def take_shard(self, source: object, rank: int, size: int) -> bool:
        """See ``stream.take_shard``."""
        return take_shard(source, rank, size)

    def is_loader(self, source: object) -> bool:
        """Whether this is a loader, whose batches are the global ones."""
        return isinstance(source, _torch.utils.data.DataLoader)

    def input_range(self, model: object) -> tuple[int, int | None]:
        """See ``program.input_range``."""
        return input_range(model)

    # What the driver does with a model in its own hands.
    describe = staticmethod(describe)
    export_module = staticmethod(export_module)
    exported_module = staticmethod(ExportedModule)
    open_exported = staticmethod(open_exported)
    make = staticmethod(make)
    make_model = staticmethod(make_model)
    load_into = staticmethod(load_into)
    pack_file = staticmethod(pack_file)
    pack_model = staticmethod(pack_model)
    pack_tree = staticmethod(pack_tree)
    portable = staticmethod(portable)
    read_state_dict = staticmethod(read_state_dict)
    rebuild = staticmethod(rebuild)
    to_onnx = staticmethod(to_onnx)
    unpack_file = staticmethod(unpack_file)
    unpack_tree = staticmethod(unpack_tree)


framework = TorchFramework()
