"""The five verbs: a program on each row or block of a frame, and folds of all rows or of each key's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firesteel.core.errors import PlanError, UnsupportedError
from firesteel.core.plan import Map, Reduce, positive
from firesteel.data.grouping import keys_of
from firesteel.engine.aggregate import aggregate_frame
from firesteel.frontends.frames.binding import bind_map, bind_reduce, check_free, input_name
from firesteel.frontends.frames.programs import Captured, capture
from firesteel.frontends.frames.tables import PandasTable, SparkTable, Table, table_of

__all__ = ["aggregate", "map_blocks", "map_rows", "reduce_blocks", "reduce_rows"]


def map_rows(
    fetches: Any,
    dframe: Any,
    feed_dict: Mapping[Any, str] | None = None,
    initial_variables: bool = True,
    schema: Any = None,
) -> Any:
    """The program on each row by itself: a frame with a column for each output, then all that it had.

    Lazy on a Spark DataFrame, whose schema is complete at once; at once on a pandas frame.

    Args:
        fetches: tensors of a TensorFlow graph, a ``tf.function``, a torch module, a jitted JAX function, a function of
            NumPy arrays, or a ``program``. Its inputs have the shape of a cell.
        dframe: a Spark or a pandas DataFrame.
        feed_dict: input's name → column's name, where they differ.
        initial_variables: variables of a graph without a value in the session get their initial one.
        schema: outputs that cannot be known before the data: ``{name: (dtype, cell shape)}`` or a DDL string.

    Raises:
        PlanError: (a ``ValueError``) names, dtypes or shapes do not fit. No job has been started then.
    """
    table = table_of(dframe)
    captured = capture(fetches, initial_variables=initial_variables)
    if isinstance(table, PandasTable) and _has_rows(captured, table, feed_dict):
        return _map(captured, table, feed_dict, schema, each="block")
    return _map(captured, table, feed_dict, schema, each="row")


def map_blocks(
    fetches: Any,
    dframe: Any,
    feed_dict: Mapping[Any, str] | None = None,
    trim: bool = False,
    initial_variables: bool = True,
    block_size: int | None = None,
    schema: Any = None,
) -> Any:
    """The program on each block of rows: a frame with a column for each output, then (unless trimmed) all that it had.

    A block is a partition, or at most ``block_size`` rows of one that follow each other. Lazy as ``map_rows``.

    Args:
        fetches: as in ``map_rows``; its inputs have one leading dimension more, the rows.
        dframe: a Spark or a pandas DataFrame.
        feed_dict: input's name → column's name, where they differ.
        trim: keep only the outputs, of which a block may have any number of rows; else there must be as many as came.
        initial_variables: variables of a graph without a value in the session get their initial one.
        block_size: rows of a block at most; memory then does not grow with partitions.
        schema: outputs that cannot be known before the data: ``{name: (dtype, cell shape)}`` or a DDL string.

    Raises:
        PlanError: (a ``ValueError``) names, dtypes or shapes do not fit. No job has been started then.
    """
    table = table_of(dframe)
    size = positive(block_size, "block_size", none=True) or 0
    captured = capture(fetches, initial_variables=initial_variables)
    return _map(captured, table, feed_dict, schema, each="block", trim=bool(trim), block_size=size)


def _map(
    captured: Captured,
    table: Table,
    feed_dict: Mapping[Any, str] | None,
    schema: Any,
    *,
    each: str,
    trim: bool = False,
    block_size: int = 0,
) -> Any:
    bound, reads, specs = bind_map(captured, table, feed_dict, schema, each=each, has_fixed_rows=not block_size)
    if not trim:
        check_free(specs, table)
    plan = Map(
        bound.program,
        block_size,
        each=each,
        is_trimmed=trim,
        feeds=tuple((read.name, read.column.name) for read in reads),
        outputs=specs,
    )
    return table.map(plan, reads)


def _has_rows(captured: Captured, table: Table, feed_dict: Mapping[Any, str] | None) -> bool:
    """Whether all inputs say that they have a leading dimension more than the cells of their columns."""
    renamed = {input_name(key): name for key, name in (feed_dict or {}).items()}
    found = []
    for port in captured.inputs:
        column = table.find(renamed.get(port.name, port.name))
        if port.shape is None or column is None or isinstance(column, str):
            return False
        found.append(len(port.shape) == len(column.cell) + 1)
    return bool(found) and all(found)


def reduce_rows(fetches: Any, dframe: Any, initial_variables: bool = True) -> Any:
    """Two rows into one, again and again, until one is left: its cells, in the order of the fetches.

    For each column ``x`` the program has an output ``x`` and the inputs ``x_1`` and ``x_2``. It must be associative;
    the order of the rows is kept. Runs a job.

    Returns:
        A number for a scalar cell, else an array; a list of those for several fetches.
    """
    return _reduce("reduce_rows", fetches, dframe, initial_variables)


def reduce_blocks(fetches: Any, dframe: Any, initial_variables: bool = True) -> Any:
    """A block of rows into one, then blocks of such rows, until one is left: its cells, in the order of the fetches.

    For each output ``x`` there is a column ``x``, and the program has an input ``x_input`` with a leading dimension
    more. It must be associative; the order of the rows is kept. Runs a job.

    Returns:
        A number for a scalar cell, else an array; a list of those for several fetches.
    """
    return _reduce("reduce_blocks", fetches, dframe, initial_variables)


def _reduce(verb: str, fetches: Any, dframe: Any, initial_variables: bool) -> Any:
    table = table_of(dframe)
    table.refuse_stream(verb)
    captured = capture(fetches, initial_variables=initial_variables)
    if verb == "reduce_rows" and not captured.is_algebraic:
        raise PlanError("reduce_rows takes two rows at a time: a program with algebraic=False is for reduce_blocks")
    bound, reads, specs = bind_reduce(captured, table, verb=verb)
    each = verb.removeprefix("reduce_").removesuffix("s")
    plan = Reduce(bound.program, 0, each=each, outputs=specs, is_algebraic=captured.is_algebraic)
    row = table.reduce(plan, reads)
    values = [_value(row[spec.name][0]) for spec in specs]
    return values[0] if len(values) == 1 and not captured.is_list else values


def _value(cell: Any) -> Any:
    """A Python number for a scalar; an array of one's own for others."""
    if getattr(cell, "ndim", 0):
        return cell.copy()
    return cell.item() if hasattr(cell, "item") else cell


def aggregate(fetches: Any, grouped_data: Any, initial_variables: bool = True) -> Any:
    """``reduce_blocks`` for each group of ``df.groupBy(…)``: the key columns, then a column for each fetch. Lazy.

    Rows are folded where they lie before they are brought together; any number of keys of any type, also null ones.
    """
    df, keys = keys_of(grouped_data)
    table = SparkTable(df)
    table.refuse_stream("aggregate")
    captured = capture(fetches, initial_variables=initial_variables)
    bound, reads, specs = bind_reduce(captured, table, verb="aggregate")
    names = tuple(df.select(*keys).columns)
    taken = [spec.name for spec in specs if spec.name in names]
    if taken:
        raise PlanError(
            f"outputs have the names of key columns: {', '.join(taken)}; rename those columns before groupBy"
        )
    _check_keys(df.select(*keys).schema)
    plan = Reduce(bound.program, 0, each="block", keys=names, outputs=specs, is_algebraic=captured.is_algebraic)
    return aggregate_frame(df, keys, plan, reads)


def _check_keys(schema: Any) -> None:
    """Strings that are compared by other rules than their bytes are not told apart as Spark would."""
    for field in schema.fields:
        if "collate" in field.dataType.simpleString().lower():
            raise UnsupportedError(
                f"key {field.name!r} is {field.dataType.simpleString()}; group by a column that is compared by its "
                f"bytes, as in lower(col({field.name!r})) collated UTF8_BINARY"
            )
