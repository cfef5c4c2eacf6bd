"""The plot of a page whose parts were measured by several runs: what its tables say, as a picture beside it.

python -m benchmarks.page docs/benchmarks.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Estimate, Figure, Goal, Row
from benchmarks.plot import plot

__all__ = ["rows_in"]

_NUMBER = r"([\d.,e+-]+)"
_RATIO = re.compile(rf"{_NUMBER} \({_NUMBER} to {_NUMBER}\)")
_LIMIT = re.compile(r"(?P<sign>[≥≤]) (?P<limit>\S+)(?: \(aim (?P<aim>\S+)\))?")


def rows_in(text: str) -> Iterator[tuple[str, Row]]:
    """The lines of all tables that have a ratio, each with its case's title; see ``harness.table``."""
    title = ""
    for line in text.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        ratio = _RATIO.fullmatch(cells[4]) if len(cells) == 7 else None
        if ratio is not None:
            estimate = Estimate(*map(_number, ratio.groups()))
            goal = _goal(cells[5])
            # A goal of the value itself looks the same; the table's own verdict tells.
            if goal is not None and goal.holds(estimate.median) != cells[6].startswith("holds"):
                goal = replace(goal, of_value=True)
            yield title, Row(Figure(cells[0], ""), cells[1], ratio=estimate, goal=goal)


def _goal(text: str) -> Goal | None:
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    limit, aim = float(found["limit"]), found["aim"]
    is_least = found["sign"] == "≥"
    return Goal(limit if is_least else None, None if is_least else limit, None if aim is None else float(aim))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.with_suffix(".svg").write_text(plot(list(rows_in(page.read_text()))))
