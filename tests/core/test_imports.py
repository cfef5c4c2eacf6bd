"""Things found by their path, and imports that are not interrupted."""

from __future__ import annotations

import gc
import json

import pytest

from firesteel.core.errors import CheckpointError
from firesteel.core.imports import follow, importing, path_of


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
