"""What all peers' scripts do: read the command line, fit twice, print the figures. Imports nothing but Python's own.

The scripts run in environments of their own, from this folder: ``from turn import Turn``.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

__all__ = ["CLASSES", "HIDDEN", "WIDTH", "WORKERS", "Turn", "torch_model"]

WIDTH, HIDDEN, CLASSES, WORKERS = 100, 64, 10, 2

# Spark would take python3 from the path, which is not this environment's.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


class Turn:
    """One turn of a peer."""

    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--batch", type=int, required=True, help="rows of a step, over all workers")
        parser.add_argument("--more-epochs", type=int, required=True)
        options = parser.parse_args()
        self.parquet, self.folder = str(options.data / "parquet"), options.data
        self.batch, self.more_epochs = options.batch, options.more_epochs

    def measure(self, fit, rows):
        """Fit one epoch, once more, and several: the last two differ by what epochs take once everything is up."""
        cold, warm, more = (_seconds(fit, epochs) for epochs in (1, 1, 1 + self.more_epochs))
        found = {"first": cold}
        if more > warm:  # else there were too few rows for an epoch to show
            found["rate"] = rows * self.more_epochs / (more - warm)
        print(json.dumps(found), flush=True)


def _seconds(fit, epochs):
    begin = time.perf_counter()
    fit(epochs)
    return time.perf_counter() - begin


def torch_model():
    """100 → 64 → 10 for those who speak torch."""
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
