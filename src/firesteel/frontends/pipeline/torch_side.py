"""What ``DLEstimator`` and ``DLModel`` need of torch: a model copied, trained, scored, saved and opened."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from firesteel.core import metrics as figures
from firesteel.core import registry
from firesteel.core.errors import PlanError, UnknownName, UnsupportedError
from firesteel.core.imports import follow
from firesteel.core.program import Program
from firesteel.data.reading import Reading
from firesteel.engine.history import History
from firesteel.frontends.pipeline.persistence import Fetch
from firesteel.frontends.pipeline.references import refer
from firesteel.frontends.pipeline.training import StageTraining, as_real
from firesteel.frontends.torch_estimator import TorchEstimator

__all__ = ["TorchSide"]

_STRUCTURE, _GRAPH = "module.json", "graph.json"
_WEIGHTS, _CONSTANTS = "weights.safetensors", "constants.safetensors"
_METRICS = {
    "accuracy": figures.Accuracy,
    "acc": figures.Accuracy,
    "mse": figures.MSE,
    "mean_squared_error": figures.MSE,
    "mae": figures.MAE,
    "mean_absolute_error": figures.MAE,
    "auc": figures.AUC,
    "precision": figures.Precision,
    "recall": figures.Recall,
    "f1": figures.F1Score,
    "binary_accuracy": figures.BinaryAccuracy,
    "categorical_accuracy": figures.CategoricalAccuracy,
    "sparse_categorical_accuracy": figures.SparseCategoricalAccuracy,
    "top5_accuracy": figures.Top5Accuracy,
    "binary_crossentropy": figures.BinaryCrossEntropy,
    "categorical_crossentropy": figures.CategoricalCrossEntropy,
    "sparse_categorical_crossentropy": figures.SparseCategoricalCrossEntropy,
}
_COUNTS = ("epoch", "batch_count", "num_samples", "last_train_loss", "val_num_samples")


class _Training(StageTraining, TorchEstimator):
    """See ``StageTraining``."""

    def _adapted(self, reading: Reading) -> Reading:
        return _adapted(reading, self.get_model())


class TorchSide:
    """See the module."""

    name = "torch"

    @staticmethod
    def accepts(model: object) -> bool:
        """A module, or a class of one."""
        return bool(_bench().accepts(model))

    @staticmethod
    def own(model: Any) -> Any:
        """A model of one's own, to be trained while the user's stays as it is."""
        return model() if isinstance(model, type) else copy.deepcopy(model)

    @staticmethod
    def estimator(model: Any, *, loss: Any, optimizer: Any, metrics: Any, rate: float | None, seed: int) -> Any:
        """An Estimator that trains this very model."""
        import torch
        from torch import nn

        if loss is None:
            raise PlanError(
                "a PyTorch model needs a loss: pass loss=, an nn loss, its class name, or f(output, target)"
            )
        figures_wanted = _metrics_of(metrics)
        return _Training(
            model=model,
            optimizer=partial(_make_optimizer, _optimizer_of(optimizer, torch), rate),
            loss=_named(loss, nn, "loss", nn.modules.loss.__all__),
            metrics=figures_wanted,
            train_metrics=figures_wanted,
            scheduler_creator=None,
            scheduler_step_freq="batch",
            config=None,
            backend="bigdl",
            workers_per_node=1,
            model_dir=None,
            sync_batchnorm=False,
            seed=seed,
            precision=None,
            sync=None,
            averaging_steps=1,
        )

    @staticmethod
    def settled(model: Any) -> Any:
        """A trained model, for inference."""
        return model.eval()

    @staticmethod
    def monitor(name: str) -> str:
        """The engine's name for a figure of ``history``."""
        return "train_loss" if name == "loss" else name

    @staticmethod
    def history(found: History) -> dict[str, list[float]]:
        """One list for each figure."""
        return TorchSide.curves(found.epochs)

    @staticmethod
    def curves(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
        """The same of the engine's records."""
        curves: dict[str, list[float]] = {}
        for record in records:
            for key, value in record.items():
                if key not in _COUNTS and isinstance(value, float):
                    curves.setdefault("loss" if key == "train_loss" else key, []).append(value)
        return curves

    @staticmethod
    def program(model: Any) -> Program:
        """What scores with this model."""
        parts: dict[str, Any] = {"optimizer": None, "loss": None, "config": {}}
        program: Program = _bench().capture(model, **parts)
        return program

    @staticmethod
    def inputs(model: Any) -> tuple[int, int | None]:
        """How many inputs the model takes, at least and at most."""
        least, most = _bench().input_range(model)
        return least, most

    @staticmethod
    def shapes(model: Any) -> list[tuple[int, ...]] | None:
        """A torch module does not say what it takes."""
        return None

    adapted = staticmethod(lambda reading, model: _adapted(reading, model))

    @staticmethod
    def save(
        model: Any, samples: Sequence[tuple[Sequence[int], str]] | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Facts and files: the module's structure and weights, or where its class cannot be imported, its graph."""
        bench = _bench()
        if isinstance(model, bench.exported_module):  # a graph already
            files = {_GRAPH: json.dumps(model.graph).encode(), _WEIGHTS: bench.pack_model(model.state_dict())}
            return {"form": "graph"}, {**files, _CONSTANTS: bench.pack_model({})}
        try:
            structure = bench.describe(model)
        except PlanError as error:
            if samples is None:
                raise PlanError(
                    f"{error}. (A model that has not been fitted or transformed with cannot be saved as a graph.)"
                ) from error
            graph, weights = bench.export_module(model, samples)
            own = model.state_dict()
            files = {_GRAPH: json.dumps(graph).encode(), _WEIGHTS: bench.pack_model(own)}
            constants = {name: value for name, value in weights.items() if name not in own}
            return {"form": "graph"}, {**files, _CONSTANTS: bench.pack_model(constants)}
        files = {_STRUCTURE: json.dumps(structure).encode(), _WEIGHTS: bench.pack_model(model.state_dict())}
        return {"form": "module"}, files

    @staticmethod
    def weights(model: Any) -> dict[str, bytes]:
        """The file of the weights alone, for a model that a function makes."""
        return {_WEIGHTS: _bench().pack_model(model.state_dict())}

    @staticmethod
    def load(form: str, fetch: Fetch, made: Any = None) -> Any:
        """The model that was saved; into ``made`` where a function made one."""
        bench = _bench()
        if made is None and form == "graph":
            made = bench.exported_module(json.loads(fetch(_GRAPH)))
            bench.load_into(made, fetch(_CONSTANTS))
        elif made is None:
            made = bench.rebuild(json.loads(fetch(_STRUCTURE)))
        bench.load_into(made, fetch(_WEIGHTS))
        return made

    @staticmethod
    def refer(parts: dict[str, Any]) -> dict[str, Any]:
        """Loss, optimizer and metrics as JSON."""
        loss = parts["loss"]
        found = {name: refer(parts[name], name) for name in ("optimizer", "metrics")}
        is_module = hasattr(loss, "state_dict") and not isinstance(loss, type)
        found["loss"] = {"module": _bench().describe(loss)} if is_module else refer(loss, "loss")
        return found

    @staticmethod
    def follow(parts: dict[str, Any]) -> dict[str, Any]:
        """The reverse of ``refer``."""
        return {name: _follow(value) for name, value in parts.items()}


def _follow(value: Any) -> Any:
    if isinstance(value, list):
        return [_follow(each) for each in value]
    if not isinstance(value, dict):
        return value
    return _bench().rebuild(value["module"]) if "module" in value else follow(value["import"])


def _bench() -> Any:
    return registry.framework("torch")


def _adapted(reading: Reading, model: Any) -> Reading:
    """Numbers become the model's real ones, a column of them a row of one; unless the model looks numbers up."""
    from torch import nn

    takes_whole = any(isinstance(each, (nn.Embedding, nn.EmbeddingBag)) for each in model.modules())
    if takes_whole:
        return reading
    tensors = []
    for tensor in reading.tensors:
        columns, shape = tensor.columns, tensor.shape
        if tensor.name.startswith("x"):
            shape = (1,) if len(columns) == 1 and columns[0].kind == "scalar" else shape
            columns = as_real(columns)
        tensors.append(replace(tensor, columns=columns, shape=shape))
    return Reading(tuple(tensors))


def _optimizer_of(optimizer: Any, torch: Any) -> Any:
    known = [name for name in torch.optim.__all__ if name[0].isupper() and name != "Optimizer"]
    if optimizer is None:
        return torch.optim.Adam
    if isinstance(optimizer, str):
        found = {name.lower(): name for name in known}.get(optimizer.lower())
        if found is None:
            raise UnknownName("optimizer", optimizer, known)
        return getattr(torch.optim, found)
    if isinstance(optimizer, torch.optim.Optimizer):
        raise UnsupportedError(
            "an optimizer object holds the parameters of the model it was made on, and a copy is trained here: pass "
            "its class, its name, or a function f(parameters) that makes one"
        )
    if not callable(optimizer):
        raise PlanError(f"optimizer must be a torch.optim class, its name, or f(parameters), not {optimizer!r}")
    return optimizer


def _make_optimizer(make: Any, rate: float | None, model: Any, config: dict[str, Any]) -> Any:
    """Runs where the optimizer is needed."""
    made = make(model.parameters())
    if rate is not None:
        for group in made.param_groups:
            group["lr"] = rate
        made.defaults["lr"] = rate
    return made


def _named(given: Any, room: Any, kind: str, known: Sequence[str]) -> Any:
    if not isinstance(given, str):
        return given
    if given not in known:
        raise UnknownName(kind, given, known)
    return getattr(room, given)()


def _metrics_of(metrics: Any) -> Any:
    """Names as metrics of ours, under the names that were given."""
    if metrics is None:
        return None
    listed = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    found = {}
    for each in listed:
        if isinstance(each, str):
            if each.lower() not in _METRICS:
                raise UnknownName("metric", each, _METRICS)
            found[each] = _METRICS[each.lower()]()
        else:
            found |= figures.as_metrics([each])
    return found
