"""torch's DistributedDataParallel with rows weighted: each rank's gradient counts by its part of the step."""

# No `from __future__ import annotations` here: DDP reads its hook's annotations, and would find strings.
import inspect
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["wrap"]


def wrap(model: nn.Module, share: Callable[[], float]) -> nn.Module:
    """``model`` under DDP. ``share()`` is this rank's part of the step's rows, asked for at every backward."""
    # Unused parameters are looked for: a model may leave some out, and DDP would wait for them for ever.
    # Buffers are averaged by the sync, when somebody looks at them; the option for that was renamed on the way.
    options = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers"
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, **{buffers: False})

    def reduce(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        weight = share()
        if weight == 0.0:
            gradient.zero_()  # not a product: a row of zeros may well give NaN
        else:
            gradient.mul_(weight)
        work = distributed.all_reduce(gradient, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    wrapped.register_comm_hook(None, reduce)
    return wrapped
