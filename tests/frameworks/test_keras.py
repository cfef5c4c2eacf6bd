"""Keras programs as replicas, in one process: what travels, what adds up, what is Keras's own number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, UnsupportedError
from firesteel.core.optimizers import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, RMSprop
from firesteel.core.schedules import Plateau, Step
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
    model = plain(keras.layers.BatchNormalization())
    replica = framework.replica(framework.capture(model), "cpu", 0)
    replica.start(None)
    replica.load(framework.pack_state(model, with_optimizer=False))
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
    replica = framework.replica(program, "cpu", 0)
    expected = replica.model.evaluate(BATCH["x0"], BATCH["y0"], batch_size=2, return_dict=True, verbose=0)
    parts = []
    for begin, end in ((0, 2), (2, 3), (3, 9)):
        figures = framework.figures()
        replica.measure({name: values[begin:end] for name, values in BATCH.items()}, {"keras": figures})
        parts.append(figures)
    whole = framework.figures()
    for part in parts:
        other = framework.figures()
        other.load_state(part.state())
        whole.merge(other)
    assert framework.values(replica.model, whole) == pytest.approx(expected, rel=1e-5)


def test_a_metric_that_does_not_add_up_is_refused() -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self, name: str = "largest", **more: Any) -> None:
            super().__init__(name=name, **more)
            self.value = self.add_variable((), "zeros", name="value")

        def update_state(self, truth: Any, output: Any, sample_weight: Any = None) -> None:
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(output)))

        def result(self) -> Any:
            return self.value

    class Total(Largest):
        def update_state(self, truth: Any, output: Any, sample_weight: Any = None) -> None:
            self.value.assign(self.value + keras.ops.sum(output))

    with keras.saving.custom_object_scope({"Largest": Largest, "Total": Total}):
        for made, is_fine in ((Largest(), False), (Total(name="total"), True)):
            replica = framework.replica(framework.capture(plain(metrics=[made])), "cpu", 0)
            if is_fine:
                replica.backward(BATCH, 1.0)
                assert replica.figures([replica.tally()])["total"] == pytest.approx(9, rel=1e-5)
                continue
            with pytest.raises(PlanError, match=r"'largest' \(.*Largest\) cannot be merged"):
                replica.backward(BATCH, 1.0)
            with pytest.raises(PlanError, match="'largest'"):
                framework.replica(framework.capture(plain(metrics=[made])), "cpu", 0).measure(
                    BATCH, {"keras": framework.figures()}
                )


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", "sum_over_batch_size"])
def test_a_loss_may_be_reduced_in_any_way(reduction: str) -> None:
    def make() -> Any:
        dense = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1), kernel_initializer="ones")
        model = keras.Sequential([keras.Input((4,)), dense])
        model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanSquaredError(reduction=reduction))
        return model

    batch = {"x0": BATCH["x0"], "y0": BATCH["x0"].sum(axis=1) * 2, "w": RNG.random(9).astype(np.float32)}
    whole = make()
    whole.train_on_batch(batch["x0"], batch["y0"], sample_weight=batch["w"])
    replicas = [framework.replica(framework.capture(make()), "cpu", 0) for _ in range(2)]
    parts = [{name: values[part] for name, values in batch.items()} for part in (slice(0, 2), slice(2, 9))]
    masses = [replica.mass(part) for replica, part in zip(replicas, parts, strict=True)]
    shares = [2 / 9, 7 / 9] if masses[0] is None else [mass / sum(masses) for mass in masses]
    for replica, part, share in zip(replicas, parts, shares, strict=True):
        replica.backward(part, share)
    for theirs, flat in zip(replicas[1].gradients(), replicas[0].gradients(), strict=True):
        flat += theirs
    replicas[0].update()
    for mine, expected in zip(replicas[0].model.get_weights(), whole.get_weights(), strict=True):
        assert np.allclose(mine, expected, atol=1e-5)


def test_losses_reduced_differently_are_refused() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    model.compile("sgd", [keras.losses.MeanSquaredError(reduction="sum"), keras.losses.MeanSquaredError()])
    replica = framework.replica(framework.capture(model), "cpu", 0)
    with pytest.raises(UnsupportedError, match=r"mean, sum.*one reduction"):
        replica.backward({"x0": BATCH["x0"], "y0": BATCH["y0"], "y1": BATCH["y0"]}, 1.0)


METHODS = {
    "sgd": SGD(0.1, learningrate_decay=0.5, weightdecay=0.01),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, dampening=0.0, nesterov=True, learningrate_schedule=Step(2, 0.5)),
    "factors": SGD(0.1, learningrates=[1.0, 2.0, 3.0, 0.5, 0.0], weightdecays=[0.1] * 5),
    "adam": Adam(0.1, learningrate_decay=0.1),
    "adagrad": Adagrad(0.1, weightdecay=0.1),
    "rmsprop": RMSprop(0.1),
    "adadelta": Adadelta(0.9, 1e-2),
    "adamax": Adamax(0.1),
    "ftrl": Ftrl(0.1, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.1),
    "plateau": SGD(0.1, learningrate_schedule=Plateau("Loss", factor=0.5, patience=0)),
}


@pytest.mark.parametrize("name", METHODS)
def test_our_optimizers_move_weights_as_on_the_torch_bench(name: str) -> None:
    import torch

    from firesteel.frameworks.torch import optimizers as on_torch

    method = METHODS[name]
    values = [RNG.random((2, 2), dtype=np.float32), RNG.random(1, dtype=np.float32)]
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in values]
    variables = [keras.Variable(value) for value in values]
    theirs, mine = on_torch.build(method, parameters), framework.optimizer(method)
    scheduler = on_torch.build_scheduler(method, theirs)
    mine.build(variables)
    for step in range(4):
        gradients = [RNG.normal(size=value.shape).astype(np.float32) for value in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        theirs.step()
        mine.prepare_update()
        mine.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients])
        if scheduler is not None:
            scheduler.step(*([1.0] if scheduler.needs_metric else []))
        mine.observe({"train_loss": 1.0})
        if step == 1:  # a saved one goes on as if nothing had been
            again = keras.optimizers.deserialize(keras.optimizers.serialize(mine))
            again.build(variables)
            for variable, kept in zip(again.variables, mine.variables, strict=True):
                variable.assign(kept)
            mine = again
    for parameter, variable in zip(parameters, variables, strict=True):
        assert np.allclose(parameter.detach().numpy(), variable.numpy(), atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_contract_on_another_backend(backend: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_keras
for name in {sorted(set(MODELS) - {"not built"})!r}:
    test_keras.test_the_contract_of_a_bench(name)
test_keras.test_a_step_is_that_of_keras()
test_keras.test_states_of_metrics_add_up_over_processes()
assert test_keras.keras.backend.backend() == {backend!r}
"""
    pytest.importorskip(backend, reason=f"{backend} is not installed: pip install 'firesteel[{backend}]'")
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


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

    class Stubborn(keras.metrics.Mean):
        def __init__(self) -> None:
            super().__init__(name="stubborn")

    with pytest.raises(PlanError, match=r"Stubborn cannot be made again.*model_creator"):
        framework.capture(plain(metrics=[Stubborn()]))
    stepped = framework.replica(framework.capture(compiled(Stepped([keras.layers.Dense(3)]))), "cpu", 0)
    with pytest.raises(UnsupportedError, match="train_step"):
        stepped.start(None)
    for made, words in ((lambda config: 3, "not int"), (lambda config: keras.Sequential(), "not compiled")):
        with pytest.raises(PlanError, match=words):
            framework.replica(framework.capture(made), "cpu", 0)


def test_without_eager_execution_keras_is_refused_as_such() -> None:
    model, tf = plain(), pytest.importorskip("tensorflow")
    with tf.Graph().as_default(), pytest.raises(PlanError, match=r"eager execution, which is off .*firesteel\.tf1"):
        framework.capture(model)


def test_weights_of_another_model_are_refused() -> None:
    one, other = framework.replica(framework.capture(plain()), "cpu", 0), plain(keras.layers.Dense(2))
    with pytest.raises(CheckpointError, match="another model"):
        one.load(framework.pack_state(other))
