"""GraphDefs as values: what a set of ops needs, cut out of the whole, free of devices.

Nodes are looked at by name; a graph of TensorFlow is only ever made from the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

__all__ = ["cut", "needed", "op_of"]


def op_of(name: str) -> str:
    """The op that an input or a tensor's name stands for."""
    return name.lstrip("^").partition(":")[0]


def needed(graph_def: Any, names: Iterable[str], stop: Collection[str] = ()) -> set[str]:
    """The ops that these ops or tensors depend on, themselves included; nothing beyond the tensors in ``stop``."""
    nodes = {node.name: node for node in graph_def.node}
    fed = {name if ":" in name else f"{name}:0" for name in stop}
    found: set[str] = set()
    waiting = [op_of(name) for name in names if _full(name) not in fed]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += [op_of(each) for each in nodes[name].input if _full(each) not in fed]
    return found


def cut(graph_def: Any, names: Iterable[str]) -> Any:
    """A GraphDef with only what these ops or tensors need, functions included, and no device or colocation in it."""
    kept = needed(graph_def, names)
    made = type(graph_def)()
    made.versions.CopyFrom(graph_def.versions)
    for node in graph_def.node:
        if node.name in kept:
            made.node.add().CopyFrom(node)
    functions = {function.signature.name: function for function in graph_def.library.function}
    used = _used(made.node, functions)
    for name, function in functions.items():
        if name in used:
            made.library.function.add().CopyFrom(function)
    for gradient in graph_def.library.gradient:
        if gradient.function_name in used and gradient.gradient_func in used:
            made.library.gradient.add().CopyFrom(gradient)
    for node in _all_nodes(made):
        node.device = ""
        node.attr.pop("_class", None)  # a colocation may name an op that is not kept
    return made


def _full(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _used(nodes: Iterable[Any], functions: dict[str, Any]) -> set[str]:
    """Names of the functions that these nodes call, directly or through others."""
    found: set[str] = set()
    waiting = [name for node in nodes for name in _called(node)]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in found:
            found.add(name)
            waiting += [each for node in functions[name].node_def for each in _called(node)]
    return found


def _called(node: Any) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (each.name for each in value.list.func)


def _all_nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def
