"""Steps made to last: cut, or begun anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from firesteel.core.registry import framework
from firesteel.engine.feeds import ResizedSteps, Step


class Three:
    """A pass of three steps."""

    steps = 3

    def __init__(self, count: int = 3) -> None:
        self._count = count

    def run(self, data_pass: int, first: int) -> Iterator[Step]:
        for number in range(first, self._count):
            yield Step({"x0": np.full(2, 10 * data_pass + number)}, 1.0, 2, number + 1 == self._count)

    def sample(self) -> dict[str, np.ndarray]:
        return {"x0": np.zeros(0)}


@pytest.mark.parametrize(("count", "expected"), [(2, [10, 11]), (3, [10, 11, 12]), (7, [10, 11, 12, 10, 11, 12, 10])])
def test_a_pass_of_a_wanted_length(count: int, expected: list[int]) -> None:
    steps = ResizedSteps(Three(), count)
    found = list(steps.run(1, 0))
    assert [int(step.batch["x0"][0]) for step in found] == expected
    assert [step.is_last for step in found] == [False] * (count - 1) + [True]
    assert steps.steps == count
    later = list(steps.run(1, count - 1))  # going on inside a pass
    assert [int(step.batch["x0"][0]) for step in later] == expected[-1:]


def test_no_rows_are_not_waited_for() -> None:
    assert list(ResizedSteps(Three(0), 4).run(0, 0)) == []


def test_a_look_before_all_epochs_sees_the_first_batch_of_a_shuffled_loader() -> None:
    """The number of that look, -1, is no seed."""
    import torch

    bench: Any = framework("torch")
    rows = torch.utils.data.TensorDataset(torch.arange(9.0))
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    look, first = (next(bench.stream(loader, 4, 3, epoch, has_labels=False)) for epoch in (-1, 0))
    assert look["x0"].tolist() == first["x0"].tolist()
