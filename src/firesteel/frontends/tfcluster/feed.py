"""``DataFeed``: batches of what is fed to a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from firesteel.core.errors import PlanError
from firesteel.core.plan import positive
from firesteel.data.items import Records
from firesteel.engine.inbox import Inbox, Run

__all__ = ["DataFeed"]


class DataFeed:
    """What an RDD's partitions bring to this node, in batches. Made inside ``map_fun``.

    Args:
        mgr: ``ctx.mgr``.
        train_mode: false for inference: a batch then ends where its partition ends, so that results can be matched.
        qname_in: the feed's name, as in ``cluster.train(…, qname=…)``.
        qname_out: accepted; results go back to the partition that their items came from.
        input_mapping: ``{column: tensor}``; batches are then dicts of lists.
    """

    def __init__(
        self,
        mgr: Inbox,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(mgr, Inbox):
            raise PlanError(f"DataFeed takes ctx.mgr, not {mgr!r}")
        if not mgr.is_fed:
            raise PlanError(
                "nothing is fed to this cluster: it was started with InputMode.TENSORFLOW, where programs read their "
                "own data; pass input_mode=InputMode.SPARK to TFCluster.run"
            )
        self._queue = mgr.queue(qname_in)
        mgr.queue(qname_out)
        self.train_mode = train_mode
        self.input_tensors: list[str] | None = None
        """The names of tensors, in the order of an item's values."""
        self._columns: list[str] = []
        if input_mapping is not None:
            self._columns = sorted(input_mapping)
            self.input_tensors = [input_mapping[column] for column in self._columns]

    @property
    def done_feeding(self) -> bool:
        """Whether the end of the feed was met."""
        return self._queue.is_met

    def should_stop(self) -> bool:
        """Whether the end of the feed was met."""
        return self._queue.is_met

    def next_batch(self, batch_size: int) -> list[Any] | dict[str, list[Any]]:
        """The next items; waits for them. Fewer at the end of the feed, and perhaps none.

        With ``input_mapping`` a dict: for each tensor the list of its values.
        """
        count = positive(batch_size, "batch_size")
        assert count is not None
        runs = self._queue.take(count, by_partition=not self.train_mode)
        if self.input_tensors is None:
            return [item for run in runs for item in run.items()]
        batch: dict[str, list[Any]] = {tensor: [] for tensor in self.input_tensors}
        for run in runs:
            for tensor, values in zip(self.input_tensors, self._values(run), strict=True):
                batch[tensor].extend(values)
        return batch

    def batch_results(self, results: Iterable[Any]) -> None:
        """Give the results of the last batch, one for each of its items, in their order."""
        self._queue.answer(results)

    def terminate(self) -> None:
        """No more data is wanted, by no node: what is queued is dropped and feeding stops."""
        self._queue.terminate()

    def _values(self, run: Run) -> list[list[Any]]:
        """The values of each column, without making tuples of them first."""
        if isinstance(run.column, Records) and type(run.column) is Records:
            self._check(len(run.column.columns))
            return [column.take(run.begin, run.end) for column in run.column.columns]
        items = run.items()
        if all(isinstance(item, dict) for item in items):
            return [[item[column] for item in items] for column in self._columns]
        for item in items:
            self._check(len(item) if isinstance(item, (list, tuple)) else None)
        return [list(column) for column in zip(*items, strict=True)]

    def _check(self, found: int | None) -> None:
        if found != len(self._columns):
            has = "is no row of values" if found is None else f"has {found} values"
            names = ", ".join(self._columns)
            raise PlanError(
                f"input_mapping names {len(self._columns)} columns ({names}), and an item of the feed {has}"
            )
