"""The compiler stays out of a replica until somebody compiles, and works then."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
import torch
from torch import distributed, nn
from firesteel.frameworks.torch.quickstart import spare_the_compiler

spare_the_compiler()
model = nn.Linear(2, 2)
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(model)
for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS):
    optimizer = make(model.parameters(), lr=0.1)
    def closure():
        optimizer.zero_grad()
        loss = wrapped(torch.ones(1, 2)).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo.eval_frame" not in sys.modules

double = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
assert double(torch.ones(2)).tolist() == [2.0, 2.0]
assert "torch._dynamo.eval_frame" in sys.modules
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch._dynamo.config.recompile_limit > 0
optimizer.step(closure)  # one that was made before
os._exit(0)
"""


def test_it_is_loaded_when_it_is_wanted_and_not_before() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
