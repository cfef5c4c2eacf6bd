"""Whether a place in the middle of a pass over the data still means what it meant when it was noted.

A position counts steps. Which rows those were follows from the batch size, the seed and how many rows each partition
has (``data.order``), so a position is noted with these facts. With another batch size the place is found again
exactly; with rows that lie otherwise it cannot be, and going on would count some rows twice and others not at all.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.core.plan import Fit, Position
from firesteel.engine.job import FitJob

__all__ = ["begin", "row_facts", "stream_facts"]

Facts = dict[str, Any]


def row_facts(job: FitJob, counts: Sequence[int], marks: Mapping[int, tuple[int, int]] | None = None) -> Facts:
    """What the order of rows in partitions follows from, and a mark of what the rows are."""
    return {
        "batch_size": job.plan.batch_size,
        "seed": job.plan.seed,
        "shuffle": job.plan.shuffle,
        "rows": sum(counts),
        "partitions": len(counts),
        "counts": _checksum(list(counts)),
        "marks": _checksum(sorted((marks or {}).items())),
    }


def stream_facts(job: FitJob) -> Facts:
    """The same of batches that the replicas make themselves."""
    assert job.stream is not None
    return {"batch_size": job.stream.batch_size, "seed": job.plan.seed}


def begin(plan: Fit, facts: Facts, warn: Callable[[str], None]) -> Position:
    """Where to begin with data of which these facts hold.

    Raises:
        PlanError: a checkpoint is to be resumed inside a pass over other data.
    """
    at = replace(plan.position, made_of=json.dumps(facts))
    if not (at.pass_step or at.lead) or not plan.position.made_of:
        return at
    was: Facts = json.loads(plan.position.made_of)
    changed = {name for name in {**was, **facts} if was.get(name) != facts.get(name)}
    if "rows" in facts and "rows" in was and plan.pass_steps is None and changed <= {"batch_size", "marks"}:
        if "marks" in changed:
            warn(
                "the training data has other rows, or another order, than when the checkpoint was written: in this "
                "epoch some rows count twice and others not at all. Training on a stored DataFrame avoids that"
            )
        if "batch_size" in changed:
            return replace(at, lead=at.lead + at.pass_step * was["batch_size"], pass_step=0)
        return at
    if not changed:
        return at
    if plan.is_resumed:
        raise PlanError(
            f"the checkpoint is in the middle of epoch {at.epoch + 1}, after {at.epoch_step} of its steps, and which "
            f"rows are still to come cannot be told: {_difference(was, facts)}. Resume with the same, or begin that "
            f"epoch anew: load_checkpoint(), then fit() without resume"
        )
    return replace(at.next_pass(), epoch_step=0, loss_sum=0.0, loss_rows=0)


def _difference(was: Facts, now: Facts) -> str:
    for name in ("batch_size", "seed", "shuffle"):
        if was.get(name) != now.get(name):
            return f"{name} is {now.get(name)}, and was {was.get(name)}"
    if was.get("rows") != now.get("rows"):
        return f"the training data has {now.get('rows')} rows, and had {was.get('rows')}"
    if was.get("partitions") != now.get("partitions"):
        return f"its {now['rows']} rows lie in {now['partitions']} partitions, and lay in {was['partitions']}"
    return f"its {now['rows']} rows are spread otherwise over the {now['partitions']} partitions"


def _checksum(value: Any) -> int:
    return zlib.crc32(json.dumps(value).encode())
