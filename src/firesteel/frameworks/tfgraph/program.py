"""A graph program: a GraphDef, the names of its ends, and its variables' values beside it.

What travels is bytes and names, never an object of TensorFlow: no state of the user's process comes along, and the
2 GB that a GraphDef may have do not limit the weights. The user's own graph gets no op from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import PlanError, UnknownName
from firesteel.core.metrics import Metric
from firesteel.core.plan import Clipping
from firesteel.core.program import Program
from firesteel.frameworks.tfgraph import variables as in_graph
from firesteel.frameworks.tfgraph.cutting import cut, needed, op_of
from firesteel.frameworks.tfgraph.figures import Measure
from firesteel.frameworks.tfgraph.randomness import SEED_OP, fix_seeds, follow_seed
from firesteel.frameworks.tfgraph.sources import Opened, import_meta, open_graph, tensor_in
from firesteel.frameworks.tfgraph.state import pack
from firesteel.frameworks.tfgraph.text import export_meta
from firesteel.frameworks.tfgraph.training import Training, add_training, check_loss

__all__ = [
    "Ends",
    "Feed",
    "GraphContent",
    "Variable",
    "capture",
    "describe",
    "finish",
    "named",
    "output_shape",
    "values_of",
]

Array = npt.NDArray[Any]

_PREFIX = "firesteel"


@dataclass(frozen=True)
class Feed:
    """A tensor that rows are fed to, and the batch's array that they come from.

    ``shape`` is the tensor's own, the leading number of rows included; ``None`` where nothing is known of it.
    """

    name: str
    tensor: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Variable:
    """A variable of the graph, by its op's name, with the ends by which a replica reads and sets it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: str
    value: str
    write: str


@dataclass(frozen=True)
class Ends:
    """What a replica feeds and fetches when it scores.

    Attributes:
        feeds: in the order of the model's inputs, then of its labels.
        outputs: output's name → tensor's name.
        flags: tensor's name → its value here and in training: ``is_training``, a rate of dropout.
        is_by_row: the feeds have no leading number of rows: each row is a call.
        rows: the number of rows that every call must have; a short batch is filled up. ``None``: any.
    """

    feeds: tuple[Feed, ...]
    outputs: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, Any, Any], ...] = ()
    is_by_row: bool = False
    rows: int | None = None


@dataclass(frozen=True)
class GraphContent:
    """What travels.

    ``training`` is what a replica needs to learn, where it shall; ``slots`` are its optimizer's variables, ``seed`` the
    one that its random ops follow, ``tallied`` the figures that it keeps of the rows it learns from.
    """

    graph: bytes = field(repr=False)
    ends: Ends
    variables: tuple[Variable, ...] = ()
    starters: tuple[str, ...] = ()
    starter_feeds: tuple[tuple[str, str], ...] = ()
    config: bytes | None = field(default=None, repr=False)
    measures: tuple[Measure, ...] = ()
    loss: str | None = None
    training: Training | None = None
    slots: tuple[Variable, ...] = ()
    seed: Variable | None = None
    tallied: tuple[tuple[str, Metric], ...] = ()


def capture(
    model: Any,
    *,
    inputs: Any = None,
    outputs: Any = None,
    labels: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    train_op: Any = None,
    variables: Sequence[Any] | None = None,
    gradients: Sequence[Any] | None = None,
    updates: Sequence[Any] = (),
    clipping: Clipping | None = None,
    measures: Mapping[str, Any] | None = None,
    tallied: Mapping[str, Metric] | None = None,
    session: Any = None,
    flags: Mapping[Any, Any] | None = None,
    initialize: bool = True,
    seed: int | None = None,
    is_by_row: bool = False,
    rows: int | None = None,
    config: Any = None,
) -> Program:
    """The program of these ends of a graph. Driver only; the user's graph is left as it is.

    Args:
        model: what holds the graph: one or several tensors or ops of it, a ``tf.Graph``, a frozen GraphDef (also as
            bytes or the path of a ``.pb`` file), a SavedModel's folder, a ``tf.function``, the text of ``build_graph``,
            or what one of the ``open_…`` functions gave.
        inputs: batch's array → tensor that it is fed to, or tensors alone, which get ``x0``, ``x1``, ….
        outputs: name → tensor, or tensors alone: ``prediction`` for one, ``_0``, ``_1``, … for a list. Tensors may be
            given by name. Default for both: what the source itself calls its inputs and outputs.
        labels: as ``inputs``; alone they get ``y0``, ``y1``, ….
        loss: the scalar to be lowered, a mean over rows; needed to train and to evaluate.
        optimizer: what trains: a ``tf.compat.v1.train`` optimizer, an ``OptimMethod``, or a dict of variable name
            prefix → ``OptimMethod``. Without it and ``train_op`` the program only scores and measures.
        train_op: an op of the user's that applies gradients marked by ``ZooOptimizer``, in its place.
        variables: which to train; default all trainable ones that the loss depends on.
        gradients: of these variables, where the user has his own.
        updates: ops or tensors to be run with each step, besides the graph's ``UPDATE_OPS``.
        clipping: of a step's gradient, over all replicas.
        measures: figure's name → the tensor whose mean it is, or a pair (predictions, targets),
            and what is added to the targets, if anything.
        tallied: metrics for some of these, to be fed with the rows that are learnt from.
        session: where variables have their values.
        flags: other placeholders → the value that each is fed, or a pair (while training, else).
        initialize: variables without a value get the one that their initializers compute; else a ``PlanError``
            names them.
        seed: makes random initial values the same every time.
        is_by_row: see ``Ends``, as ``rows``.
        rows: see there.
        config: a ``ConfigProto`` for the replicas' sessions.

    Raises:
        PlanError: tensors of two graphs, a placeholder that nothing feeds, a tensor that is not there, a loss that is
            no scalar or that nothing can be learnt from.
    """
    opened = open_graph(model, session)
    graph = opened.graph
    fed = named(graph, opened.inputs if inputs is None else inputs, "x") | named(graph, labels, "y")
    wanted = named(graph, opened.outputs if outputs is None else outputs, None)
    if not wanted and loss is None:
        raise PlanError("a graph needs outputs: name the tensors to be computed")
    set_aside = _flags(graph, flags)
    ends = Ends(describe(fed), tuple((n, t.name) for n, t in wanted.items()), set_aside, is_by_row, rows)
    figures = _measures(graph, measures)
    target = None if loss is None else tensor_in(graph, loss)
    stops = [tensor.name for tensor in fed.values()] + [name for name, _, _ in set_aside]
    graph_def = graph.as_graph_def()
    if wanted:
        check_fed(graph_def, [tensor.name for tensor in wanted.values()], stops, "the outputs depend")
    if target is not None:
        check_loss(target)
        check_fed(graph_def, [target.name], stops, f"the loss {target.name!r} depends")
    for figure in figures:
        check_fed(graph_def, figure.tensors, stops, f"metric {figure.name!r} depends")
    names = [*stops, *(tensor.name for tensor in wanted.values()), *(t for figure in figures for t in figure.tensors)]
    names += [] if target is None else [target.name]
    training = None
    if optimizer is not None or train_op is not None:
        if target is None:
            raise PlanError("a graph needs a loss to be trained")
        learner = import_meta(export_meta(graph))
        training = add_training(
            learner,
            loss=tensor_in(learner, target.name),
            fed=stops,
            optimizer=optimizer,
            train_op=None if train_op is None else learner.get_operation_by_name(op_of(train_op.name)),
            only=None if variables is None else [_variable_name(graph, each) for each in variables],
            gradients=None if gradients is None else [tensor_in(graph, each).name for each in gradients],
            updates=[_name_in(graph, each) for each in updates],
            clipping=clipping,
        )
        names += [*training.beside, *training.after, *(name for _, name in training.marks), *training.starters]
        names += [training.share, *(buffer.gradient for buffer in training.buffers)]
        names += [name for name in (training.update, training.rate) if isinstance(name, str)]
        copied = learner.as_graph_def()
    else:
        copied = graph_def
    own = () if training is None else training.slots
    used = [name for name in _variables_in(copied, needed(copied, names)) if name not in own]
    values = values_of(opened, graph_def, used, initialize=initialize, seed=seed)
    content = GraphContent(
        b"",
        ends,
        config=None if config is None else bytes(config.SerializeToString()),
        measures=figures,
        loss=None if target is None else target.name,
        training=training,
        tallied=tuple((tallied or {}).items()),
    )
    return finish(opened, copied, names, values, content)


def finish(
    opened: Opened, graph_def: Any, names: Sequence[str], values: Mapping[str, Array], content: GraphContent
) -> Program:
    """The program of these ends: the graph cut to what they need, with ways to read and set its variables."""
    starters = [*opened.starters, *_table_starters(opened.graph, needed(graph_def, names))]
    kept = cut(graph_def, [*names, *starters])
    training = content.training
    if training is not None:
        training = replace(training, is_random=follow_seed(kept))
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(kept, name="")
        ops = {op.name: op for op in in_graph.find(graph, [node.name for node in kept.node])}
        found = tuple(_ways(op, values[name].shape) for name, op in ops.items() if name in values)
        slots = tuple(_ways(ops[name]) for name in (() if training is None else training.slots))
        seed = _ways(ops[SEED_OP]) if SEED_OP in ops else None
    there = {op.name for op in graph.get_operations()}
    whole = replace(
        content,
        graph=graph.as_graph_def().SerializeToString(),
        variables=found,
        slots=slots,
        seed=seed,
        starters=tuple(starters),
        starter_feeds=tuple((name, path) for name, path in opened.starter_feeds.items() if op_of(name) in there),
        training=training,
    )
    state = {"model": pack({variable.name: values[variable.name] for variable in found})} if found else None
    return Program("tfgraph", whole, state)


def values_of(
    opened: Opened, graph_def: Any, names: Iterable[str], *, initialize: bool = True, seed: int | None = None
) -> dict[str, Array]:
    """Values of all variables that these ends need: the session's, else what initializers compute."""
    ops = in_graph.find(opened.graph, needed(graph_def, names))
    found = {op.name: opened.values[op.name] for op in ops if op.name in opened.values}
    missing = [op for op in ops if op.name not in found]
    if opened.session is not None and missing:
        if opened.is_ours:
            found |= _read_ours(opened, missing)
        else:
            found |= in_graph.read(opened.graph, opened.session, missing)[0]
        missing = [op for op in missing if op.name not in found]
    if missing and not initialize:
        raise PlanError(
            f"variables have no value in the session: {', '.join(op.name for op in missing)}. Run their initializers "
            f"first, or pass initial_variables=True"
        )
    if missing:
        found |= _initial(opened.graph, graph_def, missing, found, seed)
    return {op.name: found[op.name] for op in ops}


def named(graph: Any, tensors: Any, letter: str | None) -> dict[str, Any]:
    """Tensors by name: as given, or numbered; ``letter`` is what numbers come after, ``None`` for outputs."""
    if isinstance(tensors, Mapping):
        return {str(name): tensor_in(graph, tensor) for name, tensor in tensors.items()}
    if tensors is None:
        return {}
    is_several = isinstance(tensors, (list, tuple))
    listed = [tensor_in(graph, each) for each in tf.nest.flatten(tensors)]
    if letter is not None:
        return {f"{letter}{place}": tensor for place, tensor in enumerate(listed)}
    return {f"_{place}": each for place, each in enumerate(listed)} if is_several else {"prediction": listed[0]}


def describe(fed: Mapping[str, Any]) -> tuple[Feed, ...]:
    """Tensors to be fed, as values."""
    return tuple(
        Feed(name, tensor.name, tensor.dtype.name, None if tensor.shape.rank is None else tuple(tensor.shape.as_list()))
        for name, tensor in fed.items()
    )


def output_shape(program: Program) -> tuple[int, ...] | None:
    """A row's shape of the one output, where the graph says it; ``PlanError`` where it is no number."""
    ((_, name),) = program.content.ends.outputs
    graph = tf.Graph()
    with graph.as_default():
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(program.content.graph)
        tf.import_graph_def(graph_def, name="")
    tensor = graph.get_tensor_by_name(name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise PlanError(f"the output {name!r} is of {tensor.dtype.name}; a column of predictions holds numbers")
    if tensor.shape.rank is None or tensor.shape.rank == 0 or None in tensor.shape.as_list()[1:]:
        return None
    return tuple(tensor.shape.as_list()[1:])


def check_fed(graph_def: Any, names: Sequence[str], fed: Sequence[str], who: str) -> None:
    """Raise ``PlanError`` where a placeholder is needed and nothing feeds it."""
    reached = needed(graph_def, names, fed)
    whole = {op_of(name) for name in fed}
    unfed = [
        node.name for node in graph_def.node if node.name in reached and node.op in ("Placeholder", "PlaceholderV2")
    ]
    unfed = [name for name in unfed if name not in whole]
    if unfed:
        raise PlanError(
            f"{who} on the placeholder {', '.join(map(repr, unfed))}, which nothing feeds; fed are: "
            f"{', '.join(sorted(whole)) or 'none'}"
        )


def _ways(op: Any, shape: Sequence[int] | None = None) -> Variable:
    """Ops by which a replica reads and sets a variable. In our own copy of the graph."""
    dtype = tf.as_dtype(op.get_attr("dtype"))
    sizes = tuple(tf.TensorShape(op.get_attr("shape")).as_list() if shape is None else shape)
    with tf.name_scope(f"{_PREFIX}/{op.name}/"):
        given = tf.compat.v1.placeholder(dtype, sizes, "value")
        if op.type == "VarHandleOp":
            read = tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=dtype, name="read")
            write = tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=given, name="write")
        else:
            # A copy: fetching a reference would hand out the variable's own memory.
            read = tf.raw_ops.DeepCopy(x=op.outputs[0], name="read")
            write = tf.raw_ops.Assign(ref=op.outputs[0], value=given, validate_shape=False, name="write").op
    return Variable(op.name, dtype.name, sizes, read.name, given.name, write.name)


def _read_ours(opened: Opened, ops: Sequence[Any]) -> dict[str, Array]:
    """Values from a session of a graph of our own, where ops may be added."""
    with opened.graph.as_default():
        tensors = {
            op.name: tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=tf.as_dtype(op.get_attr("dtype")))
            if op.type == "VarHandleOp"
            else op.outputs[0]
            for op in ops
        }
    try:
        return {name: np.array(value) for name, value in opened.session.run(tensors).items()}
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:
        raise PlanError(f"a variable of the model has no value: {error.message}") from error


def _initial(
    graph: Any, graph_def: Any, missing: Sequence[Any], known: Mapping[str, Array], seed: int | None
) -> dict[str, Array]:
    """What the initializers of these variables compute, in a copy: the user's session is not touched."""
    objects = in_graph.known_variables(graph)
    unknown = [op.name for op in missing if op.name not in objects]
    if unknown:
        raise PlanError(f"variables have neither a value nor an initializer: {', '.join(unknown)}")
    initializers = {op.name: objects[op.name].initializer.name for op in missing}
    part = cut(graph_def, initializers.values())
    if seed is not None:
        fix_seeds(part, seed)
    copy = tf.Graph()
    with copy.as_default(), tf.compat.v1.Session(graph=copy) as session:
        tf.import_graph_def(part, name="")
        for op in in_graph.find(copy, known):
            way = _ways(op, known[op.name].shape)
            session.run(copy.get_operation_by_name(way.write), {way.value: known[op.name]})
        in_graph.initialize(session, {n: copy.get_operation_by_name(name) for n, name in initializers.items()})
        return _read_ours(Opened(copy, session), in_graph.find(copy, initializers))


def _table_starters(graph: Any, reached: Iterable[str]) -> list[str]:
    """The initializers of the lookup tables that are used."""
    there = set(reached)
    found = graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    return [op.name for op in found if any(each.op.name in there for each in op.inputs)]


def _variables_in(graph_def: Any, names: Collection[str]) -> list[str]:
    return [node.name for node in graph_def.node if node.op in in_graph.VARIABLE_OPS and node.name in names]


def _flags(graph: Any, flags: Mapping[Any, Any] | None) -> tuple[tuple[str, Any, Any], ...]:
    """Values that are fed beside the rows: (tensor, otherwise, while training), in the tensors' own dtypes."""
    found = []
    for key, given in (flags or {}).items():
        tensor = tensor_in(graph, key)
        training, otherwise = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, given)
        kind = tensor.dtype.as_numpy_dtype
        for value in (training, otherwise):
            if not np.can_cast(np.asarray(value).dtype, kind, "same_kind") and np.asarray(value).dtype.kind != "b":
                raise PlanError(f"the tensor {tensor.name!r} is of {tensor.dtype.name} and cannot be fed {value!r}")
            if np.asarray(value).dtype.kind == "b" and tensor.dtype != tf.bool:
                raise PlanError(f"the tensor {tensor.name!r} is of {tensor.dtype.name} and cannot be fed {value!r}")
        found.append((tensor.name, np.asarray(otherwise, kind), np.asarray(training, kind)))
    return tuple(found)


def _measures(graph: Any, measures: Mapping[str, Any] | None) -> tuple[Measure, ...]:
    found = []
    for name, given in (measures or {}).items():
        if isinstance(given, (tuple, list)):
            predictions, targets, *shift = given
            names = [tensor_in(graph, each).name for each in (predictions, targets)]
            found.append(Measure(name, *names, *shift))
        else:
            found.append(Measure(name, tensor_in(graph, given).name))
    return tuple(found)


def _variable_name(graph: Any, given: Any) -> str:
    name = op_of(given if isinstance(given, str) else given.name)
    known = in_graph.known_variables(graph)
    if name not in known:
        raise UnknownName("variable", name, known)
    return name


def _name_in(graph: Any, given: Any) -> str:
    """The name of an op or a tensor of this graph."""
    if isinstance(given, tf.Variable):
        given = given.op
    if isinstance(given, tf.Operation) and given.graph is graph:
        return str(given.name)
    return str(tensor_in(graph, given).name)
