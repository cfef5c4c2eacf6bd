"""torch's DistributedDataParallel, which agrees on gradients while the backward still runs.

DDP takes the mean over ranks. What is wanted is a sum in which each rank counts by its part of the step, so the loss
is scaled by that part times the number of ranks. (A hook of our own could weight the gradients instead, but it would
run in Python, in the way of the backward: some percent of a small model's step.)
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["uses_everything", "without_gradients", "wrap"]


def wrap(model: nn.Module) -> nn.Module:
    """``model`` under DDP."""
    # Unused parameters are looked for: a model may leave some out, and DDP would wait for them for ever. That costs an
    # exchange of its own in every step (a sixth of a small model's), so not where it can be seen that there are none.
    # Buffers are averaged by the sync, when somebody looks at them; the option for that was renamed on the way.
    options = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
    return DistributedDataParallel(model, find_unused_parameters=not uses_everything(model), **{buffers: False})


def uses_everything(model: nn.Module) -> bool:
    """Whether every call of the model surely uses all its parameters: layers of torch's own, one after the other."""
    if model._forward_hooks or model._forward_pre_hooks:
        return False
    if type(model) is nn.Sequential:
        return all(map(uses_everything, model))
    return type(model).__module__.startswith("torch.nn.modules.") and next(model.children(), None) is None


@contextlib.contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """While inside, a backward joins the others with zeros. Not by a loss times zero: that may well be NaN."""
    hooks = [p.register_hook(torch.zeros_like) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
