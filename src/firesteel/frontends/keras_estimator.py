"""``Estimator.from_keras``: a compiled Keras model, or a function that makes one, as plans for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import PlanError, SchemaError, UnknownName, UnsupportedError
from firesteel.core.optimizers import OptimMethod
from firesteel.core.plan import EarlyStopping
from firesteel.core.program import Program
from firesteel.data.sources import Columns, Frame, Source
from firesteel.engine.fold import Fold
from firesteel.engine.history import Curves, History
from firesteel.frontends.keras_callbacks import KerasCallbacks, check_callbacks
from firesteel.frontends.keras_files import load_model, load_weights, save_model, save_weights
from firesteel.frontends.training import TrainingEstimator, split_stopping

__all__ = ["KerasEstimator"]

_BACKENDS = ("bigdl", "ray", "spark", "tf2")
_KINDS = (
    "a Spark DataFrame, an XShards, ndarrays as (x, y) or {'x': …, 'y': …}, a pandas DataFrame, an RDD with one such "
    "row to an element, a tf.data.Dataset, a keras.utils.PyDataset, or a creator (config, batch_size)"
)
_DROPPED = ("batch_count", "num_samples", "train_loss", "last_train_loss", "val_num_samples")


class KerasEstimator(TrainingEstimator):
    """See ``Estimator.from_keras``."""

    _kinds = _KINDS

    def __init__(
        self,
        *,
        keras_model: Any,
        model_creator: Any,
        metrics: Any,
        optimizer: Any,
        config: dict[str, Any] | None,
        backend: str | None,
        workers_per_node: int,
        model_dir: str | None,
        seed: int | None,
    ) -> None:
        if keras_model is not None and model_creator is not None:
            raise PlanError("from_keras takes keras_model or model_creator, not both")
        if backend is not None and backend not in _BACKENDS:
            raise UnknownName("backend", backend, _BACKENDS)
        if config is not None and not isinstance(config, dict):
            raise PlanError(f"config must be a dict, not {type(config).__qualname__}")
        if "batch_size" in (config or {}):
            raise PlanError("config must not hold 'batch_size': pass it to fit, where it means the global batch")
        framework: Any = registry.framework("keras")
        super().__init__(
            framework=framework,
            config=dict(config or {}),
            workers_per_node=workers_per_node,
            model_dir=model_dir,
            seed=seed,
        )
        if keras_model is not None and not framework.accepts(keras_model):
            raise PlanError(_no_model(keras_model))
        if model_creator is not None and not callable(model_creator):
            raise PlanError(f"model_creator must be a function (config), not {type(model_creator).__qualname__}")
        self._creator = model_creator
        self._model: Any = keras_model
        self._changes = {"optimizer": _keras_optimizer(framework, optimizer), "metrics": metrics}
        self._metrics_now: Any = None
        if keras_model is not None:
            self._recompile()
            framework.capture(keras_model)  # says at once what cannot travel

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        model = self.get_model()
        program: Program = self._framework.capture(
            model,
            class_weight=class_weight,
            clipping=self._clipping if is_trained else None,
            metrics=self._metrics_now,
            seed=self._seed,
            is_trained=is_trained,
        )
        if not (model.built and model.weights):
            return program
        return replace(program, state=self._framework.pack_state(model, with_optimizer=is_trained))

    def _take(self, state: dict[str, bytes]) -> None:
        self._framework.load_state(self.get_model(), state)

    def _whole_state(self) -> dict[str, bytes]:
        state: dict[str, bytes] = self._framework.pack_state(self.get_model())
        return state

    def _finish(self) -> None:
        model = self.get_model()
        model.optimizer.finalize_variable_values(model.trainable_variables)  # an average of weights takes their place

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        self._metrics_now = None
        self._framework.check_can_train(self.get_model())

    def _measures(self, replacement: Any) -> Any:
        self._metrics_now = replacement
        return {"keras": self._framework.figures()}

    def _check_can_measure(self, metrics: Any, main: Any) -> None:
        if not self.get_model().compiled:
            raise PlanError("evaluate needs a compiled model: call model.compile with a loss or metrics")

    def _found(self, fold: Fold) -> dict[str, Any]:
        model = self.get_model()
        if self._metrics_now is not None:  # other metrics than the model's: another model has to read them
            model = self._framework.make_model(self._program(is_trained=False).content)
            self._metrics_now = None
        return dict(self._framework.values(model, fold.metrics["keras"]))

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        rest, found = split_stopping(callbacks, stopping)
        return ((KerasCallbacks(check_callbacks(rest)),) if rest else ()), found

    def _monitors(self) -> tuple[str, ...]:
        model = self.get_model()
        names = [name for name in model.metrics_names if name != "compile_metrics"]
        compiled = _leaves(model._compile_config.config.get("metrics"))
        names += [each if isinstance(each, str) else getattr(each, "name", None) or each.__name__ for each in compiled]
        outputs = self._framework.output_names(model) or []
        if len(outputs) > 1:  # then each has figures of its own
            names += [f"{output}_{name}" for output in outputs for name in dict.fromkeys(("loss", *names))]
        return (*super()._monitors(), *names, *(f"val_{name}" for name in names))

    def _history(self, history: History) -> Any:
        records = [{key: value for key, value in record.items() if key not in _DROPPED} for record in history.epochs]
        return Curves(records, history)

    def _inputs(self) -> tuple[int, int | None]:
        return tuple(self._framework.input_range(self.get_model()))

    def _source(self, data: Any, columns: Columns, *, counts_inputs: bool) -> Source:
        from firesteel.data.tf import Dataset

        model = self.get_model()
        columns = self._ordered(columns)
        data = data.xshards if isinstance(data, Dataset) else self._framework.travelling(data, model, self._seed)
        source = super()._source(data, columns, counts_inputs=counts_inputs)
        if isinstance(source, Frame):
            self._check_strings(source)
        return source

    def _ordered(self, columns: Columns) -> Columns:
        names = self._framework.input_names(self.get_model())
        if columns.features is not None and names is not None and sorted(columns.features) == sorted(names):
            columns = replace(columns, features=tuple(names))
        outputs = self._framework.output_names(self.get_model())
        if columns.labels is not None and outputs is not None and sorted(columns.labels) == sorted(outputs):
            columns = replace(columns, labels=tuple(outputs))
        return columns

    def _outputs(self) -> int | None:
        found: int | None = self._framework.output_count(self.get_model())
        return found

    def _dtypes(self) -> dict[str, str]:
        found: dict[str, str] = self._framework.string_inputs(self.get_model())
        return found

    def _check_strings(self, source: Frame) -> None:
        taken = self._dtypes()
        for tensor in source.reading.tensors:
            for column in tensor.columns:
                if tensor.name not in taken and column.dtype == "object" and column.kind != "image":
                    raise SchemaError(
                        f"column {column.name!r} holds {column.kind}s, but the model takes numbers in that place; cast "
                        f"or index it (StringIndexer), or give the model an input of dtype string",
                        column=column.name,
                        found=column.kind,
                    )

    # --- the model ---

    def get_model(self) -> Any:
        """The model, with the trained weights; for an instance that was given, that same object."""
        if self._model is None:
            if self._creator is None:
                raise PlanError("there is no model yet: pass keras_model or model_creator to from_keras, or call load")
            program = self._framework.capture(self._creator, config=self._config, seed=self._seed)
            self._model = self._framework.make_model(program.content)
            self._recompile()
        return self._model

    def save(
        self,
        filepath: str,
        overwrite: bool = True,
        include_optimizer: bool = True,
        save_format: str | None = None,
        signatures: Any = None,
        options: Any = None,
    ) -> str:
        """The model as ``.keras``, ``.h5``, or (any other path) a folder, TensorFlow's SavedModel."""
        if signatures is not None or options is not None:
            raise UnsupportedError("Keras 3 makes a SavedModel's signatures itself; use model.export for others")
        return save_model(
            self.get_model(),
            str(filepath),
            overwrite=overwrite,
            include_optimizer=include_optimizer,
            save_format=save_format,
        )

    def save_keras_model(self, path: str, overwrite: bool = True) -> str:
        """``save`` under its old name."""
        return self.save(path, overwrite=overwrite)

    def load(self, filepath: str, custom_objects: Any = None, compile: bool = True) -> None:
        """A model that ``save`` or Keras wrote (``.keras``, ``.h5``, a folder)."""
        self._model = load_model(str(filepath), custom_objects, compile)
        self._recompile()

    def save_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> str:
        """The weights alone, in Keras's own form, at that very path."""
        return save_weights(self.get_model(), str(filepath), overwrite=overwrite)

    def load_weights(self, filepath: str, by_name: bool = False) -> None:
        """What ``save_weights`` wrote; ``by_name``: those that fit, and the others stay as they are."""
        load_weights(self.get_model(), str(filepath), by_name=by_name)

    save_keras_weights = save_weights
    load_keras_weights = load_weights

    def _recompile(self) -> None:
        """Put in what ``from_keras`` was given in the place of what the model was compiled with."""
        wanted = {name: value for name, value in self._changes.items() if value is not None}
        if not wanted or self._model is None:
            return
        before = dict(self._model._compile_config.config) if self._model.compiled else {}
        self._model.compile(**{**before, **wanted})


def _keras_optimizer(framework: Any, optimizer: Any) -> Any:
    if isinstance(optimizer, OptimMethod):
        return framework.optimizer(optimizer)
    if optimizer is None or isinstance(optimizer, (str, dict)):
        return optimizer
    import keras

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise PlanError(
            f"optimizer must be a Keras optimizer, its name, or one of firesteel.learn.optimizers, not "
            f"{type(optimizer).__qualname__}"
        )
    return optimizer


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        return [leaf for each in tree for leaf in _leaves(each)]
    return [] if tree is None else [tree]


def _no_model(given: Any) -> str:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    if kind.startswith("tf_keras."):
        return f"{kind} is a Keras 2 model; make it with Keras 3 (import keras), or run it with TFCluster"
    return f"keras_model must be a compiled Keras 3 model, not {kind}"
