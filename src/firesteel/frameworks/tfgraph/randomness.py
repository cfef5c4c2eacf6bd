"""Random ops of a GraphDef made functions of a seed: for initial values, and anew for each step of a training."""

from __future__ import annotations

import zlib
from typing import Any

__all__ = ["SEED_OP", "fix_seeds", "follow_seed"]

SEED_OP = "firesteel_seed_handle"
"""The variable that random ops follow, by a shared name: also from inside functions, which take no input for it."""

_SHARED = b"firesteel/seed"

# Stateful op -> the one that is a function of its seed, and at which place that one takes it.
_STATELESS = {
    "RandomUniform": ("StatelessRandomUniform", 1),
    "RandomStandardNormal": ("StatelessRandomNormal", 1),
    "TruncatedNormal": ("StatelessTruncatedNormal", 1),
    "RandomUniformInt": ("StatelessRandomUniformInt", 1),
    "Multinomial": ("StatelessMultinomial", 2),
}
_INT64 = 9  # types.proto


def fix_seeds(graph_def: Any, seed: int) -> None:
    """Give random ops that have no seed one that depends on ``seed`` and on the op's name. In place."""
    for node in graph_def.node:
        if "seed" in node.attr and "seed2" in node.attr and not (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed"].i = 1 + seed % (2**31 - 1)
            node.attr["seed2"].i = 1 + zlib.crc32(node.name.encode())


def follow_seed(graph_def: Any) -> bool:
    """Make random ops functions of the variable ``SEED_OP`` and of their names; whether there are any. In place."""
    inside = [_rewrite(each.node_def, each.signature.name, in_function=True) for each in graph_def.library.function]
    return _rewrite(graph_def.node, "", in_function=False, is_needed=any(inside))


def _rewrite(nodes: Any, where: str, *, in_function: bool, is_needed: bool = False) -> bool:
    random = [node for node in nodes if node.op in _STATELESS]
    if not random and not is_needed:
        return False
    handle = nodes.add(name=SEED_OP, op="VarHandleOp")
    read = nodes.add(name="firesteel_seed", op="ReadVariableOp")
    _kind(handle.attr["dtype"])
    handle.attr["shape"].shape.dim.add(size=2)
    handle.attr["shared_name"].s = _SHARED
    handle.attr["container"].s = b""
    _kind(read.attr["dtype"])
    read.input.append(f"{SEED_OP}:resource:0" if in_function else SEED_OP)
    for node in random:
        own = nodes.add(name=f"{node.name}/firesteel_number", op="Const")
        _kind(own.attr["dtype"])
        own.attr["value"].tensor.dtype = _INT64
        own.attr["value"].tensor.tensor_shape.dim.add(size=2)
        own.attr["value"].tensor.int64_val.extend([zlib.crc32(f"{where}/{node.name}".encode()), 0])
        mixed = nodes.add(name=f"{node.name}/firesteel_seed", op="AddV2")
        _kind(mixed.attr["T"])
        mixed.input.append("firesteel_seed:value:0" if in_function else "firesteel_seed")
        mixed.input.append(f"{own.name}:output:0" if in_function else own.name)
        _replace(node, f"{mixed.name}:z:0" if in_function else mixed.name)
    return True


def _replace(node: Any, seed: str) -> None:
    node.op, place = _STATELESS[node.op]
    data = [name for name in node.input if not name.startswith("^")]
    after = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend([*data[:place], seed, *data[place:], *after])
    for name in ("seed", "seed2"):
        node.attr.pop(name, None)
    if "Tout" in node.attr:  # RandomUniformInt calls its dtype so
        node.attr["dtype"].CopyFrom(node.attr["Tout"])
        del node.attr["Tout"]
    _kind(node.attr["Tseed"])


def _kind(attribute: Any) -> None:
    attribute.type = _INT64
