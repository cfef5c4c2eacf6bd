"""``Estimator.from_framework``: a model of any framework that is registered, also an outsider's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firesteel.core import metrics as figures
from firesteel.core import registry
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.plan import EarlyStopping
from firesteel.core.program import Program
from firesteel.engine.callbacks import find_main
from firesteel.engine.fold import Fold
from firesteel.frontends.training import TrainingEstimator

__all__ = ["FrameworkEstimator"]


class FrameworkEstimator(TrainingEstimator):
    """See ``Estimator.from_framework``."""

    _kinds = (
        "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, or an RDD with one "
        "such row to an element"
    )

    def __init__(
        self,
        *,
        framework: str,
        model: Any,
        parts: dict[str, Any],
        metrics: Any,
        workers_per_node: int,
        model_dir: str | None,
        seed: int | None,
        sync: str,
    ) -> None:
        found: Any = registry.framework(framework)
        if not found.accepts(model):
            raise PlanError(f"the framework {framework!r} does not take a {type(model).__qualname__} as a model")
        super().__init__(
            framework=found,
            config={},
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )
        self._sync = sync
        self._model = model
        self._parts = dict(parts)
        self._metrics = figures.as_metrics(metrics)
        self._program()  # says at once what does not fit

    def get_model(self) -> Any:
        """A replica on the driver, with the trained weights."""
        replica: Any = self._framework.replica(self._program(is_trained=False), "cpu", 1)
        if self._state:
            replica.load(self._state)
        return replica

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        if class_weight is not None:
            raise UnsupportedError(f"the framework {self._framework.name!r} is not told of class weights")
        program: Program = self._framework.capture(self._model, **self._parts)
        state = self._state if is_trained else {name: data for name, data in self._state.items() if name == "model"}
        return replace(program, state=dict(state) or program.state)

    def _take(self, state: dict[str, bytes]) -> None:
        self._state = dict(state)

    def _whole_state(self) -> dict[str, bytes]:
        if not self._state:
            raise PlanError("there is nothing to save yet: fit, or load a checkpoint")
        return self._state

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        if not hasattr(self._framework.replica(self._program(), "cpu", 1), "backward"):
            raise UnsupportedError(f"models of the framework {self._framework.name!r} only predict")

    def _measures(self, replacement: Any) -> Any:
        return self._metrics if replacement is None else figures.as_metrics(replacement)

    def _found(self, fold: Fold) -> dict[str, Any]:
        loss = {} if fold.loss is None else {"val_loss": fold.loss}
        return {"num_samples": fold.rows, **loss, **fold.figures()}

    def _monitors(self) -> tuple[str, ...]:
        return (*super()._monitors(), *(f"val_{name}" for name in self._metrics or {}))

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        rest, found = super()._split_callbacks(callbacks, stopping)
        if find_main(rest) is not None:
            raise UnsupportedError("a MainCallback is for torch models")
        return rest, found

    def _inputs(self) -> tuple[int, int | None]:
        count = getattr(self._framework, "input_range", None)
        return (1, None) if count is None else tuple(count(self._model))
