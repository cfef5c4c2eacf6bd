"""The optimizers at the Estimator's door; their schedules are in `firesteel.learn.optimizers.schedule`."""

from firesteel.core.optimizers import LBFGS, SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, ParallelAdam, RMSprop

__all__ = ["LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "ParallelAdam", "RMSprop"]
