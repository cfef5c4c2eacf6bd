"""``KerasModel``: TFPark's wrapper of a compiled Keras model, on Spark or in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.core.plan import positive
from firesteel.frontends.bigdl.summaries import TrainSummary, ValidationSummary
from firesteel.frontends.keras_files import load_model, load_weights, save_model, save_weights
from firesteel.frontends.tfpark.dataset import TFDataset
from firesteel.frontends.tfpark.matching import check_model, keras_estimator
from firesteel.frontends.tfpark.optimizer import check_summary
from firesteel.frontends.tfpark.predictor import TFPredictor

__all__ = ["KerasModel"]

_SUFFIXES = (".keras", ".h5", ".hdf5")


class KerasModel:
    """A compiled Keras 3 model that trains, evaluates and predicts on Spark or in this process.

    Args:
        model: compiled; it holds the trained weights after ``fit``.
        model_dir: where checkpoints go.
        optimizer: one of ours, in the place of the compiled one.
    """

    def __init__(self, model: Any, model_dir: str | None = None, optimizer: Any = None) -> None:
        from firesteel.core import registry

        framework: Any = registry.framework("keras")
        if not framework.accepts(model):
            raise PlanError(
                f"KerasModel wraps a Keras 3 model, not {type(model).__module__}.{type(model).__qualname__}"
            )
        self.model = model
        self.model_dir = model_dir
        self.optimizer = optimizer
        self._kept: Any = None

    # --- training ---

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        validation_data: Any = None,
        distributed: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Train; Keras's own ``History``, with one entry for each epoch.

        Args:
            x: a ``TFDataset``, which always trains on Spark; or arrays, a list or a dict of them.
            y: the labels of arrays.
            batch_size: rows of a step, for arrays.
            epochs: how many more.
            validation_data: ``(x, y)`` of arrays; a ``TFDataset`` has its own.
            distributed: train arrays on Spark too.
            **kwargs: for Keras's ``fit``, in this process.
        """
        if isinstance(x, TFDataset):
            if validation_data is not None:
                raise PlanError("validation_data must be None with a TFDataset: its validation rows are its own")
            if not x.has_batch or x.batch_size <= 0:
                raise PlanError("fit needs a TFDataset with batch_size")
            check_model(self.model, x.layout)
            data, columns = x.origin.plain()
            held = None if x.validation is None else x.validation.plain()[0]
            options = {"batch_size": x.batch_size, "shuffle": x.is_shuffled, "validation_data": held, **columns}
            return self._fit(data, epochs, options)
        if not distributed:
            return self.model.fit(x, y, batch_size=batch_size, epochs=epochs, validation_data=validation_data, **kwargs)
        options = {"batch_size": batch_size or 32, "validation_data": validation_data}
        return self._fit((x, y), epochs, options)

    def _fit(self, data: Any, epochs: int, options: Mapping[str, Any]) -> Any:
        import keras

        curves = self._estimator().fit(data, epochs=positive(epochs, "epochs") or 1, verbose=0, **options)
        history = keras.callbacks.History()
        history.set_model(self.model)
        history.epoch, history.history = list(curves.epoch), {name: list(values) for name, values in curves.items()}
        return history

    def evaluate(
        self, x: Any = None, y: Any = None, batch_per_thread: int | None = None, distributed: bool = False
    ) -> dict[str, float]:
        """Loss and metrics by their names in Keras; the same here and on Spark."""
        if isinstance(x, TFDataset):
            if x.batch_size <= 0 and x.batch_per_thread <= 0:
                raise PlanError("evaluate needs a TFDataset with batch_per_thread")
            check_model(self.model, x.layout)
            data, columns = x.origin.plain()
            rows = x.batch_per_thread if x.batch_per_thread > 0 else x.batch_size
            return dict(self._estimator().evaluate(data, batch_size=rows, verbose=0, **columns))
        if distributed:
            return dict(self._estimator().evaluate((x, y), batch_size=batch_per_thread, verbose=0))
        found = self.model.evaluate(x, y, batch_size=batch_per_thread, verbose=0, return_dict=True)
        return {name: float(value) for name, value in found.items()}

    def predict(self, x: Any, batch_per_thread: int | None = None, distributed: bool = False) -> Any:
        """An RDD for a ``TFDataset``; for arrays an array, or a list where the model has several outputs."""
        if isinstance(x, TFDataset):
            if not x.has_batch:
                raise PlanError("predict needs a TFDataset with batch_per_thread")
            return TFPredictor.from_keras(self.model, x).predict()
        if distributed:
            found = self._estimator().predict(x, batch_size=batch_per_thread, verbose=0)
            return list(found.values()) if isinstance(found, dict) else found
        return self.model.predict(x, batch_size=batch_per_thread, verbose=0)

    def _estimator(self) -> Any:
        if self._kept is None:
            self._kept = keras_estimator(self.model, self.optimizer, model_dir=self.model_dir)
        return self._kept

    # --- one batch ---

    def train_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Keras's own, in this process."""
        return self.model.train_on_batch(x, y, **kwargs)

    def test_on_batch(self, x: Any, y: Any = None, **kwargs: Any) -> Any:
        """Keras's own, in this process."""
        return self.model.test_on_batch(x, y, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras's own, in this process."""
        return self.model.predict_on_batch(x)

    @property
    def metrics_names(self) -> list[str]:
        """The names under which figures are reported."""
        return list(self.model.metrics_names)

    def add_metric(self, tensor: Any, name: str) -> None:
        """Report one more figure: a metric of Keras or a function ``(targets, predictions)`` under this name."""
        import keras

        metric = tensor if isinstance(tensor, keras.metrics.Metric) else keras.metrics.MeanMetricWrapper(tensor, name)
        config = dict(self.model._compile_config.config)
        before = config.get("metrics") or []
        if isinstance(before, dict):
            raise PlanError("add_metric is for a model whose metrics are a list: compile it with one more instead")
        self.model.compile(**{**config, "metrics": [*(before if isinstance(before, list) else [before]), metric]})

    # --- weights and files ---

    def get_weights(self) -> list[Any]:
        """The model's weights."""
        return list(self.model.get_weights())

    def set_weights(self, weights: Any) -> None:
        """Set them."""
        self.model.set_weights(weights)

    def save_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> None:
        """Weights alone, in Keras's own form."""
        save_weights(self.model, str(filepath), overwrite=overwrite)

    def load_weights(self, filepath: str, by_name: bool = False) -> None:
        """What ``save_weights`` or Keras wrote; ``by_name``: those that fit, and the others stay as they are."""
        load_weights(self.model, str(filepath), by_name=by_name)

    def save_model(self, path: str, overwrite: bool = True) -> None:
        """The whole model as ``.keras`` (added where there is no suffix) or ``.h5``."""
        save_model(self.model, _with_suffix(path), overwrite=overwrite, include_optimizer=True, save_format=None)

    @staticmethod
    def load_model(path: str) -> KerasModel:
        """What ``save_model`` wrote."""
        return KerasModel(load_model(_with_suffix(path), None, True))

    # --- summaries ---

    def set_train_summary(self, summary: TrainSummary) -> None:
        """Write every step's scalars there, from the next distributed ``fit`` on."""
        check_summary(summary, TrainSummary)
        self._estimator().record("train", summary)

    def set_val_summary(self, summary: ValidationSummary) -> None:
        """Write every validation's results there, from the next distributed ``fit`` on."""
        check_summary(summary, ValidationSummary)
        self._estimator().record("validation", summary)


def _with_suffix(path: str) -> str:
    return str(path) if str(path).endswith(_SUFFIXES) else f"{path}.keras"
