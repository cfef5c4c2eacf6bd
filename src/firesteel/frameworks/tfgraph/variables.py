"""The variables of a graph, whoever made them: found by their ops, read and written without a change to the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import PlanError

__all__ = ["VARIABLE_OPS", "find", "initialize", "known_variables", "load", "read"]

Array = npt.NDArray[Any]

VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})


def known_variables(graph: Any) -> dict[str, Any]:
    """TensorFlow's variable objects in any collection of this graph, by the names of their ops."""
    found: dict[str, Any] = {}
    for key in graph.get_all_collection_keys():
        for value in graph.get_collection_ref(key):
            if isinstance(value, tf.Variable) and hasattr(value, "op") and value.op is not None:
                found.setdefault(value.op.name, value)
    return found


def find(graph: Any, names: Iterable[str]) -> list[Any]:
    """The variables' ops among these, in the order in which they were made."""
    wanted = set(names)
    return [op for op in graph.get_operations() if op.type in VARIABLE_OPS and op.name in wanted]


def read(graph: Any, session: Any, ops: Sequence[Any]) -> tuple[dict[str, Array], list[str]]:
    """Values by name, and the names of those that have none in this session. Adds nothing to the graph.

    A variable that is in no collection and that nobody reads has no tensor to be fetched by: it counts as one without.
    """
    known = known_variables(graph)
    tensors = {op.name: _value_tensor(op, known) for op in ops}
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    try:
        values = dict(session.run(there))
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
        values = {}
        for name, tensor in there.items():
            try:
                values[name] = session.run(tensor)
            except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
                continue
    return {name: np.array(value) for name, value in values.items()}, [op.name for op in ops if op.name not in values]


def load(graph: Any, session: Any, values: Mapping[str, Array]) -> None:
    """Set variables of a session, through their own initializers: nothing is added to the graph."""
    known = known_variables(graph)
    for name, value in values.items():
        initializer = known[name].initializer
        given = initializer.inputs[1]
        session.run(initializer, {given: np.asarray(value, given.dtype.as_numpy_dtype)})


def initialize(session: Any, initializers: Mapping[str, Any]) -> None:
    """Run these variables' initializers, one that needs another's value after that one's."""
    waiting = dict(initializers)
    while waiting:
        held = {}
        try:
            session.run(list(waiting.values()))
            return
        except tf.errors.FailedPreconditionError as error:
            reason = error
        for name, initializer in waiting.items():
            try:
                session.run(initializer)
            except tf.errors.FailedPreconditionError:
                held[name] = initializer
        if len(held) == len(waiting):
            raise PlanError(f"variables cannot be initialized: {', '.join(held)}. TensorFlow says: {reason.message}")
        waiting = held


def _value_tensor(op: Any, known: Mapping[str, Any]) -> Any:
    """A tensor that has the variable's value whenever it is fetched."""
    if op.type != "VarHandleOp":
        return op.outputs[0]
    if op.name in known:
        return known[op.name]._graph_element
    readers = [each for each in op.outputs[0].consumers() if each.type == "ReadVariableOp" and not each.control_inputs]
    return readers[0].outputs[0] if readers else None
