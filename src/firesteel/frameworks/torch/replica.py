"""A torch program living in a process: forward, backward, update, and its state as safetensors."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from firesteel.core.errors import CheckpointError, PlanError, SyncError
from firesteel.core.metrics import Metric
from firesteel.core.program import Program
from firesteel.core.spec import Batch, rows_of
from firesteel.frameworks.torch import batchnorm
from firesteel.frameworks.torch.ddp import without_gradients, wrap
from firesteel.frameworks.torch.flat import flatten
from firesteel.frameworks.torch.losses import Criterion, make_loss
from firesteel.frameworks.torch.program import Parts, TorchContent, make, make_model
from firesteel.frameworks.torch.quickstart import spare_the_compiler
from firesteel.frameworks.torch.slices import SlicedOptimizer, merge_slices
from firesteel.frameworks.torch.state import pack_model, pack_tree, unpack_tensors, unpack_tree
from firesteel.frameworks.torch.tallies import Tallies

__all__ = ["TorchReplica"]

Array = npt.NDArray[Any]


class TorchReplica:
    """One replica. ``runner`` and ``main`` are set by the engine when callbacks run with it."""

    def __init__(self, program: Program, device: str = "cpu", threads: int = 1) -> None:
        content: TorchContent = program.content
        if threads:  # 0 leaves the process as it is: the driver's belongs to the user
            torch.set_num_threads(threads)
        self._content = content
        self._device = torch.device(device)
        model = make_model(content)
        if program.state is not None and "model" in program.state:
            load_into(model, program.state["model"])
        if content.sync_batchnorm:
            model = batchnorm.convert(model)
        if self._device.type != "cpu":
            model = model.to(self._device)
        self.model = model
        self._float: torch.dtype | None = None
        self._wrapped: nn.Module | None = None
        self._parts: Parts | None = None
        self._criterion: Criterion | None = None
        self.main: Any = None
        self.runner: Any = None
        self._last: tuple[Batch, float] | None = None
        self._tallies = Tallies(content.train_metrics)
        self._is_collective = batchnorm.is_synced(model)

    # --- scoring ---

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs in inference mode, as arrays; see ``Replica``."""
        self.model.eval()
        with torch.inference_mode(), self._autocast():
            if self.main is not None and self.runner is not None:
                self.runner.batch = self._features_tuple(batch)
                self.main.on_pred_forward(self.runner)
                output = self.runner.output
            else:
                output = self._call(self.model, batch)
                if self.runner is not None:
                    self.runner.batch, self.runner.output = self._features_tuple(batch), output
        return _named(output)

    def measure(self, batch: Batch, metrics: Mapping[str, Metric]) -> Any:
        """Feed metrics with these rows; the sum of their losses, and what it is divided by. See ``Replica``."""
        with self._measuring():
            return self._measure(batch, metrics)

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        """Class weights are for learning alone: a validation's loss is that of ``evaluate`` on the same rows."""
        criterion = self._loss()
        self._criterion = None if criterion is None else criterion.plain
        try:
            yield
        finally:
            self._criterion = criterion

    def _measure(self, batch: Batch, metrics: Mapping[str, Metric]) -> Any:
        rows = rows_of(batch)
        if rows == 0:
            return (0.0, 0.0) if self._loss() is not None else None
        self.model.eval()
        total: tuple[float, float] | None = None
        with torch.no_grad(), self._autocast():
            target = self._target(batch)
            if self.main is not None and self.runner is not None:
                self.runner.batch = (*self._features_tuple(batch), target)
                self.main.on_val_forward(self.runner)
                output, target = self.runner.output, self.runner.target
                total = None if self.runner.loss is None else (float(self.runner.loss) * rows, rows)
            else:
                output = self._call(self.model, batch)
                criterion, loss = self._loss(), None
                if criterion is not None and target is not None:
                    loss, target = criterion(output, target, self._weight(batch))
                    mass = self.mass(batch)
                    mass = rows if mass is None else mass
                    total = (float(loss) if criterion.is_sum else float(loss) * mass if mass else 0.0, mass)
                if self.runner is not None:
                    self.runner.output, self.runner.target, self.runner.loss = output, target, loss
        for metric in metrics.values():
            metric(_detached(output), _detached(target))
        return total

    def load(self, state: dict[str, bytes]) -> None:
        """Take over weights, and the optimizer's state once there is an optimizer."""
        load_into(self.model, state["model"])
        if self._parts is not None and "optimizer" in state:
            self._load_optimizer(state["optimizer"])

    # --- learning ---

    def start(self, state: dict[str, bytes] | None) -> None:
        """Make optimizer and schedule; see ``Trainable``."""
        spare_the_compiler()
        self._flats = flatten(list(self.model.parameters()))
        if not self._flats:
            raise PlanError("the model has no parameter that requires a gradient: there is nothing to train")
        self._parts = self._make()
        if self._parts.optimizer is None:
            raise PlanError("fit needs an optimizer, and this program has none")
        if self._parts.loss is None and self.main is None:
            raise PlanError("fit needs a loss, and this program has none")
        self.optimizer = self._parts.optimizer
        self.scheduler = self._parts.scheduler
        self._slices: SlicedOptimizer | None = None
        if state is not None and "optimizer" in state:
            self._load_optimizer(state["optimizer"])

    def _make(self) -> Parts:
        return make(self._content, self.model)

    def go_native(self, *, is_nearby: bool) -> bool:
        """Let DDP agree on gradients during the backward, from now on. False where that cannot be, or is slower."""
        if is_nearby and self._device.type == "cpu":
            return False
        if self.main is not None or isinstance(self.optimizer, torch.optim.LBFGS) or self._is_collective:
            return False  # they call the model, the backward, or the group in ways of their own
        self._wrapped = wrap(self.model)
        self._ranks = torch.distributed.get_world_size()
        return True

    @property
    def loss_function(self) -> Callable[..., Any] | None:
        """The user's loss, as it is."""
        criterion = self._loss()
        return None if criterion is None else criterion.loss

    def seed(self, *numbers: int) -> None:
        """Make dropout and other random layers a function of these numbers."""
        # In every step, so it must cost little: Python's hash of integers is the same in all processes, and
        # torch.manual_seed would ask after every device there might be (70 µs).
        number = hash(numbers) & (2**63 - 1)
        torch.default_generator.manual_seed(number)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(number)

    def backward(self, batch: Batch, share: float) -> float | None:
        """Gradients of these rows' loss times ``share``; see ``Trainable``."""
        self._last = (batch, share)
        rows = rows_of(batch)
        for parameter in self.model.parameters():
            parameter.grad = None
        if rows == 0 or share == 0.0:  # no rows, or none whose label counts
            self._backward_of_nothing(batch)
            self._collect(0.0)
            return None
        self.model.train()
        loss, is_sum = self._training_loss(batch)
        scale = 1.0 if is_sum else share  # sums add up as they are
        if self._wrapped is not None:
            scale *= self._ranks  # DDP takes the mean over ranks
        with _collective_errors(self._wrapped is not None or self._is_collective):
            (loss * scale if scale != 1.0 else loss).backward()
        value = float(loss.detach()) / (rows if is_sum else 1)
        self._collect(value * share)
        return value

    def mass(self, batch: Batch) -> float | None:
        """What the loss's own mean divides by; ``None`` where that is the number of rows. See ``Trainable``."""
        criterion = self._loss()
        if self.main is not None or criterion is None or not criterion.has_mass or "w" in batch:
            return None
        return criterion.mass(self._target(batch))

    def _training_loss(self, batch: Batch) -> tuple[torch.Tensor, bool]:
        target = self._target(batch)
        with self._autocast():
            if self.main is not None:
                self.runner.batch = (*self._features_tuple(batch), target)
                self.runner.loss = None
                self.main.on_train_forward(self.runner)
                if self.runner.loss is None:
                    raise PlanError("on_train_forward must set runner.loss to the mean loss of the batch's rows")
                return self.runner.loss, False
            output = self._call(self._wrapped or self.model, batch)
            criterion = self._loss()
            assert criterion is not None
            if target is None:
                raise PlanError("the training data has no labels")
            loss, target = criterion(output, target, self._weight(batch))
            if self._tallies:
                self._tallies.add(_detached(output), _detached(target))
            if self.runner is not None:
                self.runner.batch = (*self._features_tuple(batch), target)
                self.runner.output, self.runner.target, self.runner.loss = output, target, loss
            return loss, criterion.is_sum

    def _backward_of_nothing(self, batch: Batch) -> None:
        """Take part in what other ranks do during their backward, without rows."""
        if self.runner is not None:
            self.runner.batch = (*self._features_tuple(batch), self._target(batch))
            self.runner.output = self.runner.target = self.runner.loss = None
        if self._wrapped is not None:
            # DDP waits for every rank. A row of zeros joins in; inference mode keeps it out of batch-norm's means.
            self.model.eval()
            batch = {name: np.zeros((1, *values.shape[1:]), values.dtype) for name, values in batch.items()}
        elif self._is_collective:
            self.model.train()
        else:
            return
        output = self._call(self._wrapped or self.model, batch)
        loss: Any = sum(part.float().sum() for part in _tensors(output))
        with _collective_errors(True), without_gradients(self.model):
            loss.backward()
        if self._wrapped is None:
            for parameter in self.model.parameters():
                parameter.grad = None

    def again(self) -> None:
        """Run the last backward once more, for the weights as they are now."""
        assert self._last is not None
        self.backward(*self._last)

    def _collect(self, loss: float) -> None:
        if self._wrapped is None:
            for flat in self._flats:
                flat.collect(loss)

    def gradients(self) -> list[Array]:
        """The gradient buffers, in place."""
        return [flat.gradient.numpy() for flat in self._flats]

    def bind_gradients(self, buffers: Sequence[Array]) -> Callable[[], None]:
        """See ``Trainable``."""
        uses = [flat.bind(torch.from_numpy(array)) for flat, array in zip(self._flats, buffers, strict=True)]

        def use() -> None:
            for each in uses:
                each()

        return use

    def bind_weights(self, buffers: Sequence[Array]) -> bool:
        """See ``Trainable``. What a slice's optimizer or DDP holds on to is not moved."""
        if self._slices is not None or self._wrapped is not None or not all(flat.is_shared for flat in self._flats):
            return False
        for flat, array in zip(self._flats, buffers, strict=True):
            flat.settle(torch.from_numpy(array))
        return True

    def update(self, again: Callable[[], None] | None = None) -> None:
        """Clip and apply the agreed gradients; see ``Trainable``."""
        self._spread()
        if isinstance(self.optimizer, torch.optim.LBFGS):

            def closure() -> torch.Tensor:
                if closure.calls and again is not None:
                    again()
                    self._spread()
                closure.calls += 1
                return self._flats[0].gradient[-1].clone()

            closure.calls = 0
            self.optimizer.step(closure)
        elif self._slices is not None:
            self._slices.step()
        else:
            self.optimizer.step()

    def _spread(self) -> None:
        if self._wrapped is None:
            self._adjust()
            if self._content.clipping is not None:
                self._clip([flat.gradient[: flat.size] for flat in self._flats])
            for flat in self._flats:
                if self._slices is None:
                    flat.spread()
        elif self._content.clipping is not None:
            self._clip([p.grad for p in self.model.parameters() if p.grad is not None])

    def _adjust(self) -> None:
        """Change the agreed gradients before they are clipped: for benches that build on this one."""

    def _clip(self, gradients: Sequence[torch.Tensor]) -> None:
        clipping = self._content.clipping
        assert clipping is not None
        if clipping.norm is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            if norm > clipping.norm:
                for gradient in gradients:
                    gradient.mul_(clipping.norm / norm)
        else:
            for gradient in gradients:
                gradient.clamp_(clipping.low, clipping.high)

    def bounds(self, rank: int, size: int) -> list[tuple[int, int]] | None:
        """This rank's slice of each flat buffer, where the optimizer works element by element."""
        if not SlicedOptimizer.can_slice(self.optimizer):
            return None
        return [(flat.size * rank // size, flat.size * (rank + 1) // size) for flat in self._flats]

    def take_slice(self, bounds: Sequence[tuple[int, int]]) -> None:
        """From now on ``update`` changes only this rank's slices."""
        self._slices = SlicedOptimizer(self.optimizer, list(self.model.parameters()), self._flats, bounds)

    def weights(self) -> list[Array]:
        """Trainable weights as flat buffers; in place on the CPU."""
        return [flat.to_numpy() for flat in self._flats]

    def load_weights(self, weights: Sequence[Array]) -> None:
        """Take over what ``weights`` gave."""
        with torch.no_grad():
            for flat, values in zip(self._flats, weights, strict=True):
                flat.from_numpy(values)

    def buffers(self) -> list[Array]:
        """Running means and the like, as float64 copies."""
        return [buffer.detach().double().cpu().numpy().reshape(-1) for buffer in self._float_buffers()]

    def load_buffers(self, buffers: Sequence[Array]) -> None:
        """Take over what ``buffers`` gave."""
        for buffer, values in zip(self._float_buffers(), buffers, strict=True):
            buffer.copy_(torch.from_numpy(values).view(buffer.shape))

    def _float_buffers(self) -> Iterator[torch.Tensor]:
        return (buffer for buffer in self.model.buffers() if buffer.is_floating_point())

    def frozen(self) -> list[Array]:
        """Everything of the state dict that no gradient reaches, as bytes, for a start from rank 0's."""
        trained = {id(p) for flat in self._flats for p in flat.parameters}
        rest = [p.data for p in self.model.parameters() if id(p) not in trained] + list(self.model.buffers())
        return [t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for t in rest if t.numel()]

    def load_frozen(self, values: Sequence[Array]) -> None:
        """Take over what ``frozen`` gave."""
        trained = {id(p) for flat in self._flats for p in flat.parameters}
        rest = [p.data for p in self.model.parameters() if id(p) not in trained] + list(self.model.buffers())
        with torch.no_grad():
            for tensor, data in zip((t for t in rest if t.numel()), values, strict=True):
                tensor.copy_(torch.from_numpy(data).view(tensor.dtype).view(tensor.shape))

    def optimizer_slice(self) -> bytes:
        """This rank's part of the optimizer's state."""
        assert self._slices is not None
        return self._slices.pack()

    def state(self, slices: Sequence[bytes] | None = None) -> dict[str, bytes]:
        """Everything needed to go on elsewhere; see ``Trainable``."""
        optimizer = self.optimizer.state_dict()
        if slices is not None:
            optimizer["state"] = merge_slices(slices, self.optimizer)
        tree = {"optimizer": optimizer, "scheduler": None if self.scheduler is None else self.scheduler.state_dict()}
        return {"model": pack_model(self.model.state_dict()), "optimizer": pack_tree(tree)}

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def schedule(self, event: str, figures: Mapping[str, float] | None = None) -> None:
        """Advance the learning-rate schedule at its own pace."""
        if self.scheduler is None:
            return
        needs_value = getattr(self.scheduler, "needs_metric", False) or isinstance(
            self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        )
        own = self._content.scheduler_creator is None
        pace = ("epoch" if needs_value else "batch") if own else self._content.scheduler_step_freq
        if self.main is not None and type(self.main).on_lr_adjust is not _base_on_lr_adjust(self.main):
            return  # the user's own
        if event == pace:
            if needs_value:
                self.scheduler.step(self._watched(figures or {}))
            else:
                self.scheduler.step()

    def _watched(self, figures: Mapping[str, float]) -> float:
        monitor = getattr(self.scheduler, "monitor", None)  # of our own Plateau; torch's takes the validation's, if any
        if monitor is None:
            return figures.get("val_loss", figures["train_loss"])
        if monitor == "score" and "score" not in figures:
            raise PlanError('Plateau("score") needs a validation after every epoch: pass validation_data')
        return figures["score" if monitor == "score" else "train_loss"]

    def _load_optimizer(self, data: bytes) -> None:
        tree = unpack_tree(data)
        try:
            self.optimizer.load_state_dict(tree["optimizer"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"the optimizer's state does not fit this optimizer: {error}") from error
        if self.scheduler is not None and tree["scheduler"] is not None:
            self.scheduler.load_state_dict(tree["scheduler"])

    # --- an epoch's figures ---

    def tally(self) -> list[Array]:
        """What this replica has counted since the epoch began."""
        return self._tallies.states()

    def load_tally(self, tallies: Sequence[Sequence[Array]]) -> None:
        """Begin with what replicas had counted before."""
        self._tallies.load(tallies)

    def figures(self, tallies: Sequence[Sequence[Array]]) -> dict[str, float]:
        """What all replicas' counts come to; the next epoch begins."""
        return self._tallies.figures(tallies)

    # --- feeding ---

    def _loss(self) -> Criterion | None:
        if self._criterion is None:
            loss = (
                make_loss(self._content.loss, dict(self._content.config)) if self._parts is None else self._parts.loss
            )
            if loss is None:
                return None
            if isinstance(loss, nn.Module) and self._device.type != "cpu":
                loss = loss.to(self._device)
            self._criterion = Criterion(loss, self._content.class_weight)
        return self._criterion

    def _call(self, model: Any, batch: Batch) -> Any:
        features = self._features(batch)
        if isinstance(features, dict):
            return model(**features) if self._takes_names(features) else model(features)
        return model(*features)

    def _takes_names(self, features: dict[str, Any]) -> bool:
        import inspect

        parameters = inspect.signature(self.model.forward).parameters
        return all(name in parameters for name in features)

    def _features(self, batch: Batch) -> Any:
        # Real numbers come as float32 from columns and often as float64 from NumPy: the model's own dtype decides.
        features = self._part(batch, "x")
        return (
            {k: self._as_model(v) for k, v in features.items()}
            if isinstance(features, dict)
            else [*map(self._as_model, features)]
        )

    def _as_model(self, tensor: torch.Tensor) -> torch.Tensor:
        wide = (torch.float32, torch.float64)
        if tensor.dtype not in wide:
            return tensor
        if self._float is None:
            self._float = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        return tensor.to(self._float) if self._float in wide else tensor.float()

    def _features_tuple(self, batch: Batch) -> tuple[Any, ...]:
        features = self._features(batch)
        return (features,) if isinstance(features, dict) else tuple(features)

    def _target(self, batch: Batch) -> Any:
        labels = self._part(batch, "y")
        if isinstance(labels, dict):
            return labels or None
        return None if not labels else labels[0] if len(labels) == 1 else labels

    def _weight(self, batch: Batch) -> torch.Tensor | None:
        return self._tensor(batch["w"]).reshape(-1) if "w" in batch else None

    def _part(self, batch: Batch, letter: str) -> Any:
        """Features or labels: a list for ``x0, x1, …``, a dict for ``x.name, …``."""
        named = {name[2:]: self._tensor(value) for name, value in batch.items() if name.startswith(f"{letter}.")}
        if named:
            return named
        return [self._tensor(batch[name]) for name in batch if name[0] == letter and name[1:].isdigit()]

    def _tensor(self, values: Array) -> torch.Tensor:
        if not values.flags.writeable:
            values = values.copy()  # torch has no read-only tensors
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._content.precision == "bf16":
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()


def load_into(model: nn.Module, data: bytes) -> None:
    """Put a packed state dict into a model, in place; one that does not fit leaves the model as it was."""
    tensors = unpack_tensors(data)
    shapes = {name: value.shape for name, value in tensors.items()}
    before = None
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    if shapes != {name: value.shape for name, value in own.items() if not nn.parameter.is_lazy(value)}:
        before = copy.deepcopy(model.state_dict())  # torch loads what fits before it complains of the rest
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        if before is not None:
            model.load_state_dict(before)
        raise CheckpointError(f"these weights are of another model: {error}") from error


def _base_on_lr_adjust(main: Any) -> Any:
    for cls in type(main).__mro__:
        if cls.__name__ == "MainCallback":
            return cls.on_lr_adjust
    return None


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)


def _named(output: Any) -> dict[str, Any]:
    if isinstance(output, dict):
        return {str(key): _arrays(value) for key, value in output.items()}
    if isinstance(output, (list, tuple)):
        return {f"_{index}": _arrays(value) for index, value in enumerate(output)}
    return {"prediction": _arrays(output)}


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _arrays(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return {f"_{index}": _arrays(part) for index, part in enumerate(value)}
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    return value.detach().cpu().numpy()


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(part) for part in value)
    if isinstance(value, dict):
        return {key: _detached(part) for key, part in value.items()}
    return value


@contextlib.contextmanager
def _collective_errors(is_collective: bool) -> Iterator[None]:
    """A broken connection inside a native backward is a sync's failure, not the user's."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if is_collective and any(word in text for word in ("gloo", "connection", "process group", "horovod")):
            raise SyncError(f"replicas could not exchange gradients: {error}") from error
        raise
