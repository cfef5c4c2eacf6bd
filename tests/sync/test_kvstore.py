"""Groups on MXNet's KVStore, in processes of their own: sums, gathers, and an asynchronous store."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from needs import need_mxnet

need_mxnet()

from firesteel.cluster.roles import ParameterServers  # noqa: E402

WORKER = """
import json, os, sys
import numpy as np
from firesteel.sync.kvstore import KVStoreGroup

rank, size, kind, environment = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
group = KVStoreGroup(rank, size, kind, environment)
found = {}
for name, values in {
    "floats": np.arange(3, dtype=np.float32) + rank,
    "doubles": np.full((2, 2), 1e-12 + rank),
    "counts": np.array([2**40 + rank, 7]),
    "many": np.full(3000, rank + 1, np.float32),
}.items():
    for _ in range(2):  # a second time: keys are used again
        total = values.copy()
        group.all_reduce(total)
    found[name] = [total.reshape(-1)[:4].tolist(), str(total.dtype), list(total.shape)]
mine = np.full(5, np.nan, np.float32) if rank == 1 else np.zeros(5, np.float32)
group.broadcast(mine, root=1)
found["broadcast"] = bool(np.isnan(mine).all())
raw = np.arange(7, dtype=np.uint8) * (rank + 1)
group.broadcast(raw)
found["raw"] = raw.tolist()
parts = np.where(np.arange(6) < 2, 10 + rank, 20 + rank).astype(np.float64)
group.all_gather(parts, [(0, 2), (2, 6)])
found["gather"] = parts.tolist()
found["bytes"] = [data.decode() for data in group.gather_bytes(b"x" * (3 + rank) + str(rank).encode())]
if group.is_async:
    weights = [np.ones(4, np.float32)]
    group.keep(weights)
    for _ in range(3):
        group.add([np.full(4, rank + 1, np.float32)])
    group.newest(weights)
    group.meet()
    found["weights"] = group.newest(weights)[0].tolist()
    group.meet()
group.close()
print(json.dumps(found), flush=True)
os._exit(0)
"""
SERVER = "from firesteel.sync.kvstore_server import main; main()"


def run(kind: str, servers: int) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        roles = ParameterServers("127.0.0.1", held.getsockname()[1], 2, servers)

        def start(code: str, role: str, *arguments: str) -> subprocess.Popen[str]:
            variables = {} if role == "worker" else roles.environment(role, "127.0.0.1")
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.Popen(command, env={**environment, **variables}, stdout=subprocess.PIPE, text=True)

        others = [start(SERVER, "scheduler"), *(start(SERVER, "server") for _ in range(servers))]
        worker = json.dumps(roles.environment("worker", "127.0.0.1"))
        workers = [start(WORKER, "worker", str(rank), "2", kind, worker) for rank in range(2)]
        try:
            found = [json.loads(process.communicate(timeout=100)[0].splitlines()[-1]) for process in workers]
            for process in others:
                process.communicate(timeout=20)
        finally:
            for process in [*workers, *others]:
                process.kill()
                process.wait()
    assert [process.returncode for process in [*workers, *others]] == [0] * (3 + servers)
    return found


@pytest.mark.parametrize(("kind", "servers"), [("dist_sync", 2), ("dist_async", 2)])
def test_two_workers_exchange(kind: str, servers: int) -> None:
    first, second = run(kind, servers)
    assert first == second
    assert first["floats"] == [[1, 3, 5], "float32", [3]]
    assert first["doubles"][0] == pytest.approx([1 + 2e-12] * 4, rel=1e-14)
    assert first["doubles"][2] == [2, 2]
    assert first["counts"] == [[2**41 + 1, 14], "int64", [2]]
    assert first["many"] == [[3, 3, 3, 3], "float32", [3000]]
    assert first["broadcast"] is True
    assert first["raw"] == list(range(7))
    assert first["gather"] == [10, 10, 21, 21, 21, 21]
    assert first["bytes"] == ["xxx0", "xxxx1"]
    if kind == "dist_async":
        assert first["weights"] == [1 + 3 * 1 + 3 * 2] * 4


def test_servers_start_without_mxnets_python() -> None:
    code = "import sys, firesteel.sync.kvstore_server; assert 'mxnet' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parent)
