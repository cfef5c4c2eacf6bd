from __future__ import annotations

from collections.abc import Iterator

import pytest

from sync.gang import Gang


@pytest.fixture(scope="session")
def gang() -> Iterator[Gang]:
    with Gang(2) as gang:
        yield gang


@pytest.fixture(scope="session")
def neighbours() -> Iterator[Gang]:
    with Gang(3, "nearby") as gang:
        yield gang
