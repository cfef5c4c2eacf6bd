"""The learning-rate schedules at the Estimator's door."""

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

__all__ = ["Default", "Exponential", "MultiStep", "Plateau", "Poly", "SequentialSchedule", "Step", "Warmup"]
