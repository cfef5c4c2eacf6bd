"""Processes forked from one that has imported what they need."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from firesteel.cluster import stem as stems
from firesteel.cluster.pulse import PulseFile
from firesteel.cluster.roles import Role
from firesteel.cluster.stem import Forked, Stem, fork, keep
from firesteel.cluster.wire import Link

PROGRAM = """
import os, random, subprocess, sys, tempfile, time, numpy
IMPORTED_BY = os.getpid()
tempfile.gettempdir()

def tell(desk):
    print("printed", flush=True)
    desk.tell({
        "pid": os.getpid(), "imported by": IMPORTED_BY, "rank": desk.rank, "RANK": os.environ["RANK"],
        "drawn": [random.random(), float(numpy.random.rand())], "spool": os.read(desk.descriptors["spool"], 9).decode(),
        "parent": os.getppid(), "files": tempfile.gettempdir(),
    })

def fail(desk):
    raise KeyError("no such thing")

def leave_a_child(desk):
    child = subprocess.Popen(["sleep", "60"])
    desk.tell({"child": child.pid})

def wait(desk):
    desk.tell({"pid": os.getpid()})
    time.sleep(60)
"""


class Task:
    """What a seat does with its process, without a gang."""

    def __init__(self, folder: Path, things: ExitStack) -> None:
        (folder / "a_program.py").write_text(PROGRAM)
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        self.stem: Stem | None = None
        self.own: dict[str, str] = {}
        self._things = things

    def start(self, main: str, rank: int = 0, words: tuple[str, ...] = ("a_program",)) -> tuple[Link, Forked]:
        ours, theirs = socket.socketpair()
        program, spool = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        pulse = PulseFile()
        link = Link(ours)
        spool.write(b"nine rows")
        spool.seek(0)
        descriptors = {"spool": spool.fileno()}
        inherited = [theirs.fileno(), program.fileno(), pulse.descriptor, *descriptors.values()]
        role = Role(rank, 2)
        self.stem, process = fork(
            self.stem, words, {**self.environment, **role.surroundings()}, role.identity() | self.own, inherited
        )
        for each in (theirs, program, spool):
            each.close()
        self._things.callback(pulse.close)
        self._things.callback(link.close)
        self._things.callback(process.lines.close)
        about = {
            "rank": rank,
            "world": 2,
            "host": "here",
            "task": os.getpid(),
            "device": "cpu",
            "threads": 1,
            "generation": 0,
        }
        start = {"kind": "start", "main": main, "descriptors": descriptors, "pulse": pulse.descriptor}
        link.send({**start, **about, "parent": process.parent})
        return link, process


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    with ExitStack() as things:
        made = Task(tmp_path, things)
        yield made
        if made.stem is not None:
            made.stem.end()
        for kept in stems._kept:
            kept.end()
        stems._kept.clear()


def heard(link: Link) -> dict[str, Any]:
    received = link.receive()
    assert received is not None
    return received[0]


def test_each_fork_is_itself_and_imports_nothing_again(task: Task) -> None:
    told = []
    for rank in range(2):
        link, process = task.start("a_program:tell", rank)
        told.append(heard(link)["event"])
        assert heard(link) == {"kind": "done"}
        assert process.wait() == 0
        assert process.lines.read() == b"printed\n"
    first, second = told
    assert first["imported by"] == second["imported by"] == first["parent"] == second["parent"]
    assert first["pid"] != second["pid"]
    assert [(each["rank"], each["RANK"], each["spool"]) for each in told] == [
        (0, "0", "nine rows"),
        (1, "1", "nine rows"),
    ]
    assert not set(first["drawn"]) & set(second["drawn"])


def test_a_fork_has_its_own_place_for_temporary_files(task: Task, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        task.own["TMPDIR"] = str(tmp_path / name)
        link, process = task.start("a_program:tell")
        assert heard(link)["event"]["files"] == str(tmp_path / name)
        assert process.wait() == 0


def test_an_error_is_told_and_a_status_is_the_forks_own(task: Task) -> None:
    link, process = task.start("a_program:fail")
    failure = heard(link)["failure"]
    assert "no such thing" in str(failure)
    assert process.wait() == 1


def test_what_a_fork_started_goes_with_it(task: Task) -> None:
    link, process = task.start("a_program:leave_a_child")
    left = heard(link)["event"]["child"]
    assert process.wait() == 0
    assert ended(left)


def test_killed(task: Task) -> None:
    link, process = task.start("a_program:wait")
    number = heard(link)["event"]["pid"]
    assert psutil.Process(number).cmdline()[:5] == ["python", "-m", "firesteel.cluster.child", "rank", "0"]
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.kill()  # once more does nothing
    link, process = task.start("a_program:tell")  # the same stem goes on
    assert heard(link)["event"]["imported by"] == process.parent
    assert process.wait() == 0


def test_killed_before_it_was_there(task: Task, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    _, process = task.start("a_program:tell", words=("slow",))
    begin = time.monotonic()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert time.monotonic() - begin < 10
    link, process = task.start("a_program:tell")  # from another stem
    assert heard(link)["event"]["rank"] == 0
    assert process.wait() == 0


def test_a_fork_dies_with_its_stem(task: Task) -> None:
    link, process = task.start("a_program:wait")
    number = heard(link)["event"]["pid"]
    os.kill(process.parent, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert ended(number)


def test_a_stem_that_hangs_holds_nobody_up(task: Task) -> None:
    link, process = task.start("a_program:wait")
    number = heard(link)["event"]["pid"]
    os.kill(process.parent, signal.SIGSTOP)
    begin = time.monotonic()
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert time.monotonic() - begin < 10
    assert ended(number)
    link, process = task.start("a_program:tell")  # from another stem
    assert heard(link)["event"]["rank"] == 0
    assert process.wait() == 0


def test_what_cannot_be_imported_is_left_to_the_fork(task: Task) -> None:
    link, process = task.start("a_program:tell", words=("no_such_module", "a_program:no_such_function", "a_program"))
    assert heard(link)["event"]["imported by"] == process.parent
    assert process.wait() == 0


def test_kept_for_the_next_and_no_longer(task: Task) -> None:
    link, process = task.start("a_program:tell")
    assert process.wait() == 0
    first = process.parent
    assert task.stem is not None
    keep(task.stem, 60)
    task.stem = None
    link, process = task.start("a_program:tell", rank=1)  # another rank makes no difference
    assert heard(link)["event"]["imported by"] == first
    assert process.wait() == 0
    keep(task.stem, 0.2)
    assert ended(first)
    task.stem = None
    link, process = task.start("a_program:tell")
    assert process.wait() == 0
    assert process.parent != first


def test_another_environment_is_another_stem(task: Task) -> None:
    _, process = task.start("a_program:tell")
    assert process.wait() == 0
    assert task.stem is not None
    keep(task.stem, 60)
    task.stem = None
    task.environment["ANOTHER"] = "1"
    _, other = task.start("a_program:tell")
    assert other.wait() == 0
    assert other.parent != process.parent


_PARENT = """
import os, sys, time
from firesteel.cluster.stem import Stem
stem = Stem(["json"], dict(os.environ), 2)
print(stem.process.pid, flush=True)
time.sleep(60)
"""


def test_a_stem_dies_with_its_task() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        time.sleep(1)
        parent.kill()
    assert ended(number)


def ended(number: int) -> bool:
    """Whether the process ends within ten seconds; one that nobody reaps has ended too."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
