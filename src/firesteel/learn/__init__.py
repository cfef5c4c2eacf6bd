"""Orca's paths under our root: the same Estimator, and what goes with it."""

from firesteel.frontends.estimator import Estimator

__all__ = ["Estimator"]
