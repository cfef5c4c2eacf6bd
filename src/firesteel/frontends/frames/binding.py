"""Columns and programs matched by name: every rule that needs no data, checked when a verb is called.

Names, dtypes and shapes are looked at in this order; a message lists all that is missing and all that is too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.core.columns import Bound, NotTriedOut, Port, Shape, shape_text
from firesteel.core.errors import PlanError, SchemaError
from firesteel.core.spec import TensorSpec
from firesteel.data.cells import Read
from firesteel.data.columns import TensorColumn, cast_name, declared, fits, has_spark_type
from firesteel.frontends.frames.programs import Captured
from firesteel.frontends.frames.tables import Table, usable

__all__ = ["bind_map", "bind_reduce", "check_free", "input_name"]


def bind_map(
    captured: Captured,
    table: Table,
    feed_dict: Mapping[Any, str] | None,
    schema: Any,
    *,
    each: str,
    has_fixed_rows: bool = True,
) -> tuple[Bound, list[Read], tuple[TensorSpec, ...]]:
    """The program on the table's columns: bound, how it is read, and its outputs' cells, sorted by name.

    ``has_fixed_rows``: blocks are whole partitions, of which the metadata may say how long they are.
    """
    feeds = _feeds(captured, table, feed_dict)
    reads, given = [], {}
    for port, name in feeds:
        column = usable(table, name)
        dtype = _check_dtype(port, column)
        rows = column.shape[0] if has_fixed_rows else None
        shape = column.cell if each == "row" else (rows, *column.cell)
        given[port.name] = Port(port.name, dtype, _check_shape(port, column, shape, each))
        reads.append(Read(port.name, column, dtype))
    said = None if schema is None else declared(schema)
    ports = None
    if said is not None:
        lead: Shape = () if each == "row" else (None,)
        ports = [Port(spec.name, spec.dtype, (*lead, *spec.shape)) for spec in said.values()]
    bound = captured.framework.bind(captured.program, given, ports)
    specs = [_cell(port, each) for port in bound.outputs]
    _check_unique([spec.name for spec in specs])
    return bound, reads, tuple(sorted(specs, key=lambda spec: spec.name))


def _feeds(captured: Captured, table: Table, feed_dict: Mapping[Any, str] | None) -> list[tuple[Port, str]]:
    """Each input, and the column that it is fed with."""
    renamed = {input_name(key): value for key, value in (feed_dict or {}).items()}
    inputs = [port.name for port in captured.inputs]
    unknown = [name for name in renamed if name not in inputs]
    if unknown:
        raise PlanError(
            f"feed_dict names inputs that the program does not have: {_list(unknown)}; its inputs are: {_list(inputs)}"
        )
    lost = [str(name) for name in renamed.values() if table.find(name) is None]
    if lost:
        raise SchemaError(
            f"feed_dict names columns that are not there: {_list(lost)}; the DataFrame has: {_list(table.names)}",
            column=lost[0],
        )
    feeds, missing = [], []
    for port in captured.inputs:
        name = renamed.get(port.name, port.name)
        if table.find(name) is not None:
            feeds.append((port, name))
        elif port.is_needed:
            missing.append(port.name)
    if missing:
        raise SchemaError(
            f"no column is called as these inputs of the program: {_list(missing)}; the DataFrame has: "
            f"{_list(table.names)}. Name another column in feed_dict",
            column=missing[0],
            found=_list(table.names),
        )
    return feeds


def input_name(key: Any) -> str:
    """A key of a feed_dict: a name, or a placeholder."""
    name = key if isinstance(key, str) else getattr(key, "name", None)
    if not isinstance(name, str):
        raise PlanError(f"the keys of a feed_dict are names of inputs, or placeholders, not {key!r}")
    return name.removesuffix(":0")


def _check_dtype(port: Port, column: TensorColumn) -> str:
    """The dtype that the input is fed with."""
    if port.dtype is None:
        return column.dtype
    if not fits(column.dtype, port.dtype):
        raise SchemaError(
            f"column {column.name!r} is {_typed(column)}, but the input {port.name!r} takes {port.dtype}; "
            f"{_remedy(column, port.dtype)}",
            column=column.name,
            expected=port.dtype,
            found=column.dtype,
        )
    return port.dtype


def _remedy(column: TensorColumn, dtype: str) -> str:
    if not has_spark_type(dtype):
        return f"change the input, for Spark has no {dtype}"
    return f"write col({column.name!r}).cast({cast_name(dtype, len(column.cell))!r}), or change the input"


def _typed(column: TensorColumn) -> str:
    return f"{cast_name(column.dtype, len(column.cell))} ({column.dtype})"


def _check_shape(port: Port, column: TensorColumn, shape: Shape, each: str) -> Shape:
    """The shape that the input is fed with: the column's, and what the input itself says."""
    if port.shape is None:
        return shape if each == "row" else (None, *shape[1:])
    wrong = len(port.shape) != len(shape) or any(
        size is not None and size != found for size, found in zip(port.shape, shape, strict=True)
    )
    if wrong:
        is_unknown = len(port.shape) == len(shape) and all(
            size is None or found is None or size == found for size, found in zip(port.shape, shape, strict=True)
        )
        advice = "; make the sizes known with analyze(df), or declare them with append_shape" if is_unknown else ""
        what = "cells" if each == "row" else "blocks"
        raise SchemaError(
            f"the input {port.name!r} has shape {shape_text(port.shape)}, but column {column.name!r} has {what} of "
            f"shape {shape_text(shape)}{advice}",
            column=column.name,
            expected=shape_text(port.shape),
            found=shape_text(shape),
        )
    if each == "row":
        return shape
    return (port.shape[0], *shape[1:])


def _cell(port: Port, each: str) -> TensorSpec:
    assert port.dtype is not None, "an output has a dtype"
    if port.shape is None:
        raise PlanError(
            f"the number of dimensions of output {port.name!r} is not known; declare it, as in "
            f"schema={{{port.name!r}: ({port.dtype!r}, [None])}}"
        )
    if each == "row":
        return TensorSpec(port.name, port.dtype, port.shape)
    if not port.shape:
        raise PlanError(
            f"output {port.name!r} is a scalar, but what comes of a block needs a leading dimension: the rows"
        )
    return TensorSpec(port.name, port.dtype, port.shape[1:])


def _check_unique(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise PlanError(f"two outputs have one name: {_list(twice)}; the outputs are: {_list(names)}")


def check_free(specs: Sequence[TensorSpec], table: Table) -> None:
    """Outputs are new columns, as Spark compares names."""
    there = {name if table.is_exact else name.lower() for name in table.names}
    taken = [spec.name for spec in specs if (spec.name if table.is_exact else spec.name.lower()) in there]
    if taken:
        raise SchemaError(
            f"the DataFrame has columns called as outputs of the program: {_list(taken)}; its columns are: "
            f"{_list(table.names)}. Rename the outputs, or drop those columns",
            column=taken[0],
        )


# --- reductions -------------------------------------------------------------------------------------------------------


def bind_reduce(captured: Captured, table: Table, *, verb: str) -> tuple[Bound, list[Read], tuple[TensorSpec, ...]]:
    """The program as a fold of columns: bound, how they are read, and the columns in the order of the outputs."""
    suffixes = ("_1", "_2") if verb == "reduce_rows" else ("_input",)
    names = _folded_names(captured, table, verb, suffixes)
    columns = {name: usable(table, name) for name in names}
    given = {}
    ports = {port.name: port for port in captured.inputs}
    for name, column in columns.items():
        for suffix in suffixes:
            shape = column.cell if verb == "reduce_rows" else (None, *column.cell)
            given[name + suffix] = _folded_port(ports[name + suffix], column, shape, verb)
    bound = _bind_fold(captured, given, columns)
    outputs = [port.name for port in bound.outputs]
    _check_unique(outputs)
    if set(outputs) != set(names):
        raise _mismatch(verb, table, missing=sorted(set(names) - set(outputs)), extra=sorted(set(outputs) - set(names)))
    for port in bound.outputs:
        _check_folded(port, columns[port.name], is_strict=ports[port.name + suffixes[0]].dtype is not None)
    reads = [Read(name, columns[name], columns[name].dtype) for name in outputs]
    return bound, reads, tuple(columns[name].spec() for name in outputs)


def _bind_fold(captured: Captured, given: Mapping[str, Port], columns: Mapping[str, TensorColumn]) -> Bound:
    """A fold gives cells of the columns it was made of: where nothing else can be known of it, that is."""
    said = [Port(name, column.dtype, column.cell) for name, column in columns.items()]
    if any(column.dtype in ("string", "binary") for column in columns.values()):
        return captured.framework.bind(captured.program, given, said)
    try:
        return captured.framework.bind(captured.program, given)
    except NotTriedOut:
        return captured.framework.bind(captured.program, given, said)


def _folded_names(captured: Captured, table: Table, verb: str, suffixes: tuple[str, ...]) -> list[str]:
    """The columns that are folded: what inputs and outputs say, or an error with all that does not fit."""
    inputs = {port.name: port.is_needed for port in captured.inputs}
    said = captured.outputs
    if said is not None:
        _check_unique(said)
    if verb == "reduce_rows":
        names = list(table.names)
    elif said is not None:
        names = list(said)
    else:
        names = [name.removesuffix("_input") for name in inputs if name.endswith("_input")]
    expected = {name + suffix for name in names for suffix in suffixes}
    missing_inputs = sorted(expected - set(inputs))
    extra_inputs = sorted(name for name, is_needed in inputs.items() if name not in expected and is_needed)
    missing_columns = [name for name in names if table.find(name) is None]
    missing = sorted(set(names) - set(said)) if said is not None else []
    extra = sorted(set(said) - set(names)) if said is not None else []
    if not names or missing_inputs or extra_inputs or missing_columns or missing or extra:
        raise _mismatch(
            verb,
            table,
            missing_inputs=missing_inputs,
            extra_inputs=extra_inputs,
            missing_columns=missing_columns,
            missing=missing,
            extra=extra,
        )
    return names


_RULES = {
    "reduce_rows": "each column x needs an output x and the inputs x_1 and x_2, and there may be no others",
    "reduce_blocks": "each output x needs a column x and the one input x_input, and there may be no others",
}


def _mismatch(verb: str, table: Table, **found: Sequence[str]) -> PlanError:
    words = {
        "missing_inputs": "missing inputs",
        "extra_inputs": "inputs that belong to no column"
        if verb == "reduce_rows"
        else "inputs that belong to no output",
        "missing_columns": "missing columns",
        "missing": "columns without an output" if verb == "reduce_rows" else "missing outputs",
        "extra": "outputs without a column" if verb == "reduce_rows" else "outputs without an input",
    }
    parts = [f"{words[kind]}: {_list(names)}" for kind, names in found.items() if names]
    rule = _RULES.get(verb, _RULES["reduce_blocks"])
    return PlanError(
        f"the program does not fit {verb}: {rule}. {'; '.join(parts) or 'It has no such input'}. "
        f"The DataFrame's columns are: {_list(table.names)}"
    )


def _folded_port(port: Port, column: TensorColumn, shape: Shape, verb: str) -> Port:
    if port.dtype is not None and not _is_same(port.dtype, column.dtype):
        raise SchemaError(
            f"column {column.name!r} is {_typed(column)}, but the input {port.name!r} of {verb} is {port.dtype}, and "
            f"both must be the same; {_remedy(column, port.dtype)}",
            column=column.name,
            expected=port.dtype,
            found=column.dtype,
        )
    if port.shape is not None:
        if verb != "reduce_rows" and len(port.shape) == len(shape) and port.shape[0] is not None:
            raise PlanError(
                f"the input {port.name!r} has shape {shape_text(port.shape)}; its leading dimension, the rows of a "
                f"block, must be unknown: {shape_text((None, *port.shape[1:]))}"
            )
        _check_shape(port, column, shape, "row" if verb == "reduce_rows" else "block")
    return Port(port.name, column.dtype, shape)


def _is_same(one: str, other: str) -> bool:
    return one == other or {one, other} <= {"string", "binary"}


def _check_folded(port: Port, column: TensorColumn, *, is_strict: bool) -> None:
    """What comes of a fold is a cell of the column; a function's may be wider, and is cast back."""
    assert port.dtype is not None, "an output has a dtype"
    wide = not is_strict and _kind(port.dtype) == _kind(column.dtype)
    if not _is_same(port.dtype, column.dtype) and not wide:
        raise PlanError(
            f"output {port.name!r} is {port.dtype}, but column {column.name!r} is {_typed(column)}, and both must be "
            f"the same; cast the output to {column.dtype}"
        )
    shape, cell = port.shape, column.cell
    if shape is None:
        return
    if len(shape) != len(cell) or any(
        size is not None and found is not None and size != found for size, found in zip(shape, cell, strict=True)
    ):
        raise PlanError(
            f"output {port.name!r} has shape {shape_text(shape)}, but a cell of column {column.name!r} has "
            f"{shape_text(cell)}; a fold gives one cell of what it was made of"
        )


def _kind(dtype: str) -> str:
    return dtype.rstrip("0123456789")


def _list(names: Sequence[str]) -> str:
    return ", ".join(str(name) for name in names) or "none"
