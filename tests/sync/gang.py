"""Ranks without Spark: processes in a real group that run whatever functions they are given."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import cloudpickle

TIMEOUT_SECONDS = 60


class Gang:
    """``size`` processes, started once for many tests, on ``gloo``, ``tensorflow`` or ``nearby``. A context manager."""

    def __init__(self, size: int, library: str = "gloo") -> None:
        context = multiprocessing.get_context("spawn")
        self._files = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            args = (theirs, rank, size, f"{self._files.name}/store", library)
            process = context.Process(target=live, args=args, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        self._files.cleanup()

    def kill(self, rank: int) -> None:
        """Lose a rank; the others run on."""
        self._processes[rank].kill()
        self._processes[rank].join()
        self._pipes.pop(rank).close()

    def run(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """``work(group, *args)`` on every rank at the same time; the results in rank order."""
        cloudpickle.register_pickle_by_value(sys.modules[work.__module__])
        for pipe in self._pipes:
            pipe.send_bytes(cloudpickle.dumps((work, args)))
        results = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(TIMEOUT_SECONDS), f"rank {rank} did not answer within {TIMEOUT_SECONDS} s"
            error, result = cloudpickle.loads(pipe.recv_bytes())
            if error is not None:
                raise error
            results.append(result)
        return results


def live(pipe: Any, rank: int, size: int, path: str, library: str) -> None:
    import torch
    from torch.distributed import FileStore

    torch.set_num_threads(1)
    store = FileStore(path, size)

    def board(verb: str, key: str, value: bytes | None = None, amount: int = 0) -> bytes | None:
        if verb == "set":
            store.set(key, value)
        elif verb == "get":
            return bytes(store.get(key))
        elif verb == "add":
            return str(store.add(key, amount)).encode()
        elif verb == "check":
            return b"" if store.check([key]) else None
        return b""

    if library == "tensorflow":
        from firesteel.sync.tensorflow import TensorFlowGroup

        group: Any = TensorFlowGroup(rank, size, board, "127.0.0.1")
    else:
        from firesteel.sync.gloo import GlooGroup

        group = GlooGroup(rank, size, board, "lo")
        if library == "nearby":
            from firesteel.sync.neighbours import meet

            group = meet(group, board, "memory")
    while True:
        work, args = cloudpickle.loads(pipe.recv_bytes())
        try:
            answer = (None, work(group, *args))
        except Exception as error:  # noqa: BLE001 - raised again where the test is
            answer = (error, None)
        pipe.send_bytes(cloudpickle.dumps(answer))
