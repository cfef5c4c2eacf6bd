"""Whose arrays a function takes: NumPy's, torch's or JAX's; how they go in and out, and many rows at a time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from firesteel.core.columns import refuse_dtype
from firesteel.core.errors import PlanError, UnknownName, missing_extra
from firesteel.frameworks.arrays.rowwise import OneByOne, Rows

__all__ = ["KINDS", "Kind", "is_layer", "kind_of", "make_kind"]

KINDS = ("jax", "numpy", "torch")

Array = npt.NDArray[Any]
Function = Callable[..., Any]


class Kind(Protocol):
    """Arrays of one library. ``cast`` is how a cast is written there, after the value."""

    cast: str

    def prepare(self, function: Function) -> Function:
        """The function as it is called in this process."""
        ...

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What calls are made within."""
        ...

    def enter(self, array: Array) -> Any:
        """An array in the library's own form."""
        ...

    def leave(self, value: Any, name: str) -> Array:
        """A result as NumPy's array."""
        ...

    def several(self, function: Function, inputs: Sequence[Array]) -> Any:
        """The function on each row of all inputs, rows first. ``OneByOne`` or any error where that is not to be had."""
        ...

    def at_once(self, value: Any, rows: int, name: str) -> Array:
        """One result of ``several``: ``(rows, *shape)``."""
        ...


class NumpyKind:
    """NumPy in, NumPy out."""

    cast = ".astype('{}')"

    def __init__(self, device: str, threads: int) -> None:
        pass

    def prepare(self, function: Function) -> Function:
        """As it is."""
        return function

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing is needed."""
        return contextlib.nullcontext()

    def enter(self, array: Array) -> Array:
        """As it is."""
        return array

    def leave(self, value: Any, name: str) -> Array:
        """Numbers and lists count as arrays."""
        try:
            return np.asarray(value)
        except ValueError as error:  # lists of different lengths
            raise PlanError(f"output {name!r} is no array: {error}") from error

    def several(self, function: Function, inputs: Sequence[Array]) -> Any:
        """By ``Rows``."""
        if any(array.dtype.kind not in "biuf" for array in inputs):
            raise OneByOne
        return function(*map(Rows, inputs))

    def at_once(self, value: Any, rows: int, name: str) -> Array:
        """What does not depend on a row is the same for all."""
        if isinstance(value, Rows):
            return value.values
        array = np.asarray(value)
        if array.dtype.kind == "O":  # perhaps rows inside
            raise OneByOne
        return np.broadcast_to(array, (rows, *array.shape))


class TorchKind:
    """Tensors in evaluation mode, without gradients."""

    cast = ".to(torch.{})"

    def __init__(self, device: str, threads: int) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise missing_extra("torch", "torch") from error
        if threads:  # 0 leaves the process as it is: the driver's belongs to the user
            torch.set_num_threads(threads)
        self._torch, self._device, self._is_driver = torch, torch.device(device), not threads

    def prepare(self, function: Function) -> Function:
        """A module on its device, in evaluation mode. On the driver a copy: the other is the user's."""
        if isinstance(function, self._torch.nn.Module):
            return (copy.deepcopy(function) if self._is_driver else function).to(self._device).eval()
        return function

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Gradients cost memory, and nobody asks for them."""
        return self._torch.no_grad()

    def enter(self, array: Array) -> Any:
        """A copy: torch has no read-only tensors, and this is Arrow's memory."""
        if array.dtype.kind not in "biuf":
            raise PlanError("torch has no tensors of strings or bytes; use a function over NumPy arrays for them")
        return self._torch.from_numpy(np.array(array)).to(self._device)

    def leave(self, value: Any, name: str) -> Array:
        """A tensor's values; numbers count as tensors."""
        if not isinstance(value, self._torch.Tensor):
            return np.asarray(value)
        if value.dtype in (self._torch.bfloat16,):  # unknown to NumPy
            raise refuse_dtype(name, "bfloat16", name + self.cast)
        return value.detach().cpu().numpy()

    def several(self, function: Function, inputs: Sequence[Array]) -> Any:
        """By ``torch.vmap``."""
        return self._torch.func.vmap(function)(*map(self.enter, inputs))

    def at_once(self, value: Any, rows: int, name: str) -> Array:
        """``vmap`` has put the rows first."""
        return self.leave(value, name)


class JaxKind:
    """JAX with its 64-bit types on, for these calls alone."""

    cast = ".astype('{}')"

    def __init__(self, device: str, threads: int) -> None:
        try:
            import jax
        except ModuleNotFoundError as error:
            raise missing_extra("jax", "jax") from error
        self._jax = jax
        self._device = jax.devices("cpu" if device == "cpu" else "gpu")[0]
        self._by_row: dict[int, Function] = {}

    def prepare(self, function: Function) -> Function:
        """As it is."""
        return function

    @contextlib.contextmanager
    def context(self) -> Any:
        """Columns keep their dtypes."""
        wide = getattr(self._jax, "enable_x64", None)
        if wide is None:  # before jax 0.8
            from jax.experimental import enable_x64 as wide
        with wide(True), self._jax.default_device(self._device):
            yield

    def enter(self, array: Array) -> Any:
        """On the device."""
        if array.dtype.kind not in "biuf":
            raise PlanError("JAX has no arrays of strings or bytes; use a function over NumPy arrays for them")
        return self._jax.numpy.asarray(array)

    def leave(self, value: Any, name: str) -> Array:
        """An array's values; numbers count as arrays."""
        return np.asarray(value)

    def several(self, function: Function, inputs: Sequence[Array]) -> Any:
        """By ``jax.vmap``, compiled for a few numbers of rows: the last row is repeated up to a power of two."""
        if id(function) not in self._by_row:
            self._by_row[id(function)] = self._jax.jit(self._jax.vmap(function))
        rows = len(inputs[0])
        missing = (1 << (rows - 1).bit_length()) - rows
        whole = (
            [np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for array in inputs] if missing else inputs
        )
        found = self._by_row[id(function)](*map(self.enter, whole))
        return self._jax.tree_util.tree_map(lambda value: value[:rows], found)

    def at_once(self, value: Any, rows: int, name: str) -> Array:
        """``vmap`` has put the rows first."""
        return self.leave(value, name)


_CLASSES: dict[str, Any] = {"jax": JaxKind, "numpy": NumpyKind, "torch": TorchKind}


def make_kind(name: str, device: str = "cpu", threads: int = 0) -> Kind:
    """The kind of this name, in this process."""
    if name not in _CLASSES:
        raise UnknownName("kind of function", name, KINDS)
    made: Kind = _CLASSES[name](device, threads)
    return made


def kind_of(function: Any) -> str:
    """The kind that a function shows: a torch module, what JAX compiles, a Keras layer of either; else NumPy's."""
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(function).__mro__}
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if any(name.startswith("jaxlib.") for name in names) and hasattr(function, "lower"):
        return "jax"
    if any(name.startswith("keras.src.backend.jax.") for name in names):
        return "jax"
    return "numpy"


def is_layer(function: Any) -> bool:
    """Whether this is a torch module or a Keras layer: something that is called through a method of its own."""
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(function).__mro__}
    return "torch.nn.modules.module.Module" in names or "keras.src.layers.layer.Layer" in names
