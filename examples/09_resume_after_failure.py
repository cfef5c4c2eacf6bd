"""A replica is killed in the middle of an epoch, and no row is lost; then a fit that ended early is resumed from disk.

``firesteel.testing.faults`` kills what you tell it to, so that you can see what your own training makes of it.
"""

import tempfile

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.learn.trigger import SeveralIteration
from firesteel.testing.faults import Fault, inject

images, labels = load_digits(return_X_y=True)
data = {"x": (images / 16).astype(np.float32), "y": labels}


def estimator(model_dir=None):
    """The same start every time, so that the ends can be compared."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    parts = {"model": model, "optimizer": optimizer, "loss": nn.CrossEntropyLoss()}
    return Estimator.from_torch(**parts, workers_per_node=2, seed=1, model_dir=model_dir)


def weights(trained):
    return torch.cat([each.detach().reshape(-1) for each in trained.get_model().parameters()])


init_context("local", cores=2)
undisturbed = estimator()
undisturbed.fit(data, epochs=3, batch_size=32)

struck = estimator()
with inject(Fault("kill child", rank=1, epoch=1, step=70)):
    history = struck.fit(data, epochs=3, batch_size=32)
for loss in history.recoveries:
    print(f"lost {loss['ranks']} at step {loss['lost_at_step']}, went on from step {loss['resumed_from_step']}")
assert [record["num_samples"] for record in history] == [len(labels)] * 3
assert torch.equal(weights(struck), weights(undisturbed))
print("a replica was killed: the weights are those of the undisturbed training")

with tempfile.TemporaryDirectory() as folder:
    estimator(folder).fit(data, max_steps=100, batch_size=32, checkpoint_trigger=SeveralIteration(25))
    resumed = estimator(folder)  # as a new driver would make it
    resumed.fit(data, epochs=3, batch_size=32, resume=True)
assert torch.allclose(weights(resumed), weights(undisturbed), atol=1e-6)
print("a training ended in the middle of an epoch: resumed from disk, it ends at the same weights")
stop_context()
