"""A loss that divides by the weights of its labels, not by rows, is still the whole step's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyspark.sql import SparkSession
from torch import nn

from exchanges import over_the_network
from firesteel import Estimator

# Rank 0 gets labels 0 and 1 mostly, rank 1 label 2: a mean of the replicas' means would be far off.
LABELS = np.array([0, 0, 1, 0, 2, 2, 2, 2, 1, 2])
FEATURES = np.random.default_rng(1).random((10, 4)).astype(np.float32)


@pytest.mark.parametrize("backend", ["bigdl", "torch_distributed"])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2])), nn.CrossEntropyLoss(ignore_index=2)]
)
def test_two_replicas_equal_plain_torch(spark: SparkSession, backend: str, loss: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    plain = nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    value = loss(plain(torch.from_numpy(FEATURES)), torch.from_numpy(LABELS))
    value.backward()
    optimizer.step()
    est = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loss=loss,
        backend=backend,
        workers_per_node=2,
    )
    with over_the_network(spark, backend == "torch_distributed"):
        history = est.fit((FEATURES, LABELS), epochs=1, batch_size=10, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.weight.detach(), plain.weight.detach(), atol=1e-6)
    assert history[0]["train_loss"] == pytest.approx(value.item(), abs=1e-6)
    after = loss(plain(torch.from_numpy(FEATURES)), torch.from_numpy(LABELS)).item()
    assert est.evaluate((FEATURES, LABELS), batch_size=3)["val_loss"] == pytest.approx(after, abs=1e-6)
