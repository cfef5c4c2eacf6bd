"""The ratios of a run as an SVG picture: a bar from the reference to each subject, a mark where its goal is.

Written by hand rather than by a plotting library: it is thirty rectangles and some text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.harness import Row

__all__ = ["plot"]

_WIDTH, _LEFT, _RIGHT, _TOP, _LINE = 960, 530, 70, 34, 26
_GOOD, _SHORT, _OTHER, _INK, _FAINT = "#2e7d32", "#c62828", "#78909c", "#607d8b", "#b0bec5"


def plot(rows: Sequence[tuple[str, Row]]) -> str:
    """One bar for each row that has a ratio; the first of each pair names its case. The scale is logarithmic."""
    shown = [(case, row) for case, row in rows if row.ratio is not None]
    low, high = _limits([row for _, row in shown])
    titles: dict[tuple[str, str], set[str]] = {}
    for case, row in shown:
        titles.setdefault((case, row.subject), set()).add(row.figure.title)

    def label(case: str, row: Row) -> str:
        is_one = len(titles[case, row.subject]) == 1
        return escape(f"{case}: {row.subject}" if is_one else f"{case}: {row.subject}, {row.figure.title}")

    def x(value: float) -> float:
        part = (math.log10(min(max(value, low), high)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    height = _TOP + _LINE * len(shown) + 16
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12" fill="{_INK}">'
        ),
        "<title>Ratio to the reference of each case</title>",
    ]
    for tick in _ticks(low, high):
        at, strong = x(tick), _INK if tick == 1 else _FAINT
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP - 8}" x2="{at:.1f}" y2="{height - 8}" stroke="{strong}"/>')
        parts.append(f'<text x="{at:.1f}" y="{_TOP - 14}" text-anchor="middle">{tick:g}</text>')
    for place, (case, row) in enumerate(shown):
        assert row.ratio is not None
        middle = _TOP + _LINE * place + _LINE / 2
        begin, end = sorted((x(1), x(row.ratio.median)))
        color = {True: _GOOD, False: _SHORT, None: _OTHER}[row.holds]
        parts.append(f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{label(case, row)}</text>')
        parts.append(
            f'<rect x="{begin:.1f}" y="{middle - 6}" width="{max(end - begin, 1):.1f}" height="12" fill="{color}"/>'
        )
        parts.append(
            f'<line x1="{x(row.ratio.low):.1f}" y1="{middle}" x2="{x(row.ratio.high):.1f}" y2="{middle}" '
            f'stroke="{_INK}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{_WIDTH - _RIGHT + 8}" y="{middle + 4}">{row.ratio.median:.3g}</text>')
        goal = row.goal
        if goal is not None and not goal.of_value:
            at = x(goal.least if goal.least is not None else goal.most or 1)
            parts.append(f'<path d="M{at:.1f} {middle + 2} l-5 9 h10 z" fill="{_INK}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Powers of ten, halves and fifths of them, around all ratios, goals and 1."""
    values = [1.0]
    for row in rows:
        values += [row.ratio.low, row.ratio.high] if row.ratio is not None else []
        values += [limit for limit in (row.goal.least, row.goal.most) if limit] if row.goal is not None else []
    low, high = min(values) / 1.2, max(values) * 1.2
    return max(tick for tick in _steps() if tick <= low), min(tick for tick in _steps() if tick >= high)


def _ticks(low: float, high: float) -> list[float]:
    return [tick for tick in _steps() if low <= tick <= high]


def _steps() -> list[float]:
    return [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 5)]
