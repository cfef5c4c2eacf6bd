"""Every example runs, and the README's first snippet is the first example."""

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Those that were asked for, two at a time: each waits for JVMs and imports more than it computes."""
    settings = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {params["script"] for params in settings if "script" in params}
    with ThreadPoolExecutor(2) as pool:
        yield {
            script: pool.submit(run, script, "--quick", cwd=tmp_path_factory.mktemp(script.stem))
            for script in EXAMPLES
            if script in asked and missing(script) is None
        }


def missing(script):
    """What it needs and is not installed."""
    needed = re.search(r"^# Needs (\w+)\.", script.read_text(encoding="utf-8"), re.MULTILINE)
    return needed[1] if needed and importlib.util.find_spec(needed[1]) is None else None


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script, runs):
    if missing(script):
        pytest.skip(f"{missing(script)} is not installed here: make test-{missing(script)}")
    done = runs[script].result()
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
