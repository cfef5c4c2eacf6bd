"""Graphs and functions of TensorFlow as programs over columns: placeholders and parameters are named after them.

Tensors of a live graph are captured at once, its variables' values with them. A function has no dtypes before columns
give them to it: it is traced when it is bound.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # nothing public traces a function where eager execution is off

from firesteel.core.columns import DTYPES, Bound, Port, Shape, refuse_dtype, shape_text
from firesteel.core.errors import PlanError
from firesteel.core.program import Program
from firesteel.frameworks.tfgraph.cutting import needed
from firesteel.frameworks.tfgraph.program import GraphContent, capture
from firesteel.frameworks.tfgraph.sources import is_function, is_symbolic, open_function

__all__ = ["ColumnContent", "Traced", "bind", "capture_columns", "inputs", "outputs", "placeholder"]

_OP_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2", "PlaceholderWithDefault")


@dataclass(frozen=True)
class ColumnContent(GraphContent):
    """A graph whose feeds and outputs are columns' blocks or cells, as they are."""


@dataclass(frozen=True)
class Traced:
    """A function that is traced when its inputs are known. Stays on the driver.

    Attributes:
        call: takes a tensor for each of ``ports`` that is given, by name.
        single: the name of an only output, if it can have one.
        outputs: all outputs' names, where the user said them.
    """

    call: Callable[..., Any]
    ports: tuple[Port, ...]
    single: str | None
    outputs: tuple[str, ...] | None = None


def capture_columns(model: Any, *, outputs: Sequence[str] | None = None, initialize: bool = True) -> Program:
    """The program of tensors, of a ``tf.function`` or a trace of one, of a Keras layer, or of a function of tensors.

    Raises:
        TypeError: it is none of these.
    """
    is_list = isinstance(model, (list, tuple))
    if is_list or is_symbolic(model):
        return _of_tensors(list(model) if is_list else [model], outputs, initialize)
    named = None if outputs is None else tuple(outputs)
    if is_function(model):
        return Program("tfgraph", replace(_of_function(model), outputs=named))
    if _is_layer(model):
        return Program("tfgraph", replace(_of_layer(model), outputs=named))
    if inspect.isroutine(model) or (callable(model) and not isinstance(model, (tf.Tensor, tf.Variable))):
        made = _of_function(tf.function(model, autograph=True))
        return Program("tfgraph", replace(made, outputs=named))
    raise TypeError(f"a tensor of a graph, or a list of such, is needed, not {_described(model)}")


def _of_tensors(tensors: list[Any], names: Sequence[str] | None, initialize: bool) -> Program:
    for each in tensors:
        if not is_symbolic(each):
            raise TypeError(f"a tensor of a graph is needed, not {_described(each)}")
    if not tensors:
        raise TypeError("there is no tensor among the fetches")
    graph = tensors[0].graph
    strangers = [each.name for each in tensors if each.graph is not graph]
    if strangers:
        raise PlanError(f"the fetches are of two graphs: {', '.join(strangers)} not in that of {tensors[0].name}")
    found = list(names) if names is not None else [_output_name(each) for each in tensors]
    if len(found) != len(tensors):
        raise PlanError(f"{len(tensors)} tensors have {len(found)} names: {', '.join(found)}")
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise PlanError(f"two outputs have one name: {', '.join(twice)}; the outputs are: {', '.join(found)}")
    reached = needed(graph.as_graph_def(), [each.name for each in tensors])
    fed = {op.name: op.outputs[0] for op in graph.get_operations() if op.name in reached and op.type in _PLACEHOLDERS}
    session = tf.compat.v1.get_default_session()
    if session is not None and session.graph is not graph:
        session = None
    made = capture(
        tensors, inputs=fed, outputs=dict(zip(found, tensors, strict=True)), session=session, initialize=initialize
    )
    return replace(made, content=_as_columns(made.content))


def _as_columns(content: GraphContent) -> ColumnContent:
    return ColumnContent(**{each.name: getattr(content, each.name) for each in fields(content)})


def _output_name(tensor: Any) -> str:
    """An op's name for its first output, ``op_1`` for the next."""
    op, _, place = tensor.name.partition(":")
    return op if place == "0" else f"{op}_{place}"


def _of_function(function: Any) -> Traced:
    """A ``tf.function``, or a trace of one, whose inputs have dtypes and shapes already."""
    parameters = function.function_type.parameters
    ports = []
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise PlanError(f"a program's parameters are named after columns, and *{name} has no names; write them out")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        spec = parameter.type_constraint
        is_tensor = isinstance(spec, tf.TensorSpec)
        if spec is not None and not is_tensor:
            continue  # a trace's own value, which is what it was traced with
        dtype = _dtype_name(spec.dtype) if is_tensor else None
        shape = tuple(spec.shape.as_list()) if is_tensor and spec.shape.rank is not None else None
        ports.append(Port(name, dtype, shape, is_needed=is_tensor or not parameter.optional))
    name = getattr(getattr(function, "python_function", None), "__name__", None)
    if name is None and hasattr(function, "name"):
        text = function.name.decode() if isinstance(function.name, bytes) else str(function.name)
        name = text.removeprefix("__inference_").rpartition("_")[0] or text
    return Traced(function, tuple(ports), name if name and name.isidentifier() else None)


def _is_layer(model: Any) -> bool:
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(model).__mro__}
    return any(name.startswith(("keras.", "tf_keras.")) and name.endswith(".Layer") for name in names)


def _of_layer(layer: Any) -> Traced:
    """A Keras layer or model: a model's inputs have its own names, a layer's those of its ``call``'s parameters."""
    names = [each.name for each in getattr(layer, "inputs", None) or ()]
    if names:

        def call(**tensors: Any) -> Any:
            return layer(tensors[names[0]] if len(names) == 1 else tensors, training=False)
    else:
        signature = inspect.signature(layer.call).parameters
        skipped = ("training", "mask")
        plain = [p for p in signature.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names = [p.name for p in plain if p.name not in skipped and p.default is p.empty]

        def call(**tensors: Any) -> Any:
            return layer(*(tensors[name] for name in names))

    return Traced(call, tuple(Port(name) for name in names), "output")


def inputs(program: Program) -> tuple[Port, ...]:
    """The placeholders that the outputs need, or a function's parameters."""
    content = program.content
    if isinstance(content, Traced):
        return content.ports
    defaults = _kinds(content)
    return tuple(
        Port(feed.name, _dtype_name(tf.as_dtype(feed.dtype)), feed.shape, defaults[feed.tensor] != _PLACEHOLDERS[-1])
        for feed in content.ends.feeds
    )


def outputs(program: Program) -> tuple[str, ...] | None:
    """The names of a graph's outputs; a function's are known when it is traced."""
    content = program.content
    return content.outputs if isinstance(content, Traced) else tuple(name for name, _ in content.ends.outputs)


def _kinds(content: GraphContent) -> dict[str, str]:
    graph_def = _graph_def(content)
    return {f"{node.name}:0": node.op for node in graph_def.node if node.op in _PLACEHOLDERS}


def _graph_def(content: GraphContent) -> Any:
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(content.graph)
    return graph_def


# --- inputs that are known --------------------------------------------------------------------------------------------


def bind(program: Program, given: Mapping[str, Port], outputs: Sequence[Port] | None = None) -> Bound:
    """The program for inputs of these shapes, and its outputs as TensorFlow infers them."""
    program = _trace(program.content, given) if isinstance(program.content, Traced) else _shaped(program, given)
    graph = _import(_graph_def(program.content))
    found = [_port(name, graph.get_tensor_by_name(tensor)) for name, tensor in program.content.ends.outputs]
    if outputs is not None:
        found = _declared(found, outputs)
    for port in found:
        if port.dtype not in DTYPES:
            raise refuse_dtype(port.name, str(port.dtype), f"tf.cast({port.name}, tf.{{}})")
    return Bound(program, tuple(found))


def _shaped(program: Program, given: Mapping[str, Port]) -> Program:
    """Placeholders with the shapes of what they will be fed; those that nothing feeds keep their defaults."""
    content: ColumnContent = program.content
    graph_def = _graph_def(content)
    shapes = {
        feed.tensor.partition(":")[0]: given[feed.name].shape for feed in content.ends.feeds if feed.name in given
    }
    for node in graph_def.node:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shapes[node.name]).as_proto())
    try:
        _import(graph_def)
    except (ValueError, tf.errors.OpError) as error:
        said = ", ".join(f"{name} {shape_text(port.shape)}" for name, port in given.items())
        raise PlanError(f"the graph does not take these shapes ({said}): {error}") from error
    ends = replace(content.ends, feeds=tuple(feed for feed in content.ends.feeds if feed.name in given))
    return replace(program, content=replace(content, graph=graph_def.SerializeToString(), ends=ends))


def _import(graph_def: Any) -> Any:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph


def _trace(traced: Traced, given: Mapping[str, Port]) -> Program:
    """The graph that a function makes of these inputs."""
    names = [port.name for port in traced.ports if port.name in given]
    specs = [tf.TensorSpec(given[name].shape, _tf_dtype(given[name].dtype), name=None) for name in names]

    @tf.function(autograph=False)
    def call(*tensors: Any) -> Any:
        return traced.call(**dict(zip(names, tensors, strict=True)))

    with context.eager_mode():
        try:
            made = call.get_concrete_function(*specs)
        except Exception as error:
            said = ", ".join(f"{n} {given[n].dtype}{shape_text(given[n].shape)}" for n in names)
            raise PlanError(
                f"the function cannot be traced for {said or 'no inputs'}: {type(error).__name__}: {error}"
            ) from error
        opened = open_function(made)
        opened.inputs = dict(zip(names, opened.inputs.values(), strict=True))
        opened.outputs = {name: tensor.name for name, tensor in _results(traced, made).items()}
        program = capture(opened)
    return replace(program, content=_as_columns(program.content))


def _results(traced: Traced, made: Any) -> dict[str, Any]:
    """Outputs by name: what the user said, dict keys, a named tuple's fields, or the function's own name."""
    result, flat = made.structured_outputs, list(made.outputs)
    if isinstance(result, Mapping):
        by_key = dict(zip(sorted(result), flat, strict=True))  # as TensorFlow flattens a dict
        found = {str(name): by_key[name] for name in result}
    elif hasattr(result, "_fields"):
        found = dict(zip(result._fields, flat, strict=True))
    elif not isinstance(result, (list, tuple)):
        if not flat:
            raise PlanError("the function returns nothing")
        name = traced.outputs[0] if traced.outputs is not None else traced.single
        if name is None:
            raise PlanError("the function has no name that its result could have; name it: program(fn, outputs=['z'])")
        found = {name: flat[0]}
    elif traced.outputs is None:
        raise PlanError(
            f"the function returns {len(flat)} values without names; return a dict or a named tuple, or name them with "
            f"program(fn, outputs=[…])"
        )
    else:
        found = {str(place): tensor for place, tensor in enumerate(flat)}
    if traced.outputs is None or list(found) == list(traced.outputs):
        return found
    if set(found) == set(traced.outputs):
        return {name: found[name] for name in traced.outputs}
    if isinstance(result, Mapping) or len(found) != len(traced.outputs):
        raise PlanError(
            f"the function returns {len(found)} outputs ({', '.join(found)}), but these were named: "
            f"{', '.join(traced.outputs)}"
        )
    return dict(zip(traced.outputs, found.values(), strict=True))


def _declared(found: Sequence[Port], said: Sequence[Port]) -> list[Port]:
    """What the user says of outputs, where the graph does not contradict it."""
    known = {port.name: port for port in said}
    names = [port.name for port in found]
    if set(known) != set(names):
        raise PlanError(f"schema declares {', '.join(known)}, but the program's outputs are {', '.join(names)}")
    settled = []
    for port in found:
        wanted = known[port.name]
        is_text = port.dtype == "binary" and wanted.dtype in ("string", "binary")
        if port.dtype != wanted.dtype and not is_text:
            raise PlanError(f"schema says {wanted.dtype} of output {port.name!r}, which is {port.dtype}")
        settled.append(replace(port, dtype=wanted.dtype, shape=_merged(port, wanted)))
    return settled


def _merged(port: Port, wanted: Port) -> Shape | None:
    if port.shape is None or wanted.shape is None:
        return wanted.shape if port.shape is None else port.shape
    if len(port.shape) != len(wanted.shape) or any(
        one is not None and two is not None and one != two for one, two in zip(port.shape, wanted.shape, strict=True)
    ):
        raise PlanError(
            f"schema says shape {shape_text(wanted.shape)} of output {port.name!r}, which has {shape_text(port.shape)}"
        )
    return tuple(one if two is None else two for one, two in zip(port.shape, wanted.shape, strict=True))


def _port(name: str, tensor: Any) -> Port:
    dtype = "binary" if tensor.dtype.base_dtype == tf.string else tensor.dtype.base_dtype.name
    return Port(name, dtype, None if tensor.shape.rank is None else tuple(tensor.shape.as_list()))


def _dtype_name(dtype: Any) -> str:
    return str(dtype.base_dtype.name)


def _tf_dtype(dtype: str | None) -> Any:
    return tf.string if dtype in ("string", "binary") else tf.as_dtype(dtype)


def placeholder(dtype: str, shape: Shape, name: str) -> Any:
    """A placeholder of exactly this name, in the default graph."""
    if tf.executing_eagerly():
        raise PlanError(
            "a placeholder needs a graph: call this within tf.Graph().as_default(), or use firesteel.tf1 for tf"
        )
    if not _OP_NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot be an op's name in TensorFlow; give the placeholder another one with tf_name, and tell "
            f"the verb of it: feed_dict={{tf_name: {name!r}}}"
        )
    graph = tf.compat.v1.get_default_graph()
    there = {op.name.lower() for op in graph.get_operations()}
    whole = f"{graph.get_name_scope()}/{name}" if graph.get_name_scope() else name
    if whole.lower() in there:
        raise PlanError(f"the default graph has an op {whole!r} already; give the placeholder another one with tf_name")
    return tf.compat.v1.placeholder(_tf_dtype(dtype), shape, name)


def _described(value: Any) -> str:
    named = getattr(value, "name", None)
    return f"a {type(value).__name__}" + (f" named {named!r}" if isinstance(named, str) else "")
