"""Map by names over columns that are here: a pandas frame's, on the driver, by the code that tasks run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.core import registry
from firesteel.core.plan import Map
from firesteel.core.spec import TensorSpec
from firesteel.data.cells import Read, text_of, to_cells
from firesteel.engine.blocks import Values, results, trimmed, work_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["map_columns", "output_frame"]


def map_columns(plan: Map, reads: Sequence[Read], columns: Sequence[pa.Array], rows: int) -> list[Any]:
    """The cells of each output. Where nothing is read, ``rows`` still says how many there are."""
    replica: Any = registry.framework(plan.program.framework).replica(plan.program, "cpu", 0)
    arrays = list(columns) or [pa.nulls(rows, pa.bool_())]
    batch = pa.RecordBatch.from_arrays(arrays, [f"r{place}" for place in range(len(arrays))])
    work = work_of(plan, reads)
    found: list[Values] = (
        list(trimmed(replica, work, iter([batch])))
        if plan.is_trimmed
        else [values for _, values in results(replica, work, iter([batch]))]
    )
    return [_cells([values[place] for values in found], spec) for place, spec in enumerate(plan.outputs)]


def _cells(parts: Sequence[Any], spec: TensorSpec) -> Any:
    if not parts:
        is_number = not spec.shape and spec.dtype not in ("string", "binary")
        return np.empty(0, spec.dtype if is_number else object)
    whole = [to_cells(part, len(part)) for part in parts]
    cells = whole[0] if len(whole) == 1 else np.concatenate(whole)
    return text_of(cells) if spec.dtype == "string" else cells


def output_frame(frame: pd.DataFrame, plan: Map, cells: Sequence[Any]) -> pd.DataFrame:
    """A new frame: the outputs, then (unless trimmed) the columns there were, with their index."""
    import pandas as pd

    columns = {spec.name: value for spec, value in zip(plan.outputs, cells, strict=True)}
    if plan.is_trimmed:
        return pd.DataFrame(columns)
    made = pd.DataFrame(columns, index=frame.index)
    return pd.concat([made, frame], axis=1)
