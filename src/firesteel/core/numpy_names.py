"""Names that NumPy 2 no longer has and MXNet's last release looks up, put back before it is imported.

Only what is missing is added; nothing that NumPy has is replaced. It happens in processes that use MXNet, and in no
other: its replicas and servers, and a program that imports ``firesteel.learn.mxnet``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["put_back"]


def put_back() -> list[str]:
    """Add the names that this NumPy lacks; which they were."""
    added = [name for name in _names() if not hasattr(np, name)]
    for name in added:
        setattr(np, name, _names()[name])
    return added


def _names() -> dict[str, Any]:
    return {
        "bool": bool,
        "int": int,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "PINF": float("inf"),
        "NINF": float("-inf"),
        "Inf": float("inf"),
        "NaN": float("nan"),
        "NAN": float("nan"),
        "alltrue": np.all,
        "sometrue": np.any,
        "product": np.prod,
        "round_": np.round,
        "in1d": np.isin,
        "trapz": getattr(np, "trapezoid", None),
        "msort": _msort,
        **{name: _gone(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
    }


def _msort(values: Any) -> Any:
    return np.sort(values, axis=0)


def _gone(name: str) -> Callable[..., Any]:
    def raise_(*args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"numpy.{name} is gone since NumPy 1.20; numpy_financial has it")

    raise_.__name__ = name
    return raise_
