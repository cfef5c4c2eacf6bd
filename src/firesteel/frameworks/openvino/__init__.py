"""The OpenVINO bench: it scores, and does nothing else. Registered under ``firesteel.frameworks``."""

from __future__ import annotations

from typing import Any

from firesteel.core.errors import missing_extra
from firesteel.core.program import Program
from firesteel.frameworks.openvino.private import private

try:
    with private():
        import openvino as _openvino
except ModuleNotFoundError as error:  # pragma: no cover - shown by the error's text
    raise missing_extra("openvino", "openvino") from error

from firesteel.frameworks.openvino.convert import convert
from firesteel.frameworks.openvino.program import ModelFile, capture, check_config, describe, from_path, read
from firesteel.frameworks.openvino.replica import OpenVINOReplica, lead_axes

__all__ = ["OpenVINOFramework", "framework"]


class OpenVINOFramework:
    """How OpenVINO programs are captured on the driver and brought to life in a process; see ``core.ports``."""

    name = "openvino"
    packages = ("openvino",)

    def accepts(self, model: object) -> bool:
        """A model's file, read, or an ``openvino.Model``."""
        return isinstance(model, (ModelFile, _openvino.Model))

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture``."""
        return capture(model, **parts)

    def ahead(self, program: Program) -> tuple[str, ...]:
        """OpenVINO's models are not trained."""
        return ()

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> OpenVINOReplica:
        """A replica in this process. It is the CPU's, whatever the device: other plugins are not asked for."""
        return OpenVINOReplica(program, threads)

    # What the driver does with a model in its own hands.
    check_config = staticmethod(check_config)
    convert = staticmethod(convert)
    describe = staticmethod(describe)
    from_path = staticmethod(from_path)
    lead_axes = staticmethod(lead_axes)
    make_file = staticmethod(ModelFile)
    read = staticmethod(read)


framework = OpenVINOFramework()
