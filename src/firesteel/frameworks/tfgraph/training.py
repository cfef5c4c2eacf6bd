"""A graph that learns: gradients, and the ops of its optimizer, built once, in a copy of the user's graph.

Everything that needs TensorFlow's Python (gradients that the user registered, an optimizer of the user's own class) is
done here, on the driver. What travels is names of ops; a replica builds nothing but what depends on its rank.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from firesteel.core.errors import PlanError
from firesteel.core.optimizers import OptimMethod
from firesteel.core.plan import Clipping
from firesteel.frameworks.tfgraph.cutting import needed, op_of
from firesteel.frameworks.tfgraph.marks import marks_of

__all__ = ["Buffer", "Training", "add_training", "by_prefix"]

_READERS = frozenset({"ReadVariableOp", "Identity", "VarIsInitializedOp", "VariableShape", "ResourceGather"})


@dataclass(frozen=True)
class Buffer:
    """Trainable variables of one dtype and one optimizer, laid end to end: what replicas exchange in one piece."""

    dtype: str
    gradient: str
    """The tensor of all gradients, flat, times the share."""
    members: tuple[str, ...]
    method: OptimMethod | None = None
    """Ours; ``None`` where the graph has the update itself."""


@dataclass(frozen=True)
class Training:
    """Names of the ends that a replica trains by.

    Attributes:
        loss: the mean over the rows fed.
        share: placeholder of what the gradient is multiplied by.
        buffers: see ``Buffer``.
        update: the op that applies gradients, where the optimizer is TensorFlow's; ``marks`` are the tensors to be fed
            with them, by the names of their variables.
        slots: the optimizer's variables that the user's graph does not have, and ``starters``, their initializers.
        beside: ops that run with each step's gradients (batch norm's), ``after``: with the updated variables.
        running: variables that training changes without a gradient and that replicas average.
        rate: tensor of the learning rate.
        is_random: whether there are random ops, which then are functions of a seed.
        clipping: of the gradient of all replicas, where the update does not do that itself.
    """

    loss: str
    share: str
    buffers: tuple[Buffer, ...]
    update: str | None = None
    marks: tuple[tuple[str, str], ...] = ()
    slots: tuple[str, ...] = ()
    starters: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    rate: str | float | None = None
    is_random: bool = False
    clipping: Clipping | None = None

    @property
    def trainable(self) -> tuple[str, ...]:
        """Names of all variables that have a gradient."""
        return tuple(name for buffer in self.buffers for name in buffer.members)


def add_training(
    graph: Any,
    *,
    loss: Any,
    fed: Sequence[str],
    optimizer: Any = None,
    train_op: Any = None,
    only: Sequence[str] | None = None,
    gradients: Sequence[str] | None = None,
    updates: Sequence[str] = (),
    clipping: Clipping | None = None,
) -> Training:
    """Add to ``graph``, which is ours, what training needs.

    Args:
        graph: a copy of the user's, with variables as in theirs.
        loss: the tensor.
        fed: names of tensors that a step feeds.
        optimizer: TensorFlow's, one of ours, or a dict of prefix → ours.
        train_op: the op that applies marked gradients, in the place of an optimizer.
        only: names of the variables to train; default: all trainable ones that the loss depends on.
        gradients: tensors' names, one for each of ``only``, where the user has them.
        updates: names of ops and tensors to be run with each step.
        clipping: of the whole gradient.

    Raises:
        PlanError: what cannot be trained, in one sentence.
    """
    check_loss(loss)
    with graph.as_default():
        if train_op is not None:
            pairs = [(mark.inputs[0], name, mark.outputs[0].name) for name, mark in marks_of(train_op).items()]
            flat = _flat(pairs, {name: None for _, name, _ in pairs})
            share, buffers = flat
            update, slots, starters, rate = train_op.name, (), (), None
            marks = tuple((name, fed_by) for _, name, fed_by in pairs)
        else:
            found = _gradients(graph, loss, only, gradients)
            methods = by_prefix(optimizer, list(found)) if not _is_tensorflow(optimizer) else dict.fromkeys(found)
            share, buffers = _flat([(g, name, "") for name, (g, _) in found.items()], methods)
            update, marks, slots, starters, rate = None, (), (), (), None
            if _is_tensorflow(optimizer):
                update, marks, slots, starters, rate = _applied(graph, optimizer, found, clipping)
    graph_def = graph.as_graph_def()
    beside = [op.name for op in graph.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS) if hasattr(op, "name")]
    beside = [name for name in dict.fromkeys(beside) if not _unfed(graph_def, name, fed)]
    after = [name for name in dict.fromkeys(updates) if op_of(name) not in {op_of(each) for each in beside}]
    trained = [buffer.gradient for buffer in buffers] + [loss.name]
    written = _written(graph, needed(graph_def, [*trained, *beside, *after]))
    learnt = {name for buffer in buffers for name in buffer.members}
    running = [name for name in written if name not in learnt]
    return Training(
        loss.name,
        share,
        tuple(buffers),
        update,
        marks,
        slots,
        starters,
        tuple(beside),
        tuple(after),
        tuple(running),
        rate,
        clipping=clipping if update is None or train_op is not None else None,
    )


def check_loss(loss: Any) -> None:
    """A scalar of real numbers, else ``PlanError``."""
    if loss.shape.rank not in (0, None):
        raise PlanError(
            f"the loss {loss.name!r} has shape {loss.shape}; it must be a scalar, the mean over the rows: "
            f"tf.reduce_mean gives one"
        )
    if not loss.dtype.is_floating:
        raise PlanError(f"the loss {loss.name!r} is of {loss.dtype.name}, which has no gradient; it must be a float")


def by_prefix(optimizer: Any, names: Sequence[str]) -> dict[str, OptimMethod]:
    """Each variable's optimizer: the only one, or that of the longest prefix of its name."""
    if isinstance(optimizer, OptimMethod):
        return dict.fromkeys(names, optimizer)
    if not isinstance(optimizer, Mapping):
        raise PlanError(
            f"the optimizer must be a tf.compat.v1.train optimizer, one of firesteel.learn.optimizers or "
            f"firesteel.bigdl, or a dict of name prefix → such, not {type(optimizer).__qualname__}"
        )
    there = ", ".join(names)
    for prefix, method in optimizer.items():
        if not isinstance(method, OptimMethod):
            raise PlanError(f"the optimizer for {prefix!r} must be an optim method, not {type(method).__qualname__}")
        if not any(name.startswith(prefix) for name in names):
            raise PlanError(f"no variable's name begins with {prefix!r}; there are: {there}")
    found = {}
    for name in names:
        fitting = [prefix for prefix in optimizer if name.startswith(prefix)]
        if not fitting:
            raise PlanError(f"no optimizer is given for variable {name!r}; variables are: {there}")
        found[name] = optimizer[max(fitting, key=len)]
    return found


def _is_tensorflow(optimizer: Any) -> bool:
    return isinstance(optimizer, tf.compat.v1.train.Optimizer)


def _gradients(
    graph: Any, loss: Any, only: Sequence[str] | None, given: Sequence[str] | None
) -> dict[str, tuple[Any, Any]]:
    """Dense gradients and variables, by the variables' names; those without a gradient are left out."""
    trainable = {v.op.name: v for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
    everywhere = {v.op.name: v for v in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)} | trainable
    names = list(trainable) if only is None else list(only)
    listed = [everywhere[name] for name in names]
    if given is not None:
        found = [graph.get_tensor_by_name(name) for name in given]
    else:
        found = tf.gradients(loss, listed) if listed else []
    pairs = {
        name: (dense(gradient, variable), variable)
        for name, variable, gradient in zip(names, listed, found, strict=True)
        if gradient is not None
    }
    if not pairs:
        raise PlanError(
            f"the loss {loss.name!r} depends on no trainable variable: there is nothing to train. Trainable variables "
            f"of its graph: {', '.join(names) or 'none'}"
        )
    return pairs


def dense(gradient: Any, variable: Any) -> Any:
    """A gradient as one array of the variable's shape; that of a look-up comes in slices."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = variable.shape[0] if variable.shape[0] is not None else gradient.dense_shape[0]
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
    return gradient


def _flat(pairs: Sequence[tuple[Any, str, str]], methods: Mapping[str, OptimMethod | None]) -> tuple[str, list[Buffer]]:
    """One tensor for all gradients of one dtype and one optimizer, times a share that is fed."""
    groups: dict[tuple[str, int], list[tuple[Any, str]]] = {}
    for gradient, name, _ in pairs:
        method = methods[name]
        groups.setdefault((gradient.dtype.base_dtype.name, id(method)), []).append((gradient, name))
    share = tf.compat.v1.placeholder(tf.float64, [], "firesteel/share")
    buffers = []
    for (dtype, _), members in groups.items():
        whole = tf.concat([tf.reshape(gradient, [-1]) for gradient, _ in members], 0)
        # A product is memory of its own: what is fetched is summed over replicas in place.
        scaled = tf.multiply(whole, tf.cast(share, whole.dtype), "firesteel/gradient")
        names = tuple(name for _, name in members)
        buffers.append(Buffer(dtype, scaled.name, names, methods[names[0]]))
    return share.name, buffers


def _applied(
    graph: Any, optimizer: Any, found: Mapping[str, tuple[Any, Any]], clipping: Clipping | None
) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...], tuple[str, ...], str | float | None]:
    """The update by an optimizer of TensorFlow's: its op, what it is fed, its own variables, its rate."""
    mine = _transplanted(optimizer, graph)
    before = {variable.op.name for variable in _variables(graph)}
    fed, clipped = {}, []
    for name, (gradient, variable) in found.items():
        fed[name] = tf.compat.v1.placeholder(gradient.dtype, variable.shape, "firesteel/agreed")
        clipped.append(fed[name])
    if clipping is not None and clipping.norm is not None:
        clipped, _ = tf.clip_by_global_norm(clipped, clipping.norm)
    elif clipping is not None:
        clipped = [tf.clip_by_value(each, clipping.low, clipping.high) for each in clipped]
    pairs = list(zip(clipped, [variable for _, variable in found.values()], strict=True))
    try:
        update = mine.apply_gradients(pairs, global_step=tf.compat.v1.train.get_global_step(graph))
    except (ValueError, TypeError) as error:
        raise PlanError(f"{type(optimizer).__name__} cannot be applied to a copy of the graph: {error}") from error
    slots = [variable for variable in _variables(graph) if variable.op.name not in before]
    marks = tuple((name, placeholder.name) for name, placeholder in fed.items())
    names = tuple(variable.op.name for variable in slots)
    return update.name, marks, names, tuple(v.initializer.name for v in slots), _rate(mine)


def _variables(graph: Any) -> list[Any]:
    return list(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))


def _transplanted(optimizer: Any, graph: Any) -> Any:
    """The same optimizer for the copy of the graph: tensors among its settings become the copy's, slots are its own."""
    made = copy.copy(optimizer)
    for name, value in list(vars(made).items()):
        setattr(made, name, _moved(value, graph))
    made._slots, made._non_slot_dict = {}, {}
    return made


def _moved(value: Any, graph: Any) -> Any:
    if isinstance(value, tf.Variable):
        known = {variable.op.name: variable for variable in _variables(graph)}
        return known.get(value.op.name, value)
    if isinstance(value, tf.Tensor) and hasattr(value, "graph") and not hasattr(value, "_numpy"):
        return graph.get_tensor_by_name(value.name)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_moved(part, graph) for part in value)
    if type(value) is dict:
        return {key: _moved(part, graph) for key, part in value.items()}
    return value


def _rate(optimizer: Any) -> str | float | None:
    for name in ("_lr_t", "_learning_rate_tensor", "_lr", "_learning_rate"):
        found = getattr(optimizer, name, None)
        if callable(found) and not isinstance(found, (tf.Tensor, tf.Variable)):
            continue
        if isinstance(found, (int, float, np.number)):
            return float(found)
        if isinstance(found, tf.Variable):
            return str(found.value().name)
        if isinstance(found, tf.Tensor):
            constant = tf.get_static_value(found)
            return str(found.name) if constant is None else float(constant)
    return None


def _unfed(graph_def: Any, name: str, fed: Sequence[str]) -> bool:
    """Whether an op depends on a placeholder that a step does not feed: one of another model in the same graph."""
    reached = needed(graph_def, [name], fed)
    whole = {op_of(each) for each in fed}
    return any(
        node.op in ("Placeholder", "PlaceholderV2") and node.name in reached and node.name not in whole
        for node in graph_def.node
    )


def _written(graph: Any, names: set[str]) -> list[str]:
    """Variables of real numbers that some of these ops may change: that are given to an op that does more than read."""
    found: dict[str, None] = {}
    for op in graph.get_operations():
        if op.name not in names or op.type in _READERS:
            continue
        for tensor in op.inputs:
            target = tensor.op
            is_variable = target.type in ("VariableV2", "Variable") and tensor.dtype._is_ref_dtype
            is_variable = is_variable or target.type == "VarHandleOp"
            if is_variable and tf.as_dtype(target.get_attr("dtype")).is_floating:
                found[target.name] = None
    return list(found)
