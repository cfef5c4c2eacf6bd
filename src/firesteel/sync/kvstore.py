"""A group on MXNet's KVStore: what all ranks push to a key is summed on its servers, and each pulls the sum.

Its servers know float32 and float64 alone. Whole numbers go as float64, which holds them exactly up to 2**53; bytes go
in pairs, as the numbers that they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import missing_extra
from firesteel.core.numpy_names import put_back
from firesteel.sync.gathering import gather_bytes
from firesteel.sync.kvstore_server import ADD_UP, ROUNDS

put_back()
try:
    import mxnet as mx
except ModuleNotFoundError as error:  # pragma: no cover
    raise missing_extra("mxnet", "mxnet") from error

__all__ = ["KVStoreGroup"]

Array = npt.NDArray[Any]

_EXACT = 1024
"""From so many numbers on an array has a key of its own size: gradients, again and again. Smaller ones share."""


class KVStoreGroup:
    """See ``core.ports.Group``. MXNet numbers its workers as they come: ``rank`` is ours, and the store need not know.

    Args:
        rank: this process's.
        size: how many there are.
        kind: ``dist_sync``, ``dist_device_sync`` or ``dist_async``.
        environment: the variables by which MXNet finds the scheduler; set in this process.
    """

    def __init__(self, rank: int, size: int, kind: str, environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.size = size
        self.is_async = "async" in kind
        os.environ.update(environment)
        self._store = mx.kv.create(kind)  # waits for all others
        self._keys: dict[tuple[str, int], int] = {}
        self._weights: list[int] = []
        if self.is_async:
            # Before the first push: such a store has to be told what to do with one.
            if self._store.rank == 0:
                self._store._send_command_to_servers(ADD_UP, "")
            self._store._barrier()

    def all_reduce(self, array: Array) -> None:
        """Sum over all ranks, in place."""
        if array.dtype == np.uint8:
            raise TypeError("bytes are gathered, not summed")
        wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
        np.copyto(array, self._sum(wide.reshape(-1)).reshape(array.shape), casting="unsafe")

    def all_gather(self, array: Array, bounds: Sequence[tuple[int, int]]) -> None:
        """Rank r's part ``bounds[r]`` reaches all, in place."""
        begin, end = bounds[self.rank]
        mine = np.zeros_like(array)
        mine[begin:end] = array[begin:end]
        self._spread(mine, array)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """``root``'s array reaches all, in place."""
        self._spread(array if self.rank == root else np.zeros_like(array), array)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, on every rank."""
        return gather_bytes(self, data)

    def close(self) -> None:
        """Leave the group. The servers end when all have left."""
        self._store._barrier()
        self._store = None

    # --- an asynchronous store's own: weights to which everybody adds, whenever they please ---

    def keep(self, weights: Sequence[Array]) -> None:
        """Put these weights, which are the same on all ranks, on the servers."""
        self._weights = list(range(len(weights)))
        for key, values in zip(self._weights, weights, strict=True):
            self._store.init(key, mx.nd.array(values, dtype=values.dtype))

    def add(self, changes: Sequence[Array]) -> None:
        """Add to the weights on the servers."""
        for key, values in zip(self._weights, changes, strict=True):
            self._store.push(key, mx.nd.array(values, dtype=values.dtype))

    def newest(self, weights: Sequence[Array]) -> list[Array]:
        """The weights as they are there now; ``weights`` tell their sizes."""
        found = [mx.nd.zeros(values.shape, dtype=values.dtype) for values in weights]
        for key, values in zip(self._weights, found, strict=True):
            self._store.pull(key, out=values)
        return [values.asnumpy() for values in found]

    def meet(self) -> None:
        """Wait for all ranks."""
        self._store._barrier()

    # --- sums ---

    def _spread(self, mine: Array, array: Array) -> None:
        """``array`` becomes the sum of all ranks' ``mine``, of which one alone is not zero at any place."""
        raw = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
        pairs = np.zeros((raw.size + 1) // 2, np.uint16)
        pairs.view(np.uint8)[: raw.size] = raw
        whole = self._sum(pairs.astype(np.float32)).astype(np.uint16)
        np.copyto(array, whole.view(np.uint8)[: raw.size].view(array.dtype).reshape(array.shape))

    def _sum(self, flat: Array) -> Array:
        if flat.size == 0 or self.size == 1:
            return flat
        # Small ones, of any number of sizes, share keys of a few: a key never leaves the servers.
        size = flat.size if flat.size >= _EXACT and flat.dtype.kind == "f" else 1 << (flat.size - 1).bit_length()
        padded = flat if size == flat.size else np.concatenate([flat, np.zeros(size - flat.size, flat.dtype)])
        key = self._key(flat.dtype.name, size)
        self._store.push(key, mx.nd.array(padded, dtype=flat.dtype))
        total = self._pull(key, size, flat.dtype)
        if self.is_async:  # the push has arrived; wait for all others', and with the next for all to have read
            self._store._barrier()
            total = self._pull(key, size, flat.dtype)
            self._store._barrier()
        return total[: flat.size]

    def _pull(self, key: int, size: int, dtype: Any) -> Array:
        found = mx.nd.zeros((size,), dtype=dtype)
        self._store.pull(key, out=found)
        values: Array = found.asnumpy()
        return values

    def _key(self, dtype: str, size: int) -> int:
        key = self._keys.get((dtype, size))
        if key is None:
            key = self._keys[dtype, size] = ROUNDS + len(self._keys)
            self._store.init(key, mx.nd.zeros((size,), dtype=dtype))
        return key
