"""``HogwildSparkModel``: the training of ``SparkAsyncDL`` on an RDD, without Spark ML."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from firesteel.cluster.preflight import driver_address
from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.plan import Turns
from firesteel.data.sources import Columns, Packed, as_dataset, is_rdd
from firesteel.engine.turns import train_in_turns
from firesteel.frontends.pipeline.failures import as_failures
from firesteel.frontends.pipeline.graphs import bench, open_text, training_program
from firesteel.frontends.pipeline.optimizers import check_optimizer

if TYPE_CHECKING:
    from pyspark import RDD

__all__ = ["HogwildSparkModel"]

Array = npt.NDArray[Any]

_RATE = 0.01


class HogwildSparkModel:
    """Trains a graph on the partitions of an RDD, each on its own, against a parameter server beside the driver.

    Args:
        tensorflowGraph: from ``build_graph``.
        iters: passes over each partition, in a round.
        tfInput: placeholder fed with features.
        tfLabel: placeholder fed with labels; ``None``: there are none.
        optimizer: a ``tf.train.Optimizer``, or a name as ``SparkAsyncDL`` takes it; default adam.
        master_url: ``host:port`` to bind to and to tell the workers; default the driver's address.
        serverStartup: not needed; the server says when it listens.
        acquire_lock: False: Hogwild; True: a readers-writer lock at the server.
        mini_batch: rows of a step in one partition; -1: all of them.
        mini_stochastic_iters: random mini-batches in an iter; -1: all mini-batches in turn.
        shuffle: a new order of the rows in each iter.
        verbose: above 0: the loss after each iter, printed on the driver.
        partition_shuffles: rounds; between them rows are spread anew.
        loss_callback: called on the driver with (loss, iteration, partition) after each iter.
        port: preferred port of the server.
    """

    def __init__(
        self,
        tensorflowGraph: str | None = None,
        iters: int = 1000,
        tfInput: str | None = None,
        tfLabel: str | None = None,
        optimizer: Any = None,
        master_url: str | None = None,
        serverStartup: int = 8,
        acquire_lock: bool = False,
        mini_batch: int = -1,
        mini_stochastic_iters: int = -1,
        shuffle: bool = True,
        verbose: int = 0,
        partition_shuffles: int = 1,
        loss_callback: Callable[[float, int, int], Any] | None = None,
        port: int = 5000,
    ) -> None:
        self._graph = tensorflowGraph or ""
        open_text(self._graph)  # says at once that it is none
        if tfInput is None:
            raise PlanError("HogwildSparkModel needs tfInput, the placeholder to be fed with features")
        self._ends = {"inputs": tfInput, "label": tfLabel}
        self._optimizer = _made(optimizer)
        self._host, self._port = _address(master_url, port)
        self._is_locked = bool(acquire_lock)
        self._rows = _size(mini_batch, "mini_batch")
        self._draws = _size(mini_stochastic_iters, "mini_stochastic_iters")
        self._counts = {"iters": iters, "rounds": partition_shuffles}
        self._shuffle = bool(shuffle)
        self._callback = loss_callback
        self._is_verbose = verbose > 0

    def train(self, rdd: RDD[Any]) -> list[Array]:
        """Train on rows ``(features, label)``, or on features alone where there is no ``tfLabel``.

        Returns:
            One array for each trainable variable, in the graph's order.
        """
        from pyspark.sql import SparkSession

        if not is_rdd(rdd):
            raise UnsupportedError(f"train takes an RDD, not {type(rdd).__qualname__}; SparkAsyncDL takes DataFrames")
        program, _ = training_program(self._graph, **self._ends, output=None, optimizer=self._optimizer, seed=0)
        has_label = self._ends["label"] is not None
        rows = rdd.map(_labelled if has_label else _unlabelled)
        verb = "training" if has_label else "prediction"
        source = as_dataset(
            rows, Columns(None, None, None, verb), inputs=lambda: (1, 1), is_loader=lambda data: False, kinds="an RDD"
        )
        assert isinstance(source, Packed)
        plan = Turns(
            program,
            partitions=rdd.getNumPartitions(),
            rows=self._rows,
            draws=self._draws,
            shuffle=self._shuffle,
            is_locked=self._is_locked,
            reports=self._callback is not None or self._is_verbose,
            port=self._port,
            host=self._host,
            **self._counts,
        )
        with as_failures():
            state = train_in_turns(SparkSession.builder.getOrCreate(), plan, source, self._on_loss)
        values = bench().unpack(state["model"])
        return [values[name] for name in bench().trainable(open_text(self._graph)) if name in values]

    def stop_server(self) -> None:
        """The server ends with the training; nothing is left to do."""

    @staticmethod
    def determine_master(port: int) -> str:
        """The driver's address, as workers would be told it."""
        from pyspark.sql import SparkSession

        return f"{driver_address(SparkSession.builder.getOrCreate())}:{port}"

    def _on_loss(self, loss: float, iteration: int, partition: int) -> None:
        if self._is_verbose:
            print(f"partition {partition}, iteration {iteration}: loss {loss:.6g}")  # noqa: T201 - what verbose asks for
        if self._callback is not None:
            self._callback(loss, iteration, partition)


def _made(optimizer: Any) -> Any:
    if optimizer is None or isinstance(optimizer, str):
        return bench().optimizer(check_optimizer(optimizer or "adam"), {"learning_rate": _RATE})
    if not hasattr(optimizer, "apply_gradients"):
        raise PlanError(f"optimizer must be a tf.train.Optimizer or a name, not {type(optimizer).__qualname__}")
    return optimizer


def _address(master_url: str | None, port: int) -> tuple[str | None, int]:
    if master_url is None:
        return None, port
    host, _, number = master_url.rpartition(":")
    if not host or not number.isdigit():
        raise PlanError(f"master_url is written 'host:port', not {master_url!r}")
    return host, int(number)


def _size(value: Any, name: str) -> int | None:
    if value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be a positive number, or -1, not {value!r}")
    return value


def _labelled(row: Any) -> tuple[Array, Array]:
    """Runs in tasks: ML vectors and lists as arrays."""
    features, label = row
    return _array(features), _array(label)


def _unlabelled(row: Any) -> Array:
    return _array(row[0] if isinstance(row, tuple) and len(row) == 1 else row)


def _array(value: Any) -> Array:
    return np.asarray(value.toArray() if hasattr(value, "toArray") else value)
