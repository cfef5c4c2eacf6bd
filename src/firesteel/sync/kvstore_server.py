"""MXNet's scheduler and parameter servers, as processes that load its library and nothing of its Python.

So they start in a tenth of a second, and unpickle nothing: MXNet's own server takes its optimizer as a pickle from
the socket. This one adds up what it is sent, and needs none.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import Any

import numpy as np

__all__ = ["ADD_UP", "ROUNDS", "main"]

ADD_UP = 0
"""The command by which a worker of an asynchronous store tells a server what to do with what is pushed.

Of MXNet's commands this is the one that a server hands on to its owner; the others it takes for itself.
"""

ROUNDS = 1 << 12
"""Keys from here on are sums of one push by each worker, taken in rounds; those below grow with every push."""

_DTYPES = {0: "float32", 1: "float64", 2: "float16"}


def main() -> None:
    """Serve until the workers have gone. Which role it is, how many there are and where, is in the environment."""
    library = _load()
    store = ctypes.c_void_p()
    _check(library, library.MXKVStoreCreate(b"dist", ctypes.byref(store)))
    workers = int(os.environ["DMLC_NUM_WORKER"])
    keep: list[Any] = []  # what C calls must outlive the call that hands it over

    def control(command: int, body: bytes, _: Any) -> None:
        if command == ADD_UP and not keep:
            keep.append(_adder(library, workers))
            _check(library, library.MXKVStoreSetUpdater(store, keep[0], None))

    heard = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(control)
    _check(library, library.MXKVStoreRunServer(store, heard, None))
    library.MXKVStoreFree(store)
    os._exit(0)


def _load() -> ctypes.CDLL:
    found = importlib.util.find_spec("mxnet")
    assert found is not None
    assert found.submodule_search_locations is not None
    library = ctypes.CDLL(os.path.join(found.submodule_search_locations[0], "libmxnet.so"), ctypes.RTLD_LOCAL)
    library.MXGetLastError.restype = ctypes.c_char_p
    for name in ("MXNDArraySyncCopyToCPU", "MXNDArraySyncCopyFromCPU"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.MXNDArrayFree.argtypes = [ctypes.c_void_p]
    return library


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise RuntimeError(library.MXGetLastError().decode(errors="replace"))


def _adder(library: ctypes.CDLL, workers: int) -> Any:
    """What an asynchronous store does with a push."""
    pushes: dict[int, int] = {}

    def add(key: int, pushed: int, stored: int, _: Any) -> None:
        value = _read(library, pushed)
        count = pushes.get(key, 0)
        pushes[key] = count + 1
        if key < ROUNDS or count % workers:
            value += _read(library, stored)
        _check(library, library.MXNDArraySyncCopyFromCPU(stored, value.ctypes.data, value.size))
        library.MXNDArrayFree(pushed)
        library.MXNDArrayFree(stored)

    return ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(add)


def _read(library: ctypes.CDLL, handle: int) -> Any:
    kind, axes, lengths = ctypes.c_int(), ctypes.c_int(), ctypes.POINTER(ctypes.c_int)()
    _check(library, library.MXNDArrayGetDType(ctypes.c_void_p(handle), ctypes.byref(kind)))
    _check(library, library.MXNDArrayGetShapeEx(ctypes.c_void_p(handle), ctypes.byref(axes), ctypes.byref(lengths)))
    values: Any = np.empty([lengths[axis] for axis in range(axes.value)], _DTYPES[kind.value])
    _check(library, library.MXNDArraySyncCopyToCPU(handle, values.ctypes.data, values.size))
    return values
