"""Contexts that are really created, each group of scenarios in a process (and JVM) of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.cluster import context as module
from firesteel.cluster.context import init_context, init_nncontext, init_orca_context
from firesteel.cluster.java import find_java
from firesteel.core.errors import PlanError, UnknownName

PRELUDE = """
import atexit, os, sys, warnings

BEFORE = dict(os.environ)


@atexit.register  # registered first, so it runs last: after everything that Firesteel does at exit
def tell():
    from pyspark import SparkContext
    print("active at exit:", SparkContext._active_spark_context is not None, flush=True)


from firesteel.cluster.context import *

warnings.simplefilter("error", UserWarning)


def workers_python(batches):
    import pyarrow, sys
    for _ in batches:
        yield pyarrow.record_batch({"python": [sys.executable]})


def pythons(partitions):
    from pyspark.sql import SparkSession
    frame = SparkSession.builder.getOrCreate().range(0, partitions, 1, partitions)
    return [row["python"] for row in frame.mapInArrow(workers_python, "python string").collect()]


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert all(warning.filename == __file__ for warning in caught), caught
    return result, [str(warning.message) for warning in caught]


def changed_variables():
    # These are PySpark's own doing.
    return {name for name in {*BEFORE, *os.environ} if os.environ.get(name) != BEFORE.get(name)} - {
        "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_CONNECT_AUTHENTICATE_TOKEN"
    }
"""


def run_script(
    folder: Path, body: str, *, command: tuple[str, ...] = (sys.executable,), **variables: str | None
) -> list[str]:
    """Run a script in a process of its own and return the lines it printed; its asserts are the test's."""
    path = folder / "script.py"
    path.write_text(PRELUDE + body)
    hidden = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: value for name, value in variables.items() if value is not None},
    }
    run = subprocess.run(
        [*command, str(path)], env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr[-6000:]}"
    return run.stdout.splitlines()


def folder_without_java(folder: Path, **programs: str) -> str:
    """A folder for PATH that has this machine's programs but Java, and these scripts instead of some."""
    binaries = folder / "bin"
    binaries.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if program.name != "java" and program.name not in programs and not (binaries / program.name).exists():
                (binaries / program.name).symlink_to(program)
    for name, script in programs.items():
        (binaries / name).write_text(script)
        (binaries / name).chmod(0o755)
    return str(binaries)


def test_local_contexts(tmp_path: Path) -> None:
    """Case 24, and that one context's settings do not leak into the next although both share a JVM."""
    lines = run_script(
        tmp_path,
        """
sc = init_nncontext()
assert sc.master == "local[*]", sc.master
assert changed_variables() == set(), changed_variables()
assert pythons(1) == [sys.executable]
assert init_nncontext() is sc and init_context() is sc and init_context("local") is sc
same, messages = warned(lambda: init_context(cores=1, memory="2048m", conf={"spark.a": "b"}, app_name="other"))
assert same is sc
(message,) = messages
for part in ("spark.master is local[*], not local[1]", "spark.a is unset, not b", "spark.app.name is firesteel"):
    assert part in message, message
stop_context()
stop_context()

sc = init_orca_context(cores=2, conf={"spark.sql.shuffle.partitions": "3"}, py_files=[])
assert sc.master == "local[2]" and sc.defaultParallelism == 2
from pyspark.sql import SparkSession
assert SparkSession.builder.getOrCreate().conf.get("spark.sql.shuffle.partitions") == "3"
stop_orca_context()

library = os.path.join(os.getcwd(), "lonely.py")
with open(library, "w") as file:
    file.write("answer = 42")
sc, messages = warned(lambda: init_context(master="local[2,4]", memory="1g", py_files=[library]))
assert "spark.driver.memory stays 2g, not 1g" in messages[0], messages
assert sc.master == "local[2,4]"
assert SparkSession.builder.getOrCreate().conf.get("spark.sql.shuffle.partitions") != "3"


def fails_once(rows):
    import lonely
    from pyspark import TaskContext
    assert TaskContext.get().attemptNumber() > 0, "the first attempt fails"
    return [lonely.answer]


assert sc.parallelize([0], 1).mapPartitions(fails_once).collect() == [42]
assert init_context(master="local[2,4]", py_files=[library]) is sc  # asked for the same: no warning
sc.stop()  # the user's own way, instead of stop_context

from pyspark import SparkConf, SparkContext
theirs = SparkContext(conf=SparkConf().setMaster("local[1]").setAppName("theirs").set("spark.ui.enabled", "false"))
same, (message,) = warned(lambda: init_nncontext("mine"))
assert same is theirs and "spark.app.name is theirs, not mine" in message, message
assert changed_variables() == set(), changed_variables()
""",
    )
    assert lines[-1] == "active at exit: True"  # the user's own context is not ours to stop


def test_executors_run_without_java_and_with_another_python_on_path(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        """
import shutil
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
sc = init_context("local", cores=1, num_nodes=2, memory="512m")
assert sc.master == "local-cluster[2,1,512]", sc.master
assert pythons(2) == [sys.executable] * 2
executors = sc._jsc.sc().getExecutorMemoryStatus().size() - 1
assert executors >= 1, executors
home = sc.getConf().get("spark.executorEnv.JAVA_HOME")
assert home.startswith(os.environ["XDG_CACHE_HOME"]), home
assert changed_variables() == set(), changed_variables()
if os.fork() == 0:
    sys.exit(0)  # a child that leaves must not take its parent's session along
os.wait()
assert sc.parallelize([1, 2], 2).sum() == 3
""",
        PATH=folder_without_java(tmp_path, python3="#!/bin/sh\necho 'the wrong Python' >&2\nexit 1\n"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert lines[-1] == "active at exit: False"


def test_submitted_program(tmp_path: Path) -> None:
    import pyspark

    java = find_java()
    assert java is not None
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    flags = ("--master", "local[1]", "--name", "theirs", "--conf", "spark.a=command line")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a file\nspark.ui.enabled false\n")
    lines = run_script(
        tmp_path,
        """
sc, messages = warned(lambda: init_context(cores=2, conf={"spark.b": "ours"}))
assert messages == ["cores ignored: spark-submit has configured this session"], messages
conf = sc.getConf()
assert (sc.master, sc.appName) == ("local[1]", "theirs")
assert (conf.get("spark.a"), conf.get("spark.b")) == ("command line", "ours")
assert init_context("spark-submit") is sc and init_context("yarn-cluster") is sc
""",
        command=(submit, *flags),
        JAVA_HOME=str(java.home),  # spark-submit looks for Java itself, before any code of ours runs
        PYSPARK_PYTHON=sys.executable,
        SPARK_CONF_DIR=str(tmp_path / "conf"),
    )
    assert lines[-1] == "active at exit: False"


def test_connect(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        """
from firesteel.core.errors import ClusterError
from pyspark.errors import PySparkValueError
try:
    init_context("connect", remote="http://127.0.0.1:9")
except PySparkValueError as error:
    assert "sc://" in str(error) or "INVALID_CONNECT_URL" in str(error), error
else:
    raise AssertionError("a remote that is none")
assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
spark = init_context("connect", remote="local[1]", conf={"spark.sql.shuffle.partitions": 3})
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert type(spark).__module__ == "pyspark.sql.connect.session", type(spark)
assert pythons(1) == [sys.executable]
assert init_context("connect", remote="local[1]") is spark and init_context() is spark
same, (message,) = warned(lambda: init_context("connect", remote="sc://elsewhere"))
assert same is spark and "spark.remote is local[1], not sc://elsewhere" in message, message
try:
    init_context("local", cores=1)
except ClusterError as error:
    assert "stop_context() first" in str(error)
else:
    raise AssertionError("a Connect session and a SparkContext at once")
stop_context()
stop_context()
assert changed_variables() == set(), changed_variables()
sc = init_context("local", cores=1)
assert sc.master == "local[1]" and sc.parallelize([1, 2]).sum() == 3
""",
    )
    assert lines[-1] == "active at exit: False"


class TestWithoutJvm:
    """What is refused, before anything starts."""

    @pytest.fixture(autouse=True)
    def _start_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_create", lambda plan: plan)
        monkeypatch.setattr(module, "active_context", lambda: None)
        monkeypatch.setattr(module, "_active_connect_session", lambda: None)

    def test_unknown_mode(self) -> None:
        with pytest.raises(UnknownName, match=r"'mesos'.*standalone"):
            init_context("mesos")

    def test_unknown_option(self) -> None:
        with pytest.raises(PlanError, match="penv_archive"):
            init_context("local", colour="red")

    @pytest.mark.parametrize("name", ["init_ray_on_spark", "init_executor_gateway", "redirect_spark_log"])
    def test_parameters_without_meaning_belong_to_the_aliases_only(self, name: str) -> None:
        with pytest.raises(PlanError, match=name):
            init_context("local", **{name: True})  # type: ignore[arg-type]

    def test_there_is_no_ray(self) -> None:
        with pytest.raises(PlanError, match="no Ray"):
            init_orca_context(runtime="ray")
        with pytest.warns(UserWarning, match="init_ray_on_spark has no effect: there is no Ray here") as caught:
            init_orca_context("local", init_ray_on_spark=True)
        assert len(caught) == 1

    @pytest.mark.parametrize(
        "parameters",
        [{"init_executor_gateway": False}, {"extra_executor_memory_for_ray": "1g"}, {"enable_numa_binding": False}],
    )
    def test_orca_parameters_without_effect(self, parameters: dict[str, object]) -> None:
        (name,) = parameters
        with pytest.warns(UserWarning, match=f"{name} has no effect") as caught:
            init_orca_context("local", **parameters)  # type: ignore[arg-type]
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_nncontext_takes_a_name_a_dict_or_nothing(self) -> None:
        for conf in ("mine", {"spark.app.name": "mine"}):
            assert init_nncontext(conf).settings["spark.app.name"] == "mine"  # type: ignore[attr-defined]
        plan = init_nncontext(None, "local", spark_log_level="ERROR", cores=1)
        assert plan.log_level == "ERROR"  # type: ignore[attr-defined]
        with pytest.warns(UserWarning, match="redirect_spark_log has no effect"):
            init_nncontext(redirect_spark_log=False)

    def test_a_plans_notes_are_warnings(self) -> None:
        with pytest.warns(UserWarning, match="each executor gets 2") as caught:
            init_context("standalone", master="spark://h:7077")
        assert [warning.filename for warning in caught] == [__file__]
