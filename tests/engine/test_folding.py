"""Folds without Spark: any cut of the rows, any keys, one result, and every raw row through the program once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.core.errors import SchemaError
from firesteel.core.spec import TensorSpec
from firesteel.engine import folding
from firesteel.engine.folding import Folding, codes_of, joined


class Program:
    """A replica that folds strings of digits: not commutative, so that a wrong order shows."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.raw: list[str] = []

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        values = batch["s_input"]
        self.sizes.append(len(values))
        self.raw += [value for value in values if not value.startswith("(")]
        return {"s": "(" + "".join(value.strip("()") + "." for value in values).rstrip(".") + ")"}

    def rows(self, batch: dict[str, Any]) -> dict[str, Any]:
        if "s_1" in batch:
            pairs = zip(batch["s_1"], batch["s_2"], strict=True)
            return {"s": np.array([f"{one.strip('()')}.{two.strip('()')}" for one, two in pairs], object)}
        return {"s": np.array([self.forward({"s_input": block})["s"] for block in batch["s_input"]], object)}


SPEC = (TensorSpec("s", "string"),)


def rows_of(*values: Any) -> dict[str, Any]:
    return {"s": np.array([str(value) for value in values], object)}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_MOST_ROWS", 8)


@given(count=st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_all_rows_once_and_in_order(count: int) -> None:
    program = Program()
    found = Folding(SPEC, "block").fold(program, rows_of(*range(count)), is_raw=True)["s"]
    assert found[0].strip("()").split(".") == [str(k) for k in range(count)]
    assert sorted(map(int, program.raw)) == list(range(count))
    assert all(size & (size - 1) == 0 and size <= 8 for size in program.sizes)
    pairs = Folding(SPEC, "row").fold(program, rows_of(*range(count)), is_raw=True)["s"]
    assert pairs[0].split(".") == [str(k) for k in range(count)]


def test_one_result_is_not_folded_again_and_one_raw_row_is() -> None:
    program = Program()
    once = Folding(SPEC, "block").fold(program, rows_of(7), is_raw=True)
    assert (once["s"][0], program.sizes) == ("(7)", [1])
    again = Folding(SPEC, "block").fold(program, once, is_raw=False)
    assert (again["s"][0], program.sizes) == ("(7)", [1])


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_each_key_gets_its_own_rows_in_order(counts: list[int]) -> None:
    program = Program()
    names = [f"{key}x{k}" for key, count in enumerate(counts) for k in range(count)]
    found = Folding(SPEC, "block").fold_keys(program, rows_of(*names), np.array(counts), is_raw=True)["s"]
    for key, count in enumerate(counts):
        assert found[key].strip("()").split(".") == [f"{key}x{k}" for k in range(count)]
    assert sorted(program.raw) == sorted(names)
    whole = Program()
    Folding(SPEC, "block", is_algebraic=False).fold_keys(whole, rows_of(*names), np.array(counts), is_raw=True)
    assert sorted(whole.sizes) == sorted(counts)  # a call for each, with all its rows


def test_cells_of_two_shapes_do_not_join() -> None:
    with pytest.raises(SchemaError, match=r"'y' has cells of shape \[2\] and \[3\]"):
        joined([{"y": np.zeros((1, 2))}, {"y": np.zeros((4, 3))}])


KEYS = st.sampled_from(
    [
        ([1, None, 1, 2, None], [0, 1, 0, 2, 1]),
        (["b", "a", "b", None, "a"], [0, 1, 0, 2, 1]),
        ([float("nan"), 0.0, float("nan"), 1.0, None], [0, 1, 0, 2, 3]),
        ([{"p": 1, "q": None}, {"p": 1, "q": "x"}, {"p": 1, "q": None}, None, {"p": None, "q": None}], [0, 1, 0, 2, 3]),
        ([[1, 2], [], [1, 2], None, [2, 1]], [0, 1, 0, 2, 3]),
        ([True, False, True, None, False], [0, 1, 0, 2, 1]),
        ([b"\x00", b"", b"\x00", b"\x00\x00", b""], [0, 1, 0, 2, 1]),
    ]
)


@given(one=KEYS, other=KEYS, begin=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_keys_are_numbered_by_their_first_rows(one: Any, other: Any, begin: int) -> None:
    assert codes_of([pa.array(one[0])]).tolist() == one[1]
    both = list(zip(one[1], other[1], strict=True))[begin:]
    expected = [list(dict.fromkeys(both)).index(pair) for pair in both]
    assert codes_of([pa.array(one[0]).slice(begin), pa.array(other[0]).slice(begin)]).tolist() == expected
