"""BigDL's own way to train: an ``Optimizer`` that is told one thing after another, then ``optimize()``."""

from __future__ import annotations

from typing import Any, Self

from firesteel.core.errors import PlanError
from firesteel.core.metrics import as_metrics
from firesteel.core.plan import positive
from firesteel.core.triggers import MaxEpoch, Progress, Trigger, as_trigger
from firesteel.core.validation import Top1Accuracy
from firesteel.data.sources import is_rdd
from firesteel.frontends.bigdl.samples import sample_row
from firesteel.frontends.bigdl.summaries import ParameterHistograms, TrainSummary, ValidationSummary
from firesteel.frontends.bigdl_estimator import BigDLEstimator

__all__ = ["Optimizer"]


class Optimizer:
    """Trains a model on an RDD of ``Sample``, or on arrays (``create``), until a trigger fires.

    ``batch_size`` is the rows of a step over all replicas, any positive number. The counters live on: a second
    ``optimize()`` goes on, and its end trigger counts from the very beginning.

    Args:
        model: of ``firesteel.bigdl.nn.layer``.
        training_rdd: an RDD of ``Sample``.
        criterion: of ``firesteel.bigdl.nn.criterion``.
        end_trigger: when to stop.
        batch_size: rows of a step.
        optim_method: or a dict layer name → method; default ``SGD()``.
        replicas: how many replicas train (ours); default one on each node.
        seed: fixes shuffling and dropout (ours).
    """

    def __init__(
        self,
        model: Any,
        training_rdd: Any,
        criterion: Any,
        end_trigger: Any,
        batch_size: int,
        optim_method: Any = None,
        bigdl_type: str = "float",
        *,
        replicas: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._data = _rows(training_rdd)
        self._size = positive(batch_size, "batch_size")
        self._end: Trigger = as_trigger(end_trigger)
        self._options: dict[str, Any] = {"replicas": replicas, "seed": seed}
        self._estimator = BigDLEstimator(model=model, loss=criterion, optimizer=optim_method, **self._options)
        self._validation: dict[str, Any] = {}
        self._checkpoint: Trigger | None = None
        self._train_summary: TrainSummary | None = None
        self._validation_summary: ValidationSummary | None = None

    @staticmethod
    def create(
        model: Any,
        training_set: Any,
        criterion: Any,
        end_trigger: Any = None,
        batch_size: int = 32,
        optim_method: Any = None,
        cores: int | None = None,
        bigdl_type: str = "float",
        *,
        replicas: int | None = None,
        seed: int | None = None,
    ) -> Optimizer:
        """An optimizer for an RDD of ``Sample``, or for arrays ``(X, Y)``; several inputs: ``X`` a list of arrays.

        ``cores`` was BigDL's number of threads; here each replica has those of its task.
        """
        end = MaxEpoch(1) if end_trigger is None else end_trigger
        return Optimizer(
            model, training_set, criterion, end, batch_size, optim_method, bigdl_type, replicas=replicas, seed=seed
        )

    # --- what it is told ---

    def set_validation(self, batch_size: int, val_rdd: Any = None, *rest: Any, **named: Any) -> Self:
        """Validate when a trigger fires.

        ``set_validation(batch_size, val_rdd, trigger, val_method=None)`` with an RDD of ``Sample``, or
        ``set_validation(batch_size, X_val, Y_val, trigger, val_method=None)`` with arrays. ``val_method`` is one or
        several validation methods, by default ``[Top1Accuracy()]``.
        """
        val_rdd = named.pop("X_val", val_rdd)
        names = ("trigger", "val_method") if is_rdd(val_rdd) else ("Y_val", "trigger", "val_method")
        given = dict(zip(names, rest, strict=False)) | named
        if len(rest) > len(names) or set(given) - set(names):
            unknown = ", ".join(sorted(set(given) - set(names))) or f"{len(rest)} arguments"
            raise PlanError(f"set_validation takes {', '.join(('batch_size', 'val_rdd', *names))}, not {unknown}")
        if "trigger" not in given:
            raise PlanError("set_validation needs a trigger, such as EveryEpoch()")
        methods = given.get("val_method")
        self._estimator._metrics = [Top1Accuracy()] if methods is None else methods
        as_metrics(self._estimator._metrics)
        self._validation = {
            "validation_data": _rows(val_rdd if is_rdd(val_rdd) else (val_rdd, given.get("Y_val"))),
            "validation_batch_size": positive(batch_size, "batch_size"),
            "validation_trigger": as_trigger(given["trigger"]),
        }
        return self

    def set_checkpoint(
        self,
        checkpoint_trigger: Any,
        checkpoint_path: str,
        isOverWrite: bool = True,
    ) -> Self:
        """Write checkpoints when a trigger fires, each training into a dated folder under ``checkpoint_path``."""
        self._checkpoint = as_trigger(checkpoint_trigger)
        self._estimator._model_dir = checkpoint_path
        return self

    def load_checkpoint(self, path: str, version: int | None = None) -> Self:
        """Go on from a checkpoint (ours): a file, a dated folder, or a ``checkpoint_path``."""
        self._estimator.load_checkpoint(path, version)
        return self

    def set_gradclip_const(self, min_value: float, max_value: float) -> Self:
        """Each element of a step's gradient into this range."""
        self._estimator.set_constant_gradient_clipping(min_value, max_value)
        return self

    def set_gradclip_l2norm(self, clip_norm: float) -> Self:
        """A step's gradient scaled down to this norm over all parameters."""
        self._estimator.set_l2_norm_gradient_clipping(clip_norm)
        return self

    def disable_gradclip(self) -> Self:
        """No clipping."""
        self._estimator.clear_gradient_clipping()
        return self

    def set_train_summary(self, summary: TrainSummary) -> Self:
        """Write every step's scalars for TensorBoard."""
        if not isinstance(summary, TrainSummary):
            raise PlanError(f"set_train_summary takes a TrainSummary, not {type(summary).__qualname__}")
        self._train_summary = summary
        return self

    def set_val_summary(self, summary: ValidationSummary) -> Self:
        """Write every validation's figures for TensorBoard."""
        if not isinstance(summary, ValidationSummary):
            raise PlanError(f"set_val_summary takes a ValidationSummary, not {type(summary).__qualname__}")
        self._validation_summary = summary
        return self

    def set_end_when(self, end_when: Any) -> Self:
        """When to stop, from now on."""
        self._end = as_trigger(end_when)
        return self

    def set_model(self, model: Any) -> Self:
        """Train another model from now on, from its beginning."""
        before, parts = self._estimator, self._estimator._parts
        self._estimator = BigDLEstimator(
            model=model, loss=parts["loss"], optimizer=parts["optimizer"], metrics=before._metrics, **self._options
        )
        self._estimator._model_dir, self._estimator._clipping = before._model_dir, before._clipping
        return self

    def set_criterion(self, criterion: Any) -> Self:
        """Another criterion from now on."""
        parts = self._estimator._parts
        self._estimator._set_parts(criterion, parts["optimizer"], None, None)
        return self

    def set_traindata(self, training_rdd: Any, batch_size: int) -> Self:
        """Other rows from now on."""
        self._data, self._size = _rows(training_rdd), positive(batch_size, "batch_size")
        return self

    def prepare_input(self) -> None:
        """Nothing to do: rows are read when training starts. Here for old scripts."""

    # --- what it does ---

    def optimize(self) -> Any:
        """Train until the end trigger fires; gives the trained model, the same object."""
        estimator = self._estimator
        position = estimator._position
        if not self._end.fires(Progress(position.epoch, position.step, False)):
            summaries = {"train": self._train_summary, "validation": self._validation_summary}
            estimator._recorders = {part: each for part, each in summaries.items() if each is not None}
            estimator._end_trigger = self._end
            callbacks = []
            if self._train_summary is not None and self._train_summary.parameters_trigger is not None:
                callbacks.append(
                    ParameterHistograms(self._train_summary.parameters_trigger, self._train_summary.folder)
                )
            estimator.fit(
                self._data,
                batch_size=self._size,
                checkpoint_trigger=self._checkpoint,
                callbacks=callbacks,
                **self._validation,
            )
        return estimator.get_model()


def _rows(data: Any) -> Any:
    """What the estimator takes: samples as rows, arrays as they are."""
    if is_rdd(data):
        return data.map(sample_row)
    if isinstance(data, (tuple, list)) and len(data) == 2 and data[1] is not None:
        return tuple(data)
    raise PlanError(f"an RDD of Sample or arrays (X, Y) are needed, not {type(data).__qualname__}")
