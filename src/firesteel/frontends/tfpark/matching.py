"""A Keras model at this door: its estimator, and whether a dataset fits it in names, counts and every dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import PlanError
from firesteel.core.optimizers import OptimMethod
from firesteel.frontends.keras_estimator import KerasEstimator
from firesteel.frontends.tfpark.layout import Field, Layout, leaves

__all__ = ["check_model", "keras_estimator"]

_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def keras_estimator(
    model: Any, optimizer: Any = None, *, metrics: Any = None, model_dir: str | None = None
) -> KerasEstimator:
    """The estimator of a compiled model. One of our optimizers clips as the compiled one did."""
    if isinstance(optimizer, OptimMethod):
        framework: Any = registry.framework("keras")
        compiled = getattr(model, "optimizer", None)
        optimizer = framework.optimizer(optimizer)
        for name in _CLIPPING:
            setattr(optimizer, name, getattr(compiled, name, None))
    return KerasEstimator(
        keras_model=model,
        model_creator=None,
        metrics=metrics,
        optimizer=optimizer,
        config=None,
        backend=None,
        workers_per_node=1,
        model_dir=model_dir,
        seed=None,
    )


def check_model(model: Any, layout: Layout, *, has_labels: bool = True) -> None:
    """Raise ``PlanError`` with both lists where features do not fit inputs, or labels outputs."""
    if layout.is_flat:
        raise PlanError("a Keras model needs a dataset with features= and labels=, not names=")
    if has_labels and layout.labels is None:
        raise PlanError("training and evaluating a Keras model need a dataset with labels=")
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return  # a model that has not been told what it takes finds out from the data
    names = [str(getattr(tensor, "name", place)) for place, tensor in enumerate(inputs)]
    _match("inputs", names, [tuple(tensor.shape[1:]) for tensor in inputs], layout.features, "features")
    if has_labels:
        outputs = list(getattr(model, "output_names", []) or [])
        _match_labels(outputs, [tuple(tensor.shape[1:]) for tensor in model.outputs or ()], layout.labels)


def _match(what: str, names: list[str], shapes: list[Any], part: Any, role: str) -> None:
    fields = list(leaves(part))
    both = f"the model's {what} are {_listed(names, shapes)}; the dataset's {role} are {_named(fields)}"
    if isinstance(part, Mapping) and len(names) > 1:
        missing = [name for name in names if name not in part]
        if missing:
            raise PlanError(f"the dataset has no {', '.join(map(repr, missing))}: {both}")
        fields = [part[name] for name in names]
    if len(fields) != len(names):
        raise PlanError(f"the numbers differ: {both}")
    for shape, field in zip(shapes, fields, strict=True):
        if not _fits(shape, field.shape):
            raise PlanError(f"{field.name!r} does not fit: {both}")


def _match_labels(outputs: list[str], shapes: list[Any], part: Any) -> None:
    fields = list(leaves(part))
    has_shapes = len(shapes) == len(outputs)
    names = _listed(outputs, shapes) if has_shapes else ", ".join(outputs)
    both = f"the model's outputs are {names}; the dataset's labels are {_named(fields)}"
    if isinstance(part, Mapping) and len(outputs) > 1:
        missing = [name for name in outputs if name not in part]
        if missing:
            raise PlanError(f"the dataset's labels lack {', '.join(map(repr, missing))}: {both}")
        fields = [part[name] for name in outputs]
    elif outputs and len(fields) != len(outputs):
        raise PlanError(f"the numbers differ: {both}")
    for shape, field in zip(shapes, fields, strict=True) if has_shapes else ():
        # A label of another rank, or with one number in its last place, may be a class or what a loss makes of it.
        if len(shape) == len(field.shape) and shape and field.shape[-1] != 1 and not _fits(shape, field.shape):
            raise PlanError(f"{field.name!r} does not fit: {both}")


def _fits(wanted: Any, found: tuple[int | None, ...]) -> bool:
    return len(wanted) == len(found) and all(w in (None, f) or f is None for w, f in zip(wanted, found, strict=True))


def _listed(names: list[str], shapes: list[Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))


def _named(fields: list[Field]) -> str:
    return ", ".join(f"{field.name} {field.shape}" for field in fields)
