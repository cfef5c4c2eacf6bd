"""How fast a rank gets at rows that are in its spool already: shuffled batches, as training takes them."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.bench import REPLICAS, Bench
from benchmarks.harness import Case, Figure, Goal
from benchmarks.subprocesses import run_json

__all__ = ["cases"]

_WIDTH, _BATCH, _EPOCHS = 784, 256, 3
_THEIRS, _OURS = "numpy.take, rows in memory", "firesteel's feed, rows in the spool"


def cases(bench: Bench) -> Iterator[Case]:
    """The feed, and what NumPy does where nothing has to be bounded."""
    rows = bench.rows(60_000)
    yield Case(
        title="Cached, shuffled feed",
        about=f"{rows:,} rows of {_WIDTH} floats and a label in two partitions, one for each of {REPLICAS} ranks that "
        f"read at the same time; global batches of {_BATCH}. Per rank, the slower one; the median of {_EPOCHS} epochs.",
        figures={"rate": Figure("per rank", "GB/s", _THEIRS, {_OURS: Goal(least=1.0, of_value=True)})},
        subjects={_THEIRS: lambda: {"rate": _rate(rows, "take")}, _OURS: lambda: {"rate": _rate(rows, "feed")}},
    )


def _rate(rows: int, kind: str) -> float:
    """The slowest rank's GB/s."""
    found = run_json([sys.executable, "-m", __name__, kind, str(rows)], {"OMP_NUM_THREADS": "1"})
    return min(found["rates"])


def _rank(kind: str, rows: int, rank: int, gate: Any, rates: Any) -> None:
    counts = (rows // 2, rows - rows // 2)
    features = np.random.default_rng(rank).standard_normal((counts[rank], _WIDTH), dtype=np.float32)
    batch = {"x0": features, "y0": np.zeros(counts[rank], np.int64)}
    epochs = _from_spool(batch, counts, rank) if kind == "feed" else _from_memory(batch)
    found = []
    for epoch in epochs:
        gate.wait()
        begin = time.perf_counter()
        taken = sum(values.nbytes for part in epoch for values in part.values())
        found.append(taken / 1e9 / (time.perf_counter() - begin))
    rates[rank] = statistics.median(found)


def _from_spool(batch: dict[str, Any], counts: tuple[int, ...], rank: int) -> Iterator[Iterator[dict[str, Any]]]:
    from firesteel.data.feed import Feed, Holding
    from firesteel.data.order import Order, window_rows_for
    from firesteel.data.spool import SpoolReader, SpoolWriter

    with tempfile.TemporaryDirectory(prefix="firesteel-bench-") as folder, SpoolWriter(("x0", "y0"), folder) as spool:
        spool.append(rank, batch)
        signature = spool.signature
        assert signature is not None
        reader = SpoolReader(spool.descriptors, signature, spool.blocks)
        order = Order(counts, _BATCH, 1, True, window_rows_for(signature.row_bytes, len(counts)))
        feed = Feed(reader, order, (Holding(rank, 0),))
        for epoch in range(_EPOCHS):
            yield feed.batches(epoch)


def _from_memory(batch: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    random = np.random.default_rng(1)
    for _ in range(_EPOCHS):
        rows = random.permutation(len(batch["x0"]))
        parts = np.array_split(rows, max(1, len(rows) * REPLICAS // _BATCH))
        yield ({name: np.take(values, part, axis=0) for name, values in batch.items()} for part in parts)


def main() -> None:
    """Two ranks at the same time; prints their rates."""
    import json
    import multiprocessing

    kind, rows = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("fork")
    gate, rates = context.Barrier(REPLICAS), context.Array("d", REPLICAS)
    ranks = [context.Process(target=_rank, args=(kind, rows, rank, gate, rates)) for rank in range(REPLICAS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    print(json.dumps({"rates": list(rates)}))


if __name__ == "__main__":
    main()
