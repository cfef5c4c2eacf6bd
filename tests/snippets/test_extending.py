"""The page on frameworks of one's own runs as it stands: docs/extending.md."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from firesteel.core import registry

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, framework, contract, use = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    name, target = re.findall(r'^(\w+) = "(.*)"$', toml, re.MULTILINE)[0]
    (tmp_path / "my_package.py").write_text(bench + framework)
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[firesteel.frameworks]\n{name} = {target}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry._entry_points.cache_clear()
    space: dict[str, Any] = dict(vars(importlib.import_module("my_package")))
    exec(contract, space)
    exec(use, space)
    assert type(space["estimator"].get_model()).__name__ == "Line"
