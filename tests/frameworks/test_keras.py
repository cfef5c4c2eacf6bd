"""Keras programs as replicas, in one process: what travels, what adds up, what is Keras's own number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, UnsupportedError
from firesteel.core.spec import Batch
from firesteel.testing import check_framework

keras: Any = __import__("keras")

RNG = np.random.default_rng(1)
BATCH: Batch = {"x0": RNG.random((9, 4), dtype=np.float32), "y0": RNG.integers(0, 3, 9)}
framework: Any = registry.framework("keras")


def compiled(model: Any, optimizer: Any = "adam", **options: Any) -> Any:
    model.compile(
        optimizer=optimizer,
        **{"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options},
    )
    return model


def plain(*more: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(5, "tanh"), *more, keras.layers.Dense(3, "softmax")]
    return compiled(keras.Sequential([keras.Input((4,)), *layers]), **options)


def unbuilt() -> Any:
    keras.utils.set_random_seed(1)
    return compiled(keras.Sequential([keras.layers.Dense(3, "softmax")]), "sgd")


def from_config(config: dict[str, Any]) -> Any:
    return plain(optimizer=keras.optimizers.SGD(config["rate"], momentum=0.9))


class Twice(keras.layers.Layer):
    """A layer that Keras does not have."""

    def call(self, x: Any) -> Any:
        return 2 * x


class Small(keras.Model):
    def __init__(self, units: int, **more: Any) -> None:
        super().__init__(**more)
        self.units = units
        self.dense = keras.layers.Dense(units)
        self.out = keras.layers.Dense(3, "softmax")

    def call(self, x: Any) -> Any:
        return self.out(self.dense(x))

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units}


def own_loss(truth: Any, output: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(truth, output) * 2


MODELS = {
    "adam": lambda: framework.capture(plain()),
    "momentum and l2": lambda: framework.capture(
        plain(keras.layers.Dense(4, kernel_regularizer="l2"), optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    ),
    "a schedule": lambda: framework.capture(
        plain(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
    ),
    "an embedding": lambda: framework.capture(
        compiled(
            keras.Sequential(
                [
                    keras.Input((4,)),
                    keras.layers.Embedding(7, 2),
                    keras.layers.Flatten(),
                    keras.layers.Dense(3, "softmax"),
                ]
            )
        )
    ),
    "not built": lambda: framework.capture(unbuilt()),
    "a creator": lambda: framework.capture(from_config, config={"rate": 0.1}, seed=3),
    "a layer and a loss of one's own": lambda: framework.capture(plain(Twice(), loss=own_loss)),
    "a class": lambda: framework.capture(compiled(Small(4))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_contract_of_a_bench(name: str) -> None:
    check_framework(framework, MODELS[name](), BATCH, tolerance=1e-5)


def test_a_step_is_that_of_keras() -> None:
    model, program = plain(keras.layers.BatchNormalization()), None
    program = framework.capture(model)
    replica = framework.replica(program, "cpu", 0)
    replica.start(None)
    from firesteel.frameworks.keras.state import load_model, pack_model

    load_model(replica.model, pack_model(model))
    expected = model.train_on_batch(BATCH["x0"], BATCH["y0"], return_dict=True)
    loss = replica.backward(BATCH, 1.0)
    replica.update()
    assert loss == pytest.approx(float(expected["loss"]), rel=1e-6)
    assert replica.figures([replica.tally()]) == pytest.approx({k: float(v) for k, v in expected.items()})
    for mine, theirs in zip(replica.model.get_weights(), model.get_weights(), strict=True):
        assert np.allclose(mine, theirs, atol=1e-6)


def test_states_of_metrics_add_up_over_processes() -> None:
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2), "sparse_categorical_crossentropy"]
    program = framework.capture(plain(metrics=metrics, weighted_metrics=["accuracy"]))
    from firesteel.frameworks.keras.figures import KerasFigures

    replica = framework.replica(program, "cpu", 0)
    expected = replica.model.evaluate(BATCH["x0"], BATCH["y0"], batch_size=2, return_dict=True, verbose=0)
    parts = []
    for begin, end in ((0, 2), (2, 3), (3, 9)):
        figures = KerasFigures()
        replica.measure({name: values[begin:end] for name, values in BATCH.items()}, {"keras": figures})
        parts.append(figures)
    whole = KerasFigures()
    for part in parts:
        other = KerasFigures()
        other.load_state(part.state())
        whole.merge(other)
    assert whole.result(replica.model) == pytest.approx(expected, rel=1e-5)


def test_class_and_row_weights() -> None:
    model = plain(optimizer="sgd")
    replica = framework.replica(framework.capture(model, class_weight={0: 2.0, 2: 0.5}), "cpu", 0)
    replica.model.set_weights(model.get_weights())
    weights = RNG.random(9).astype(np.float32)
    loss = replica.backward({**BATCH, "w": weights}, 1.0)
    by_class = np.array([2.0, 1.0, 0.5], np.float32)[BATCH["y0"]]
    expected = model.test_on_batch(BATCH["x0"], BATCH["y0"], sample_weight=weights * by_class, return_dict=True)
    assert loss == pytest.approx(float(expected["loss"]), rel=1e-5)


def test_what_cannot_travel_is_said() -> None:
    with pytest.raises(PlanError, match="not compiled"):
        framework.capture(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    with pytest.raises(PlanError, match="Keras model or model_creator"):
        framework.capture(3)

    class Closed(keras.Model):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def call(self, x: Any) -> Any:
            return self.layer(x)

    class Stepped(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return {}

    with pytest.raises(PlanError, match=r"get_config.*model_creator"):
        framework.capture(compiled(Closed(np.float32)))
    stepped = framework.replica(framework.capture(compiled(Stepped([keras.layers.Dense(3)]))), "cpu", 0)
    with pytest.raises(UnsupportedError, match="train_step"):
        stepped.start(None)
    for made, words in ((lambda config: 3, "returned int"), (lambda config: keras.Sequential(), "not compiled")):
        with pytest.raises(PlanError, match=words):
            framework.replica(framework.capture(made), "cpu", 0)


def test_weights_of_another_model_are_refused() -> None:
    one, other = framework.replica(framework.capture(plain()), "cpu", 0), plain(keras.layers.Dense(2))
    from firesteel.frameworks.keras.state import pack_model

    with pytest.raises(CheckpointError, match="another model"):
        one.load({"model": pack_model(other)})
