"""``TFNet``: a TensorFlow graph as a layer, among others or alone."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from firesteel.core.errors import PlanError
from firesteel.data.sources import is_frame, is_rdd
from firesteel.engine.files import local_path
from firesteel.frontends.bigdl.described import bench
from firesteel.frontends.bigdl.layer import Layer

__all__ = ["TFNet", "export_tf"]


class TFNet(Layer):
    """A sub-graph of TensorFlow's as a layer. Gradients pass through it in both directions.

    A graph from a session or a SavedModel keeps its variables as the layer's weights: they train where
    ``generate_backward=True`` was said, and stay otherwise. A frozen graph has none. Random ops draw anew when the
    gradient is computed.

    Args:
        path: an export folder, or a frozen ``.pb`` file.
        input_names: of the tensors that are fed, for a ``.pb``; a name or a list.
        output_names: of the tensors that are fetched, likewise.
        tf_session_config: a ``ConfigProto`` for the sessions that run it.
    """

    path: Any = None
    input_names: Any = None
    output_names: Any = None
    tf_session_config: Any = None
    net: Any = dataclasses.field(default=None, kw_only=True)
    values: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.net is None:
            if self.path is None:
                raise PlanError("TFNet needs the path of an export folder or of a frozen graph")
            path = _local(self.path)
            self.net, self.values = bench().frozen_net(
                path, self.input_names, self.output_names, config=self.tf_session_config
            )

    @staticmethod
    def from_export_folder(folder: str, tf_session_config: Any = None) -> TFNet:
        """What ``export_tf`` wrote: ``frozen_inference_graph.pb`` and ``graph_meta.json``."""
        if not os.path.isdir(_local(folder)):
            raise PlanError(f"there is no export folder {folder!r}")
        return TFNet(folder, tf_session_config=tf_session_config)

    @staticmethod
    def from_saved_model(
        model_path: str,
        tag: Any = None,
        signature: str | None = None,
        inputs: Any = None,
        outputs: Any = None,
        tf_session_config: Any = None,
        init_op: Any = None,
        generate_backward: bool = False,
    ) -> TFNet:
        """A SavedModel by a signature (``serving_default``), its inputs sorted by their keys; or by tensors' names.

        ``init_op`` is accepted: what a SavedModel runs at its start is run.
        """
        net, values = bench().saved_model_net(
            _local(model_path), tag, signature, inputs, outputs, is_trained=generate_backward, config=tf_session_config
        )
        return TFNet(net=net, values=values)

    @staticmethod
    def from_session(
        sess: Any,
        inputs: Any,
        outputs: Any,
        generate_backward: bool = False,
        allow_non_differentiable_input: bool = True,
        tf_session_config: Any = None,
    ) -> TFNet:
        """The sub-graph between these tensors, with the values that its variables have now."""
        net, values = bench().session_net(
            sess,
            inputs,
            outputs,
            is_trained=bool(generate_backward),
            allows_others=bool(allow_non_differentiable_input),
            config=tf_session_config,
        )
        return TFNet(net=net, values=values)

    def settings(self) -> dict[str, Any]:
        """The graph, as JSON can hold it."""
        return {"net": self.net}

    def _parts(self) -> dict[str, Any]:
        return {"net": self.net, "values": self.values}

    def input_range(self) -> tuple[int, int | None]:
        """As many as the graph has."""
        count = len(self.net["inputs"])
        return count, count

    def forward(self, input: Any) -> Any:
        """Outputs for an array, or a list of arrays; strings too."""
        return bench().run_net(self.to_torch(), input)

    def backward(self, input: Any, grad_output: Any) -> Any:
        """The inputs' gradients, zeros for integers and strings; adds to those of the variables that train."""
        return bench().run_net_backward(self.to_torch(), input, grad_output)

    def predict(self, x: Any, batch_per_thread: int = 1, distributed: bool = True, mini_batch: bool = False) -> Any:
        """Outputs for rows: of an array, an RDD of arrays, a DataFrame's ``features``, or a ``TFDataset``.

        Args:
            x: the rows.
            batch_per_thread: rows of one call; a ``TFDataset`` has its own.
            distributed: as an RDD of arrays, computed in Spark's tasks; else an array. Arrays are then put through in
                this process.
            mini_batch: an RDD whose elements are batches already.

        Raises:
            TypeError: rows of another kind.
        """
        from firesteel.frontends.bigdl.scoring import predict_rows
        from firesteel.frontends.tfpark.dataset import TFDataset

        is_array = isinstance(x, (np.ndarray, list, tuple))
        if not (is_array or is_rdd(x) or is_frame(x) or isinstance(x, TFDataset)):
            raise TypeError(f"predict takes an ndarray, an RDD, a DataFrame or a TFDataset, not {type(x).__qualname__}")
        if is_array and not distributed:
            return self.predict_local(x, batch_per_thread)
        found = self._score(x) if isinstance(x, TFDataset) else predict_rows(self, x, batch_per_thread, mini_batch)
        if distributed:
            return found
        rows = found.collect()
        is_several = bool(rows) and isinstance(rows[0], list)
        return [np.stack(column) for column in zip(*rows, strict=True)] if is_several else np.stack(rows)

    def _score(self, dataset: Any) -> Any:
        from firesteel.frontends.tfpark.predictor import check_scoring, score_dataset

        check_scoring(dataset)
        names = list(dataset.layout.fields)
        options = {"is_by_row": not dataset.has_batch, "rows": dataset.static_rows()}
        return score_dataset(dataset, bench().net_program(self.to_torch(), names, **options))

    def evaluate(self, dataset: Any = None, batch_size: int | None = None, val_methods: Any = None) -> Any:
        """Without arguments: away from training. Else the validation methods' values over all rows.

        Args:
            dataset: a ``TFDataset`` with labels, an RDD of ``Sample``, or ``(X, Y)``.
            batch_size: rows at a time; a ``TFDataset``'s own, where it is not given.
            val_methods: of ``firesteel.bigdl.optim.optimizer``.
        """
        from firesteel.frontends.bigdl.scoring import evaluate_data
        from firesteel.frontends.tfpark.dataset import TFDataset

        if not isinstance(dataset, TFDataset):
            return super().evaluate(dataset, batch_size, val_methods)
        data, columns = dataset.origin.plain()
        return evaluate_data(self, data, batch_size or max(1, dataset.batch_per_thread), val_methods, columns)


def export_tf(
    sess: Any,
    folder: str,
    inputs: Any,
    outputs: Any,
    generate_backward: bool = False,
    allow_non_differentiable_input: bool = True,
) -> None:
    """Write a session's sub-graph as an export folder for ``TFNet``: variables become constants.

    Gradients need no preparation; the last two parameters are accepted for old scripts.
    """
    bench().export_tf(sess, _local(folder), inputs, outputs)


def _local(path: Any) -> str:
    found = local_path(os.fspath(path))
    if found is None:
        raise PlanError(f"a graph is read from a local path, not from {path!r}")
    return found
