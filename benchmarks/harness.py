"""Measure subjects in turns, and say what came out: medians, spread, ratios, goals.

On a machine with neighbours only the ratios inside one run mean anything. So the subjects of a case take turns,
every round in the other direction, and a ratio is the median of the rounds' own ratios: what slowed a round down
slowed both sides of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["CannotRun", "Case", "Estimate", "Figure", "Goal", "Measured", "Row", "measure", "rows_of", "table"]

Sample = Mapping[str, float]
"""What one turn of a subject found: figures by name."""


class CannotRun(Exception):
    """A subject that cannot be measured here, and why, in one line."""


@dataclass(frozen=True)
class Goal:
    """What has to hold for a subject: of its ratio to the reference, or of the value itself."""

    least: float | None = None
    most: float | None = None
    aim: float | None = None
    of_value: bool = False

    def holds(self, value: float) -> bool:
        """Whether this value is inside the limits; the aim is a wish."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            limits = f"{self.least:g} to {self.most:g}"
        else:
            limits = f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"
        return limits if self.aim is None else f"{limits} (aim {self.aim:g})"


@dataclass(frozen=True)
class Figure:
    """One thing that a case finds out about each of its subjects.

    Args:
        title: what it is.
        unit: of the values, as in "rows/s".
        reference: the subject that the others are compared with; ``None`` where a value stands for itself.
        goals: by subject.
        among: the subjects that it is about; ``None``: all.
    """

    title: str
    unit: str
    reference: str | None = None
    goals: Mapping[str, Goal] = field(default_factory=dict)
    among: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Case:
    """Subjects that do the same work.

    Args:
        title: the question, as a heading.
        about: what was done, in a sentence or two: sizes, model, what is counted.
        figures: by the names that samples use.
        subjects: by name; each call is one turn, and returns the figures that this subject has.
        warmups: turns of each subject that are not counted.
    """

    title: str
    about: str
    figures: Mapping[str, Figure]
    subjects: Mapping[str, Callable[[], Sample]]
    warmups: int = 1


@dataclass(frozen=True)
class Estimate:
    """The median of some samples, and how far they lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> Estimate:
        """At least one sample is needed."""
        found = sorted(samples)
        return cls(statistics.median(found), found[0], found[-1])

    @property
    def spread(self) -> float:
        """Half the way from the lowest to the highest, as a part of the median."""
        return (self.high - self.low) / 2 / abs(self.median) if self.median else 0.0


@dataclass(frozen=True)
class Measured:
    """A case with all samples of each subject, round by round, and why some are empty.

    Args:
        case: what was measured.
        samples: by subject; a round in which it could not run has no figures.
        refusals: by subject, the last reason it gave for that.
    """

    case: Case
    samples: Mapping[str, list[Sample]]
    refusals: Mapping[str, str]

    def estimate(self, figure: str, subject: str) -> Estimate | None:
        """The figure's values; ``None`` where this subject has none."""
        found = [sample[figure] for sample in self.samples[subject] if figure in sample]
        return Estimate.of(found) if found else None

    def ratio(self, figure: str, subject: str) -> Estimate | None:
        """Value by the reference's value of the same round; ``None`` where there is nothing to compare."""
        reference = self.case.figures[figure].reference
        if reference is None or subject == reference:
            return None
        pairs = zip(self.samples[subject], self.samples.get(reference, []), strict=False)
        found = [mine[figure] / its[figure] for mine, its in pairs if mine.get(figure) and its.get(figure)]
        return Estimate.of(found) if found else None


def measure(case: Case, repeats: int, say: Callable[[str], None] = lambda line: None) -> Measured:
    """Give each subject ``repeats`` turns.

    One that raises ``CannotRun`` loses the turn. It gets another only if it has run before, and only once: a library
    that hangs now and then is measured all the same, and one that never runs does not cost an hour.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in case.subjects}
    refusals: dict[str, str] = {}
    left: set[str] = set()
    has_run: set[str] = set()
    for turn in range(-case.warmups, repeats):
        names = list(case.subjects)
        # Whoever comes second finds warmer caches or a hotter processor: they change places.
        for name in names if turn % 2 == 0 else reversed(names):
            sample: Sample = {}
            if name not in left:
                try:
                    sample = case.subjects[name]()
                    has_run.add(name)
                except CannotRun as reason:
                    if name in refusals or name not in has_run:
                        left.add(name)
                    refusals[name] = " ".join(str(reason).split())
                    say(f"  {name}: cannot run: {refusals[name]}")
            if turn >= 0:
                samples[name].append(sample)  # also an empty one: rounds are compared with each other
            if not sample:
                continue
            found = ", ".join(f"{key} {value:,.4g} {case.figures[key].unit}" for key, value in sample.items())
            say(f"  {'warm-up' if turn < 0 else f'round {turn + 1}'}, {name}: {found}")
    return Measured(case, samples, refusals)


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    figure: Figure
    subject: str
    value: Estimate | None = None
    ratio: Estimate | None = None
    goal: Goal | None = None
    remark: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the goal was reached; ``None`` without a goal or without a value."""
        judged = self.value if self.goal is not None and self.goal.of_value else self.ratio
        return None if self.goal is None or judged is None else self.goal.holds(judged.median)


def rows_of(measured: Measured) -> list[Row]:
    """A line for each figure of each subject."""
    rows = []
    for key, figure in measured.case.figures.items():
        for subject in figure.among or measured.case.subjects:
            value, goal = measured.estimate(key, subject), figure.goals.get(subject)
            rows.append(
                Row(figure, subject, value, measured.ratio(key, subject), goal, _remark(measured, key, subject))
            )
    return rows


def _remark(measured: Measured, figure: str, subject: str) -> str:
    """What a reader has to know about the rounds without this figure."""
    samples = measured.samples[subject]
    missing = sum(figure not in sample for sample in samples)
    if not missing:
        return ""
    why = measured.refusals.get(subject, "too little work to tell it from the noise")
    if missing == len(samples):
        return f"cannot run: {why}" if subject in measured.refusals else why
    return f"{missing} of {len(samples)} rounds without: {why}"


def table(rows: Iterable[Row]) -> str:
    """The lines as a Markdown table."""
    lines = [
        "| figure | subject | median | spread | ratio (lowest to highest) | goal | |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for row in rows:
        remark = row.remark.replace("|", "/")
        if row.value is None:
            lines.append(f"| {row.figure.title} | {row.subject} | | | | {row.goal or ''} | {remark} |")
            continue
        ratio = ""
        if row.ratio is not None:
            ratio = f"{_number(row.ratio.median)} ({_number(row.ratio.low)} to {_number(row.ratio.high)})"
        elif row.subject == row.figure.reference:
            ratio = "1"
        verdict = "; ".join(filter(None, [{True: "holds", False: "**short**", None: ""}[row.holds], remark]))
        median, spread = f"{_number(row.value.median)} {row.figure.unit}", f"± {row.value.spread:.0%}"
        lines.append(
            f"| {row.figure.title} | {row.subject} | {median} | {spread} | {ratio} | {row.goal or ''} | {verdict} |"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    """Three digits that mean something."""
    if abs(value) >= 1000:
        return f"{round(value, 2 - len(str(int(abs(value)))) + 1):,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
