"""A TensorFlow graph as a layer among these: values flow through it in both directions.

The graph is cut out by the ``tfgraph`` bench, on the driver, where gradients are added too: functions of the user's
that define some are known there alone. What travels is bytes and names. Torch owns the weights; a session in each
process is told them when they have changed.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.frameworks.bigdl.module import Layer, Settings, kind

__all__ = [
    "Net",
    "export_tf",
    "frozen_net",
    "net_program",
    "run_net",
    "run_net_backward",
    "saved_model_net",
    "session_net",
]

_GRAPH, _META = "frozen_inference_graph.pb", "graph_meta.json"


@dataclass(frozen=True)
class Net:
    """A graph with its ends, as JSON can hold it.

    Attributes:
        graph: a serialized GraphDef, as base64.
        inputs: (name, dtype) of the tensors that are fed.
        outputs: names of the tensors that are fetched.
        variables: (name, dtype, shape, placeholder, op that takes the placeholder's value), in order.
        starters: ops that are run once, before anything else, and what they are fed.
        grad_feeds: placeholders of the outputs' gradients; ``None`` for outputs that have none.
        grad_inputs: tensors of the inputs' gradients; ``None`` where there is none.
        grad_variables: the same of the variables.
        error: why there are no gradients at all, if that is so.
        is_trained: whether the variables train.
        config: a serialized ConfigProto, as base64.
    """

    graph: str = field(repr=False)
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    variables: tuple[tuple[str, str, tuple[int, ...], str, str], ...] = ()
    starters: tuple[str, ...] = ()
    starter_feeds: tuple[tuple[str, str], ...] = ()
    grad_feeds: tuple[str | None, ...] = ()
    grad_inputs: tuple[str | None, ...] = ()
    grad_variables: tuple[str | None, ...] = ()
    error: str | None = None
    is_trained: bool = False
    config: str | None = None

    def settings(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Net:
        """The reverse."""
        return cls(**{name: _tuples(value) for name, value in settings.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value


# --- on the driver ----------------------------------------------------------------------------------------------------

Found = tuple[dict[str, Any], dict[str, np.ndarray]]
"""A net's settings, and its variables' values by name."""


def _tfgraph() -> Any:
    from firesteel.core import registry

    return registry.framework("tfgraph")


def session_net(
    session: Any, inputs: Any, outputs: Any, *, is_trained: bool, allows_others: bool = True, config: Any = None
) -> Found:
    """The sub-graph of a session between these tensors, with the values that its variables have now."""
    ends = _listed(inputs), _listed(outputs)
    program = _tfgraph().capture(ends[1], inputs=ends[0], outputs=ends[1], session=session, initialize=False)
    return _net(program, is_trained=is_trained, allows_others=allows_others, config=config)


def saved_model_net(
    path: str,
    tag: Any = None,
    signature: str | None = None,
    inputs: Any = None,
    outputs: Any = None,
    *,
    is_trained: bool = False,
    config: Any = None,
) -> Found:
    """A SavedModel's signature, or these of its tensors."""
    opened = _tfgraph().open_saved_model(path, tag, signature)
    sides = {name: _listed(given) for name, given in (("inputs", inputs), ("outputs", outputs)) if given is not None}
    return _net(_tfgraph().capture(opened, **sides), is_trained=is_trained, config=config)


def frozen_net(path: str, inputs: Any = None, outputs: Any = None, *, config: Any = None) -> Found:
    """A frozen graph: an export folder, or a ``.pb`` file and the names of its ends."""
    if os.path.isdir(path):
        return _exported_net(path, config)
    if not os.path.isfile(path):
        raise PlanError(f"there is no export folder or frozen graph at {path!r}")
    if inputs is None or outputs is None:
        raise PlanError(f"a frozen graph needs input_names and output_names: {path!r} does not say them")
    ends = [[_full(name) for name in _listed(given)] for given in (inputs, outputs)]
    return _net(_tfgraph().capture(path, inputs=ends[0], outputs=ends[1]), is_trained=False, config=config)


def _exported_net(folder: str, config: Any) -> Found:
    files = [os.path.join(folder, name) for name in (_GRAPH, _META)]
    missing = [path for path in files if not os.path.isfile(path)]
    if missing:
        raise PlanError(f"{folder!r} is no export folder: {', '.join(missing)} is missing")
    with open(files[1], encoding="utf-8") as file:
        meta = json.load(file)
    return frozen_net(files[0], meta["input_names"], meta["output_names"], config=config)


def export_tf(session: Any, folder: str, inputs: Any, outputs: Any) -> None:
    """An export folder of a session's sub-graph: variables become constants. The user's graph stays as it is."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_from_session_graph

    from firesteel.frameworks.tfgraph.cutting import cut

    ends = _listed(inputs), _listed(outputs)
    names = [tensor.op.name for tensor in ends[1]]
    _tfgraph().capture(
        ends[1], inputs=ends[0], outputs=ends[1], session=session, initialize=False
    )  # says what is wrong
    stripped = cut(session.graph.as_graph_def(), names)
    frozen = convert_variables_to_constants_from_session_graph(session, stripped, names)
    os.makedirs(folder, exist_ok=True)
    meta = {"input_names": [each.name for each in ends[0]], "output_names": [each.name for each in ends[1]]}
    for name, data in ((_GRAPH, frozen.SerializeToString()), (_META, json.dumps(meta).encode())):
        path = os.path.join(folder, name)
        with open(f"{path}.part", "wb") as file:
            file.write(data)
        os.replace(f"{path}.part", path)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _net(program: Any, *, is_trained: bool, allows_others: bool = True, config: Any = None) -> Found:
    """A captured program with gradients added: of outputs by inputs and by variables."""
    import tensorflow as tf

    from firesteel.frameworks.tfgraph.state import unpack

    content = program.content
    values = {} if program.state is None else unpack(program.state["model"])
    graph = tf.Graph()
    with graph.as_default():
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(content.graph)
        tf.import_graph_def(graph_def, name="")
        fed = [graph.get_tensor_by_name(feed.tensor) for feed in content.ends.feeds]
        made = [graph.get_tensor_by_name(name) for _, name in content.ends.outputs]
        others = [tensor.name for tensor in fed if not tensor.dtype.is_floating]
        if others and not allows_others:
            raise PlanError(
                f"inputs that are not real numbers have no gradient: {', '.join(others)}; "
                f"pass allow_non_differentiable_input=True, and they get zeros"
            )
        handles = [graph.get_operation_by_name(variable.name).outputs[0] for variable in content.variables]
        parts = _gradients(made, fed, handles, [tf.as_dtype(variable.dtype) for variable in content.variables])
    net = Net(
        base64.b64encode(graph.as_graph_def().SerializeToString()).decode(),
        tuple((tensor.name, tensor.dtype.name) for tensor in fed),
        tuple(tensor.name for tensor in made),
        tuple((each.name, each.dtype, tuple(each.shape), each.value, each.write) for each in content.variables),
        content.starters,
        content.starter_feeds,
        *parts,
        is_trained=is_trained,
        config=None if config is None else base64.b64encode(config.SerializeToString()).decode(),
    )
    return net.settings(), values


def _gradients(outputs: Any, inputs: Any, handles: Any, dtypes: Any) -> tuple[Any, ...]:
    """Names of placeholders for the outputs' gradients, of the gradients, and why there are none."""
    import tensorflow as tf

    sources = [(tensor, tensor.dtype.is_floating) for tensor in inputs]
    sources += [(handle, dtype.is_floating) for handle, dtype in zip(handles, dtypes, strict=True)]
    wanted = [tensor for tensor, is_real in sources if is_real]
    real = [tensor for tensor in outputs if tensor.dtype.is_floating]
    if not wanted or not real:
        return (None,) * len(outputs), (None,) * len(inputs), (None,) * len(handles), None
    given = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape, "firesteel/incoming") for tensor in real]
    try:
        found = iter(tf.gradients(real, wanted, grad_ys=given))
    except (LookupError, ValueError, TypeError) as error:
        why = str(error).partition("\n")[0]
        return (None,) * len(outputs), (None,) * len(inputs), (None,) * len(handles), why
    names = []
    for tensor, is_real in sources:
        gradient = next(found) if is_real else None
        if isinstance(gradient, tf.IndexedSlices):
            rows = gradient.dense_shape[0] if gradient.dense_shape is not None else tf.shape(tensor)[0]
            gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
        names.append(None if gradient is None else tf.identity(gradient, "firesteel/gradient").name)
    feeds = iter(given)
    incoming = tuple(next(feeds).name if tensor.dtype.is_floating else None for tensor in outputs)
    return incoming, tuple(names[: len(inputs)]), tuple(names[len(inputs) :]), None


# --- in any process ---------------------------------------------------------------------------------------------------


class _Living:
    """The graph in a session of this process."""

    def __init__(self, net: Net) -> None:
        import tensorflow as tf

        self.net = net
        self.graph = tf.Graph()
        with self.graph.as_default():
            graph_def = tf.compat.v1.GraphDef()
            graph_def.ParseFromString(base64.b64decode(net.graph))
            tf.import_graph_def(graph_def, name="")
        config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
        config.gpu_options.allow_growth = True
        if net.config is not None:
            config.MergeFromString(base64.b64decode(net.config))
        self.session = tf.compat.v1.Session(graph=self.graph, config=config)
        feeds = {self.tensor(name): path for name, path in net.starter_feeds}
        for name in net.starters:
            self.session.run(self.graph.get_operation_by_name(name), feeds)
        ends = [self.tensor(name) for name, _ in net.inputs]
        self.dtypes = [tensor.dtype.as_numpy_dtype for tensor in ends]
        self.forward = self.session.make_callable([self.tensor(name) for name in net.outputs], ends)
        asked = [name for name in (*net.grad_inputs, *net.grad_variables) if name is not None]
        incoming = [self.tensor(name) for name in net.grad_feeds if name is not None]
        self.backward = self.session.make_callable([self.tensor(name) for name in asked], [*ends, *incoming])
        self.held: list[np.ndarray | None] = [None] * len(net.variables)

    def tensor(self, name: str) -> Any:
        return self.graph.get_tensor_by_name(name)

    def take(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables that have changed."""
        changed = [
            place
            for place, (mine, theirs) in enumerate(zip(self.held, values, strict=True))
            if mine is None or not np.array_equal(mine, theirs)
        ]
        if not changed:
            return
        ways = [self.net.variables[place] for place in changed]
        feeds = {self.tensor(way[3]): values[place] for way, place in zip(ways, changed, strict=True)}
        self.session.run([self.graph.get_operation_by_name(way[4]) for way in ways], feeds)
        for place in changed:
            self.held[place] = values[place].copy()

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        return [
            tensor.detach().cpu().numpy().astype(dtype, copy=False)
            for tensor, dtype in zip(tensors, self.dtypes, strict=True)
        ]


class _Through(torch.autograd.Function):
    """Forwards and backwards through the graph. The backward computes the outputs once more, inside of TensorFlow."""

    @staticmethod
    def forward(ctx: Any, module: Any, count: int, *tensors: torch.Tensor) -> Any:
        ctx.module, ctx.count = module, count
        ctx.save_for_backward(*tensors)
        living = module.living(tensors[count:])
        made = [torch.from_numpy(np.array(each)) for each in living.forward(*living.arrays(tensors[:count]))]
        made = [each.to(tensors[0].device) if tensors else each for each in made]
        ctx.mark_non_differentiable(*(each for each in made if not each.is_floating_point()))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        net, tensors = ctx.module.net, ctx.saved_tensors
        if net.error is not None:
            raise UnsupportedError(f"{ctx.module.title} has no gradient: {net.error}")
        living = ctx.module.living(tensors[ctx.count :])
        incoming = [
            gradient.detach().cpu().numpy()
            for gradient, name in zip(gradients, net.grad_feeds, strict=True)
            if name is not None
        ]
        found = iter(living.backward(*living.arrays(tensors[: ctx.count]), *incoming))
        made = []
        for tensor, name in zip(tensors, (*net.grad_inputs, *net.grad_variables), strict=True):
            if name is None:
                made.append(torch.zeros_like(tensor) if tensor.is_floating_point() else None)
            else:
                made.append(
                    torch.from_numpy(np.array(next(found))).to(tensor.device, tensor.dtype).reshape(tensor.shape)
                )
        return None, None, *made


@kind()
class TFNet(Layer):
    """The graph as a module. Its variables are parameters of torch's; those that are not real numbers are buffers."""

    takes_integers = True

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.net = Net.of(settings.net)
        given = settings.values or {}  # none where the weights come from a file
        self.names = [variable[0] for variable in self.net.variables]
        self.first = [given.get(name, np.zeros(shape, dtype)) for name, dtype, shape, _, _ in self.net.variables]
        for place, array in enumerate(self.first):
            values = torch.from_numpy(np.array(array))
            if values.is_floating_point():
                self.register_parameter(f"v{place}", nn.Parameter(values, requires_grad=self.net.is_trained))
            else:
                self.register_buffer(f"v{place}", values)
        self.order = tuple(f"v{place}" for place in range(len(self.names)) if self._is_real(place))
        self._living: _Living | None = None

    def _is_real(self, place: int) -> bool:
        return isinstance(getattr(self, f"v{place}"), nn.Parameter)

    def begin(self, name: str, parameter: torch.Tensor) -> None:
        parameter.copy_(torch.from_numpy(np.array(self.first[int(name[1:])])))

    def living(self, values: Sequence[torch.Tensor]) -> _Living:
        """The graph in this process, with these values of its variables."""
        if self._living is None:
            self._living = _Living(self.net)
        self._living.take([each.detach().cpu().numpy() for each in values])
        return self._living

    def values(self) -> list[torch.Tensor]:
        """The variables' values, in order."""
        return [getattr(self, f"v{place}") for place in range(len(self.names))]

    def counted(self, inputs: Any) -> list[Any]:
        """As many inputs as the graph takes."""
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(given) != len(self.net.inputs):
            names = ", ".join(name for name, _ in self.net.inputs)
            raise PlanError(f"{self.title} takes {len(self.net.inputs)} inputs ({names}), not {len(given)}")
        return given

    def forward(self, inputs: Any) -> Any:
        given = self.counted(inputs)
        made = _Through.apply(self, len(given), *given, *self.values())
        return made[0] if len(made) == 1 else list(made)

    def expects(self) -> str:
        return ", ".join(f"{name} ({dtype})" for name, dtype in self.net.inputs)

    def __getstate__(self) -> dict[str, Any]:
        # A session stays where it is.
        return {**self.__dict__, "_living": None}


# --- beside torch, which has no strings ---


def run_net(module: Any, inputs: Any) -> Any:
    """Outputs for arrays of any dtype, strings included: an array, or a list where there are several."""
    living, arrays = _lively(module, inputs)
    made = [np.asarray(each) for each in living.forward(*arrays)]
    return made[0] if len(made) == 1 else made


def run_net_backward(module: Any, inputs: Any, gradients: Any) -> Any:
    """Gradients of the inputs, zeros where one has none; adds to those of the variables that train."""
    living, arrays = _lively(module, inputs)
    net: Net = module.net
    if net.error is not None:
        raise UnsupportedError(f"{module.title} has no gradient: {net.error}")
    given = list(gradients) if isinstance(gradients, (list, tuple)) else [gradients]
    incoming = [
        np.asarray(gradient).astype(living.tensor(name).dtype.as_numpy_dtype)
        for gradient, name in zip(given, net.grad_feeds, strict=True)
        if name is not None
    ]
    found = iter(living.backward(*arrays, *incoming) if incoming else ())
    made = [
        np.zeros(each.shape, np.float32) if name is None else np.asarray(next(found))
        for each, name in zip(arrays, net.grad_inputs, strict=True)
    ]
    for value, name in zip(module.values(), net.grad_variables, strict=True):
        gradient = None if name is None else torch.from_numpy(np.array(next(found)))
        if gradient is not None and value.requires_grad:
            value.grad = gradient if value.grad is None else value.grad + gradient
    return made[0] if len(made) == 1 else made


def _lively(module: Any, inputs: Any) -> tuple[_Living, list[np.ndarray]]:
    given = module.counted(inputs)
    living: _Living = module.living(module.values())
    return living, [np.asarray(each).astype(dtype) for each, dtype in zip(given, living.dtypes, strict=True)]


def net_program(module: Any, names: Sequence[str], *, is_by_row: bool = False, rows: int | None = None) -> Any:
    """The graph with the values that its variables have now, as a program of its own bench.

    Args:
        module: a ``TFNet``.
        names: of the arrays of a batch that are fed, in the order of the graph's inputs; more than these are ignored.
        is_by_row: the inputs have no leading number of rows.
        rows: the number of rows that every call must have.
    """
    import tensorflow as tf

    from firesteel.core.program import Program
    from firesteel.frameworks.tfgraph.program import Ends, GraphContent, Variable, describe
    from firesteel.frameworks.tfgraph.state import pack

    net: Net = module.net
    if len(names) < len(net.inputs):
        wanted = ", ".join(name for name, _ in net.inputs)
        raise PlanError(f"{module.title} takes {len(net.inputs)} inputs ({wanted}), and the data has {len(names)}")
    graph = tf.Graph()
    with graph.as_default():
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(base64.b64decode(net.graph))
        tf.import_graph_def(graph_def, name="")
    fed = {name: graph.get_tensor_by_name(tensor) for name, (tensor, _) in zip(names, net.inputs, strict=False)}
    content = GraphContent(
        base64.b64decode(net.graph),
        Ends(describe(fed), tuple((name, name) for name in net.outputs), is_by_row=is_by_row, rows=rows),
        variables=tuple(
            Variable(name, dtype, tuple(shape), "", value, write) for name, dtype, shape, value, write in net.variables
        ),
        starters=net.starters,
        starter_feeds=net.starter_feeds,
        config=None if net.config is None else base64.b64decode(net.config),
    )
    values = {name: value.detach().cpu().numpy() for name, value in zip(module.names, module.values(), strict=True)}
    return Program("tfgraph", content, {"model": pack(values)} if values else None)
