"""What ``DLEstimator`` and ``DLModel`` need of Keras: a model copied, trained, scored, saved and opened."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from firesteel.core import registry
from firesteel.core.errors import CheckpointError, PlanError
from firesteel.core.imports import follow
from firesteel.core.program import Program
from firesteel.data.reading import Reading
from firesteel.frontends.keras_estimator import KerasEstimator
from firesteel.frontends.pipeline.persistence import Fetch
from firesteel.frontends.pipeline.references import refer
from firesteel.frontends.pipeline.training import StageTraining, as_real

__all__ = ["KerasSide"]

_FILE = "model.keras"
_COUNTS = ("train_loss", "last_train_loss")  # Keras counts its own loss


class _Training(StageTraining, KerasEstimator):
    """See ``StageTraining``."""

    def _adapted(self, reading: Reading) -> Reading:
        return _adapted(reading, self.get_model())


class KerasSide:
    """See the module."""

    name = "keras"

    @staticmethod
    def accepts(model: object) -> bool:
        """A Keras 3 model."""
        keras = sys.modules.get("keras")  # who has a model has loaded it
        return keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model)

    @staticmethod
    def own(model: Any) -> Any:
        """A model of one's own, to be trained while the user's stays as it is."""
        import keras

        custom = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
        with keras.saving.custom_object_scope(custom):
            try:
                made = type(model).from_config(model.get_config())
            except (NotImplementedError, TypeError) as error:
                raise PlanError(
                    f"{type(model).__qualname__} cannot be made again from its configuration: give it get_config(), or "
                    f"pass a function f(config) that makes the model. Keras says: {error}"
                ) from error
        if model.built and model.weights:
            if not made.built:
                made.build(model.input_shape)
            made.set_weights(model.get_weights())
        if model.compiled:
            _compile_alike(made, model)
        return made

    @staticmethod
    def estimator(model: Any, *, loss: Any, optimizer: Any, metrics: Any, rate: float | None, seed: int) -> Any:
        """An Estimator that trains this very model."""
        import keras

        before = dict(model._compile_config.config) if model.compiled else {}
        wanted = {"loss": loss, "metrics": _listed(metrics)}
        parts = {**before, **{name: value for name, value in wanted.items() if value is not None}}
        if parts.get("loss") is None:
            raise PlanError("a Keras model that is not compiled needs a loss: pass loss=, or compile the model")
        chosen = keras.optimizers.get(
            optimizer if optimizer is not None else getattr(model, "optimizer", None) or "adam"
        )
        settings = chosen.get_config()
        if rate is not None:
            settings["learning_rate"] = rate
        parts["optimizer"] = type(chosen).from_config(settings)  # not the one that the caller holds
        model.compile(**parts)
        return _training(model, seed)

    @staticmethod
    def settled(model: Any) -> Any:
        """A trained model; Keras is told with each call what it is for."""
        return model

    @staticmethod
    def monitor(name: str) -> str:
        """Keras's names are the engine's."""
        return name

    @staticmethod
    def curves(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
        """The engine's records as one list for each figure."""
        names = {name for record in records for name, value in record.items() if isinstance(value, float)}
        return {name: [record[name] for record in records if name in record] for name in names if name not in _COUNTS}

    @staticmethod
    def history(found: Any) -> dict[str, list[float]]:
        """One list for each figure."""
        return {key: list(values) for key, values in dict(found).items() if key != "epoch"}

    @staticmethod
    def program(model: Any) -> Program:
        """What scores with this model."""
        if not model.compiled:
            model = KerasSide.own(model)
            model.compile(optimizer="sgd", loss="mse")  # a program is a compiled one; to score, any will do
        program: Program = _training(model, 0)._program(is_trained=False)
        return program

    @staticmethod
    def inputs(model: Any) -> tuple[int, int | None]:
        """How many inputs the model takes, at least and at most."""
        framework: Any = registry.framework("keras")
        least, most = framework.input_range(model)
        return least, most

    @staticmethod
    def shapes(model: Any) -> list[tuple[int, ...]] | None:
        """The rows' shapes that the model was built for; ``None`` where it does not say, or leaves lengths open."""
        try:
            tensors = list(model.inputs or ())
        except (AttributeError, ValueError):
            return None
        found = [tuple(tensor.shape[1:]) for tensor in tensors]
        return found if found and all(None not in shape for shape in found) else None

    adapted = staticmethod(lambda reading, model: _adapted(reading, model))

    @staticmethod
    def save(
        model: Any, samples: Sequence[tuple[Sequence[int], str]] | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Facts and the ``.keras`` file."""
        if "__lambda__" in json.dumps(_config_of(model), default=str):
            raise PlanError(
                f"{model.name} has a Lambda layer around a lambda, which would have to be saved as code: give it "
                f"a function of a module, or write a layer class"
            )
        with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
            path = os.path.join(folder, _FILE)
            model.save(path)
            with open(path, "rb") as file:
                return {"form": "keras"}, {_FILE: file.read()}

    @staticmethod
    def weights(model: Any) -> dict[str, bytes]:
        """A Keras file has everything."""
        return KerasSide.save(model, None)[1]

    @staticmethod
    def load(form: str, fetch: Fetch, made: Any = None) -> Any:
        """The model that was saved; its weights in ``made`` where a function made one."""
        import keras

        with tempfile.TemporaryDirectory(prefix="firesteel-") as folder:
            path = os.path.join(folder, _FILE)
            with open(path, "wb") as file:
                file.write(fetch(_FILE))
            if made is not None:
                made.load_weights(path)
                return made
            try:
                with contextlib.suppress(TypeError, ValueError):  # a loss of the user's own, that scoring needs not
                    return keras.saving.load_model(path)
                return keras.saving.load_model(path, compile=False)
            except (TypeError, ValueError) as error:
                raise CheckpointError(
                    f"the Keras model cannot be opened here: {str(error).splitlines()[0]} Register its classes "
                    f"(keras.saving.register_keras_serializable), or pass DLModel.load(path, model=f) a function that "
                    f"makes it"
                ) from error

    @staticmethod
    def refer(parts: dict[str, Any]) -> dict[str, Any]:
        """Loss, optimizer and metrics as JSON."""
        import keras

        found = {}
        for name, part in parts.items():
            if isinstance(part, (keras.losses.Loss, keras.optimizers.Optimizer)):
                found[name] = {"keras": keras.saving.serialize_keras_object(part)}
            else:
                found[name] = refer(part, name)
        return found

    @staticmethod
    def follow(parts: dict[str, Any]) -> dict[str, Any]:
        """The reverse of ``refer``."""
        return {name: _follow(value) for name, value in parts.items()}


def _compile_alike(made: Any, model: Any) -> None:
    """Compile a model as another one is; losses and metrics of the user's own, which no configuration knows, as is."""
    try:
        made.compile_from_config(model.get_compile_config())
    except (TypeError, ValueError):
        parts = dict(model._compile_config.config)
        optimizer = model.optimizer
        made.compile(**{**parts, "optimizer": type(optimizer).from_config(optimizer.get_config())})


def _config_of(model: Any) -> Any:
    try:
        return model.get_config()
    except NotImplementedError:
        return {}  # Keras itself says what is missing, when it saves


def _training(model: Any, seed: int) -> Any:
    return _Training(
        keras_model=model,
        model_creator=None,
        metrics=None,
        optimizer=None,
        config=None,
        backend=None,
        workers_per_node=1,
        model_dir=None,
        seed=seed,
    )


def _adapted(reading: Reading, model: Any) -> Reading:
    """Rows in the shapes that the model was built for, and whole numbers as real ones where it wants those."""
    shapes = KerasSide.shapes(model)
    if shapes is None:
        return reading
    kinds = [str(tensor.dtype) for tensor in model.inputs]
    tensors, place = [], 0
    for tensor in reading.tensors:
        if tensor.name.startswith("x") and place < len(shapes):
            columns = tensor.columns
            if kinds[place].startswith(("float", "bfloat")):
                columns = as_real(columns)
            tensor = replace(tensor, columns=columns, shape=shapes[place])
            place += 1
        tensors.append(tensor)
    return Reading(tuple(tensors))


def _listed(metrics: Any) -> Any:
    return metrics if metrics is None or isinstance(metrics, (list, tuple, dict)) else [metrics]


def _follow(value: Any) -> Any:
    if isinstance(value, list):
        return [_follow(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "keras" in value:
        import keras

        return keras.saving.deserialize_keras_object(value["keras"])
    return follow(value["import"])
