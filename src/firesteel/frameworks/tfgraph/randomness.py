"""Random ops of a GraphDef made functions of a seed."""

from __future__ import annotations

import zlib
from typing import Any

__all__ = ["fix_seeds"]


def fix_seeds(graph_def: Any, seed: int) -> None:
    """Give random ops that have no seed one that depends on ``seed`` and on the op's name. In place."""
    for node in graph_def.node:
        if "seed" in node.attr and "seed2" in node.attr and not (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed"].i = 1 + seed % (2**31 - 1)
            node.attr["seed2"].i = 1 + zlib.crc32(node.name.encode())
