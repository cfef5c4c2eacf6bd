"""A process that has imported a framework and forks ranks' processes from itself: the second one starts at once.

A task has one for as long as it has a seat. So a gang that re-forms does not import anything again; and where Spark is
told to keep stems (``spark.firesteel.keepWarmSeconds``), neither does the next fit in the same Python worker.

Nothing of a framework runs in a stem: it imports, and waits. It dies with its task, and its forks die with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import IO, Any

from firesteel.cluster import child
from firesteel.core.imports import import_ahead

__all__ = ["Forked", "Stem", "fork", "is_possible", "keep", "main"]

_MAX_MESSAGE = 1 << 20
_MAX_DESCRIPTORS = 64
_WORD_SECONDS = 5.0
_WAKE_SECONDS = 5.0
_STEMS_KEPT = 2


class Stem:
    """The task's end."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], out: int) -> None:
        self.key = _key(words, environment)
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = 0
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "firesteel.cluster.stem", str(theirs.fileno()), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env=dict(environment),
            )

    @property
    def is_alive(self) -> bool:
        """Whether it can fork."""
        return self.process.poll() is None

    def order(self, inherited: Sequence[int], own: Mapping[str, str], out: int) -> int:
        """Ask for a fork that works at the first two of these descriptors (see ``cluster.child``) and has all of them.

        Returns the order's number; the fork may take a while, for the stem may still be importing.
        """
        self._orders += 1
        order = {"order": self._orders, "numbers": list(inherited), "environment": dict(own)}
        with contextlib.suppress(OSError):  # it has gone: whoever waits for the fork finds out
            socket.send_fds(self.channel, [json.dumps(order).encode()], [out, *inherited])
        return self._orders

    def rest(self, seconds: float) -> None:
        """Let it end when nobody has woken it for so long."""
        with contextlib.suppress(OSError):
            self.channel.send(json.dumps({"rest": seconds}).encode())

    def wake(self) -> bool:
        """Whether it is there, and stays."""
        self.channel.settimeout(_WAKE_SECONDS)
        try:
            self.channel.send(json.dumps({"wake": True}).encode())
            while data := self.channel.recv(_MAX_MESSAGE):
                if "awake" in json.loads(data):
                    return True
        except OSError:
            pass
        finally:
            self.channel.settimeout(None)
        return False

    def end(self) -> None:
        """End it, and everything forked from it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


class Forked:
    """A stem's fork; a ``Process``. Nobody orders another one of the same stem before this one has ended."""

    def __init__(self, stem: Stem, order: int, lines: int) -> None:
        self.parent = stem.process.pid
        self.lines: IO[bytes] = os.fdopen(lines, "rb")
        self._stem = stem
        self._order = order
        self._number = 0
        self._handle: int | None = None
        self._change = threading.Lock()
        self._is_over = False

    def kill(self) -> None:
        """See ``Process``. Where it does not exist yet, nobody waits for its stem's imports: the stem goes instead."""
        with self._change:
            if self._is_over:
                return
            if self._handle is None:
                self._stem.process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> int:
        """See ``Process``."""
        status = self._status()
        with self._change:
            self._is_over = True
            if self._handle is not None:
                os.close(self._handle)
        return status

    def _status(self) -> int:
        while self._handle is None or self._is_said():
            try:
                data, handles, _, _ = socket.recv_fds(self._stem.channel, _MAX_MESSAGE, 1)
            except OSError:
                data, handles = b"", []
            if not data:
                break
            word = json.loads(data)
            if word.get("order") != self._order:  # of one that nobody waited for
                for handle in handles:
                    os.close(handle)
            elif handles:
                self._number = int(word["pid"])
                with self._change:
                    self._handle = handles[0]
            else:
                return int(word["status"])
        return self._ended_without_a_word()

    def _is_said(self) -> bool:
        """Wait until the stem has something to say; false when it has not, though its fork has ended."""
        assert self._handle is not None
        channel = self._stem.channel
        return channel in wait([channel, self._handle]) or bool(wait([channel], _WORD_SECONDS))

    def _ended_without_a_word(self) -> int:
        """The stem was killed, or hangs; what was forked from it goes with it."""
        self._stem.process.kill()
        status = self._stem.process.wait()
        if self._handle is not None:  # the kernel kills what was forked from it, a moment later
            wait([self._handle], _WORD_SECONDS)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._number, signal.SIGKILL)
        return status or -signal.SIGKILL


def is_possible() -> bool:
    """Whether this system can watch a process that is not its own child."""
    return hasattr(os, "pidfd_open") and hasattr(socket, "SOCK_SEQPACKET")


def fork(
    stem: Stem | None,
    words: Sequence[str],
    environment: Mapping[str, str],
    own: Mapping[str, str],
    inherited: Sequence[int],
) -> tuple[Stem, Forked]:
    """A rank's process, and the stem it comes from: this one, one that was kept, else a new one.

    Args:
        stem: from which the last one came.
        words: what a stem imports: "module", or "module:function", which is called.
        environment: a stem's.
        own: variables that are the fork's alone.
        inherited: descriptors for the fork; the first two are those that it works at (see ``cluster.child``).
    """
    lines, out = os.pipe()
    try:
        if stem is not None and not stem.is_alive:
            stem.end()
            stem = None
        stem = stem or _take(_key(words, environment)) or Stem(words, environment, out)
        return stem, Forked(stem, stem.order(inherited, own, out), lines)
    except BaseException:
        os.close(lines)
        raise
    finally:
        os.close(out)


_kept: list[Stem] = []
"""Stems without a seat, in a Python worker that Spark may use again; the newest last."""


def keep(stem: Stem, seconds: float) -> None:
    """Give up a stem: it ends now, or where it is to be kept, when nobody has wanted it for so long."""
    if seconds > 0 and stem.is_alive:
        stem.rest(seconds)
        _kept.append(stem)
        while len(_kept) > _STEMS_KEPT:
            _kept.pop(0).end()
    else:
        stem.end()


def _take(key: Any) -> Stem | None:
    for stem in [each for each in _kept if each.key == key or not each.is_alive]:
        _kept.remove(stem)
        if stem.wake():
            return stem
        stem.end()
    return None


def _key(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Any, ...]:
    return tuple(words), tuple(sorted(environment.items()))


# --- in the stem itself -----------------------------------------------------------------------------------------------


def main() -> None:
    """Entry point of ``python -m firesteel.cluster.stem``."""
    child.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_ahead(sys.argv[2:])
    gc.collect()
    gc.freeze()  # what was imported stays, and need not be looked at in every fork
    sys.stdout.flush()
    sys.stderr.flush()
    with open(os.devnull, "wb") as nothing:  # whoever reads what forks print waits for the last writer to go
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    _serve(channel)
    os._exit(0)


def _serve(channel: socket.socket) -> None:
    """Fork by order and say how forks end, one after the other; until nobody is there any more, or wants one."""
    patience: float | None = None
    while wait([channel], patience):
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, _MAX_DESCRIPTORS)
        except OSError:
            return
        if not data:
            return
        order = json.loads(data)
        if "order" not in order:
            patience = order.get("rest")
            if "wake" in order:
                channel.send(json.dumps({"awake": True}).encode())
            continue
        number = os.fork()
        if number == 0:
            _grow(channel, order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        handle = os.pidfd_open(number)
        try:
            socket.send_fds(channel, [json.dumps({"order": order["order"], "pid": number}).encode()], [handle])
            wait([handle])
            # What it started in turn goes too; only then is its number given up.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
            channel.send(json.dumps({"order": order["order"], "status": status}).encode())
        except OSError:
            return
        finally:
            os.close(handle)


def _grow(channel: socket.socket, order: dict[str, Any], descriptors: Sequence[int]) -> None:
    """In the fork: become a rank's process. Does not return."""
    os.setpgid(0, 0)
    channel.close()
    out, *own = descriptors
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # what was found for the stem is not the fork's
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else all forks draw the same numbers
    _rename(["python", "-m", "firesteel.cluster.child", "rank", order["environment"].get("RANK", "")])
    child.run(own[0], own[1], dict(zip(order["numbers"], own, strict=True)))


def _rename(words: Sequence[str]) -> None:
    """What others see as this process's command line, as far as there is room."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, counted from the third field
        text = b"\0".join(word.encode() for word in words)[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    importlib.import_module("firesteel.cluster.stem").main()
