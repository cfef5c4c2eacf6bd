"""A graph replica that learns: gradients out, agreed gradients in, one session, no op added on the way.

Gradients leave as one flat array for each buffer. What comes back is applied by the graph's own training op, or by one
of our optimizers on this rank's run of the weights (``methods``).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.optimizers import LBFGS, OptimMethod
from firesteel.core.plan import Clipping
from firesteel.core.program import Program
from firesteel.core.schedules import Plateau
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.tfgraph.calls import make_call
from firesteel.frameworks.tfgraph.lbfgs import Memory
from firesteel.frameworks.tfgraph.methods import Run, check_factors
from firesteel.frameworks.tfgraph.program import Variable
from firesteel.frameworks.tfgraph.replica import GraphReplica
from firesteel.frameworks.tfgraph.state import header_of, pack, unpack
from firesteel.frameworks.tfgraph.training import Buffer, Training

__all__ = ["LearningReplica"]

Array = npt.NDArray[Any]


class LearningReplica(GraphReplica):
    """See ``core.ports.Trainable``."""

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        assert program.content.training is not None
        self._training: Training = program.content.training
        super().__init__(program, device, threads)
        self._known = {variable.name: variable for variable in self._content.variables}
        self._buffers = [
            _Members(buffer, [self._known[name] for name in buffer.members]) for buffer in self._training.buffers
        ]
        self._last: tuple[Batch, float] | None = None
        self._some: Batch | None = None
        self._gradients: list[Array] = []
        self._loss = 0.0
        self._tallied: dict[str, Any] = {name: metric.fresh() for name, metric in self._content.tallied}
        self._step: Any = None
        self._calls: dict[Any, Any] = {}
        self._updater: _Updater = (
            _GraphUpdater(self) if self._training.update is not None else _MethodUpdater(self, self._buffers)
        )

    # --- starting ---

    def start(self, state: dict[str, bytes] | None) -> None:
        """See ``Trainable``."""
        if self._training.starters:
            self.session.run([self.graph.get_operation_by_name(name) for name in self._training.starters])
        if state is not None and "optimizer" in state:
            self._updater.load(state["optimizer"])

    def load(self, state: dict[str, bytes]) -> None:
        """Take over variables, and the optimizer's state where there is one."""
        super().load(state)
        self._updater.reset()
        if "optimizer" in state:
            self._updater.load(state["optimizer"])

    def prepare(self, batch: Batch) -> None:
        """Say at once where rows do not fit the graph; a few are kept as an example."""
        self._arrays(batch, self._fed(self._trained()))

    def seed(self, *numbers: int) -> None:
        """Make random ops functions of these numbers."""
        if self._content.seed is not None:
            mixed = [zlib.crc32(np.array(numbers, np.int64).tobytes(), start) for start in (0, 1)]
            self._write([(self._content.seed, np.array(mixed, np.int64))])

    # --- a step ---

    def backward(self, batch: Batch, share: float) -> float | None:
        """Gradients of these rows' loss times ``share``; see ``Trainable``."""
        self._last = (batch, share)
        if rows_of(batch) == 0:
            self._gradients = [np.zeros(buffer.size, buffer.dtype) for buffer in self._buffers]
            self._loss = 0.0
            return None
        self._some = batch
        if self._step is None:
            training = self._training
            self._step_feeds = self._fed([*self._trained(), *self._watched(), *training.beside])
            fetches = [self._tensor(name) for name in (*self._trained(), *self._watched())]
            fetches += [self._fetch(name) for name in training.beside]
            self._step = self._callable(
                fetches, self._step_feeds, is_training=True, beside=[self._tensor(training.share)]
            )
        rows = rows_of(batch)
        found, is_doubled = self._whole(self._step, self._arrays(batch, self._step_feeds), rows, np.float64(share))
        loss, *rest = found
        self._gradients, seen = rest[: len(self._buffers)], rest[len(self._buffers) :]
        self._loss = float(loss)
        if is_doubled:
            seen = [value[:1] if np.ndim(value) and len(value) == 2 else value for value in seen]
        self._feed_figures(self._tallied, seen, rows)
        return self._loss

    # --- an epoch's figures ---

    def tally(self) -> list[Array]:
        """What the figures have seen since the epoch began: it adds up over replicas."""
        return [array for metric in self._tallied.values() for _, array in sorted(metric.state().items())]

    def load_tally(self, tallies: Sequence[Sequence[Array]]) -> None:
        """Go on from the sum of these."""
        self._tallied = self._sum(tallies)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """What they come to, all replicas together; they start anew."""
        found = {name: metric.compute() for name, metric in self._sum(tallies).items()}
        self._tallied = {name: metric.fresh() for name, metric in self._tallied.items()}
        return {name: float(value) for name, value in found.items() if np.ndim(value) == 0}

    def _sum(self, tallies: Sequence[Sequence[Array]]) -> dict[str, Any]:
        whole = {name: metric.fresh() for name, metric in self._tallied.items()}
        for tally in tallies:
            arrays = iter(tally)
            for metric in whole.values():
                part = metric.fresh()
                part.load_state({key: next(arrays) for key in sorted(metric.state())})
                metric.merge(part)
        return whole

    def mass(self, batch: Batch) -> float | None:
        """A graph's loss is a mean over rows."""
        return None

    def again(self) -> None:
        """Run the last backward once more."""
        assert self._last is not None
        self.backward(*self._last)

    def gradients(self) -> list[Array]:
        """Flat buffers, in place. L-BFGS asks for the loss too: its share of that comes last."""
        return self._updater.outgoing(self._gradients, self._loss, 0.0 if self._last is None else self._last[1])

    def bind_gradients(self, buffers: Sequence[Array]) -> Callable[[], None] | None:
        """See ``Trainable``. L-BFGS looks at more than gradients."""
        if len(buffers) != len(self._buffers):
            return None
        gradients = list(buffers)

        def use() -> None:
            self._gradients = gradients

        return use

    def bind_weights(self, buffers: Sequence[Array]) -> bool:
        """See ``Trainable``. A session's variables are where TensorFlow has put them."""
        return False

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Apply the agreed gradients."""
        self._updater.update(self._gradients, again)

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """After an update: the ops that want its result. Our schedules that watch epochs look at their figure."""
        if event == "epoch":
            self._updater.watch(figures or {})
        elif self._training.after:
            batch = self._some if self._last is None else self._last[0]
            for name in self._training.after:
                self._run_after(name, batch)

    def _run_after(self, name: str, batch: Batch | None) -> None:
        if name not in self._calls:
            feeds = self._fed([name])
            self._calls[name] = feeds, self._callable(self._fetch(name), feeds, is_training=True)
        feeds, run = self._calls[name]
        if feeds and (batch is None or rows_of(batch) == 0):
            return  # it measures rows, and here are none
        run(*(self._arrays(batch, feeds) if batch is not None else ()))

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return self._updater.rate()

    def go_native(self, *, is_nearby: bool) -> bool:
        """TensorFlow's collectives are not used here."""
        return False

    # --- weights ---

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """See ``Trainable``: TensorFlow's optimizers and L-BFGS work on the whole."""
        if not self._updater.is_elementwise:
            return None
        return [(b.size * rank // size, b.size * (rank + 1) // size) for b in self._buffers]

    def take_slice(self, bounds: Sequence[tuple[int, int]]) -> None:
        """See ``Trainable``."""
        self._updater.cut(bounds)

    def weights(self) -> list[Array]:
        """Trainable variables as flat buffers."""
        return self._updater.weights() or self.read_weights()

    def read_weights(self) -> list[Array]:
        """The same from the session."""
        names = [name for buffer in self._buffers for name in buffer.names]
        values = dict(zip(names, self._read([self._known[name] for name in names]), strict=True))
        return [buffer.joined(values) for buffer in self._buffers]

    def load_weights(self, weights: Sequence[Array]) -> None:
        """Take over what ``weights`` gave."""
        pairs = [pair for buffer, flat in zip(self._buffers, weights, strict=True) for pair in buffer.parted(flat)]
        self._write(pairs)
        self._updater.follow(weights)

    def parameters(self) -> dict[str, Array]:
        """Trainable variables by name."""
        names = self._training.trainable
        return dict(zip(names, map(np.array, self._read([self._known[name] for name in names])), strict=True))

    def frozen(self) -> list[Array]:
        """Every variable that no gradient reaches, as bytes."""
        return [np.array(value).reshape(-1).view(np.uint8).copy() for value in self._read(self._others())]

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        self._write(
            [
                (variable, np.frombuffer(value.tobytes(), _numpy(variable)).reshape(variable.shape))
                for variable, value in zip(self._others(), values, strict=True)
            ]
        )

    def buffers(self) -> list[Array]:
        """Moving averages and the like, as float64 copies."""
        return [np.asarray(value, np.float64).reshape(-1) for value in self._read(self._running())]

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        pairs = zip(self._running(), buffers, strict=True)
        self._write([(variable, value.reshape(variable.shape).astype(_numpy(variable))) for variable, value in pairs])

    def optimizer_slice(self) -> bytes:
        """This rank's part of the optimizer's state."""
        return self._updater.pack()

    def state(self, slices: Sequence[bytes] | None = None) -> dict[str, bytes]:
        """Everything needed to go on elsewhere."""
        optimizer = self._updater.pack() if slices is None else merged(slices)
        return {"model": pack(self.values()), "optimizer": optimizer}

    # --- ends ---

    def read_slots(self) -> dict[str, Array]:
        """The optimizer's own variables."""
        return {
            v.name: np.array(value)
            for v, value in zip(self._content.slots, self._read(self._content.slots), strict=True)
        }

    def write_slots(self, values: Mapping[str, Array]) -> None:
        """Set them."""
        self._write([(variable, values[variable.name]) for variable in self._content.slots])

    def apply(self, parts: Mapping[str, Array]) -> None:
        """Run the graph's own training op on these gradients."""
        training = self._training
        assert training.update is not None
        if "update" not in self._calls:
            marks = [self._tensor(name) for _, name in training.marks]
            feeds = self._fed([training.update], [name for _, name in training.marks])
            run = self._callable(self._fetch(training.update), feeds, is_training=True, beside=marks)
            self._calls["update"] = feeds, run
        feeds, run = self._calls["update"]
        rows: list[Array] = []
        if feeds:
            # A training op that also looks at rows (batch norm's averages hang on it): where this step has none, those
            # of an earlier one stand in.
            batch = self._last[0] if self._last is not None and rows_of(self._last[0]) else self._some
            assert self._last is not None
            batch = batch or {name: np.zeros((1, *v.shape[1:]), v.dtype) for name, v in self._last[0].items()}
            rows = self._arrays(batch, feeds)
        run(*rows, *(parts[name] for name, _ in training.marks))

    def _watched(self) -> list[str]:
        return [name for measure in self._content.measures if measure.name in self._tallied for name in measure.tensors]

    def _trained(self) -> list[str]:
        return [self._training.loss, *(buffer.gradient for buffer in self._training.buffers)]

    def _others(self) -> list[Variable]:
        learnt = set(self._training.trainable)
        return [v for v in self._content.variables if v.name not in learnt and math.prod(v.shape)]

    def _running(self) -> list[Variable]:
        return [self._known[name] for name in self._training.running if name in self._known]

    def _read(self, variables: Sequence[Variable]) -> list[Any]:
        key = ("read", *(variable.name for variable in variables))
        if key not in self._calls:
            self._calls[key] = make_call(
                self.session, [self._tensor(variable.read) for variable in variables], is_here=self._is_here
            )
        return list(self._calls[key]()) if variables else []

    def _write(self, pairs: Sequence[tuple[Variable, Array]]) -> None:
        if not pairs:
            return
        key = ("write", *(variable.name for variable, _ in pairs))
        if key not in self._calls:
            ops = [self.graph.get_operation_by_name(variable.write) for variable, _ in pairs]
            self._calls[key] = make_call(
                self.session, ops, [self._tensor(variable.value) for variable, _ in pairs], is_here=self._is_here
            )
        self._calls[key](*(value for _, value in pairs))


class _Members:
    """A buffer's variables and where each lies in it."""

    def __init__(self, buffer: Buffer, variables: Sequence[Variable]) -> None:
        self.method = buffer.method
        self.variables = list(variables)
        self.names = [variable.name for variable in variables]
        self.dtype = _numpy(variables[0])
        self.kind = buffer.dtype
        sizes = [math.prod(variable.shape) for variable in variables]
        self.edges = [0, *np.cumsum(sizes).tolist()]
        self.size = self.edges[-1]

    def joined(self, values: Mapping[str, Array]) -> Array:
        return np.concatenate([np.asarray(values[name]).reshape(-1) for name in self.names])

    def parted(self, flat: Array) -> list[tuple[Variable, Array]]:
        return [
            (variable, flat[begin:end].reshape(variable.shape))
            for variable, begin, end in zip(self.variables, self.edges[:-1], self.edges[1:], strict=True)
        ]


class _Updater:
    """What turns agreed gradients into weights, and remembers what it needs for that."""

    is_elementwise = False

    def outgoing(self, gradients: list[Array], loss: float, share: float) -> list[Array]:
        return gradients

    def update(self, gradients: list[Array], again: Callable[[], None] | None) -> None:
        raise NotImplementedError

    def rate(self) -> float:
        raise NotImplementedError

    def watch(self, figures: Mapping[str, float]) -> None:
        pass

    def cut(self, bounds: Sequence[tuple[int, int]]) -> None:
        raise NotImplementedError

    def weights(self) -> list[Array] | None:
        return None

    def follow(self, weights: Sequence[Array]) -> None:
        pass

    def reset(self) -> None:
        pass

    def pack(self) -> bytes:
        raise NotImplementedError

    def load(self, data: bytes) -> None:
        raise NotImplementedError


class _GraphUpdater(_Updater):
    """TensorFlow's optimizer, as ops of the graph."""

    def __init__(self, replica: LearningReplica) -> None:
        self._replica = replica
        rate = replica._training.rate
        self._constant = rate if isinstance(rate, float) else None
        self._rate: Any = None
        if isinstance(rate, str):
            self._rate = make_call(replica.session, replica._tensor(rate))
        replica.graph.finalize()

    def update(self, gradients: list[Array], again: Callable[[], None] | None) -> None:
        _clip(gradients, self._replica._training.clipping)
        pairs = zip(self._replica._buffers, gradients, strict=True)
        self._replica.apply({v.name: part for buffer, flat in pairs for v, part in buffer.parted(flat)})

    def rate(self) -> float:
        if self._rate is not None:
            return float(self._rate())
        return float("nan") if self._constant is None else self._constant

    def pack(self) -> bytes:
        return pack(self._replica.read_slots(), kind="tensorflow")

    def load(self, data: bytes) -> None:
        values, slots = unpack(data), {variable.name: variable for variable in self._replica._content.slots}
        if values.keys() != slots.keys() or any(values[name].shape != slots[name].shape for name in slots):
            raise CheckpointError(
                f"the optimizer's state is that of another optimizer: it has {', '.join(sorted(values)) or 'nothing'}, "
                f"this one keeps {', '.join(sorted(slots)) or 'nothing'}"
            )
        self._replica.write_slots(values)


class _MethodUpdater(_Updater):
    """Our optimizers, one for each buffer, on the whole or on this rank's run of it."""

    def __init__(self, replica: LearningReplica, buffers: Sequence[_Members]) -> None:
        self._replica = replica
        self._buffers = buffers
        self._methods: list[OptimMethod] = []
        for buffer in buffers:
            assert buffer.method is not None
            check_factors(buffer.method, buffer.size)
            self._methods.append(buffer.method)
        self._memory = Memory(self._methods[0]) if isinstance(self._methods[0], LBFGS) else None
        if self._memory is not None and len(buffers) > 1:
            raise PlanError("LBFGS takes all variables together, of one dtype, and no other optimizer beside it")
        if self._memory is None and any(isinstance(method, LBFGS) for method in self._methods):
            raise PlanError("LBFGS takes all variables together, of one dtype, and no other optimizer beside it")
        self.is_elementwise = self._memory is None
        self._bounds = [(0, buffer.size) for buffer in buffers]
        self._is_cut = False
        self._runs: list[Run] = []
        self._updates = 0
        self._plateaus = [
            method.schedule.start(method.base_rate) if isinstance(method.schedule, Plateau) else None
            for method in self._methods
        ]
        self._held: dict[str, Array] = {}  # slots by variable, until there are runs to hold them
        self._flats: list[Array] | None = None
        self._extra: Array | None = None

    # --- gradients ---

    def outgoing(self, gradients: list[Array], loss: float, share: float) -> list[Array]:
        if self._memory is None:
            return gradients
        self._extra = np.array([loss * share])
        return [*gradients, self._extra]

    def update(self, gradients: list[Array], again: Callable[[], None] | None) -> None:
        if self._memory is not None:
            self._update_whole(self._memory, again)
        else:
            self._build()
            _clip(gradients, self._replica._training.clipping)
            arrays: list[Array] = []
            for place, (run, flat, (begin, end)) in enumerate(zip(self._runs, gradients, self._bounds, strict=True)):
                arrays += [flat[begin:end], *run.numbers(self._rate_of(place), self._updates)]
            found = self._step(*arrays)
            if self._is_cut:
                assert self._flats is not None
                for flat, new, (begin, end) in zip(self._flats, found, self._bounds, strict=True):
                    flat[begin:end] = new
        self._updates += 1

    def _update_whole(self, memory: Memory, again: Callable[[], None] | None) -> None:
        replica = self._replica
        assert again is not None

        def evaluate(weights: Array | None) -> tuple[float, Array]:
            if weights is not None:
                replica.load_weights([weights])
                again()
            assert self._extra is not None
            _clip(replica._gradients, replica._training.clipping)
            return float(self._extra[0]), replica._gradients[0]

        replica.load_weights([memory.update(replica.read_weights()[0], evaluate, self._rate_of(0))])

    # --- rates ---

    def rate(self) -> float:
        return self._rate_of(0)

    def _rate_of(self, place: int) -> float:
        plateau = self._plateaus[place]
        return plateau.rate if plateau is not None else self._methods[place].rate(self._updates)

    def watch(self, figures: Mapping[str, float]) -> None:
        for plateau in self._plateaus:
            if plateau is None:
                continue
            if plateau.plateau.monitor == "score" and "score" not in figures:
                raise PlanError('Plateau("score") needs a validation after every epoch: pass validation data')
            plateau.observe(figures["score" if plateau.plateau.monitor == "score" else "train_loss"])

    # --- weights ---

    def cut(self, bounds: Sequence[tuple[int, int]]) -> None:
        self._bounds = [tuple(each) for each in bounds]
        self._is_cut = True
        self._flats = self._replica.read_weights()

    def weights(self) -> list[Array] | None:
        return self._flats

    def follow(self, weights: Sequence[Array]) -> None:
        if self._flats is not None:
            if all(mine is theirs for mine, theirs in zip(self._flats, weights, strict=True)):
                return  # gathered after an update: this rank's run has them already
            for mine, theirs in zip(self._flats, weights, strict=True):
                mine[...] = theirs
        for run, flat, (begin, end) in zip(self._runs, weights, self._bounds, strict=bool(self._runs)):
            run.set(self._replica.session, {"weights": flat[begin:end]})

    def reset(self) -> None:
        """The session's variables are others now."""
        if self._flats is not None or self._runs:
            self.follow(self._replica.read_weights())

    def _build(self) -> None:
        """The ops of this rank's runs; once, for only now it is known which they are."""
        if self._runs:
            return
        replica = self._replica
        with replica.graph.as_default():
            for place, (buffer, (begin, end)) in enumerate(zip(self._buffers, self._bounds, strict=True)):
                method = self._methods[place].part(begin, end)
                self._runs.append(Run(method, end - begin, buffer.kind, f"run{place}"))
            if self._is_cut:
                done: Any = [run.updated for run in self._runs]
            else:
                done = [
                    op
                    for run, buffer in zip(self._runs, self._buffers, strict=True)
                    for op in self._spread(run, buffer)
                ]
        replica.graph.finalize()
        feeds = [feed for run in self._runs for feed in (run.gradient, *run.feeds)]
        self._step = make_call(replica.session, done, feeds)
        for run, flat, buffer, (begin, end) in zip(
            self._runs, replica.read_weights(), self._buffers, self._bounds, strict=True
        ):
            slots = {slot: flat_slot[begin:end] for slot, flat_slot in self._held_slots(run, buffer).items()}
            run.set(replica.session, {**run.start(), **slots, "weights": flat[begin:end]})
        self._held = {}

    def _spread(self, run: Run, buffer: _Members) -> list[Any]:
        """Ops that give updated weights to the graph's own variables."""
        sizes = [end - begin for begin, end in zip(buffer.edges[:-1], buffer.edges[1:], strict=True)]
        parts = tf.split(run.updated, sizes) if len(sizes) > 1 else [tf.identity(run.updated)]
        done = []
        for variable, part in zip(buffer.variables, parts, strict=True):
            op = self._replica.graph.get_operation_by_name(variable.name)
            value = tf.reshape(part, variable.shape)
            if op.type == "VarHandleOp":
                # A copy: a part of one may be the run's own memory, which its next update changes in place.
                value = value if len(parts) > 1 else tf.raw_ops.DeepCopy(x=value)
                done.append(tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value))
            else:
                done.append(tf.raw_ops.Assign(ref=op.outputs[0], value=value, validate_shape=False).op)
        return done

    # --- state ---

    def _held_slots(self, run: Run, buffer: _Members) -> dict[str, Array]:
        if not any(f"{buffer.names[0]}/{slot}" in self._held for slot in run.slots):
            return {}
        return {
            slot: np.concatenate([self._held[f"{name}/{slot}"].reshape(-1) for name in buffer.names])
            for slot in run.slots
        }

    def pack(self) -> bytes:
        facts = {
            "kind": "firesteel",
            "updates": self._updates,
            "methods": [type(method).__name__ for method in self._methods],
            "plateaus": [None if plateau is None else plateau.settings() for plateau in self._plateaus],
        }
        if self._memory is not None:
            return pack({f"lbfgs/{name}": array for name, array in self._memory.arrays().items()}, **facts)
        if not self._runs:
            return pack(self._held, **facts)
        found: dict[str, Array] = {}
        pieces: dict[str, list[int]] = {}
        for run, buffer, (begin, end) in zip(self._runs, self._buffers, self._bounds, strict=True):
            for slot, values in run.get(self._replica.session).items():
                for variable, low, high in zip(buffer.variables, buffer.edges[:-1], buffer.edges[1:], strict=True):
                    first, last = max(low, begin), min(high, end)
                    if first >= last and high > low:
                        continue
                    part, name = values[first - begin : last - begin], f"{variable.name}/{slot}"
                    is_whole = (first, last) == (low, high)
                    found[name] = part.reshape(variable.shape) if is_whole else part
                    if not is_whole:
                        pieces[name] = [first - low, *variable.shape]
        return pack(found, pieces=pieces, **facts)

    def load(self, data: bytes) -> None:
        facts, values = header_of(data), unpack(data)
        names = [type(method).__name__ for method in self._methods]
        if facts.get("kind") != "firesteel" or facts["methods"] != names:
            there = ", ".join(facts.get("methods", ["one of TensorFlow's"]))
            raise CheckpointError(f"the optimizer's state is that of {there}, and this graph has {', '.join(names)}")
        self._updates = int(facts["updates"])
        for place, settings in enumerate(facts["plateaus"]):
            plateau = self._plateaus[place]
            if plateau is not None and settings is not None:
                self._plateaus[place] = type(plateau)(plateau=plateau.plateau, **settings)
        if self._memory is not None:
            self._memory.load({name.removeprefix("lbfgs/"): array for name, array in values.items()})
            return
        known = {variable.name: variable.shape for buffer in self._buffers for variable in buffer.variables}
        for name, value in values.items():
            variable = name.rpartition("/")[0]
            if variable not in known or known[variable] != value.shape:
                raise CheckpointError(
                    f"the optimizer's state has {name!r} of shape {value.shape}, and the graph has not"
                )
        self._held = values
        for run, buffer, (begin, end) in zip(self._runs, self._buffers, self._bounds, strict=bool(self._runs)):
            slots = self._held_slots(run, buffer) or run.start()
            run.set(
                self._replica.session,
                {slot: array[begin:end] if len(array) != run.size else array for slot, array in slots.items()},
            )


def _clip(gradients: Sequence[Array], clipping: Clipping | None) -> None:
    """The whole gradient, in place."""
    if clipping is None:
        return
    if clipping.norm is not None:
        norm = math.sqrt(sum(float(np.dot(flat, flat)) for flat in gradients))
        if norm > clipping.norm:
            for flat in gradients:
                flat *= clipping.norm / norm
        return
    for flat in gradients:
        np.clip(flat, clipping.low, clipping.high, out=flat)


def merged(slices: Sequence[bytes]) -> bytes:
    """All ranks' parts of the optimizer's state as the whole."""
    facts = {name: value for name, value in header_of(slices[0]).items() if name not in ("pieces", "bfloat16")}
    found: dict[str, Array] = {}
    parts: dict[str, list[tuple[int, Array]]] = {}
    shapes: dict[str, list[int]] = {}
    for data in slices:
        pieces = header_of(data).get("pieces", {})
        for name, value in unpack(data).items():
            if name in pieces:
                parts.setdefault(name, []).append((pieces[name][0], value))
                shapes[name] = pieces[name][1:]
            else:
                found[name] = value
    for name, listed in parts.items():
        found[name] = np.concatenate([part for _, part in sorted(listed, key=lambda each: each[0])]).reshape(
            shapes[name]
        )
    return pack(found, **facts)


def _numpy(variable: Variable) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype
