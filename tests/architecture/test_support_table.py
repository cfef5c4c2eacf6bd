"""The support table says what the code offers, each tick has its test, and nobody has edited the page."""

from __future__ import annotations

import ast

import pytest

from conformance import support


@pytest.mark.parametrize("name", support.PROOFS)
def test_what_is_ticked_is_offered_and_has_its_test(name: str) -> None:
    columns = {column for each in support.COLUMNS.values() for column in each}
    has = support.offered(name)
    assert has <= columns
    assert set(support.PROOFS[name]) <= has
    for cell, test in support.PROOFS[name].items():
        file, _, function = test.partition("::")
        names = {each.name for each in ast.parse((support.ROOT / file).read_text()).body if hasattr(each, "name")}
        assert function in names, f"{cell}: {test}"


def test_the_page_is_fresh() -> None:
    assert (support.ROOT / "docs/support.md").read_text() == support.page(), "make support"
    readme = (support.ROOT / "README.md").read_text()
    if "<!-- support table -->" in readme:
        assert support.tables() in readme, "make support"
