"""Parcels: inside the closure where there is room, as an artifact where there is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firesteel.cluster import parcel
from firesteel.cluster.parcel import Parcel
from firesteel.cluster.travel import pack, unpack

DATA = b"0123456789" * 10


class Session:
    """As much of a Connect session as a parcel needs."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, folder: Path) -> None:
        self.session_id = str(folder)
        self.folder = folder
        self.uploads: list[str] = []

    def addArtifacts(self, path: str, *, file: bool) -> None:
        assert file
        self.uploads.append(Path(path).name)
        (self.folder / Path(path).name).write_bytes(Path(path).read_bytes())


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    from pyspark import SparkFiles

    monkeypatch.setattr(SparkFiles, "get", lambda name: str(tmp_path / name))
    return Session(tmp_path)


def test_a_classic_closure_holds_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "_INLINE_BYTES", 10)
    classic: Any = object()
    arrived = unpack(pack(Parcel.of(classic, [DATA[:40], memoryview(DATA)[40:]]), "it"))
    assert arrived.read() == DATA
    assert bytes(arrived.view()) == DATA


def test_small_ones_stay_in_the_plan(session: Any) -> None:
    assert unpack(pack(Parcel.of(session, [DATA]), "it")).read() == DATA
    assert session.uploads == []


def test_large_ones_go_beside_it_once(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel, "_INLINE_BYTES", 10)
    made = [Parcel.of(session, [DATA]), Parcel.of(session, [DATA[:40], DATA[40:]])]
    assert len(session.uploads) == 1
    assert made[0].digest == made[1].digest
    for each in made:
        packed = pack(each, "it")
        assert DATA not in packed
        arrived = unpack(packed)
        assert arrived.read() == DATA
        assert bytes(arrived.view()) == DATA
    (session.folder / session.uploads[0]).unlink()
    assert made[0].read() == DATA  # where it was made, the bytes are at hand
