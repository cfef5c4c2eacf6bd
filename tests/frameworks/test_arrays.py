"""The bench for plain functions: what NumPy code does to one row, done to all; outputs known from zeros."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from firesteel.core import registry
from firesteel.core.columns import Port
from firesteel.core.errors import PlanError
from firesteel.frameworks.arrays.rowwise import OneByOne, Rows

RNG = np.random.default_rng(0)
Y = RNG.standard_normal((50, 3))
X = RNG.standard_normal(50)
M = RNG.standard_normal((50, 2, 3))
W = RNG.standard_normal((3, 2))
for _array in (X, Y, M):
    _array.flags.writeable = False


def bench() -> Any:
    return registry.framework("arrays")


def bound(function: Any, given: dict[str, Any], **parts: Any) -> Any:
    """``given``: name → the shape of a float64 input."""
    program = bench().capture(function, **parts)
    return bench().bind(program, {name: Port(name, "float64", shape) for name, shape in given.items()})


def alive(function: Any, given: dict[str, Any], **parts: Any) -> Any:
    return bench().replica(bound(function, given, **parts).program, "cpu", 0)


# --- rows at once ---

ROWWISE = {
    "arithmetic": lambda x, y, m: x * y + m / 2 - 1,
    "constants of more axes": lambda x, y, m: x + W + np.arange(2.0),
    "ufuncs": lambda x, y, m: np.exp(-np.abs(y)) + np.maximum(y, x),
    "two outputs": lambda x, y, m: np.modf(y)[1],
    "sum": lambda x, y, m: y.sum() + m.sum(axis=0) + np.sum(m, axis=-1, keepdims=True)[0],
    "statistics": lambda x, y, m: (y - y.mean()) / y.std() + np.var(m, axis=(0, 1)),
    "extremes": lambda x, y, m: y.max() - y.min() + m.argmax(axis=1).max() + np.argmin(y),
    "reduce": lambda x, y, m: np.add.reduce(m) + np.multiply.accumulate(y),
    "cumulated": lambda x, y, m: np.cumsum(y) + np.sort(y) + np.argsort(y),
    "matmul": lambda x, y, m: m @ y @ np.ones(2) + y @ W @ np.ones(2) + (W.T @ y).sum() + (m @ W).sum(),
    "dot": lambda x, y, m: np.dot(y, y) * x + np.dot(x, 2) + y.dot(W).sum(),
    "norms": lambda x, y, m: np.linalg.norm(y) + np.linalg.norm(m) + np.linalg.norm(m, axis=1).sum(),
    "where": lambda x, y, m: np.where(y > 0, y, -1) + np.clip(y, -0.5, x + 1),
    "shapes": lambda x, y, m: m.reshape(3, 2).T + m.transpose(0, 1) + np.expand_dims(y, 0),
    "slices": lambda x, y, m: m[:, ::-1] + y[None, :] + m[0, -1] + m[..., 1:2] + y[-1],
    "joined": lambda x, y, m: np.concatenate([y, m[0], [1.0]]) + np.stack([x] * 7),
    "unpacked": lambda x, y, m: sum(part * k for k, part in enumerate(y)) + len(y) + y.size,
    "like": lambda x, y, m: np.zeros_like(y) + np.full_like(m, 2) + np.ones_like(x),
    "flat": lambda x, y, m: m.ravel() + np.ravel(m) + m.flatten(),
    "casts": lambda x, y, m: (y > 0).astype("int32") + y.round(1).astype("float32"),
    "squeeze": lambda x, y, m: np.squeeze(y[:, None]) + np.squeeze(m[:1]),
    "no input": lambda x, y, m: np.arange(4),
}


@pytest.mark.parametrize("name", ROWWISE)
def test_all_rows_at_once_are_what_each_is_alone(name: str) -> None:
    function = ROWWISE[name]
    whole = function(Rows(X), Rows(Y), Rows(M))
    found = whole.values if isinstance(whole, Rows) else np.broadcast_to(whole, (50, *np.shape(whole)))
    for row in range(50):
        alone = np.asarray(function(X[row], Y[row], M[row]))
        assert (found[row].shape, found.dtype) == (alone.shape, alone.dtype)
        np.testing.assert_allclose(found[row], alone, rtol=1e-12, atol=1e-12)


ONE_BY_ONE = {
    "a branch": lambda x, y: x if x > 0 else -x,
    "a number": lambda x, y: float(x) + 1,
    "a text": lambda x, y: len(f"{x:.1f}"),
    "places of its own": lambda x, y: y[y > 0].sum(),
    "other code": lambda x, y: np.asarray(y).sum() + np.interp(x, [0, 1], [0, 1]),
    "a list": lambda x, y: np.array([x, x * 2]),
    "a handler of errors": lambda x, y: _guarded(x),
    "chance": lambda x, y: x * 0 + next(COUNT),
}
COUNT = iter(range(10**6))


def _guarded(x: Any) -> Any:
    try:
        return x if x > 0 else x * 0
    except Exception:  # noqa: BLE001 - what a user may write
        return x * 7


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_looks_at_values_is_done_one_by_one(name: str) -> None:
    function = ONE_BY_ONE[name]
    if name == "chance":  # nothing in it shows; rows computed alone do not agree
        replica = alive(function, {"x": (), "y": (3,)}, outputs=["q"])
        found = replica.rows({"x": X, "y": Y})["q"]
        assert len(set(found.tolist())) == 50
        return
    with pytest.raises(OneByOne):
        function(Rows(X), Rows(Y))
    replica = alive(function, {"x": (), "y": (3,)}, outputs=["q"])
    found = replica.rows({"x": X, "y": Y})["q"]
    np.testing.assert_allclose(found, [function(x, y) for x, y in zip(X, Y, strict=True)])


def test_ragged_results_come_as_a_list() -> None:
    found = alive(lambda x: np.arange(int(x) % 3), {"x": ()}, outputs=["q"]).rows({"x": np.arange(6.0)})
    assert [part.tolist() for part in found["q"]] == [[], [0], [0, 1]] * 2


# --- kinds ---


def test_torch_functions_and_modules() -> None:
    def stats(y: torch.Tensor) -> dict[str, torch.Tensor]:
        assert not torch.is_grad_enabled()
        return {"mean": y.mean(), "twice": y.mul_(2)}  # in place, on its own copy

    replica = alive(stats, {"y": (3,)}, kind="torch")
    found = replica.rows({"y": Y})
    np.testing.assert_allclose(found["mean"], Y.mean(1))
    np.testing.assert_allclose(found["twice"], Y * 2)
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double().train()
    found = alive(module, {"input": (None, 3)}).forward({"input": Y})
    assert module.training
    with torch.no_grad():
        np.testing.assert_allclose(found["output"], module.eval()(torch.tensor(np.array(Y))).numpy())


def test_torch_code_that_cannot_be_mapped_is_called_row_by_row() -> None:
    found = alive(lambda x: x if bool(x > 0) else x * 0, {"x": ()}, kind="torch", outputs=["q"]).rows({"x": X})
    np.testing.assert_allclose(found["q"], np.maximum(X, 0))


def test_jax_keeps_64_bits() -> None:
    jax = pytest.importorskip("jax", reason="JAX is not in this environment; arrays of its kind are not tried")
    traced = []

    @jax.jit
    def z(x: Any, y: Any) -> Any:
        traced.append(1)
        return x + y.sum()

    made = bound(z, {"x": (), "y": (3,)})
    assert made.outputs == (Port("z", "float64", ()),)
    replica = bench().replica(made.program, "cpu", 0)
    traced.clear()
    for rows in (50, 40, 33):  # one trace serves all that round up to 64
        np.testing.assert_allclose(replica.rows({"x": X[:rows], "y": Y[:rows]})["z"], X[:rows] + Y[:rows].sum(1))
    assert len(traced) <= 2
    assert jax.numpy.zeros(1).dtype == "float32"  # the user's own setting is as it was


# --- inputs and outputs ---


def test_sizes_that_change_with_the_input_are_unknown() -> None:
    ports = bound(
        lambda x, y: {"a": x[:, None] * y, "b": x @ y, "c": np.ones((2, 5)), "d": len(x)},
        {"x": (None,), "y": (None, 3)},
    )
    assert [(port.name, port.dtype, port.shape) for port in ports.outputs] == [
        ("a", "float64", (None, 3)),
        ("b", "float64", (3,)),
        ("c", "float64", (2, 5)),
        ("d", "int64", ()),
    ]


class Pair(NamedTuple):
    low: Any
    high: Any


def test_names_of_outputs() -> None:
    def names(function: Any, **parts: Any) -> list[str]:
        return [port.name for port in bound(function, {"x": (None,)}, **parts).outputs]

    def z(x: Any) -> Any:
        return x

    assert names(z) == ["z"]
    assert names(lambda x: Pair(x, x)) == ["low", "high"]
    assert names(lambda x: {"b": x, "a": x}) == ["b", "a"]
    assert names(lambda x: (x, x), outputs=["p", "q"]) == ["p", "q"]
    assert names(lambda x: [x, x], outputs=["p", "q"]) == ["p", "q"]
    assert names(lambda x: {"b": x, "a": x}, outputs=["a", "b"]) == ["a", "b"]
    assert names(lambda x: [1, 2], outputs=["p"]) == ["p"]
    for function, parts, words in (
        (lambda x: x, {}, "program(fn, outputs=['z'])"),
        (lambda x: (x, x), {}, "2 values without names"),
        (lambda x: (x, x), {"outputs": ["p"]}, "2 outputs"),
        (lambda x: {"a": x}, {"outputs": ["p"]}, "1 outputs (a)"),
        (lambda x: {1: x}, {}, "keys"),
        (lambda *x: x, {"outputs": ["p"]}, "*x"),
    ):
        with pytest.raises(PlanError) as caught:
            names(function, **parts)
        assert words in str(caught.value)


def test_defaults_are_kept_and_arguments_go_by_name() -> None:
    def z(x: Any, /, scale: float = 2.0, *, shift: Any = 0.0, **rest: Any) -> Any:
        return x * scale + shift

    program = bench().capture(z)
    assert [(port.name, port.is_needed) for port in bench().inputs(program)] == [
        ("x", True),
        ("scale", False),
        ("shift", False),
    ]
    np.testing.assert_allclose(alive(z, {"x": (None,)}).forward({"x": X})["z"], X * 2)
    by_keyword = alive(lambda x, *, shift: {"z": x + shift}, {"x": (None,), "shift": (None,)})
    np.testing.assert_allclose(by_keyword.forward({"x": X, "shift": X})["z"], 2 * X)


def test_inputs_are_read_only() -> None:
    def z(x: Any) -> Any:
        x += 1
        return x

    with pytest.raises(PlanError, match="read-only"):
        bound(z, {"x": (None,)})
