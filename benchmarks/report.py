"""A run's results as Markdown: for the screen, and between two marks of a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Measured, Row, rows_of, table
from benchmarks.plot import plot

__all__ = ["Report"]

_BEGIN, _END = "<!-- results: written by benchmarks/run.py -->", "<!-- end of the results -->"


@dataclass
class Report:
    """What was measured so far, and how."""

    command: str
    date: str
    repeats: int
    facts: Mapping[str, str]
    measured: list[Measured] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def markdown(self, image: str | None = None) -> str:
        """Everything; ``image`` is the plot's address as seen from the page."""
        lines = ["```", self.command, "```", "", f"{self.date}, rounds: {self.repeats}.", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        if image is not None and any(row.ratio is not None for _, row in self._rows()):
            alt = "The ratio of each subject to its case's reference, and the goals"
            lines += ["", f"![{alt}]({image})", ""]
            lines += ["Bars begin at the reference (1); triangles are goals; the thin line spans all rounds."]
        for measured in self.measured:
            case = measured.case
            lines += ["", f"### {case.title}", "", case.about, "", table(rows_of(measured))]
        if self.failures:
            lines += ["", "### Not measured", ""]
            lines += [f"- {name}: {reason}" for name, reason in self.failures.items()]
        return "\n".join(lines) + "\n"

    def write(self, page: Path) -> None:
        """Put the results between the page's marks, and the plot beside the page.

        Raises:
            ValueError: the page has no marks.
        """
        text = page.read_text()
        if _BEGIN not in text or _END not in text:
            raise ValueError(f"{page} lacks the lines {_BEGIN!r} and {_END!r}, between which results go")
        image = page.with_suffix(".svg")
        head, rest = text.split(_BEGIN, 1)
        tail = rest.split(_END, 1)[1]
        image.write_text(plot(self._rows()))
        page.write_text(f"{head}{_BEGIN}\n\n{self.markdown(image.name)}\n{_END}{tail}")

    def _rows(self) -> Sequence[tuple[str, Row]]:
        return [(measured.case.title, row) for measured in self.measured for row in rows_of(measured)]
