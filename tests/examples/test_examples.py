"""Every example runs, and the README's first snippet is the first example."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(script, *arguments, cwd):
    # A short-lived JVM need not be a fast one: its start is most of an example's time here.
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return subprocess.run(
        [sys.executable, str(script), *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, tmp_path):
    needed = re.search(r"^# Needs (\w+)\.", script.read_text(encoding="utf-8"), re.MULTILINE)
    if needed and importlib.util.find_spec(needed[1]) is None:
        pytest.skip(f"{needed[1]} is not installed here: make test-{needed[1]}")
    done = run(script, "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_demo_keeps_its_model_and_says_the_reloaded_one_agrees(tmp_path):
    done = run(ROOT / "examples" / "demo.py", "--quick", "--out", str(tmp_path / "kept"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "kept" / "digits.safetensors").is_file()
    assert "100.00% equal" in done.stdout


def test_readme_begins_with_the_first_example():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1)
    code = EXAMPLES[0].read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert EXAMPLES[0].name.startswith("01_")
    assert snippet == code


def test_each_example_is_in_the_table_and_short():
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    for script in EXAMPLES:
        assert f"`{script.name}`" in table
        if script.name != "demo.py":
            assert len(script.read_text(encoding="utf-8").splitlines()) < 100
