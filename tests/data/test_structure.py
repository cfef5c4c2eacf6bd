"""Structures: the leaves change, the containers do not; cut and join are each other's inverse."""

from __future__ import annotations

import itertools
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firesteel.core.errors import PlanError
from firesteel.data.structure import cut, even_boundaries, is_structure, join, leaves, map_leaves, rows

Pair = namedtuple("Pair", ["left", "right"])


def same(left: Any, right: Any) -> bool:
    """Equal containers, and leaves equal bit for bit."""
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if type(left) is not type(right) or len(left) != len(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return all(same(one, other) for one, other in zip(left, right, strict=True))


DTYPES = st.one_of(
    hnp.integer_dtypes(),  # both byte orders
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.boolean_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.byte_string_dtypes(max_len=3),
    hnp.unicode_string_dtypes(max_len=3),
)


@st.composite
def structures(draw: st.DrawFn) -> Any:
    row_count = draw(st.integers(0, 9))
    row_shapes = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    leaf = st.builds(lambda shape: (row_count, *shape), row_shapes).flatmap(lambda shape: hnp.arrays(DTYPES, shape))
    containers = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from(["x", "y", 3]), inner, min_size=1, max_size=3),
        ),
        max_leaves=4,
    )
    return draw(containers)


@given(data=st.data(), structure=structures())
def test_cut_then_join_is_identity(data: st.DataObject, structure: Any) -> None:
    row_count = rows(structure)
    inner = data.draw(st.lists(st.integers(0, row_count), max_size=4).map(sorted))
    boundaries = [0, *inner, row_count]
    pieces = cut(structure, boundaries)
    sizes = [stop - start for start, stop in itertools.pairwise(boundaries)]
    assert [rows(piece) for piece in pieces] == sizes
    assert same(join(pieces), structure)


@given(row_count=st.integers(0, 50), pieces=st.integers(1, 12))
def test_even_boundaries_are_those_of_array_split(row_count: int, pieces: int) -> None:
    array = np.arange(row_count)
    ours = cut(array, even_boundaries(row_count, pieces))
    assert [piece.tolist() for piece in ours] == [piece.tolist() for piece in np.array_split(array, pieces)]


def test_map_leaves_keeps_the_containers() -> None:
    structure = {"x": [np.ones(2), (np.zeros(2),)], "y": Pair(np.arange(2), np.arange(2))}
    doubled = map_leaves(lambda leaf: leaf * 2, structure)
    assert same(doubled, {"x": [np.full(2, 2.0), (np.zeros(2),)], "y": Pair(np.array([0, 2]), np.array([0, 2]))})


def test_leaves_come_in_order() -> None:
    assert [leaf[0] for leaf in leaves(({"b": np.array([1]), "a": np.array([2])}, [np.array([3])]))] == [1, 2, 3]


def test_cut_makes_views() -> None:
    array = np.arange(4)
    first, _ = cut((array,), [0, 2, 4])
    assert np.shares_memory(first[0], array)


def test_rows_says_both_sizes_when_they_differ() -> None:
    with pytest.raises(PlanError, match=r"same size in first dimension.*6.*5"):
        rows({"x": np.ones((6, 2)), "y": (np.ones(6), np.ones(5))})


@pytest.mark.parametrize("wrong", [3, "text", None, {"x": [1, 2]}, (np.ones(2), 1.0), {1, 2}, np.float32(1)])
def test_other_types_are_refused_with_the_type_and_the_supported_ones(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"found .* ndarray, tuple, list and dict are supported"):
        leaves(wrong)
    assert not is_structure(wrong)


@pytest.mark.parametrize("wrong", [(), {}, {"x": []}, np.array(1.0), (np.ones(2), np.array(1.0))])
def test_without_rows(wrong: object) -> None:
    with pytest.raises(PlanError, match=r"no rows|without dimensions"):
        rows(wrong)


@pytest.mark.parametrize("boundaries", [[0, 5], [3, 2], [-1, 2]])
def test_cut_refuses_boundaries_outside_the_rows(boundaries: list[int]) -> None:
    with pytest.raises(PlanError, match="ascend"):
        cut(np.arange(4), boundaries)


@pytest.mark.parametrize(
    "pieces",
    [
        [{"x": np.ones(1)}, {"y": np.ones(1)}],
        [(np.ones(1),), [np.ones(1)]],
        [(np.ones(1),), (np.ones(1), np.ones(1))],
        [np.ones(1), {"x": np.ones(1)}],
        [np.ones((1, 2)), np.ones((1, 3))],
        [],
    ],
)
def test_join_refuses_what_differs(pieces: list[Any]) -> None:
    with pytest.raises(PlanError, match="join"):
        join(pieces)


def test_join_of_dicts_goes_by_key() -> None:
    joined = join([{"x": np.array([1]), "y": np.array([2])}, {"y": np.array([4]), "x": np.array([3])}])
    assert same(joined, {"x": np.array([1, 3]), "y": np.array([2, 4])})
