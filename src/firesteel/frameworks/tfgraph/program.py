"""A graph program: a GraphDef, the names of its ends, and its variables' values beside it.

What travels is bytes and names, never an object of TensorFlow: no state of the user's process comes along, and the
2 GB that a GraphDef may have do not limit the weights. The user's own graph gets no op from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.frameworks.tfgraph import variables
from firesteel.frameworks.tfgraph.cutting import cut, needed, op_of
from firesteel.frameworks.tfgraph.randomness import fix_seeds
from firesteel.frameworks.tfgraph.sources import Opened, open_graph, tensor_in
from firesteel.frameworks.tfgraph.state import pack

__all__ = ["Ends", "Feed", "GraphContent", "Variable", "capture", "describe", "finish", "named", "values_of"]

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
    """What travels. ``training`` is what a replica needs to learn, where it shall."""

    graph: bytes = field(repr=False)
    ends: Ends
    variables: tuple[Variable, ...] = ()
    starters: tuple[str, ...] = ()
    starter_feeds: tuple[tuple[str, str], ...] = ()
    config: bytes | None = field(default=None, repr=False)
    measures: tuple[Any, ...] = ()
    training: Any = None


def capture(
    model: Any,
    *,
    inputs: Any = None,
    outputs: Any = None,
    session: Any = None,
    flags: Mapping[Any, Any] | None = None,
    initialize: bool = True,
    seed: int | None = None,
    is_by_row: bool = False,
    rows: int | None = None,
    config: Any = None,
) -> Program:
    """The program that scores with these ends of a graph. Driver only; the graph is left as it is.

    Args:
        model: what holds the graph: one or several tensors or ops of it, a ``tf.Graph``, a frozen GraphDef (also as
            bytes or the path of a ``.pb`` file), a SavedModel's folder, a ``tf.function``, the text of ``build_graph``,
            or what one of the ``open_…`` functions gave.
        inputs: batch's array → tensor that it is fed to, or tensors alone, which get ``x0``, ``x1``, ….
        outputs: name → tensor, or tensors alone: ``prediction`` for one, ``_0``, ``_1``, … for a list. Tensors may be
            given by name. Default for both: what the source itself calls its inputs and outputs.
        session: where variables have their values.
        flags: other placeholders → the value that each is fed.
        initialize: variables without a value get the one that their initializers compute; else a ``PlanError``
            names them.
        seed: makes random initial values the same every time.
        is_by_row: see ``Ends``, as ``rows``.
        rows: see there.
        config: a ``ConfigProto`` for the replicas' sessions.

    Raises:
        PlanError: tensors of two graphs, a placeholder that nothing feeds, a tensor that is not there.
    """
    opened = open_graph(model, session)
    graph = opened.graph
    fed = named(graph, opened.inputs if inputs is None else inputs, "x")
    wanted = named(graph, opened.outputs if outputs is None else outputs, None)
    if not wanted:
        raise PlanError("a graph needs outputs: name the tensors to be computed")
    set_aside = tuple((tensor_in(graph, key).name, value, value) for key, value in (flags or {}).items())
    graph_def = graph.as_graph_def()
    stops = [tensor.name for tensor in fed.values()] + [name for name, _, _ in set_aside]
    check_fed(graph_def, [tensor.name for tensor in wanted.values()], stops, "the outputs depend")
    ends = Ends(
        describe(fed),
        tuple((name, tensor.name) for name, tensor in wanted.items()),
        set_aside,
        is_by_row,
        rows,
    )
    names = [tensor.name for tensor in (*fed.values(), *wanted.values())] + [name for name, _, _ in set_aside]
    found = values_of(opened, graph_def, names, initialize=initialize, seed=seed)
    return finish(opened, graph_def, names, found, GraphContent(b"", ends, config=_serialized(config)))


def finish(
    opened: Opened, graph_def: Any, names: Iterable[str], values: Mapping[str, Array], content: GraphContent
) -> Program:
    """The program of these ends: the graph cut to what they need, with ways to read and set its variables."""
    starters = [*opened.starters, *_table_starters(opened.graph, needed(graph_def, names))]
    kept = cut(graph_def, [*names, *starters])
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(kept, name="")
        ops = variables.find(graph, [node.name for node in kept.node])
        found = [_ways(op, values[op.name]) for op in ops if op.name in values]
    there = {op.name for op in graph.get_operations()}
    feeds = {name: path for name, path in opened.starter_feeds.items() if op_of(name) in there}
    whole = GraphContent(
        graph.as_graph_def().SerializeToString(),
        content.ends,
        tuple(found),
        tuple(starters),
        tuple(feeds.items()),
        content.config,
        content.measures,
        content.training,
    )
    state = {"model": pack({variable.name: values[variable.name] for variable in found})} if found else None
    return Program("tfgraph", whole, state)


def values_of(
    opened: Opened, graph_def: Any, names: Iterable[str], *, initialize: bool = True, seed: int | None = None
) -> dict[str, Array]:
    """Values of all variables that these ends need: the session's, else what initializers compute."""
    ops = variables.find(opened.graph, needed(graph_def, names))
    found = {op.name: opened.values[op.name] for op in ops if op.name in opened.values}
    missing = [op for op in ops if op.name not in found]
    if opened.session is not None and missing:
        if opened.is_ours:
            found |= _read_ours(opened, missing)
        else:
            found |= variables.read(opened.graph, opened.session, missing)[0]
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


def _ways(op: Any, value: Array) -> Variable:
    """Ops by which a replica reads and sets a variable. In our own copy of the graph."""
    dtype = tf.as_dtype(op.get_attr("dtype"))
    with tf.name_scope(f"{_PREFIX}/{op.name}/"):
        given = tf.compat.v1.placeholder(dtype, value.shape, "value")
        if op.type == "VarHandleOp":
            read = tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=dtype, name="read")
            write = tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=given, name="write")
        else:
            # A copy: fetching a reference would hand out the variable's own memory.
            read = tf.raw_ops.DeepCopy(x=op.outputs[0], name="read")
            write = tf.raw_ops.Assign(ref=op.outputs[0], value=given, validate_shape=False, name="write").op
    return Variable(op.name, dtype.name, tuple(value.shape), read.name, given.name, write.name)


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
    objects = variables.known_variables(graph)
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
        for op in variables.find(copy, known):
            way = _ways(op, known[op.name])
            session.run(copy.get_operation_by_name(way.write), {way.value: known[op.name]})
        variables.initialize(session, {n: copy.get_operation_by_name(name) for n, name in initializers.items()})
        return _read_ours(Opened(copy, session), variables.find(copy, initializers))


def _table_starters(graph: Any, reached: Iterable[str]) -> list[str]:
    """The initializers of the lookup tables that are used."""
    there = set(reached)
    found = graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    return [op.name for op in found if any(each.op.name in there for each in op.inputs)]


def _serialized(config: Any) -> bytes | None:
    return None if config is None else bytes(config.SerializeToString())
