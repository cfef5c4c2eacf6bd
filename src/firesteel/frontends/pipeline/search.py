"""Hyper-parameters of a stage, searched by Optuna: trials are fits on the same Spark, several at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Pipeline

from firesteel.core.errors import PlanError, missing_extra
from firesteel.core.plan import EarlyStopping, positive
from firesteel.frontends.pipeline.dl import DLEstimator, DLModel
from firesteel.frontends.pipeline.validation import hold_out

if TYPE_CHECKING:
    from pyspark.ml import Model
    from pyspark.ml.evaluation import Evaluator
    from pyspark.sql import DataFrame

__all__ = ["Search", "search"]

Space = Callable[[Any], dict[Any, Any]]
"""From a trial of Optuna's to a dict of Params and values, as ``fit(df, params)`` takes it."""


@dataclass(frozen=True)
class Search:
    """What was found. ``study`` is Optuna's own, with every trial."""

    study: Any
    best_params: dict[str, Any]
    best_value: float
    best_model: Model
    """Fitted once more with the best Params, on all rows."""


def search(
    estimator: Estimator[Any],
    dataset: DataFrame,
    space: Space,
    *,
    evaluator: Evaluator | None = None,
    monitor: str = "val_loss",
    trials: int = 20,
    parallelism: int = 1,
    validationFraction: float = 0.2,
    name: str | None = None,
    storage: Any = None,
    sampler: Any = None,
    pruner: Any = None,
    seed: int = 0,
) -> Search:
    """Try Params of ``estimator``, a stage or a Pipeline, and fit with the best ones. Driver only.

    Args:
        estimator: what is fitted. A ``DLEstimator``, alone or in a Pipeline, may be given up half-way: ``pruner`` sees
            ``monitor`` after each of its epochs.
        dataset: kept in Spark's memory for the time of the search, so that its rows are computed once.
        space: makes Params of a trial: ``lambda trial: {est.learningRate: trial.suggest_float("rate", 1e-4, 1e-1)}``.
        evaluator: judges a fitted model on rows held out; without one, the last ``monitor`` of its ``history`` does.
        monitor: a figure of ``history``.
        trials: how many in all; those of an earlier search of this name count.
        parallelism: how many at a time.
        validationFraction: part of the rows to judge by.
        name: of the study; with ``storage`` a search goes on where it was interrupted.
        storage: Optuna's: a database's URL, or a storage object.
        sampler: Optuna's; default its own with ``seed``.
        pruner: Optuna's; default none.
        seed: of the sampler, and of the rows held out.

    Raises:
        PlanError: before anything is fitted, where the request makes no sense.
        ImportError: with the line that installs Optuna.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise missing_extra("optuna", "search") from error
    count, together = positive(trials, "trials") or 1, positive(parallelism, "parallelism") or 1
    if evaluator is None and not _learners(estimator):
        raise PlanError("without an evaluator a search needs a DLEstimator, whose history has a figure to go by")
    is_max = evaluator.isLargerBetter() if evaluator is not None else EarlyStopping(monitor=monitor).is_max
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        sampler=sampler or optuna.samplers.TPESampler(seed=seed),
        pruner=pruner or optuna.pruners.NopPruner(),
        direction="maximize" if is_max else "minimize",
        load_if_exists=True,
    )
    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    left = count - sum(trial.state in ended for trial in study.trials)
    kept = dataset.cache()
    try:
        training, held_out = hold_out(kept, "", validationFraction, seed)
        if evaluator is not None and held_out is None:
            raise PlanError(f"validationFraction={validationFraction} leaves no rows to judge by")
        trial = _Trial(estimator, training if evaluator is not None else kept, held_out, space, evaluator, monitor)
        trial.fraction = validationFraction
        if left > 0:
            study.optimize(trial, n_trials=left, n_jobs=together)
        best = estimator.fit(kept, space(study.best_trial))
    finally:
        kept.unpersist()
    return Search(study, dict(study.best_params), float(study.best_value), best)


class _Trial:
    """One trial: a fit, and its value."""

    def __init__(
        self,
        estimator: Estimator[Any],
        training: DataFrame,
        held_out: DataFrame | None,
        space: Space,
        evaluator: Evaluator | None,
        monitor: str,
    ) -> None:
        self._estimator, self._training, self._held_out = estimator, training, held_out
        self._space, self._evaluator, self._monitor = space, evaluator, monitor
        self.fraction = 0.0

    def __call__(self, trial: Any) -> float:
        import optuna

        params = self._space(trial)
        mine = self._estimator.copy(params)
        epochs: list[float] = []

        def watch(figures: dict[str, float]) -> None:
            if self._monitor in figures:
                epochs.append(figures[self._monitor])
                trial.report(epochs[-1], len(epochs))
                if trial.should_prune():
                    raise optuna.TrialPruned(f"given up after {len(epochs)} epochs")

        for learner in _learners(mine):
            learner._watch = watch
            if self._evaluator is None and not learner.getValidationIndicatorCol():
                learner.setValidationFraction(self.fraction)
        model = mine.fit(self._training)
        if self._evaluator is not None:
            assert self._held_out is not None
            return float(self._evaluator.evaluate(model.transform(self._held_out)))
        found = _histories(model)[-1].get(self._monitor)
        if not found:
            raise PlanError(
                f"the fit has no figure {self._monitor!r} to go by; it has: {', '.join(_histories(model)[-1])}"
            )
        return float(found[-1])


def _learners(estimator: Any) -> list[Any]:
    stages = estimator.getStages() if isinstance(estimator, Pipeline) else [estimator]
    return [stage for stage in stages if isinstance(stage, DLEstimator)]


def _histories(model: Any) -> list[dict[str, list[float]]]:
    stages = getattr(model, "stages", [model])
    return [stage.history for stage in stages if isinstance(stage, DLModel)]
