"""A shard as JSON and raw buffers, and back, exactly. What ``save_parquet`` writes; nothing is pickled.

Arrays are buffers, with dtype and shape in the JSON. Columns of a frame are arrays where their dtype is NumPy's, and
otherwise what they are made of: codes and categories, values and a mask.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from firesteel.core.errors import SchemaError
from firesteel.data.shards.kinds import is_frame, is_series, type_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["decode", "encode"]

_PLAIN = (type(None), bool, int, str)

# Values that have an exact text.
_TEXTS: dict[str, tuple[type, Any, Any]] = {
    "float": (float, repr, float),  # those that JSON does not have
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "time": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
}


def encode(shard: Any) -> tuple[str, list[bytes]]:
    """The JSON text and the buffers.

    Raises:
        SchemaError: something that cannot be written so, with its type.
    """
    writer = _Writer()
    tree = writer.value(shard)
    return json.dumps(tree, allow_nan=False), writer.buffers


def decode(text: str, buffers: Sequence[bytes]) -> Any:
    """The shard."""
    return _Reader(buffers).value(json.loads(text))


class _Writer:
    def __init__(self) -> None:
        self.buffers: list[bytes] = []

    def value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return value
        if kind is list or kind is tuple:
            return {kind.__name__: [self.value(item) for item in value]}
        if kind is dict:
            if not all(type(key) is str for key in value):
                raise SchemaError(f"a dict with keys that are no strings cannot be written: {list(value)[:5]}")
            return {"dict": {key: self.value(item) for key, item in value.items()}}
        if kind is bytes:
            return {"bytes": self.keep(value)}
        if kind is complex:
            return {"complex": [self.value(value.real), self.value(value.imag)]}
        if isinstance(value, np.generic):
            return {"scalar": self.array(np.asarray(value))}
        if kind is np.ndarray:
            return {"array": self.array(value)}
        for name, (exact, to_text, _) in _TEXTS.items():
            if kind is exact:
                return {name: to_text(value)}
        return self.pandas_value(value)

    def pandas_value(self, value: Any) -> Any:
        import pandas as pd

        if value is pd.NA or value is pd.NaT:
            return {"missing": "NA" if value is pd.NA else "NaT"}
        if is_frame(value):
            data = [self.column(value.iloc[:, place]) for place in range(value.shape[1])]
            return {"frame": {"columns": self.index(value.columns), "index": self.index(value.index), "data": data}}
        if is_series(value):
            data = self.column(value)
            return {"series": {"index": self.index(value.index), "name": self.value(value.name), "data": data}}
        raise SchemaError(
            f"a value of type {type_name(value)} cannot be written without pickle", found=type_name(value)
        )

    def column(self, column: pd.Series | pd.Index) -> Any:
        """A column's or an index's values."""
        import pandas as pd

        dtype: Any = column.dtype
        values: Any = column.array
        if isinstance(dtype, np.dtype):
            plain = column.to_numpy()
            return {"objects": [self.value(cell) for cell in plain]} if dtype.hasobject else self.array(plain)
        if isinstance(dtype, pd.CategoricalDtype):
            categories = self.index(values.categories)
            return {"codes": self.array(values.codes), "categories": categories, "ordered": bool(dtype.ordered)}
        if isinstance(dtype, pd.DatetimeTZDtype):
            return {"zoned": self.array(values.asi8), "unit": dtype.unit, "zone": str(dtype.tz)}
        if isinstance(dtype, pd.StringDtype):
            cells = [None if cell is dtype.na_value or pd.isna(cell) else str(cell) for cell in values]
            return {"strings": cells, "storage": dtype.storage, "na": "nan" if dtype.na_value is np.nan else "NA"}
        if hasattr(values, "_mask"):  # Int64, Float32, boolean, …: pandas' values with a mask
            mask = np.asarray(values.isna())
            data = values.to_numpy(dtype=dtype.numpy_dtype, na_value=dtype.numpy_dtype.type(0))
            return {"masked": self.array(data), "mask": self.array(mask), "dtype": str(dtype)}
        raise SchemaError(f"a column of dtype {dtype} cannot be written without pickle", found=str(dtype))

    def index(self, index: pd.Index) -> Any:
        import pandas as pd

        names = [self.value(name) for name in index.names]
        if isinstance(index, pd.RangeIndex):
            return {"range": [index.start, index.stop, index.step], "names": names}
        if isinstance(index, pd.MultiIndex):
            levels = [self.index(level) for level in index.levels]
            return {"levels": levels, "codes": [self.array(np.asarray(code)) for code in index.codes], "names": names}
        frequency = getattr(index, "freqstr", None)
        return {"values": self.column(index), "names": names, "frequency": frequency}

    def array(self, array: Any) -> Any:
        if array.dtype.hasobject:
            raise SchemaError(f"an array of dtype {array.dtype} cannot be written without pickle", found="object")
        descr = np.lib.format.dtype_to_descr(array.dtype)
        return {"buffer": self.keep(array.tobytes()), "dtype": descr, "shape": list(array.shape)}

    def keep(self, data: bytes) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1


class _Reader:
    def __init__(self, buffers: Sequence[bytes]) -> None:
        self.buffers = buffers

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        ((kind, held),) = tree.items()
        if kind in _TEXTS:
            return _TEXTS[kind][2](held)
        match kind:
            case "list":
                return [self.value(item) for item in held]
            case "tuple":
                return tuple(self.value(item) for item in held)
            case "dict":
                return {key: self.value(item) for key, item in held.items()}
            case "bytes":
                return self.buffers[held]
            case "complex":
                return complex(*map(self.value, held))
            case "scalar":
                return self.array(held)[()]
            case "array":
                return self.array(held)
            case _:
                return self.pandas_value(kind, held)

    def pandas_value(self, kind: str, held: Any) -> Any:
        import pandas as pd

        if kind == "missing":
            return pd.NA if held == "NA" else pd.NaT
        index = self.index(held["index"])
        if kind == "series":
            name, data = self.value(held["name"]), held["data"]
            return pd.Series(self.column(data), index=index, name=name, dtype=_dtype(data), copy=False)
        # By position: two columns may have one name.
        columns = {
            place: pd.Series(self.column(tree), index=index, dtype=_dtype(tree))
            for place, tree in enumerate(held["data"])
        }
        frame = pd.DataFrame(columns, index=index)
        frame.columns = self.index(held["columns"])
        return frame

    def column(self, tree: Any) -> Any:
        import pandas as pd

        if "objects" in tree:
            cells = np.empty(len(tree["objects"]), dtype=object)
            for place, cell in enumerate(tree["objects"]):
                cells[place] = self.value(cell)
            return cells
        if "codes" in tree:
            dtype = pd.CategoricalDtype(self.index(tree["categories"]), ordered=tree["ordered"])
            return pd.Categorical.from_codes(self.array(tree["codes"]), dtype=dtype)
        if "zoned" in tree:
            moments = self.array(tree["zoned"]).view(f"datetime64[{tree['unit']}]")
            return pd.DatetimeIndex(moments, tz="UTC").tz_convert(tree["zone"]).array
        if "strings" in tree:
            missing = np.nan if tree["na"] == "nan" else pd.NA
            return pd.array(tree["strings"], dtype=pd.StringDtype(tree["storage"], missing))
        if "masked" in tree:
            made: Any = pd.array(self.array(tree["masked"]), dtype=tree["dtype"])
            made[self.array(tree["mask"])] = pd.NA
            return made
        return self.array(tree)

    def index(self, tree: Any) -> pd.Index:
        import pandas as pd

        names = [self.value(name) for name in tree["names"]]
        if "range" in tree:
            return pd.RangeIndex(*tree["range"], name=names[0])
        if "levels" in tree:
            levels, codes = map(self.index, tree["levels"]), map(self.array, tree["codes"])
            return pd.MultiIndex(levels=list(levels), codes=list(codes), names=names)
        found = pd.Index(self.column(tree["values"]), name=names[0], dtype=_dtype(tree["values"]))
        if tree["frequency"] is not None and isinstance(found, (pd.DatetimeIndex, pd.TimedeltaIndex)):
            found.freq = tree["frequency"]
        return found

    def array(self, tree: Any) -> Any:
        dtype = np.lib.format.descr_to_dtype(_tuples(tree["dtype"]))
        # A copy: what is read may be changed in place.
        return np.frombuffer(self.buffers[tree["buffer"]], dtype=dtype).reshape(tree["shape"]).copy()


def _dtype(tree: Any) -> Any:
    """Objects stay objects: pandas would make dates of those that look like some."""
    return object if "objects" in tree else None


def _tuples(descr: Any) -> Any:
    """JSON has lists where NumPy's descriptions of fields have tuples."""
    if isinstance(descr, str):
        return descr
    return [(field[0], _tuples(field[1]), *(tuple(shape) for shape in field[2:])) for field in descr]
