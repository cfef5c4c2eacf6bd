"""Many rows of NumPy code at a time: arrays that pretend to be one row's cell and hold all rows' cells.

A function of one row is called once with ``Rows`` in place of cells. Every operation that it does on them is done for
all rows, with the axes counted from the cell's first one. What cannot be done so (a branch on a value, a call into
other code) raises ``OneByOne``, and the rows are then computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["OneByOne", "Rows"]

Array = npt.NDArray[Any]


class OneByOne(BaseException):
    """This cannot be done for all rows at once. Not an ``Exception``: a user's handler must not take it for one."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise OneByOne


class Rows(np.lib.mixins.NDArrayOperatorsMixin):
    """The cells of all rows, ``(rows, *cell)``, where code expects one cell."""

    __slots__ = ("values",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Array) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """A cell's."""
        return self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """A cell's."""
        return self.values.ndim - 1

    @property
    def size(self) -> int:
        """A cell's."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        """A cell's."""
        return self.values.dtype

    @property
    def T(self) -> Rows:  # noqa: N802 - NumPy's name
        """A cell's axes turned round."""
        return _transpose(self)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("object of type 'numpy scalar' has no len()")
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> Rows:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(each is None or each is Ellipsis or isinstance(each, (int, np.integer, slice)) for each in keys):
            raise OneByOne  # arrays of places and masks pick differently in each row, or change the order of axes
        if any(isinstance(each, (bool, np.bool_)) for each in keys):
            raise OneByOne
        if sum(each is not None and each is not Ellipsis for each in keys) > self.ndim:
            raise OneByOne  # the error is the cell's own
        return Rows(self.values[(slice(None), *keys)])

    def astype(self, dtype: Any, **options: Any) -> Rows:
        """The cells in another dtype."""
        return Rows(self.values.astype(dtype, **options))

    def copy(self) -> Rows:
        """The cells again."""
        return Rows(self.values.copy())

    def reshape(self, *shape: Any, **options: Any) -> Rows:
        """The cells in another shape."""
        return _reshape(self, shape[0] if len(shape) == 1 else shape, **options)

    def transpose(self, *axes: Any) -> Rows:
        """The cells with axes in another order."""
        return _transpose(self, *axes) if len(axes) == 1 else _transpose(self, axes or None)

    def flatten(self) -> Rows:
        """Each cell as one run of values."""
        return Rows(self.values.reshape(len(self.values), -1))

    ravel = flatten

    def dot(self, other: Any) -> Rows:
        """See ``numpy.dot``."""
        return _dot(self, other)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if set(options) - {"dtype", "axis", "keepdims", "initial", "casting"}:
            raise OneByOne
        if method in ("reduce", "accumulate"):
            return _along(getattr(ufunc, method), default=0)(inputs[0], **options)
        if method != "__call__":
            raise OneByOne
        if ufunc is np.matmul:
            return _matmul(*inputs, **options)
        if ufunc.signature is not None:
            raise OneByOne
        found = ufunc(*_aligned(inputs), **options)
        return tuple(map(Rows, found)) if isinstance(found, tuple) else Rows(found)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        handler = _FUNCTIONS.get(func)
        if handler is None or "out" in kwargs or "where" in kwargs:
            raise OneByOne
        return handler(*args, **kwargs)

    # What looks at one value, or makes something else of it.
    __bool__ = __float__ = __int__ = __index__ = __complex__ = __setitem__ = __contains__ = _refuse
    __array__ = __str__ = __repr__ = __format__ = __round__ = __reduce_ex__ = _refuse
    item = tolist = tobytes = view = fill = _refuse


def _aligned(inputs: Any) -> list[Any]:
    """Operands whose cells broadcast as they would one by one: missing axes are put between the rows and the cell."""
    axes = max(each.ndim if isinstance(each, Rows) else np.ndim(each) for each in inputs)
    found = []
    for each in inputs:
        if isinstance(each, Rows):
            missing = (1,) * (axes - each.ndim)
            found.append(each.values.reshape(len(each.values), *missing, *each.shape))
        else:
            found.append(each)
    return found


def _elementwise(func: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Rows:
        if any(isinstance(each, Rows) for each in options.values()):
            raise OneByOne
        return Rows(func(*_aligned(args), **options))

    return call


def _axes(axis: Any, ndim: int) -> Any:
    """A cell's axes, counted among the rows'."""
    if isinstance(axis, tuple):
        return tuple(_axes(each, ndim) for each in axis)
    place = int(axis)
    if not -ndim <= place < ndim:
        raise OneByOne  # the error is the cell's own
    return place % ndim + 1


def _along(func: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
    """A function along axes: of one array, whose axis ``None`` means all of a cell."""

    def call(a: Any, axis: Any = default, **options: Any) -> Rows:
        if not isinstance(a, Rows) or any(isinstance(each, Rows) for each in options.values()):
            raise OneByOne
        values = a.values
        if axis is None:
            if options.get("keepdims"):
                raise OneByOne
            values, axis = values.reshape(len(values), -1), 1
        else:
            axis = _axes(axis, a.ndim)
        return Rows(func(values, axis=axis, **options))

    return call


def _reshape(a: Rows, shape: Any, **options: Any) -> Rows:
    if options or not isinstance(a, Rows):
        raise OneByOne
    wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return Rows(a.values.reshape(len(a.values), *wanted))


def _transpose(a: Rows, axes: Any = None) -> Rows:
    order = range(a.ndim)[::-1] if axes is None else axes
    return Rows(a.values.transpose(0, *(_axes(axis, a.ndim) for axis in order)))


def _expand(a: Rows, axis: Any) -> Rows:
    return Rows(np.expand_dims(a.values, _axes(axis, a.ndim + (len(axis) if isinstance(axis, tuple) else 1))))


def _squeeze(a: Rows, axis: Any = None) -> Rows:
    if axis is None:
        axis = tuple(place for place, length in enumerate(a.shape) if length == 1)
    return Rows(np.squeeze(a.values, _axes(axis, a.ndim)))


def _joined(func: Callable[..., Any], is_new_axis: bool) -> Callable[..., Any]:
    def call(arrays: Any, axis: int = 0, **options: Any) -> Rows:
        parts = list(arrays)
        rows = next((len(each.values) for each in parts if isinstance(each, Rows)), None)
        if options or rows is None:
            raise OneByOne
        whole = [
            each.values if isinstance(each, Rows) else np.broadcast_to(each, (rows, *np.shape(each))) for each in parts
        ]
        return Rows(func(whole, axis=_axes(axis, whole[0].ndim - 1 + is_new_axis)))

    return call


def _matmul(a: Any, b: Any, **options: Any) -> Rows:
    ranks = [each.ndim if isinstance(each, Rows) else np.ndim(each) for each in (a, b)]
    if options or not all(1 <= rank <= 2 for rank in ranks):
        raise OneByOne
    left, right = (each.values if isinstance(each, Rows) else np.asarray(each) for each in (a, b))
    left = left[..., None, :] if ranks[0] == 1 else left
    right = right[..., :, None] if ranks[1] == 1 else right
    found = np.matmul(left, right)
    if ranks[1] == 1:
        found = found[..., 0]
    if ranks[0] == 1:
        found = found[..., 0] if ranks[1] == 1 else found[..., 0, :]
    return Rows(found)


def _dot(a: Any, b: Any) -> Any:
    if min(each.ndim if isinstance(each, Rows) else np.ndim(each) for each in (a, b)) == 0:
        return np.multiply(a, b)
    return _matmul(a, b)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Rows:
    if not isinstance(x, Rows) or not 1 <= x.ndim <= 2:
        raise OneByOne
    where = tuple(range(x.ndim)) if axis is None else axis
    where = where[0] if isinstance(where, tuple) and len(where) == 1 else where
    return Rows(np.linalg.norm(x.values, ord, _axes(where, x.ndim), keepdims))


def _where(condition: Any, *choices: Any) -> Rows:
    if len(choices) != 2:
        raise OneByOne
    return Rows(np.where(*_aligned((condition, *choices))))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.concatenate: _joined(np.concatenate, False),
    np.stack: _joined(np.stack, True),
    np.dot: _dot,
    np.expand_dims: _expand,
    np.linalg.norm: _norm,
    np.ndim: lambda a: a.ndim,
    np.ravel: lambda a, **options: a.flatten() if not options else _refuse(),
    np.reshape: _reshape,
    np.shape: lambda a: a.shape,
    np.size: lambda a: a.size,
    np.squeeze: _squeeze,
    np.transpose: _transpose,
    np.where: _where,
}
for _name in (
    "clip",
    "round",
    "around",
    "nan_to_num",
    "zeros_like",
    "ones_like",
    "full_like",
    "real",
    "imag",
    "isclose",
):
    _FUNCTIONS[getattr(np, _name)] = _elementwise(getattr(np, _name))
for _name in ("sum", "prod", "mean", "std", "var", "min", "max", "ptp", "any", "all", "argmin", "argmax", "median"):
    _FUNCTIONS[getattr(np, _name)] = _along(getattr(np, _name))
for _name in ("nansum", "nanprod", "nanmean", "nanmin", "nanmax", "cumsum", "cumprod", "count_nonzero"):
    _FUNCTIONS[getattr(np, _name)] = _along(getattr(np, _name))
for _name in ("sort", "argsort"):
    _FUNCTIONS[getattr(np, _name)] = _along(getattr(np, _name), default=-1)
_FUNCTIONS[np.amin], _FUNCTIONS[np.amax] = _FUNCTIONS[np.min], _FUNCTIONS[np.max]


def _method(name: str) -> Callable[..., Any]:
    def call(self: Rows, *args: Any, **options: Any) -> Any:
        if "out" in options or "where" in options:
            raise OneByOne
        return _FUNCTIONS[getattr(np, name)](self, *args, **options)

    return call


for _name in ("sum", "prod", "mean", "std", "var", "min", "max", "any", "all", "argmin", "argmax", "cumsum", "cumprod"):
    setattr(Rows, _name, _method(_name))
for _name in ("clip", "round", "squeeze"):
    setattr(Rows, _name, _method(_name))
