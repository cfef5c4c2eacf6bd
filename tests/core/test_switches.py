"""Settings that are on or off: in any case, and nothing else."""

from __future__ import annotations

import pytest

from firesteel.core.errors import PlanError
from firesteel.core.switches import switch


def test_on_off_and_not_set() -> None:
    given = {"a": " TRUE ", "b": "False"}
    assert switch(given.get, "a", False)
    assert not switch(given.get, "b", True)
    assert switch(given.get, "c", True)
    assert not switch(given.get, "c", False)


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_nothing_else(value: str) -> None:
    with pytest.raises(PlanError, match=f"a must be true or false, not '{value}'"):
        switch({"a": value}.get, "a", True)
