"""The rooms keep to their floors: import-linter's contracts hold."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_contracts_hold():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_contracts_would_notice(tmp_path):
    """A contract that cannot break proves nothing: one forbidden import of each kind, in a copy, is found."""
    package = tmp_path / "firesteel"
    for room in ("core", "data", "cluster", "sync", "frameworks", "engine", "frontends", "learn", "bigdl", "testing"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "core" / "up.py").write_text("import firesteel.engine\n")
    (package / "data" / "sideways.py").write_text("import firesteel.cluster\n")
    (package / "sync" / "spark.py").write_text("import pyspark\n")
    (package / "engine" / "direct.py").write_text("import firesteel.frameworks\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from importlinter.cli import lint_imports_command as c; c()"
    )
    command = [
        sys.executable,
        "-c",
        code,
        str(tmp_path),
        "--no-logo",
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    for found in ("firesteel.core.up", "firesteel.data.sideways", "firesteel.sync.spark", "firesteel.engine.direct"):
        assert found in done.stdout, done.stdout + done.stderr
