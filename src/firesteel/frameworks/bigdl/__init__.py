"""The BigDL bench: BigDL's layers, criterions and training arithmetic on torch.

Registered under ``firesteel.frameworks``; nobody imports it by name. What describes a model on the driver knows layers
by their names and settings only; here they become torch modules.
"""

from __future__ import annotations

from typing import Any

from firesteel.core.program import Program
from firesteel.frameworks.bigdl import hands, tfnet
from firesteel.frameworks.bigdl.build import build, build_criterion
from firesteel.frameworks.bigdl.program import capture_model
from firesteel.frameworks.bigdl.replica import BigDLReplica
from firesteel.frameworks.torch import TorchFramework, device_of

__all__ = ["BigDLFramework", "framework"]


class BigDLFramework(TorchFramework):
    """torch's bench with BigDL's layers; see ``core.ports.Framework``."""

    name = "bigdl"

    def capture(self, model: object, **parts: Any) -> Program:
        """See ``program.capture_model``."""
        return capture_model(model, **parts)

    def replica(self, program: Program, device: str = "cpu", threads: int = 1) -> BigDLReplica:
        """A replica in this process, on this device (``"auto"``: a GPU if there is one)."""
        return BigDLReplica(program, device_of(device), threads)

    # What a user does with a layer in their hands.
    build = staticmethod(build)
    build_criterion = staticmethod(build_criterion)
    append = staticmethod(hands.append)
    backward = staticmethod(hands.backward)
    forward = staticmethod(hands.forward)
    freeze = staticmethod(hands.freeze)
    frozen = staticmethod(hands.frozen)
    get_weights = staticmethod(hands.get_weights)
    hidden_state = staticmethod(hands.hidden_state)
    loss_backward = staticmethod(hands.loss_backward)
    loss_forward = staticmethod(hands.loss_forward)
    loss_parts = staticmethod(hands.loss_parts)
    notes = staticmethod(hands.notes)
    parameters = staticmethod(hands.parameters)
    reset = staticmethod(hands.reset)
    seed = staticmethod(hands.seed)
    seeded = staticmethod(hands.seeded)
    set_init = staticmethod(hands.set_init)
    set_label = staticmethod(hands.set_label)
    set_regularizer = staticmethod(hands.set_regularizer)
    set_running = staticmethod(hands.set_running)
    set_weights = staticmethod(hands.set_weights)
    stop_gradient = staticmethod(hands.stop_gradient)
    take_notes = staticmethod(hands.take_notes)
    update = staticmethod(hands.update)
    zero_grad = staticmethod(hands.zero_grad)

    # Graphs of TensorFlow as layers.
    export_tf = staticmethod(tfnet.export_tf)
    frozen_net = staticmethod(tfnet.frozen_net)
    net_program = staticmethod(tfnet.net_program)
    run_net = staticmethod(tfnet.run_net)
    run_net_backward = staticmethod(tfnet.run_net_backward)
    saved_model_net = staticmethod(tfnet.saved_model_net)
    session_net = staticmethod(tfnet.session_net)


framework = BigDLFramework()
