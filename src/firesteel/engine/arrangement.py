"""From what all ranks hold to what each has to do, and whose state all go on from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from firesteel.core.errors import PlanError, SchemaError
from firesteel.engine.job import FitJob
from firesteel.engine.newest import Newest
from firesteel.engine.relay import Relay
from firesteel.engine.resuming import begin, row_facts, stream_facts

__all__ = ["Arrangement", "Ear"]

_log = logging.getLogger(__name__)


class Ear(Protocol):
    """Who has to hear of it: the driver's listener, or rank 0's log under Spark Connect."""

    @property
    def is_again(self) -> bool:
        """Whether a gang was lost before the present one."""
        ...

    def rewind(self, to: dict[str, Any]) -> None:
        """A gang goes on from this step: forget what came after it."""
        ...

    def warn(self, text: str) -> None:
        """Warn the user."""
        ...


@dataclass
class Arrangement:
    """From what all ranks hold to what each has to do."""

    world: int
    partitions: int
    relay: Relay
    job: FitJob
    has_validation: bool
    newest: Newest
    listener: Ear
    marks: dict[int, tuple[int, int]]
    meeting: Callable[[], list[Any]] | None = None
    """Prepares the place where a library's ranks meet, and tells its address; see ``engine.groups``."""

    def arrange(self, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See ``Coordinator.arrange``."""
        common: dict[str, Any] = {"restore": self._origin(reports)}
        if self.meeting is not None:
            common["meeting"] = self.meeting()
        if self.has_validation and self.job.validation_stream is None:
            rows = self.relay.rows("validation")
            common["validation"] = {"tensors": self.relay.describe("validation"), "rows": rows}
        if self.job.stream is not None:
            common["position"] = self._begin(stream_facts(self.job))
            return [common] * self.world
        if self.job.is_relayed:
            rows = self.relay.rows("train")
            if rows == 0:
                raise PlanError("the training data has no rows")
            common |= {"tensors": self.relay.describe("train"), "counts": [rows], "blocks": []}
            common["position"] = self._begin(row_facts(self.job, [rows]))
            return [{**common, "holdings": [[0, 0, rank, self.world]]} for rank in range(self.world)]
        return self._from_spools(reports, common)

    def _origin(self, reports: list[dict[str, Any]]) -> int | str | None:
        """Whose state all go on from: the rank's with the newest commit, the driver's, or the plan's own start."""
        kept = [(report["kept"]["step"], -rank) for rank, report in enumerate(reports) if report["kept"]]
        here = self.newest.find() if self.listener.is_again else None
        if kept and (here is None or max(kept)[0] >= here["step"]):
            rank = -max(kept)[1]
            self.listener.rewind(reports[rank]["kept"])
            return rank
        if self.listener.is_again:
            start = self.job.plan.position
            self.listener.rewind(here or {"step": start.step, "epoch": start.epoch})
        return None if here is None else "driver"

    def _begin(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The plan's position, as it is to be taken with these data."""
        return asdict(begin(self.job.plan, facts, self.listener.warn))

    def _check_marks(self, reports: list[dict[str, Any]]) -> None:
        """Rows that are read again must be the same ones in the same order, or a position in them means nothing."""
        counts = {partition: rows for report in reports for partition, _, rows in report["blocks"]}
        found = {partition: (counts[partition], mark) for report in reports for partition, mark in report["marks"]}
        changed = [p for p, mark in found.items() if self.marks.get(p, mark) != mark]
        self.marks |= found
        if changed:
            self.listener.warn(
                f"partition {changed[0]} of the training data had other rows, or another order, when it was read again "
                f"after a loss: in this epoch some of its rows count twice and others not at all. "
                f"Training on a cached or stored DataFrame avoids that"
            )

    def _from_spools(self, reports: list[dict[str, Any]], common: dict[str, Any]) -> list[dict[str, Any]]:
        tensors = [report["tensors"] for report in reports if report["tensors"] is not None]
        if not tensors:
            raise PlanError("the training data has no rows")
        for other in tensors[1:]:
            for (name, dtype, shape), (_, other_dtype, other_shape) in zip(tensors[0], other, strict=True):
                if (dtype, shape) != (other_dtype, other_shape):
                    raise SchemaError(
                        f"rows of {name!r} have shape {tuple(shape)} in one partition "
                        f"and {tuple(other_shape)} in another",
                        column=name,
                    )
        self._check_marks(reports)
        counts = [0] * self.partitions
        holders: dict[int, list[int]] = {}
        for rank, report in enumerate(reports):
            for partition, _, rows in report["blocks"]:
                counts[partition] = rows
                if rank not in holders.setdefault(partition, []):
                    holders[partition].append(rank)
        _warn_of_skew([sum(counts[p] / len(r) for p, r in holders.items() if rank in r) for rank in range(self.world)])
        common |= {"tensors": tensors[0], "counts": counts}
        common["position"] = self._begin(row_facts(self.job, counts, self.marks))
        assignments = []
        for rank, report in enumerate(reports):
            first = {partition: begin for partition, begin, _ in reversed(report["blocks"])}
            holdings = [[p, begin, holders[p].index(rank), len(holders[p])] for p, begin in first.items()]
            assignments.append({**common, "blocks": report["blocks"], "holdings": holdings})
        return assignments


def _warn_of_skew(rows: list[float]) -> None:
    if len(rows) > 1 and max(rows) > 4 * (sum(rows) / len(rows)) * 0.5 and min(rows) < 0.25 * max(rows):
        _log.warning(
            "replicas hold between %d and %d rows, and each step waits for the slowest: "
            "df.repartition(%d) would even that out",
            min(rows),
            max(rows),
            len(rows),
        )
