"""What callbacks have learnt survives as data: all of it that is data, and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firesteel.engine import kept

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.sets(scalars, max_size=1)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.text(), plain, max_size=4), max_size=3))
def test_data_comes_back_as_it_was(states: list[dict[str, Any]]) -> None:
    found = kept.from_bytes(kept.to_bytes(states))
    assert found == states
    assert repr(found) == repr(states)  # also True is not 1, and a tuple no list


@given(arrays.arrays(st.sampled_from(["f4", "f8", "i1", "i8", "u2", "?", "c8"]), arrays.array_shapes(min_dims=0)))
def test_arrays_come_back_as_they_were(array: np.ndarray) -> None:
    scalar = array.reshape(-1)[0]
    (found,) = kept.from_bytes(kept.to_bytes([{"a": [array], "s": scalar}]))
    np.testing.assert_array_equal(found["a"][0], array)
    assert (found["a"][0].dtype, found["a"][0].flags.writeable) == (array.dtype, True)
    assert type(found["s"]) is type(scalar)


def test_what_is_large_and_came_along_is_not_carried_about() -> None:
    """Keras callbacks often hold the rows that they validate on."""
    first, second = Plain(), Plain()
    first.rows, first.best = np.zeros(1 << 18), None
    large = kept.heavy(first)
    first.best = np.ones(1 << 18)  # learnt on the way, however large
    first.count = 7
    found = kept.state_of(first, large)
    assert "rows" not in found
    kept.load(second, kept.from_bytes(kept.to_bytes([found]))[0])
    assert (second.count, second.best.sum()) == (7, 1 << 18)


class Plain:
    def __init__(self) -> None:
        self.count, self.seen, self.lock, self.mixed = 0, [1.5], threading.Lock(), {"lock": threading.Lock()}
        self.rows: Any = None
        self.best: Any = None
        self.compare = kept.to_bytes  # found by its name
        self.itself: list[Any] = []
        self.itself.append(self.itself)


class Speaking(Plain):
    def state_dict(self) -> dict[str, Any]:
        return {"twice": self.count * 2, "lock": self.lock}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["twice"] // 2


@pytest.mark.parametrize("kind", [Plain, Speaking])
def test_the_rest_stays_what_it_is(kind: type[Plain], caplog: pytest.LogCaptureFixture) -> None:
    first, second = kind(), kind()
    first.count, first.seen, first.compare = 3, [1.5, 2.5], kept.from_bytes
    lock = second.lock
    (state,) = kept.from_bytes(kept.to_bytes([kept.state_of(first)]))
    kept.load(second, state)
    assert second.count == 3
    assert second.lock is lock
    assert second.compare is (kept.from_bytes if kind is Plain else kept.to_bytes)
    assert second.seen == ([1.5, 2.5] if kind is Plain else [1.5])
    assert ("'lock'" in caplog.text) == (kind is Speaking)  # it was asked for by name
