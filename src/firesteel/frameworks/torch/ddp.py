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

__all__ = ["without_gradients", "wrap"]


def wrap(model: nn.Module) -> nn.Module:
    """``model`` under DDP."""
    # Unused parameters are looked for: a model may leave some out, and DDP would wait for them for ever.
    # Buffers are averaged by the sync, when somebody looks at them; the option for that was renamed on the way.
    options = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
    return DistributedDataParallel(model, find_unused_parameters=True, **{buffers: False})


@contextlib.contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """While inside, a backward joins the others with zeros. Not by a loss times zero: that may well be NaN."""
    hooks = [p.register_hook(torch.zeros_like) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
