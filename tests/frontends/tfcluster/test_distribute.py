"""``distribute``: nodes learn together what one process learns alone, also with different numbers of rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from firesteel.core.errors import PlanError
from firesteel.engine.together import seats
from firesteel.tfcluster import InputMode, TFCluster, distribute
from frontends.tfcluster.conftest import Notes

if TYPE_CHECKING:
    from pyspark import SparkContext


def learn(x: Any, y: Any, *, seed: int, epochs: int = 3, batch: int = 100) -> dict[str, Any]:
    """A small model, trained; its weights and history as plain values."""
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05, clipnorm=1.0), loss="mse", metrics=["mae"])
    assert distribute(model) is model
    kept: list[int] = []
    saver = distribute.on_chief(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(epoch)))
    history = model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, callbacks=[saver])
    return {"weights": [each.tolist() for each in model.get_weights()], "history": history.history, "kept": kept}


def problem() -> tuple[Any, Any]:
    x = np.random.default_rng(0).random((100, 3)).astype(np.float32)
    return x, x @ np.array([[1.0], [2.0], [3.0]], np.float32) + 0.5


def program(args: Any, ctx: Any) -> None:
    """Take all that is fed, then learn from it: first in full batches, then in small ones."""
    feed = ctx.get_data_feed()
    rows: list[Any] = []
    while not feed.should_stop():
        rows += feed.next_batch(1000)
    x, y = (np.array([row[place] for row in rows], np.float32) for place in (0, 1))
    full = learn(x, y, seed=ctx.executor_id)  # other first weights than the other node's
    small = learn(x, y, seed=ctx.executor_id, batch=20)  # four steps here, two there
    args["notes"].write(ctx.executor_id, [len(rows), full, small])


def test_seventy_and_thirty_rows_are_a_hundred(sc: SparkContext, notes: Notes) -> None:
    x, y = problem()
    rows = [(a.tolist(), b.tolist()) for a, b in zip(x, y, strict=True)]
    parts = sc.parallelize([rows[:70], rows[70:]], 2).flatMap(lambda part: part)
    with TFCluster.run(sc, program, {"notes": notes}, 2, 0, input_mode=InputMode.SPARK) as cluster:
        cluster.train(parts)
    (first_rows, first, first_small), (second_rows, second, second_small) = notes.read()
    assert sorted([first_rows, second_rows]) == [30, 70]
    alone = learn(x, y, seed=0)
    for mine, theirs, single in zip(first["weights"], second["weights"], alone["weights"], strict=True):
        assert mine == theirs
        np.testing.assert_allclose(mine, single, atol=1e-5)
    assert first["history"] == second["history"]
    for name in ("loss", "mae"):
        np.testing.assert_allclose(first["history"][name], alone["history"][name], rtol=1e-5)
    assert (first["kept"], second["kept"]) == ([0, 1, 2], [])
    assert first_small["weights"] == second_small["weights"]  # nobody waited, and all agree
    assert first_small["history"] == second_small["history"]


@pytest.mark.parametrize(
    ("cluster", "task", "found"),
    [
        ({"worker": ["a:1", "b:2"]}, ("worker", 1), (1, ("a:1", "b:2"))),
        ({"ps": ["p:1"], "worker": ["b:2"], "chief": ["a:1"]}, ("worker", 0), (1, ("a:1", "b:2"))),
        ({"ps": ["p:1"], "chief": ["a:1"]}, ("ps", 0), None),
    ],
)
def test_seats_by_tf_config(cluster: Any, task: tuple[str, int], found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}}))
    assert seats() == found


def test_a_tf_config_that_makes_no_sense_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}')
    with pytest.raises(PlanError, match="worker:3"):
        seats()
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(PlanError, match="TF_CONFIG cannot be read"):
        seats()


def test_alone_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    model, callback = object(), object()
    assert distribute(model) is model
    assert distribute.on_chief(callback) is callback
