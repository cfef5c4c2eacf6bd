"""Environment variables for a while."""

from __future__ import annotations

import os

import pytest

from firesteel.core.environment import with_variables


def test_old_values_are_put_back_and_new_names_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_KEPT", "before")
    with (
        pytest.raises(ValueError, match="inside"),
        with_variables({"FIRESTEEL_KEPT": "inside", "FIRESTEEL_NEW": "inside"}),
    ):
        raise ValueError(os.environ["FIRESTEEL_KEPT"] + os.environ["FIRESTEEL_NEW"])
    assert os.environ["FIRESTEEL_KEPT"] == "before"
    assert "FIRESTEEL_NEW" not in os.environ
