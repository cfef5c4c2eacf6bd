"""Records and scalars, as users ask for them."""

from __future__ import annotations

import pytest

from firesteel.core.errors import UnknownName
from firesteel.engine.history import History, Summaries


def test_records_as_columns() -> None:
    history = History([{"epoch": 1, "train_loss": 0.5}, {"epoch": 2, "train_loss": 0.4, "val_loss": 0.6}])
    assert history[1]["val_loss"] == 0.6
    assert history.epochs == list(history)
    assert history.history == {"epoch": [1, 2], "train_loss": [0.5, 0.4], "val_loss": [None, 0.6]}
    assert history.to_pandas()["train_loss"].tolist() == [0.5, 0.4]
    assert History().history == {}


def test_summaries_by_tag() -> None:
    summaries = Summaries()
    assert summaries.train("Loss") is None
    assert summaries.train(None) == {}
    assert summaries.validation("Top1Accuracy") is None
    with pytest.raises(UnknownName, match="LearningRate, Loss, Throughput"):
        summaries.train("loss")
    summaries.add_train([(1, 10.0, {"Loss": 0.5}), (2, 11.0, {"Loss": 0.25})])
    summaries.add_validation([(2, 12.0, {"Loss": 0.3, "SparseCategoricalAccuracy": 0.9, "Top5Accuracy": 1.0})])
    assert summaries.train("Loss") == [[1, 0.5, 10.0], [2, 0.25, 11.0]]
    assert summaries.train(None) == {"Loss": summaries.train("Loss")}
    assert summaries.validation("Top1Accuracy") == [[2, 0.9, 12.0]]
    assert summaries.validation("Top5Accuracy") == [[2, 1.0, 12.0]]
    with pytest.raises(UnknownName, match="SparseCategoricalAccuracy"):
        summaries.validation("Accuracy")
