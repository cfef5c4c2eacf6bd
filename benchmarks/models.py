"""The models that all subjects train or score: creators in the Estimator's form, for torch."""

from __future__ import annotations

from typing import Any

__all__ = ["estimator", "linear", "loss", "mlp", "one", "optimizer", "small", "squares"]


def mlp(config: dict[str, Any]) -> Any:
    """784 → 256 → 128 → 10, about 235,000 weights."""
    from torch import nn

    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def linear(config: dict[str, Any]) -> Any:
    """``config["width"]`` → 10: next to no work, so that what moves the rows is what shows."""
    from torch import nn

    return nn.Linear(config["width"], 10)


def one(config: dict[str, Any]) -> Any:
    """``config["width"]`` → 1: the least there is to learn from wide rows."""
    from torch import nn

    return nn.Linear(config["width"], 1)


def small(config: dict[str, Any]) -> Any:
    """``config["width"]`` → 32 → 10, for scoring."""
    from torch import nn

    return nn.Sequential(nn.Linear(config["width"], 32), nn.ReLU(), nn.Linear(32, 10))


def optimizer(model: Any, config: dict[str, Any]) -> Any:
    """Plain SGD."""
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.01)


def loss(config: dict[str, Any]) -> Any:
    """Cross entropy over ten classes."""
    from torch import nn

    return nn.CrossEntropyLoss()


def squares(config: dict[str, Any]) -> Any:
    """The mean squared error."""
    from torch import nn

    return nn.MSELoss()


def estimator(model: Any, width: int, replicas: int, backend: str = "torch_distributed", loss: Any = loss) -> Any:
    """Firesteel's estimator of one of these models."""
    from firesteel import Estimator

    return Estimator.from_torch(
        model=model,
        optimizer=optimizer,
        loss=loss,
        config={"width": width},
        backend=backend,
        workers_per_node=replicas,
        seed=1,
    )
