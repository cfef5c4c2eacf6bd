"""Optim methods, schedules, triggers, validation methods, summaries, regularizers, and BigDL's ``Optimizer``."""

from __future__ import annotations

from typing import Any

from firesteel.core.optimizers import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from firesteel.core.schedules import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    SequentialSchedule,
    Step,
    Warmup,
)
from firesteel.core.triggers import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerAnd,
    TriggerOr,
)
from firesteel.core.validation import (
    AUC,
    MAE,
    NDCG,
    HitRatio,
    MeanAveragePrecision,
    Top1Accuracy,
    Top5Accuracy,
    TreeNNAccuracy,
)
from firesteel.frontends.bigdl.optimizer import (
    Optimizer,
)
from firesteel.frontends.bigdl.regularizers import (
    L1L2Regularizer,
    L1Regularizer,
    L2Regularizer,
)
from firesteel.frontends.bigdl.summaries import (
    TrainSummary,
    ValidationSummary,
)
from firesteel.frontends.bigdl.validation import (
    Loss,
)

__all__ = [
    "AUC",
    "LBFGS",
    "MAE",
    "NDCG",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Default",
    "EveryEpoch",
    "Exponential",
    "Ftrl",
    "HitRatio",
    "L1L2Regularizer",
    "L1Regularizer",
    "L2Regularizer",
    "Loss",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MeanAveragePrecision",
    "MinLoss",
    "MultiStep",
    "OptimMethod",
    "Optimizer",
    "ParallelAdam",
    "Plateau",
    "Poly",
    "RMSprop",
    "SequentialSchedule",
    "SeveralIteration",
    "Step",
    "Top1Accuracy",
    "Top5Accuracy",
    "TrainSummary",
    "TreeNNAccuracy",
    "TriggerAnd",
    "TriggerOr",
    "ValidationSummary",
    "Warmup",
]


def __getattr__(name: str) -> Any:
    from firesteel.frontends.bigdl.missing import explain

    return explain(__name__, name)
