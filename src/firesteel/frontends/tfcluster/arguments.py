"""A program's arguments as users give them (a dict, a namespace, a list of words), and what we read in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.core.errors import PlanError

__all__ = ["argv_of", "num_gpus_of"]

_FLAG = "--num_gpus"


def argv_of(tf_args: Any) -> tuple[str, ...]:
    """``sys.argv`` of a node: the program's name, and the words where there are any."""
    words = [str(word) for word in tf_args] if isinstance(tf_args, (list, tuple)) else []
    return (sys.argv[0] if sys.argv else "", *words)


def num_gpus_of(tf_args: Any) -> int | None:
    """How many GPUs each node wants, where the arguments say so."""
    found: Any = None
    if isinstance(tf_args, Mapping):
        found = tf_args.get("num_gpus")
    elif isinstance(tf_args, (list, tuple)):
        found = _flag(tf_args)
    else:
        found = getattr(tf_args, "num_gpus", None)
    if found is None:
        return None
    try:
        number = int(found)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise PlanError(f"num_gpus must be a whole number that is not negative, not {found!r}")
    return number


def _flag(words: Sequence[Any]) -> Any:
    found = None
    for place, word in enumerate(map(str, words)):
        name, equals, value = word.partition("=")
        if name not in (_FLAG, _FLAG[1:]):
            continue
        found = value if equals else (words[place + 1] if place + 1 < len(words) else None)
    return found
