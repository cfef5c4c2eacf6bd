"""Things found by their path, and imports that are not interrupted."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import pytest

from firesteel.core.errors import CheckpointError
from firesteel.core.imports import follow, import_ahead, importing, path_of


def test_a_path_leads_back() -> None:
    assert path_of(json.JSONDecoder.decode) == "json.decoder:JSONDecoder.decode"
    assert follow("json.decoder:JSONDecoder.decode") is json.JSONDecoder.decode
    assert path_of(lambda: 1) is None
    with pytest.raises(CheckpointError, match="no_such_module"):
        follow("no_such_module:name")


def test_garbage_is_looked_for_afterwards_as_before() -> None:
    def fail() -> None:
        with importing():
            with importing():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ImportError("gone")

    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()


def test_a_package_that_nobody_needs_is_not_imported_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("useless_here", "useful_here"):
        (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with importing(without=("useless_here", "json")):
        with pytest.raises(CheckpointError):
            follow("useless_here")
        assert follow("json") is json, "what is there already stays"
        follow("useful_here")
    assert follow("useless_here").__name__ == "useless_here"
    assert sys.modules["json"] is json


def test_what_cannot_be_imported_ahead_is_left_to_whoever_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ready_here.py").write_text("calls = []\ndef call():\n    calls.append(1)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import_ahead(["no_such_module", "json:no_such_function", "ready_here:call"])
    assert sys.modules["ready_here"].calls == [1]
