"""A Keras program: a compiled model as its configuration, or the function that makes one.

What travels is the model's own configuration (``get_config``, ``get_compile_config``) with the classes and functions
that it names and Keras does not have; weights travel beside it. Nothing of that is a live Keras object: the process at
the other end must choose Keras's backend before it imports Keras.
"""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.plan import Clipping
from firesteel.core.program import Program
from firesteel.frameworks.keras.assets import load_assets, pack_assets
from firesteel.frameworks.keras.sealed import Sealed

__all__ = [
    "KerasContent",
    "capture",
    "check_can_train",
    "input_names",
    "input_range",
    "is_model",
    "make_model",
    "output_count",
    "output_names",
    "seeded",
    "string_inputs",
]


@dataclass(frozen=True)
class KerasContent:
    """What travels. ``recipe`` is opened only where Keras runs on ``backend``."""

    backend: str
    recipe: Sealed = field(repr=False)
    class_weight: dict[int, float] | None = None
    clipping: Clipping | None = None
    seed: int = 0


def is_model(model: object) -> bool:
    """A Keras 3 model."""
    return isinstance(model, keras.Model)


def capture(
    model: object,
    *,
    config: dict[str, Any] | None = None,
    class_weight: dict[int, float] | None = None,
    clipping: Clipping | None = None,
    metrics: Any = None,
    seed: int = 0,
    is_trained: bool = True,
) -> Program:
    """The program of a compiled model, or of a ``model_creator(config)``; ``PlanError`` where it cannot travel.

    Args:
        model: the model, or the creator.
        config: for a creator.
        class_weight: class index → weight of its rows.
        clipping: of a step's gradient, before the optimizer's own.
        metrics: in the place of those that the model was compiled with.
        seed: of weights that are made elsewhere.
        is_trained: whether it must be compiled: to score, it need not.
    """
    _check_eager()
    if is_model(model):
        if is_trained and not model.compiled:
            raise PlanError("the Keras model is not compiled; call model.compile(optimizer, loss) first")
        what = (_serialized(model), pack_assets(model))
        recipe = Sealed(("model", what, _own_objects(model), _own_objects_in(metrics), metrics))
    elif callable(model):
        recipe = Sealed(("creator", model, dict(config or {}), {}, metrics))
    else:
        raise PlanError(f"a Keras model or model_creator(config) is needed, not {type(model).__qualname__}")
    content = KerasContent(keras.backend.backend(), recipe, class_weight, clipping, seed)
    return Program("keras", content)


def make_model(content: KerasContent) -> keras.Model:
    """The model of this content, compiled as it was."""
    kind, what, more, own, metrics = content.recipe.open()
    with seeded(content.seed), keras.saving.custom_object_scope({**(more if kind == "model" else {}), **own}):
        if kind == "model":
            made: Any = keras.saving.deserialize_keras_object(what[0], safe_mode=False)
            load_assets(made, what[1])
        else:
            made = _created(what, more)
        if metrics is not None:
            made.compile(**{**made._compile_config.config, "metrics": metrics})
    return made


def check_can_train(model: Any) -> None:
    """Say what is missing for a fit of this model."""
    if type(model).train_step is not keras.Model.train_step:
        raise UnsupportedError(
            f"{type(model).__qualname__} has its own train_step, which cannot be shared by replicas: put what it does "
            f"into compute_loss(), compute_metrics() and call()"
        )
    if getattr(model, "optimizer", None) is None:  # not compiled, or for scoring alone
        raise PlanError("fit needs an optimizer: compile the model with one")
    if model.built and not model.trainable_variables:
        raise PlanError("the model has no trainable weights: there is nothing to train")
    if model._compile_loss is None and type(model).compute_loss is keras.Model.compute_loss:
        raise PlanError("fit needs a loss: compile the model with one")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What draws numbers in here draws those of ``seed``. Python's and NumPy's own generators stay as they were."""
    before, numpy_before = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def _created(creator: Any, config: dict[str, Any]) -> Any:
    made = creator(config)
    if not is_model(made):
        raise PlanError(f"model_creator must return a compiled Keras model, not {type(made).__qualname__}")
    if not made.compiled:
        raise PlanError(
            "model_creator returned a model that is not compiled; call model.compile(optimizer, loss) in it"
        )
    return made


def input_range(model: object) -> tuple[int, int | None]:
    """How many inputs a model takes, at least and at most; any number where only its ``call`` knows."""
    names = input_names(model)
    if names is not None:
        return len(names), len(names)
    if isinstance(model, keras.Sequential):
        return 1, 1
    parameters = list(inspect.signature(model.call).parameters.values())  # type: ignore[attr-defined]
    return 1, None if len(parameters) > 1 else 1


def input_names(model: Any) -> list[str] | None:
    """The names of a model's inputs, in order; ``None`` for one that has not been told."""
    inputs = getattr(model, "_inputs", None) or getattr(getattr(model, "_functional", None), "_inputs", None)
    return None if inputs is None else [tensor.name for tensor in inputs]


def string_inputs(model: Any) -> dict[str, str]:
    """``"string"`` for each tensor of a batch that the model takes as strings, by place and by name."""
    inputs = getattr(model, "_inputs", None) or getattr(getattr(model, "_functional", None), "_inputs", None) or []
    places = [(place, tensor.name) for place, tensor in enumerate(inputs) if tensor.dtype == "string"]
    return {key: "string" for place, name in places for key in (f"x{place}", f"x.{name}")}


def output_names(model: Any) -> list[str] | None:
    """The names of a model's outputs, in order."""
    return list(model.output_names) if hasattr(model, "output_names") else None


def output_count(model: Any) -> int | None:
    """How many outputs a model has; ``None`` where only its ``call`` knows."""
    names = output_names(model)
    return 1 if isinstance(model, keras.Sequential) else None if names is None else len(names)


def _check_eager() -> None:
    """``PlanError`` where Keras could not even tell its weights."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise PlanError(
            "Keras models need eager execution, which is off here: importing firesteel.tf1 turns it off for the whole "
            "process, so use them in another one"
        )


def _serialized(model: Any) -> dict[str, Any]:
    if model.compiled:
        _check_remade(model._compile_config.config)
    try:
        with warnings.catch_warnings():
            # A lambda is unsafe in a file; here it only goes where the model goes.
            warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")
            found: dict[str, Any] = keras.saving.serialize_keras_object(model)
    except NotImplementedError as error:
        raise PlanError(
            f"{type(model).__qualname__} cannot be made again from its configuration: give it get_config(), or pass "
            f"model_creator=. Keras says: {error}"
        ) from error
    return found


def _check_remade(parts: Any) -> None:
    """``PlanError`` for a loss, metric or optimizer of the user's own that cannot be made again elsewhere."""
    for part in _leaves(parts):
        if inspect.isfunction(part) or not _is_own(type(part)) or not hasattr(part, "get_config"):
            continue
        name = type(part).__qualname__
        try:
            type(part).from_config(part.get_config())
        except (TypeError, NotImplementedError) as error:
            raise PlanError(
                f"{name} cannot be made again from its configuration: let get_config() return what __init__ takes (and "
                f"__init__ take name and dtype), or pass model_creator=. Python says: {error}"
            ) from error


def _own_objects(model: Any) -> dict[str, Any]:
    """Classes and functions that the configuration names and Keras does not bring along."""
    found: dict[str, Any] = dict(keras.saving.get_custom_objects())
    found |= _own_objects_in(list(_parts(model)))
    return found


def _own_objects_in(parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in _leaves(parts):
        target = part if inspect.isfunction(part) or inspect.isclass(part) else type(part)
        if _is_own(target):
            found[target.__name__] = target
            found[keras.saving.get_registered_name(target)] = target
    return found


def _is_own(target: Any) -> bool:
    return not str(target.__module__).startswith(("keras.", "builtins", "firesteel.frameworks."))


def _parts(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        yield layer
        yield from (value for value in vars(layer).values() if inspect.isfunction(value))
    if model.compiled:
        yield model.optimizer
        yield from _leaves(getattr(model._compile_config, "config", {}))


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _leaves(each)
    elif tree is not None and not isinstance(tree, (str, int, float, bool)):
        yield tree
