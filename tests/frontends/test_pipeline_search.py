"""Hyper-parameters searched by Optuna: trials are fits, go on by name, and are given up half-way."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from torch import nn

from firesteel.core.errors import PlanError
from firesteel.pipeline import DLEstimator, SparkAsyncDL, search

optuna = pytest.importorskip("optuna")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_trials_go_on_by_name_and_are_given_up(spark: SparkSession, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    df = spark.createDataFrame([(float(i % 4), 3.0 * (i % 4)) for i in range(40)], "features double, label double")
    stage = DLEstimator(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer="SGD", batchSize=8, epochs=2)
    storage = f"sqlite:///{tmp_path}/trials.db"

    def space(trial: object) -> dict[object, object]:
        return {stage.learningRate: trial.suggest_categorical("rate", [1e-6, 0.05])}  # type: ignore[attr-defined]

    options = {"name": "rates", "storage": storage, "seed": 3}
    first = search(stage, df, space, trials=2, parallelism=2, **options)
    assert len(first.study.trials) == 2
    sampler = optuna.samplers.GridSampler({"rate": [1e-6, 0.05]}, seed=1)
    pruner = optuna.pruners.ThresholdPruner(upper=20.0)
    found = search(stage, df, space, trials=4, sampler=sampler, pruner=pruner, **options)
    assert len(found.study.trials) == 4
    assert found.best_params == {"rate": 0.05}
    pruned = [trial for trial in found.study.trials if trial.state is optuna.trial.TrialState.PRUNED]
    assert pruned
    assert all(trial.params["rate"] == 1e-6 for trial in pruned)
    assert found.best_model.history["loss"]
    assert stage.getLearningRate() is None
    with pytest.raises(PlanError, match="needs a DLEstimator"):
        search(SparkAsyncDL(), df, space)
