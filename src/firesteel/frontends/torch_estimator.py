"""``Estimator.from_torch``: a torch model, its optimizer and loss, as plans for the engine."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, UnknownName, UnsupportedError
from firesteel.core.metrics import as_metrics
from firesteel.core.optimizers import OptimMethod
from firesteel.core.plan import Exchange, Position, positive
from firesteel.core.program import Program
from firesteel.engine.callbacks import find_main
from firesteel.engine.files import read_bytes, write_bytes
from firesteel.engine.fold import Fold
from firesteel.frontends.training import TrainingEstimator

__all__ = ["TorchEstimator"]

_SYNC_OF_BACKEND = {
    "bigdl": "sharded",
    "horovod": "all-reduce",
    "torch_distributed": "native",
    "spark": "native",
    "ray": "native",
}
_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, an RDD with one such "
    "row to an element, a DataLoader, "
    "or a creator (config, batch_size)"
)


class TorchEstimator(TrainingEstimator):
    """See ``Estimator.from_torch``."""

    _kinds = _KINDS

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any,
        loss: Any,
        metrics: Any,
        config: dict[str, Any] | None,
        backend: str,
        workers_per_node: int,
        model_dir: str | None,
        seed: int | None,
        sync: str | None,
        averaging_steps: int,
        **parts: Any,
    ) -> None:
        if model is None:
            raise PlanError("from_torch needs a model: a module, a class of one, or model_creator(config)")
        if backend not in _SYNC_OF_BACKEND:
            raise UnknownName("backend", backend, _SYNC_OF_BACKEND)
        if config is not None and not isinstance(config, dict):
            raise PlanError(f"config must be a dict, not {type(config).__qualname__}")
        if "batch_size" in (config or {}):
            raise PlanError("config must not hold 'batch_size': pass it to fit, where it means the global batch")
        as_metrics(metrics)
        super().__init__(
            framework=registry.framework("torch"),
            config=dict(config or {}),
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )
        self._sync = sync or _SYNC_OF_BACKEND[backend]
        if backend == "horovod":
            self._exchange = _horovod(self._sync)
        self._averaging_steps = positive(averaging_steps, "averaging_steps") or 1
        self._metrics = metrics
        self._parts = {
            "optimizer": optimizer,
            "loss": loss,
            "config": dict(self._config),
            "seed": self._seed,
            **parts,
        }
        self._model_given = model
        self._made: Any = model if self._framework.accepts(model) and not isinstance(model, type) else None
        self._framework.capture(model, **self._parts)  # says at once what does not fit

    # --- what the engine is told ---

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        if self._parts["optimizer"] is None:
            raise PlanError("fit needs an optimizer: pass one to from_torch")
        if self._parts["loss"] is None and find_main(callbacks) is None:
            raise PlanError("fit needs a loss: pass one to from_torch, or a MainCallback that sets runner.loss")

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        if self._parts["loss"] is None and not metrics and main is None:
            raise PlanError("evaluate needs a loss or metrics: pass them to from_torch, or validation_metrics")

    def _measures(self, replacement: Any) -> Any:
        return as_metrics(self._metrics if replacement is None else replacement)

    def _found(self, fold: Fold) -> dict[str, Any]:
        found: dict[str, Any] = {"num_samples": fold.rows}
        if fold.loss is not None:
            found["val_loss"] = fold.loss
        return found | fold.figures()

    def _monitors(self) -> tuple[str, ...]:
        return (*super()._monitors(), *(f"val_{name}" for name in as_metrics(self._metrics)))

    def _inputs(self) -> tuple[int, int | None]:
        """How many inputs the model takes; a creator is asked for a model, for only that knows."""
        if isinstance(self._model_given, type):
            return tuple(self._framework.input_range(self._model_given))
        return tuple(self._framework.input_range(self.get_model()))

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        parts = {**self._parts, "class_weight": class_weight}
        if not is_trained:
            parts |= {"optimizer": None, "scheduler_creator": None}
        elif self._clipping is not None:
            parts["clipping"] = self._clipping
        is_given = self._made is not None and self._framework.accepts(self._model_given)
        model = self._made if is_given else self._model_given
        program: Program = self._framework.capture(model, **parts)
        state: dict[str, bytes] = {}
        if self._made is None:
            state = {key: value for key, value in self._state.items() if key == "model"}
        elif model is not self._made:
            state["model"] = self._framework.pack_model(self._made.state_dict())
        optimizer = self._optimizer_state() if is_trained else None
        if optimizer and self._state:
            state["optimizer"] = optimizer
        return replace(program, state=state or None)

    def _optimizer_state(self) -> bytes | None:
        """The optimizer's state as it is now: an instance in the user's hands may have been changed there."""
        given = self._parts["optimizer"]
        kept = self._state.get("optimizer")
        if hasattr(given, "state_dict"):
            scheduler = None if kept is None else self._framework.unpack_tree(kept)["scheduler"]
            tree = {"optimizer": given.state_dict(), "scheduler": scheduler}
            return bytes(self._framework.pack_tree(tree))
        return kept

    def _whole_state(self) -> dict[str, bytes]:
        state = {"model": self._framework.pack_model(self.get_model().state_dict())}
        optimizer = self._optimizer_state()
        return {**state, "optimizer": optimizer} if optimizer else state

    def _take(self, state: dict[str, bytes]) -> None:
        """Make this the estimator's state, in the user's own objects where they gave some; all of it or nothing."""
        given = self._parts["optimizer"]
        before = None
        if "optimizer" in state and hasattr(given, "load_state_dict") and not isinstance(given, OptimMethod):
            before = given.state_dict()
            try:
                given.load_state_dict(self._framework.unpack_tree(state["optimizer"])["optimizer"])
            except (ValueError, KeyError) as error:
                raise CheckpointError(f"the optimizer's state is that of another optimizer: {error}") from error
        try:
            if self._made is not None:
                self._framework.load_into(self._made, state["model"])
        except CheckpointError:
            if before is not None:
                given.load_state_dict(before)
            raise
        self._state = dict(state)

    # --- the model ---

    def get_model(self) -> Any:
        """The trained model; for an instance that was given, that same object."""
        if self._made is None:
            made = self._framework.make_model(self._program(is_trained=False).content)
            if "model" in self._state:
                self._framework.load_into(made, self._state["model"])
            self._made = made
        return self._made

    def get_state_dict(self) -> dict[str, Any]:
        """``{"epoch", "models": [state dict], "optimizers": [state dict]}``."""
        tree = self._framework.unpack_tree(self._optimizer_state()) if self._optimizer_state() else None
        optimizers = [] if tree is None else [tree["optimizer"]]
        return {"epoch": self._position.epoch, "models": [self.get_model().state_dict()], "optimizers": optimizers}

    def save(self, model_path: str, entire: bool = False, overwrite: bool = True) -> str:
        """One safetensors file at that path: weights under their own names, optimizer state, counters. No pickle."""
        if entire:
            raise UnsupportedError(
                "entire=True would pickle the model's class; save weights, and make the model from its code"
            )
        facts = {"position": asdict(self._position), "seed": self._seed}
        write_bytes(str(model_path), self._framework.pack_file(self._whole_state(), facts), overwrite=overwrite)
        return str(model_path)

    def load(self, model_path: str) -> None:
        """What ``save`` wrote, or a state dict from ``torch.save`` (read with ``weights_only=True``)."""
        path = str(model_path)
        data = read_bytes(path)
        try:
            state, facts = self._framework.unpack_file(data)
        except CheckpointError:
            state, facts = self._framework.read_state_dict(data, path), {}
        self.get_model()  # now, for only a model can tell whether the weights are its own
        try:
            self._take(state)
        except CheckpointError as error:
            raise CheckpointError(f"{path} does not fit: {error}", path=path) from error
        if "position" in facts:
            self._position = Position(**facts["position"])


def _horovod(sync: str) -> Exchange:
    """Horovod's collectives, in the place of torch's own."""
    from firesteel.sync.horovod import check_installed

    check_installed()
    if sync == "native":
        raise PlanError(
            'sync="native" is torch\'s DDP, which needs torch\'s own collectives: backend="torch_distributed"'
        )
    return Exchange("horovod")
