"""What a training left behind: one record per epoch, and the scalars of every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from firesteel.core.errors import UnknownName

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Curves", "History", "Scalars", "Summaries"]

Record = dict[str, Any]
Scalars = dict[str, list[list[float]]]
"""By tag: ``[step, value, wall time]`` in order."""

_TRAIN_TAGS = ("LearningRate", "Loss", "Throughput")


class History(list[Record]):
    """A list with one dict per epoch; ``of`` another history, its records told in other words.

    Attributes:
        recoveries: one dict for each loss that the training got over: ``kind``, ``ranks``, ``message``,
            ``lost_at_step`` (that of the lost rank, or where nobody is left to say so, the newest that the others were
            in), ``resumed_from_step``, and the times ``noticed`` and ``resumed``.
        seconds: where the time of the first replica's steps went: waiting for ``data``, to ``compute``, to ``agree``
            with the others, to ``commit``. Empty where no replica trained.
    """

    def __init__(self, records: Iterable[Record] = (), of: History | None = None) -> None:
        super().__init__(records)
        self.recoveries: list[Record] = [] if of is None else of.recoveries
        self.seconds: dict[str, float] = {} if of is None else of.seconds

    @property
    def epochs(self) -> list[Record]:
        """The records, as plain dicts."""
        return [dict(record) for record in self]

    @property
    def history(self) -> dict[str, list[Any]]:
        """The records as a dict of lists, as Keras has it; a key that an epoch lacks is ``None`` there."""
        keys = list(dict.fromkeys(key for record in self for key in record))
        return {key: [record.get(key) for record in self] for key in keys}

    def to_pandas(self) -> pd.DataFrame:
        """One row per epoch."""
        import pandas as pd

        return pd.DataFrame(self.epochs)


class Curves(dict[str, list[Any]]):
    """A dict of lists, one value per epoch, as Keras's own ``History.history``; also an object like that ``History``.

    ``of``: the history that the records are from.

    Attributes:
        epoch: the epochs' numbers, from 0.
        recoveries: see ``History``.
        seconds: see ``History``.
    """

    def __init__(self, records: Iterable[Record] = (), of: History | None = None) -> None:
        self._records = [dict(record) for record in records]
        keys = list(dict.fromkeys(key for record in self._records for key in record if key != "epoch"))
        super().__init__({key: [record.get(key) for record in self._records] for key in keys})
        self.epoch = [int(record["epoch"]) - 1 for record in self._records]
        self.recoveries: list[Record] = [] if of is None else of.recoveries
        self.seconds: dict[str, float] = {} if of is None else of.seconds

    @property
    def history(self) -> dict[str, list[Any]]:
        """The same as a plain dict."""
        return dict(self)

    @property
    def epochs(self) -> list[Record]:
        """One dict per epoch."""
        return [dict(record) for record in self._records]

    def to_pandas(self) -> pd.DataFrame:
        """One row per epoch."""
        import pandas as pd

        return pd.DataFrame(self._records)


class Summaries:
    """Scalars of all fits of one estimator, in memory."""

    def __init__(self) -> None:
        self._train: Scalars = {}
        self._validation: Scalars = {}

    def add_train(self, rows: Iterable[tuple[int, float, dict[str, float]]]) -> None:
        """Rows of (step, wall time, values by tag)."""
        _add(self._train, rows)

    def add_validation(self, rows: Iterable[tuple[int, float, dict[str, float]]]) -> None:
        """Rows of (step, wall time, values by tag)."""
        _add(self._validation, rows)

    def rewind(self, step: int) -> None:
        """Forget what came after this step: it is done again."""
        for scalars in (self._train, self._validation):
            for entries in scalars.values():
                while entries and entries[-1][0] > step:
                    entries.pop()

    def train(self, tag: str | None) -> Any:
        """Entries of a tag; all of them for ``None``; ``None`` before the first step."""
        return _find(self._train, tag, _TRAIN_TAGS)

    def validation(self, tag: str | None) -> Any:
        """Entries of a tag, also under the names that old scripts use for it."""
        if tag is not None and not self._validation:
            return None
        known = {name: name.lower() for name in self._validation if name != "Top5Accuracy"}
        old = {
            "Top1Accuracy": [name for name, low in known.items() if low == "acc" or low.endswith("accuracy")],
            "AucScore": [name for name, low in known.items() if low == "auc"],
        }
        if tag not in self._validation and tag in old and old[tag]:
            tag = old[tag][0]
        return _find(self._validation, tag, (*self._validation, "Loss", *old, "Top5Accuracy", "MAE"))


def _add(scalars: Scalars, rows: Iterable[tuple[int, float, dict[str, float]]]) -> None:
    for step, wall_time, values in rows:
        for tag, value in values.items():
            scalars.setdefault(tag, []).append([int(step), float(value), float(wall_time)])


def _find(scalars: Scalars, tag: str | None, known: Iterable[str]) -> Any:
    if tag is None:
        return {name: [list(entry) for entry in entries] for name, entries in scalars.items()}
    if tag not in scalars:
        if tag not in set(known):
            raise UnknownName("summary tag", tag, set(known) | set(scalars))
        return None
    return [list(entry) for entry in scalars[tag]]
