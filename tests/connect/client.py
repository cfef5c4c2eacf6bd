"""A program that works through Spark Connect, run by ``test_connect``: prints what it saw as one line of JSON."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from firesteel import Estimator, init_context, stop_context
from firesteel.cluster import parcel
from firesteel.core.errors import FiresteelError
from firesteel.learn.metrics import Accuracy
from firesteel.testing.faults import replicas

COLUMNS = {"feature_cols": "x", "label_cols": "y"}
X = np.random.default_rng(0).standard_normal((300, 8)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
seen: dict[str, Any] = {}


class Net(nn.Module):
    """A user's class, in the user's own program."""

    def __init__(self, fails: bool = False, pause_seconds: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.fails, self.pause_seconds, self.calls = fails, pause_seconds, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(self.pause_seconds)
        if self.fails and self.calls == 3 and os.environ.get("RANK") == "1":
            raise KeyError("the user's own mistake")
        return self.layers(x)


def estimator(model: nn.Module, workers: int, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = {"loss": nn.CrossEntropyLoss(), "metrics": [Accuracy()], "seed": 3, "workers_per_node": workers}
    return Estimator.from_torch(model=model, optimizer=optimizer, **(parts | options))


def difference(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(left.parameters(), right.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def error_of(call: Any) -> dict[str, Any]:
    try:
        call()
    except FiresteelError as error:
        parts = {key: value for key, value in vars(error).items() if isinstance(value, (int, str))}
        return {"type": type(error).__name__, "text": str(error), "cause": type(error.__cause__).__name__, **parts}
    return {"type": "none"}


def kill_the_task_of(rank: int) -> None:
    """Once both replicas live: ``kill -9`` for the Spark task of this one."""

    def strike() -> None:
        while True:
            ranks = {process.environ().get("RANK"): process for process in replicas()}
            if len(ranks) == 2:
                os.kill(ranks[str(rank)].ppid(), signal.SIGKILL)
                return
            time.sleep(0.1)

    threading.Thread(target=strike, daemon=True).start()


def main() -> None:
    spark = init_context("connect", remote="local[2]")
    rows = [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)]
    # On disk, for a DataFrame whose partitions come out the same every time.
    spark.createDataFrame(rows, "x array<float>, y long").repartition(3).write.parquet("rows")
    spark.conf.set("spark.sql.files.openCostInBytes", "128m")  # each file is a partition
    frame = spark.read.parquet("rows")
    parcel._INLINE_BYTES = 256  # so that models and arrays of this size take the way of large ones

    # Scoring.
    model = Net()
    untrained = estimator(model, 2)
    scored = untrained.predict(frame, feature_cols="x").collect()
    with torch.no_grad():
        own = model(torch.tensor(np.array([row["x"] for row in scored], "float32"))).numpy()
        seen["arrays"] = float(np.abs(untrained.predict(X) - model(torch.tensor(X)).numpy()).max())
        loss = float(nn.CrossEntropyLoss()(model(torch.tensor(X)), torch.tensor(Y)))
    seen["rows"] = len(scored)
    seen["predictions"] = float(np.abs(np.array([row["prediction"].toArray() for row in scored]) - own).max())
    found = untrained.evaluate(frame, **COLUMNS)
    seen["evaluate"] = [found["num_samples"], abs(found["val_loss"] - loss)]

    # Training on a DataFrame, with a DataFrame to validate on.
    two, one = Net(), Net()
    history = estimator(two, 2).fit(
        frame, epochs=2, batch_size=30, validation_data=frame.where("y = 1"), verbose=0, **COLUMNS
    )
    estimator(one, 1).fit(frame, epochs=2, batch_size=30, verbose=0, **COLUMNS)
    seen["history"] = list(history)
    seen["ones"] = int(Y.sum())
    seen["two_and_one"] = difference(two, one)
    seen["moved"] = difference(two, Net())

    # Training on the client's arrays, beside the same in plain torch.
    model, plain = Net(), Net()
    fitted = estimator(model, 2)
    fitted.fit((X, Y), epochs=1, batch_size=30, shuffle=False, validation_data=(X[:50], Y[:50]), verbose=0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for begin in range(0, len(X), 30):
        optimizer.zero_grad()
        rows_now = slice(begin, begin + 30)
        nn.CrossEntropyLoss()(plain(torch.tensor(X[rows_now])), torch.tensor(Y[rows_now])).backward()
        optimizer.step()
    seen["two_and_torch"] = difference(model, plain)

    # What goes wrong.
    fit = {"epochs": 1, "batch_size": 30, "verbose": 0, **COLUMNS}
    seen["user"] = error_of(lambda: estimator(Net(fails=True), 2).fit(frame, **fit))
    seen["empty"] = error_of(lambda: estimator(Net(), 2).fit(frame.where("y = 7"), **fit))
    seen["known_empty"] = error_of(lambda: estimator(Net(), 2).fit(frame.limit(0), **fit))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        seen["slots"] = error_of(lambda: estimator(Net(), 3).fit(frame, **{**fit, "verbose": 1}))
    seen["said_before_slots"] = said.getvalue()
    seen["stream"] = error_of(lambda: untrained.predict(lambda config, size: None))

    # The task that everybody depends on is killed.
    lost = Net(pause_seconds=0.05)
    kill_the_task_of(0)
    seen["epochs_after_loss"] = len(estimator(lost, 2).fit(frame, **{**fit, "epochs": 2}))
    seen["lost_and_not"] = difference(lost, two)

    seen["left"] = [process.pid for process in replicas()]
    stop_context()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(250)  # where it stands, should it stand
    main()
    sys.stdout.write("SEEN " + json.dumps(seen) + "\n")
