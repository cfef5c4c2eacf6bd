"""``firesteel.learn.tf``: the Estimator under the path that documents use."""

from firesteel.frontends.estimator import Estimator

__all__ = ["Estimator"]
