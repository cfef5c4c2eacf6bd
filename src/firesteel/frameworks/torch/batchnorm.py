"""Batch-norm over all replicas' rows. torch's own ``SyncBatchNorm`` refuses the CPU; this one works on any device."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed, nn

__all__ = ["convert", "is_synced"]

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convert(model: nn.Module) -> nn.Module:
    """Make every batch-norm of ``model`` see the whole step; in place. Parameters and their names stay."""
    for module in model.modules():
        if type(module) in _KINDS:
            module.__class__ = _SYNCED[type(module)]
    return model


def is_synced(model: nn.Module) -> bool:
    """Whether a forward of this model is a collective."""
    return any(isinstance(module, _Synced) for module in model.modules())


def _world() -> int:
    """How many ranks there are, by whichever library they are joined."""
    if distributed.is_initialized():
        return distributed.get_world_size()
    horovod = sys.modules.get("horovod.torch")
    return int(horovod.size()) if horovod is not None and horovod.is_initialized() else 1


def _all_reduce(values: torch.Tensor) -> None:
    if distributed.is_initialized():
        distributed.all_reduce(values)
    else:
        horovod: Any = sys.modules["horovod.torch"]
        horovod.allreduce_(values, op=horovod.Sum)


class _Sum(torch.autograd.Function):
    """A sum over all ranks; so is its gradient, for every rank's loss depends on every rank's part."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        _all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        total = gradient.clone()
        _all_reduce(total)
        return total


class _Synced(nn.modules.batchnorm._BatchNorm):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if _world() == 1 or not (self.training or self.running_mean is None):
            return super().forward(values)
        self._check_input_dim(values)
        axes = [axis for axis in range(values.dim()) if axis != 1]
        # Double precision, because the variance is a small difference of large sums.
        wide = values.double()
        count = wide.new_full((1,), values.numel() / max(1, values.shape[1]))
        sums = _Sum.apply(torch.cat([wide.sum(axes), (wide * wide).sum(axes), count]))
        channels = values.shape[1]
        count = sums[-1].detach()
        mean = sums[:channels] / count
        variance = (sums[channels : 2 * channels] / count - mean * mean).clamp(min=0)
        if self.training and self.track_running_stats:
            self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        shape = [1, channels] + [1] * (values.dim() - 2)
        scaled = (wide - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        scaled = scaled.to(values.dtype)
        return scaled if self.weight is None else scaled * self.weight.view(shape) + self.bias.view(shape)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        with torch.no_grad():
            for kept, seen in ((self.running_mean, mean), (self.running_var, variance)):
                assert kept is not None
                kept.lerp_(seen.to(kept.dtype), factor)


_SYNCED: dict[type[nn.Module], type[nn.Module]] = {
    kind: type(f"Synced{kind.__name__}", (_Synced, kind), {}) for kind in _KINDS
}
