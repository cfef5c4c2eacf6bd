"""The BigDL bench keeps the engine's contract, whatever divides the loss and whoever updates the weights."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

from firesteel.bigdl.nn.criterion import ClassNLLCriterion, MSECriterion
from firesteel.bigdl.nn.layer import (
    BatchNormalization,
    Dropout,
    Linear,
    LogSoftMax,
    LookupTable,
    Recurrent,
    Reshape,
    RnnCell,
    Select,
    Sequential,
    Tanh,
)
from firesteel.bigdl.optim.optimizer import (
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    Ftrl,
    L1L2Regularizer,
    Plateau,
)
from firesteel.core import registry
from firesteel.core.errors import SchemaError, UnsupportedError
from firesteel.testing import check_framework


def bench() -> Any:
    return registry.framework("bigdl")


class Travelled:
    """The bench, whose programs come to each replica through a parcel, as they do in a task."""

    def replica(self, program: Any, device: str, threads: int) -> Any:
        return bench().replica(cloudpickle.loads(cloudpickle.dumps(program)), device, threads)


def batch(rows: int = 7) -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 4)).astype(np.float32)
    return {"x0": x, "y0": x[:, :3].argmax(1) + 1}


def model() -> Sequential:
    made = Sequential().add(Linear(4, 5, wRegularizer=L1L2Regularizer(0.1, 0.2)).set_name("a")).add(Tanh())
    return made.set_seed(3).add(Linear(5, 3).set_name("b")).add(LogSoftMax()).reset()


@pytest.mark.parametrize(
    "optimizer",
    [
        Adam(0.1),
        SGD(0.1, momentum=0.9),
        {"a": Adam(0.1), "b": SGD(0.1, momentum=0.9)},
        {"a": Ftrl(), "b": Adagrad(0.1)},
    ],
    ids=["adam", "sgd", "adam and sgd", "ftrl and adagrad"],
)
def test_contract(optimizer: Any) -> None:
    loss = MSECriterion().to_torch()
    program = bench().capture(model().to_torch(), optimizer=optimizer, loss=loss)
    rows = batch()
    rows["y0"] = np.eye(3, dtype=np.float32)[rows["y0"] - 1]
    check_framework(Travelled(), program, rows)  # type: ignore[arg-type]


def test_a_mass_scales_the_gradient() -> None:
    """Gradients of two parts add up to the whole's when each counts by the weights of its labels."""
    loss = ClassNLLCriterion(np.array([1.0, 5.0, 0.2])).to_torch()
    program = bench().capture(model().to_torch(), optimizer=SGD(0.1), loss=loss)
    rows = batch()
    rows["y0"][2] = -1

    def gradients(begin: int, end: int, whole: float | None) -> tuple[Any, float]:
        replica = bench().replica(program, "cpu", 0)
        replica.start(None)
        part = {name: values[begin:end] for name, values in rows.items()}
        mass = replica.mass(part)
        replica.backward(part, 1.0 if whole is None else mass / whole)
        return replica.gradients()[0][:33].copy(), mass

    together, whole = gradients(0, 7, None)
    parts = [gradients(0, 3, whole), gradients(3, 7, whole)]
    assert sum(mass for _, mass in parts) == pytest.approx(whole)
    np.testing.assert_allclose(sum(gradient for gradient, _ in parts), together, atol=1e-6)


def test_whole_numbers_and_tables_of_columns() -> None:
    """Integers look up rows and become floats where arithmetic begins; a number is a vector of one."""
    words = Sequential().add(LookupTable(9, 4)).add(Recurrent().add(RnnCell(4, 3, "tanh"))).add(Select(2, -1))
    numbers = np.array([[1, 9, 3], [2, 2, 2]])
    replica = bench().replica(bench().capture(words.to_torch()), "cpu", 0)
    assert replica.forward({"x0": numbers})["prediction"].shape == (2, 3)
    replica = bench().replica(bench().capture(Linear(1, 2).to_torch()), "cpu", 0)
    assert replica.forward({"x0": np.array([1, 2, 3])})["prediction"].shape == (3, 2)
    image = bench().capture(Linear(4, 1).to_torch(), row_shape=(4,))
    assert bench().replica(image, "cpu", 0).forward({"x0": np.zeros((3, 2, 2))})["prediction"].shape == (3, 1)
    dealt = bench().capture(Reshape([4]).to_torch(), features=((2, 2),))
    with pytest.raises(SchemaError, match=r"\(3,\).*\(2, 2\)"):
        bench().replica(dealt, "cpu", 0).forward({"x0": np.zeros((5, 3))})


def test_scoring_leaves_no_trace() -> None:
    noisy = Sequential().add(BatchNormalization(4)).add(Dropout(0.5))
    x = batch()["x0"]
    before = [array.copy() for entry in noisy.parameters().values() for array in entry.values()]
    noisy.predict(x)
    assert noisy.is_training()
    for array, once in zip((a for e in noisy.parameters().values() for a in e.values()), before, strict=True):
        np.testing.assert_array_equal(array, once)
    np.testing.assert_array_equal(noisy.predict(x, batch_size=2), noisy.predict(x))


def test_what_a_layer_cannot_have() -> None:
    made = model()
    with pytest.raises(UnsupportedError, match="LBFGS"):
        bench().capture(made.to_torch(), optimizer={"a": LBFGS(), "b": SGD()})
    program = bench().capture(made.to_torch(), optimizer={"a": SGD(leaningrate_schedule=Plateau("Loss")), "b": SGD()})
    with pytest.raises(UnsupportedError, match="Plateau"):
        bench().replica(program, "cpu", 0)._make()


def test_words_load_no_torch() -> None:
    """Layers are descriptions: torch comes with the first number."""
    code = (
        "import sys; from firesteel.bigdl.nn.layer import *; from firesteel.bigdl.nn.criterion import *; "
        "from firesteel.bigdl.optim.optimizer import *; import firesteel.bigdl; "
        "m = Sequential().add(Linear(2, 2)).add(Tanh()); c = MSECriterion(); "
        "assert 'torch' not in sys.modules, 'torch'; assert 'tensorflow' not in sys.modules; "
        "import numpy; m.forward(numpy.zeros((1, 2))); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
