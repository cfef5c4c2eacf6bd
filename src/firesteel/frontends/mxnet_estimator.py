"""``Estimator.from_mxnet``: functions that make an MXNet model, its loss and metrics, as plans for the engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError, UnknownName, UnsupportedError
from firesteel.core.plan import EarlyStopping, Exchange, Position, positive
from firesteel.core.program import Program
from firesteel.engine.callbacks import Callback, Runner, find_main
from firesteel.engine.files import local_path, read_bytes, write_bytes
from firesteel.engine.fold import Fold
from firesteel.engine.history import History
from firesteel.frontends.training import TrainingEstimator

__all__ = ["MXNetEstimator", "create_config"]

INSTALL = "pip install 'firesteel[mxnet]' && pip install --no-deps mxnet==1.9.1"

_NEEDED = ("optimizer", "optimizer_params", "log_interval")
_STORES = ("dist_async", "dist_device_sync", "dist_sync")
_DROPPED = ("last_train_loss", "val_num_samples")
_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, an RDD with one such "
    "row to an element, or a creator (config, kv)"
)


def create_config(
    optimizer: Any = "sgd",
    optimizer_params: dict[str, Any] | None = None,
    log_interval: int = 10,
    seed: int | None = None,
    extra_config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The configuration of an MXNet estimator, as a plain dict.

    Args:
        optimizer: the name of one of MXNet's optimizers, or an optimizer.
        optimizer_params: of a named one; default ``{"learning_rate": 0.01}``.
        log_interval: report progress after every so many steps.
        seed: of MXNet's and NumPy's random numbers in every worker.
        extra_config: laid over the rest, and handed to the creators with it.
    """
    if extra_config is not None and not isinstance(extra_config, dict):
        raise PlanError(f"extra_config must be a dict, not {type(extra_config).__qualname__}")
    defaults = {"learning_rate": 0.01} if isinstance(optimizer, str) else None
    config: dict[str, Any] = {
        "optimizer": optimizer,
        "optimizer_params": defaults if optimizer_params is None else optimizer_params,
        "log_interval": log_interval,
    }
    if seed is not None:
        config["seed"] = seed
    return config | (extra_config or {})


class MXNetEstimator(TrainingEstimator):
    """See ``Estimator.from_mxnet``."""

    _kinds = _KINDS

    def __init__(
        self,
        *,
        config: dict[str, Any],
        model_creator: Callable[..., Any],
        loss_creator: Callable[..., Any] | None,
        eval_metrics_creator: Callable[..., Any] | None,
        validation_metrics_creator: Callable[..., Any] | None,
        num_workers: int | None,
        num_servers: int | None,
        runner_cores: int | None,
    ) -> None:
        _check_config(config)
        kind = config.get("kvstore", "dist_sync")
        if kind not in _STORES:
            raise UnknownName("kvstore", kind, _STORES)
        super().__init__(
            framework=_framework(),
            config=dict(config),
            workers_per_node=1,
            model_dir=None,
            seed=config.get("seed"),
        )
        self._num_workers = positive(num_workers, "num_workers", none=True)
        self._threads = positive(runner_cores, "runner_cores", none=True)
        self._exchange = Exchange("kvstore", kind, positive(num_servers, "num_servers", none=True))
        self._sync = "asynchronous" if kind == "dist_async" else "all-reduce"
        self._progress_steps = positive(config["log_interval"], "log_interval")
        self._parts = {"loss_creator": loss_creator, "eval_metrics_creator": eval_metrics_creator}
        for name, creator in {**self._parts, "validation_metrics_creator": validation_metrics_creator}.items():
            if creator is not None and not callable(creator):
                raise PlanError(f"{name} must be a function (config), not {type(creator).__qualname__}")
        self._creator = model_creator
        self._validation_metrics = validation_metrics_creator
        self._made: Any = None
        self._program(is_trained=True)  # says at once what does not fit

    # --- fit ---

    def fit(  # type: ignore[override]
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int | None = None,
        validation_data: Any = None,
        train_resize_batch_num: int | None = None,
        *,
        feature_cols: Any = None,
        label_cols: Any = None,
        shuffle: bool = True,
        auto_shard: bool | None = None,
        callbacks: Any = None,
        early_stopping: EarlyStopping | None = None,
        verbose: int = 1,
    ) -> History:
        """Train for ``epochs`` more epochs; goes on from the weights and optimizer state of the fit before.

        Args:
            data: a Spark DataFrame, an XShards of ``{"x": …, "y": …}`` or of pandas, ndarrays, or a creator
                ``(config, kv)`` that returns an ``mx.io.DataIter``, a Gluon ``DataLoader`` or an iterable of batches.
            epochs: how many to run now.
            batch_size: rows of a step over all workers together; default ``config["batch_size"]``, or 32.
            validation_data: any kind of data, evaluated completely after each epoch by the validation metrics.
            train_resize_batch_num: make each epoch so many steps long, by cutting or repeating. Never needed.
            feature_cols: the columns of a DataFrame that are the model's inputs.
            label_cols: likewise, for the loss.
            shuffle: rows in an order that is a function of seed and epoch. Creators keep their own.
            auto_shard: whether creators yield all rows, to be divided by us, or each worker's own; default: they
                yield their own if they have asked ``kv`` for its ``rank`` or ``num_workers``.
            callbacks: ``firesteel.learn.pytorch.callbacks``; they run in every worker.
            early_stopping: stop when a figure no longer improves.
            verbose: 0 = no progress.

        Returns:
            One record per epoch.
        """
        size = self._config.get("batch_size")
        if size is not None and batch_size is not None and batch_size != size:
            warnings.warn(
                f"batch_size={batch_size} wins over config's {size}; both are the rows of all workers together",
                UserWarning,
                stacklevel=2,
            )
        if validation_data is not None and self._validation_metrics is None:
            raise PlanError("validation_data needs validation_metrics_creator: pass one to from_mxnet")
        self._pass_steps = positive(train_resize_batch_num, "train_resize_batch_num", none=True)
        if self._pass_steps is not None:
            warnings.warn(
                "with train_resize_batch_num an epoch no longer uses every row exactly once; it is never needed, for "
                "workers with fewer rows wait for nobody",
                UserWarning,
                stacklevel=2,
            )
        prefix = self._config.get("model")
        listed = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        return super().fit(
            data,
            epochs,
            size if batch_size is None else batch_size,
            feature_cols=feature_cols,
            label_cols=label_cols,
            validation_data=validation_data,
            callbacks=[*listed, _EpochFiles(str(prefix))] if prefix else listed,
            shuffle=shuffle,
            early_stopping=early_stopping,
            auto_shard=auto_shard,
            verbose=verbose,
        )

    def evaluate(  # type: ignore[override]
        self,
        data: Any,
        batch_size: int | None = None,
        *,
        num_steps: int | None = None,
        feature_cols: Any = None,
        label_cols: Any = None,
        auto_shard: bool | None = None,
    ) -> dict[str, Any]:
        """The validation metrics over every row once, by their names; ``loss`` for Gluon, ``num_samples``."""
        return super().evaluate(
            data,
            self._config.get("batch_size") if batch_size is None else batch_size,
            num_steps=num_steps,
            feature_cols=feature_cols,
            label_cols=label_cols,
            auto_shard=auto_shard,
        )

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        parts = self._parts if is_trained else {"loss_creator": self._parts["loss_creator"]}
        program: Program = self._framework.capture(self._creator, config=dict(self._config), seed=self._seed, **parts)
        state = self._state if is_trained else {name: data for name, data in self._state.items() if name == "model"}
        return replace(program, state=dict(state) or None)

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        if self._parts["loss_creator"] is None and not self._framework.is_module(self._model()):
            raise PlanError("fit needs a loss for a Gluon model: pass loss_creator to from_mxnet")

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        if self._validation_metrics is None and self._parts["loss_creator"] is None:
            raise PlanError("evaluate needs validation_metrics_creator, or for Gluon a loss_creator")

    def _measures(self, replacement: Any) -> Any:
        return {"mxnet": self._framework.figures(self._validation_metrics, dict(self._config))}

    def _found(self, fold: Fold) -> dict[str, Any]:
        found: dict[str, Any] = {"num_samples": fold.rows}
        if fold.loss is not None:
            found["loss"] = fold.loss
        return found | fold.figures()

    def _monitors(self) -> tuple[str, ...]:
        names = self._framework.metric_names(self._parts["eval_metrics_creator"], self._config)
        held_out = self._framework.metric_names(self._validation_metrics, self._config)
        return ("train_loss", "val_loss", *names, *(f"val_{name}" for name in held_out))

    def _history(self, history: History) -> History:
        records = [
            {key: value for key, value in record.items() if key not in _DROPPED and value is not None}
            for record in history
        ]
        return History(records, history)

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        rest, found = super()._split_callbacks(callbacks, stopping)
        if find_main(rest) is not None:
            raise UnsupportedError("a MainCallback is for torch models; an MXNet model's loss is its loss_creator's")
        return rest, found

    def _inputs(self) -> tuple[int, int | None]:
        return tuple(self._framework.input_range(self._model()))

    def _world(self, spark: Any) -> int:
        return self._num_workers or super()._world(spark)

    def _take(self, state: dict[str, bytes]) -> None:
        if self._made is not None:
            self._made = self._waken(state)
        self._state = dict(state)

    def _whole_state(self) -> dict[str, bytes]:
        if not self._state:
            raise PlanError("there is nothing to save yet: only data tells the shapes of an MXNet model; fit or load")
        return self._state

    # --- the model ---

    def get_model(self) -> Any:
        """The Block or Module with the trained parameters, on the driver."""
        if self._made is None:
            self._made = self._waken(self._state)
        return self._made

    def save(self, path: str, overwrite: bool = True) -> str:
        """One safetensors file: parameters by name, the optimizer's state, counters. No pickle."""
        facts = {"position": asdict(self._position), "seed": self._seed}
        write_bytes(str(path), self._framework.pack_file(self._whole_state(), facts), overwrite=overwrite)
        return str(path)

    def load(self, path: str) -> None:
        """What ``save`` wrote, or a ``.params`` file that MXNet wrote."""
        data = read_bytes(str(path))
        try:
            state, facts = self._framework.unpack_file(data)
        except CheckpointError:
            state, facts = self._framework.read_params(data, str(path), self._model()), {}
        try:
            self._made = self._waken(state)
        except CheckpointError as error:
            raise CheckpointError(f"{path} does not fit: {error}", path=str(path)) from error
        self._state = dict(state)
        if "position" in facts:
            self._position = Position(**facts["position"])

    def set_constant_gradient_clipping(self, min: float, max: float) -> None:
        """Not here: ``UnsupportedError``."""
        raise _clips_itself()

    def set_l2_norm_gradient_clipping(self, clip_norm: float) -> None:
        """Not here: ``UnsupportedError``."""
        raise _clips_itself()

    def clear_gradient_clipping(self) -> None:
        """Not here: ``UnsupportedError``."""
        raise _clips_itself()

    def _model(self) -> Any:
        """A model as the creator makes it, to be asked what it is."""
        return self.get_model()

    def _waken(self, state: dict[str, bytes]) -> Any:
        program = replace(
            self._program(is_trained=False), state={k: v for k, v in state.items() if k == "model"} or None
        )
        return self._framework.replica(program, "cpu", 0).model


class _EpochFiles(Callback):
    """``config["model"]``: the model after each epoch, as MXNet saves it, on the driver's disk."""

    def __init__(self, prefix: str) -> None:
        self._prefix = local_path(prefix) or prefix

    def after_train_epoch(self, runner: Runner) -> None:
        """Rank 0 has what all have."""
        if runner.rank == 0:
            for ending, data in runner.files(runner.epochs + 1).items():
                runner.ship(f"{self._prefix}{ending}", data)


def _framework() -> Any:
    try:
        return registry.framework("mxnet")
    except ModuleNotFoundError as error:
        if error.name == "mxnet":
            raise PlanError(f"from_mxnet needs MXNet, which is not installed: {INSTALL}") from error
        raise
    except (ImportError, AttributeError) as error:
        raise PlanError(
            f"MXNet is installed but cannot be imported ({error}). It needs names that NumPy 2 no longer has: import "
            f"firesteel.learn.mxnet before mxnet"
        ) from error


def _check_config(config: Any) -> None:
    if not isinstance(config, dict):
        raise PlanError(f"config must be a dict, as create_config makes it, not {type(config).__qualname__}")
    for name in _NEEDED:
        if name not in config:
            raise PlanError(f"config has no {name!r}; it needs {', '.join(_NEEDED)}, as create_config makes it")
    positive(config.get("batch_size"), 'config["batch_size"]', none=True)
    params = config["optimizer_params"]
    if params is not None and not isinstance(params, dict):
        raise PlanError(f"optimizer_params must be a dict, not {type(params).__qualname__}")
    if "rescale_grad" in (params or {}):
        warnings.warn(
            "rescale_grad is left out: a step's gradient is the mean over its rows, wherever they were",
            UserWarning,
            stacklevel=5,
        )


def _clips_itself() -> UnsupportedError:
    return UnsupportedError('MXNet\'s optimizers clip by themselves: pass "clip_gradient" in optimizer_params')
