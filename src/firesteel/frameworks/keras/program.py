"""A Keras program: a compiled model as its configuration, or the function that makes one.

What travels is the model's own configuration (``get_config``, ``get_compile_config``) with the classes and functions
that it names and Keras does not have; weights travel beside it. Nothing of that is a live Keras object: the process at
the other end must choose Keras's backend before it imports Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import keras

from firesteel.core.errors import PlanError
from firesteel.core.plan import Clipping
from firesteel.core.program import Program

__all__ = ["KerasContent", "capture", "input_names", "input_range", "is_model", "make_model", "output_names"]


@dataclass(frozen=True)
class KerasContent:
    """What travels. ``recipe`` is opened only where Keras runs on ``backend``."""

    backend: str
    recipe: bytes = field(repr=False)
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
    seed: int = 0,
) -> Program:
    """The program of a compiled model, or of a ``model_creator(config)``; ``PlanError`` where it cannot travel."""
    if is_model(model):
        recipe = cloudpickle.dumps(("model", _serialized(model), _own_objects(model)))
    elif callable(model):
        recipe = cloudpickle.dumps(("creator", model, dict(config or {})))
    else:
        raise PlanError(f"a Keras model or model_creator(config) is needed, not {type(model).__qualname__}")
    content = KerasContent(keras.backend.backend(), recipe, class_weight, clipping, seed)
    return Program("keras", content)


def make_model(content: KerasContent) -> keras.Model:
    """The model of this content, compiled as it was."""
    kind, what, more = cloudpickle.loads(content.recipe)
    if kind == "model":
        with keras.saving.custom_object_scope(more):
            made: Any = keras.saving.deserialize_keras_object(what, safe_mode=False)
        return made
    keras.utils.set_random_seed(content.seed % 2**32)
    made = what(more)
    if not is_model(made):
        raise PlanError(f"model_creator returned {type(made).__qualname__}, not a Keras model")
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
    parameters = list(inspect.signature(model.call).parameters.values())  # type: ignore[attr-defined]
    return 1, None if len(parameters) > 1 else 1


def input_names(model: Any) -> list[str] | None:
    """The names of a model's inputs, in order; ``None`` for one that has not been told."""
    inputs = getattr(model, "_inputs", None) or getattr(getattr(model, "_functional", None), "_inputs", None)
    return None if inputs is None else [tensor.name for tensor in inputs]


def output_names(model: Any) -> list[str] | None:
    """The names of a model's outputs, in order."""
    return list(model.output_names) if hasattr(model, "output_names") else None


def _serialized(model: Any) -> dict[str, Any]:
    if not model.compiled:
        raise PlanError("the Keras model is not compiled; call model.compile(optimizer, loss) first")
    try:
        found: dict[str, Any] = keras.saving.serialize_keras_object(model)
    except NotImplementedError as error:
        raise PlanError(
            f"{type(model).__qualname__} cannot be made again from its configuration: give it get_config(), or pass "
            f"model_creator=. Keras says: {error}"
        ) from error
    return found


def _own_objects(model: Any) -> dict[str, Any]:
    """Classes and functions that the configuration names and Keras does not bring along."""
    found: dict[str, Any] = dict(keras.saving.get_custom_objects())
    for part in _parts(model):
        target = part if inspect.isfunction(part) or inspect.isclass(part) else type(part)
        if not str(target.__module__).startswith(("keras.", "builtins")):
            found[target.__name__] = target
            found[keras.saving.get_registered_name(target)] = target
    return found


def _parts(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        yield layer
        yield from (value for value in vars(layer).values() if inspect.isfunction(value))
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
