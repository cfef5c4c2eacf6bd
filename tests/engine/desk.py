"""A replica's life in this very process: the training loop without Spark, a task or a child."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from firesteel.core import registry
from firesteel.core.plan import Fit, Launch, Position, Validation
from firesteel.engine import worker
from firesteel.engine.commits import CommitFiles
from firesteel.engine.job import FitJob, Stream
from firesteel.engine.newest import Newest
from firesteel.engine.relay import Relay


class FakeDesk:
    rank, world, host, device, threads, generation = 0, 1, "here", "cpu", 1, 0

    def __init__(self, job: FitJob, relay: Relay, assignment: dict[str, Any]) -> None:
        self._job, self._relay, self._assignment = job, relay, assignment
        self.files = CommitFiles()
        self.descriptors: dict[str, int] = self.files.descriptors
        self.step: int | None = None
        self.left = b""
        self.kept: list[dict[str, Any]] = []
        self.commits: list[bytes] = []
        self.told: list[tuple[dict[str, Any], list[bytes]]] = []

    def program(self) -> FitJob:
        return self._job

    def assignment(self) -> dict[str, Any]:
        return self._assignment

    def tell(self, event: dict[str, Any], buffers: Iterable[bytes] = ()) -> None:
        self.told.append((event, list(buffers)))

    def beat(self, step: int | None = None, *, is_waiting: bool = False) -> None:
        self.step = self.step if step is None else step

    def keep(self, note: dict[str, Any]) -> None:
        self.kept.append(note)
        self.commits += self.files.read(note)

    def fetch(self, what: dict[str, Any]) -> Any:
        if "state" not in what:
            return self._relay.answer(what)
        newest = Newest(None)
        newest.leave({"step": 0}, [self.left])
        newest.find()
        return newest.answer(what)


class Run:
    """What one training told its driver."""

    def __init__(self, desk: FakeDesk) -> None:
        self.told = desk.told
        self.kept, self.commits = desk.kept, desk.commits
        self.records = [event["record"] for event in self.events("epoch")]
        self.checkpoints = [event["position"] for event in self.events("checkpoint")]
        self.validations = [event["step"] for event in self.events("validation")]
        self.states = [dict(zip(e["parts"], b, strict=True)) for e, b in desk.told if e["name"] == "checkpoint"]
        ((result, buffers),) = [(e, b) for e, b in desk.told if e["name"] == "result"]
        self.position = Position(**result["position"])
        self.state = dict(zip(result["parts"], buffers, strict=True))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event, _ in self.told if event["name"] == name]

    def losses(self) -> list[float]:
        return [loss for event in self.events("steps") for loss in event["losses"]]

    def steps(self) -> list[int]:
        return [e["first"] + i for e in self.events("steps") for i in range(len(e["losses"]))]

    @property
    def weights(self) -> np.ndarray:
        framework: Any = registry.framework("torch")
        model = make_model()
        framework.load_into(model, self.state["model"])
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(2, 1)


def train(
    rows: int = 20,
    *,
    state: dict[str, bytes] | None = None,
    validation: Validation | None = None,
    stream: Any = None,
    scheduler: Any = None,
    rate: float = 0.05,
    left: bytes | None = None,
    **options: Any,
) -> Run:
    """Train a linear layer on ``rows`` rows of one seed; a row's first feature is its number.

    ``left``: a commit to go on from, as if the driver had it.
    """
    framework: Any = registry.framework("torch")
    model = make_model()
    parts = {"scheduler_creator": scheduler[0], "scheduler_step_freq": scheduler[1]} if scheduler else {}
    program = framework.capture(model, optimizer=torch.optim.Adam(model.parameters(), rate), loss=nn.MSELoss(), **parts)
    plan = Fit(
        type(program)("torch", program.content, state),
        options.pop("launch", Launch(1)),
        **{"batch_size": 8, "epochs": 3, "seed": 5, "validation": validation, **options},
    )
    x = np.stack([np.arange(rows), np.cos(np.arange(rows))], 1).astype(np.float32)
    relay = Relay()
    relay.add("train", {"x0": x / [rows, 1], "y0": x[:, 1] * 2})
    relay.add("validation", {"x0": x[:10] / [rows, 1], "y0": x[:10, 1] * 2})
    assignment = {
        "position": asdict(plan.position),
        "tensors": relay.describe("train"),
        "counts": [rows],
        "blocks": [],
        "holdings": [[0, 0, 0, 1]],
        "validation": {"tensors": relay.describe("validation"), "rows": relay.rows("validation")},
    }
    if left is not None:
        assignment["restore"] = "driver"
    given = None if stream is None else Stream(stream, True, {}, 8)
    desk = FakeDesk(FitJob(plan, stream=given, is_relayed=stream is None), relay, assignment)
    desk.left = left or b""
    with desk.files:
        worker.main(desk)  # type: ignore[arg-type]
    return Run(desk)


def resumed(run: Run, number: int, **options: Any) -> Run:
    """Go on from a run's checkpoint."""
    position = Position(**run.checkpoints[number])
    assert asdict(position) == run.checkpoints[number]
    return train(state=run.states[number], position=position, **options)
