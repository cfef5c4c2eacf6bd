"""``Estimator.from_keras``: a compiled Keras model, or a function that makes one, as plans for the engine."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from dataclasses import replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.core.plan import EarlyStopping
from firesteel.core.program import Program
from firesteel.data.sources import Columns, Source
from firesteel.engine.files import local_path
from firesteel.engine.fold import Fold
from firesteel.engine.history import Curves, History
from firesteel.frontends.keras_callbacks import KerasCallbacks
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
            seed=secrets.randbelow(2**31) if seed is None else int(seed),
        )
        if keras_model is not None and not framework.accepts(keras_model):
            raise PlanError(_no_model(keras_model))
        self._creator = model_creator
        self._model: Any = keras_model
        self._changes = {"optimizer": optimizer, "metrics": metrics}
        if keras_model is not None:
            self._recompile()
            framework.capture(keras_model)  # says at once what cannot travel
        elif model_creator is not None:
            framework.capture(model_creator, config=self._config)

    # --- what the engine is told ---

    def _program(self, *, is_trained: bool = True, class_weight: dict[int, float] | None = None) -> Program:
        from firesteel.frameworks.keras.state import pack_model, pack_optimizer

        model = self.get_model()
        program: Program = self._framework.capture(
            model, class_weight=class_weight, clipping=self._clipping if is_trained else None, seed=self._seed
        )
        state: dict[str, bytes] = {}
        if model.built and model.weights:
            state["model"] = pack_model(model)
            if is_trained and model.optimizer is not None and model.optimizer.built and self._has_fitted_or_loaded():
                state["optimizer"] = pack_optimizer(model.optimizer)
        return replace(program, state=state or None)

    def _has_fitted_or_loaded(self) -> bool:
        return int(self.get_model().optimizer.iterations.numpy()) > 0 or bool(self._state)

    def _take(self, state: dict[str, bytes]) -> None:
        from firesteel.frameworks.keras.replica import build
        from firesteel.frameworks.keras.state import header_of, load_model, load_optimizer

        model = self.get_model()
        inputs = header_of(state["model"]).get("inputs")
        if not model.built and inputs:
            build(model, inputs)
        load_model(model, state["model"])
        if "optimizer" in state and model.optimizer is not None:
            model.optimizer.build(model.trainable_variables)
            load_optimizer(model.optimizer, state["optimizer"])
        self._state = dict(state)

    def _whole_state(self) -> dict[str, bytes]:
        from firesteel.frameworks.keras.state import pack_model, pack_optimizer

        model = self.get_model()
        state = {"model": pack_model(model)}
        if model.optimizer is not None and model.optimizer.built:
            state["optimizer"] = pack_optimizer(model.optimizer)
        return state

    def _check_can_train(self, callbacks: tuple[Any, ...]) -> None:
        if self.get_model().optimizer is None:
            raise PlanError("fit needs an optimizer: compile the model with one")

    def _measures(self, replacement: Any) -> Any:
        from firesteel.frameworks.keras.figures import KerasFigures

        if replacement is not None:
            raise UnsupportedError(
                "a Keras model is evaluated by what it was compiled with; compile it with other metrics"
            )
        return {"keras": KerasFigures()}

    def _found(self, fold: Fold) -> dict[str, Any]:
        from firesteel.frameworks.keras.replica import build_metrics

        figures: Any = fold.metrics["keras"]
        model = self.get_model()
        build_metrics(model, figures.about)
        return dict(figures.result(model))

    def _split_callbacks(
        self, callbacks: Any, stopping: EarlyStopping | None
    ) -> tuple[tuple[Any, ...], EarlyStopping | None]:
        import keras

        rest, found = split_stopping(callbacks, stopping)
        for each in rest:
            if not isinstance(each, keras.callbacks.Callback):
                raise PlanError(f"callbacks must be keras.callbacks.Callback, not {type(each).__qualname__}")
        wrapped = (KerasCallbacks(list(rest), {}),) if rest else ()
        return wrapped, found

    def _monitors(self) -> tuple[str, ...]:
        model = self.get_model()
        names = [name for name in model.metrics_names if name != "compile_metrics"]
        compiled = _leaves(model._compile_config.config.get("metrics"))
        names += [each if isinstance(each, str) else getattr(each, "name", None) or each.__name__ for each in compiled]
        return (*super()._monitors(), *names, *(f"val_{name}" for name in names))

    def _history(self, history: History) -> Any:
        records = [{key: value for key, value in record.items() if key not in _DROPPED} for record in history.epochs]
        return Curves(records, history.recoveries)

    def _inputs(self) -> tuple[int, int | None]:
        return tuple(self._framework.input_range(self.get_model()))

    def _source(self, data: Any, columns: Columns, *, counts_inputs: bool) -> Source:
        from firesteel.data.tf import Dataset
        from firesteel.frameworks.keras.program import input_names

        names = input_names(self.get_model())
        if columns.features is not None and names is not None and sorted(columns.features) == sorted(names):
            columns = replace(columns, features=tuple(names))
        if isinstance(data, Dataset):
            data = data.xshards
        return super()._source(data, columns, counts_inputs=counts_inputs)

    # --- the model ---

    def get_model(self) -> Any:
        """The model, with the trained weights; for an instance that was given, that same object."""
        if self._model is None:
            if self._creator is None:
                raise PlanError("there is no model yet: pass keras_model or model_creator to from_keras, or call load")
            from firesteel.frameworks.keras.program import make_model

            program = self._framework.capture(self._creator, config=self._config, seed=self._seed)
            self._model = make_model(program.content)
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
        model = self.get_model()

        def write(path: str) -> None:
            if path.endswith((".keras", ".h5", ".hdf5")):
                model.save(path, include_optimizer=include_optimizer)
            else:
                model.export(path, verbose=False)

        ending = {"keras": ".keras", "h5": ".h5"}.get(save_format or "", "")
        return _write_beside(
            filepath + ending if ending and not filepath.endswith(ending) else filepath, write, overwrite
        )

    def save_keras_model(self, path: str, overwrite: bool = True) -> str:
        """``save`` under its old name."""
        return self.save(path, overwrite=overwrite)

    def load(self, filepath: str, custom_objects: Any = None, compile: bool = True) -> None:
        """A model that Keras saved (``.keras``, ``.h5``)."""
        import keras

        path = local_path(filepath) or filepath
        if not os.path.exists(path):
            raise FileNotFoundError(f"No such file or directory: {filepath}")
        self._model = keras.saving.load_model(path, custom_objects=custom_objects, compile=compile)
        self._recompile()

    def save_weights(self, filepath: str, overwrite: bool = True, save_format: str | None = None) -> str:
        """The weights alone (``.weights.h5``)."""
        path = filepath if filepath.endswith(".weights.h5") else f"{filepath}.weights.h5"
        return _write_beside(path, lambda place: self.get_model().save_weights(place), overwrite)

    def load_weights(self, filepath: str, by_name: bool = False) -> None:
        """What ``save_weights`` wrote; ``by_name``: those of layers that have the same name."""
        path = local_path(filepath) or filepath
        path = path if os.path.exists(path) else f"{path}.weights.h5"
        self.get_model().load_weights(path, skip_mismatch=by_name)

    save_keras_weights = save_weights
    load_keras_weights = load_weights

    def _recompile(self) -> None:
        """Put in what ``from_keras`` was given in the place of what the model was compiled with."""
        import keras

        wanted = {name: value for name, value in self._changes.items() if value is not None}
        if not wanted or self._model is None:
            return
        if "optimizer" in wanted and not isinstance(wanted["optimizer"], (str, dict, keras.optimizers.Optimizer)):
            kind = type(wanted["optimizer"]).__qualname__
            raise UnsupportedError(f"optimizer must be a Keras optimizer or its name, not {kind}")
        before = dict(self._model._compile_config.config) if self._model.compiled else {}
        self._model.compile(**{**before, **wanted})


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


def _write_beside(path: str, write: Any, overwrite: bool) -> str:
    """Write under another name first, so that what is there stays until the new one is whole."""
    target = local_path(path) or path
    if os.path.exists(target) and not overwrite:
        raise FileExistsError(f"{path} exists; pass overwrite=True to replace it")
    folder, name = os.path.split(os.path.abspath(target))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".firesteel-") as beside:
        made = os.path.join(beside, name)
        write(made)
        if os.path.isdir(target):
            shutil.rmtree(target)
        os.replace(made, target)
    return path
