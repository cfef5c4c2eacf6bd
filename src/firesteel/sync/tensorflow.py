"""A group on TensorFlow's own collective operations, for where TensorFlow is all there is.

Members find each other on the gang's board, as on gloo; each listens on the one address that reaches the driver.
TensorFlow must be told of its peers before it makes its first tensor, so that a replica is made after its group.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import SyncError, missing_extra
from firesteel.core.ports import Board
from firesteel.sync.gathering import gather_bytes

try:
    import tensorflow as tf
except ModuleNotFoundError as error:  # pragma: no cover
    raise missing_extra("tensorflow", "tensorflow") from error

__all__ = ["TensorFlowGroup"]

Array = npt.NDArray[Any]


class TensorFlowGroup:
    """See ``core.ports.Group``."""

    def __init__(self, rank: int, size: int, board: Board, host: str, generation: int = 0) -> None:
        self.rank = rank
        self.size = size
        board("set", f"tensorflow/{generation}/{rank}", f"{host}:{_free_port(host)}".encode())
        found = [board("get", f"tensorflow/{generation}/{other}") or b"" for other in range(size)]
        cluster = tf.train.ClusterSpec({"worker": [address.decode() for address in found]})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=rank)
        on_terminate = signal.getsignal(signal.SIGTERM)
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        except (RuntimeError, tf.errors.OpError) as error:
            raise SyncError(f"replica {rank} could not join the others: {error}", rank=rank) from error
        # TensorFlow listens for preemptions, and so the process would no longer end when it is told to.
        signal.signal(signal.SIGTERM, on_terminate or signal.SIG_DFL)
        self._sums: dict[Any, Callable[[Any], Any]] = {}

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        if self.size == 1 or not array.size:
            return
        dtype = array.dtype
        if dtype not in self._sums:  # one compiled function for each type; lengths vary
            self._sums[dtype] = tf.function(
                self._summed, input_signature=[tf.TensorSpec([None], tf.as_dtype(dtype))], autograph=False
            )
        try:
            total = self._sums[dtype](tf.constant(array.reshape(-1)))
        except tf.errors.OpError as error:
            raise SyncError(f"replica {self.rank} lost the others: {error.message}", rank=self.rank) from error
        np.copyto(array, total.numpy().reshape(array.shape))

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` reaches all, in place."""
        begin, end = bounds[self.rank]
        mine = array[begin:end].copy()
        array[:] = 0
        array[begin:end] = mine
        self._merge(array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all, in place."""
        if self.rank != root:
            array[...] = 0
        self._merge(array)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank."""
        return gather_bytes(self, data)

    def close(self) -> None:
        """TensorFlow keeps its group as long as the process lives."""

    def _merge(self, array: Array) -> None:
        """The sum of arrays of which one at most is not zero at each place: as whole numbers, for that is exact."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        padded = np.zeros(-(-len(data) // 4) * 4, dtype=np.uint8)
        padded[: len(data)] = data
        # A part may end inside a number of four bytes; the others' bytes there are zero, so nothing carries over.
        numbers = padded.view(np.int32)
        self.all_reduce(numbers)
        np.copyto(array, padded[: len(data)].view(array.dtype).reshape(array.shape))

    def _summed(self, values: Any) -> Any:
        def sum_here(part: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(part))

        found = self._strategy.run(sum_here, args=(values,))
        return self._strategy.experimental_local_results(found)[0]


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
