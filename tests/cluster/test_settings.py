"""Parameters to Spark settings, every row of the mode table, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firesteel.cluster.settings import (
    MODES,
    OPTIONS,
    Machine,
    SessionPlan,
    differing_settings,
    plan_session,
    read_configured,
)
from firesteel.core.errors import PlanError, UnknownName

LAPTOP = Machine(cores=4, python="/env/bin/python")
SUBMITTED = Machine(environ={"PYSPARK_GATEWAY_PORT": "1"}, configured={"spark.executor.memory": "1g"}, cores=4)
GATEWAY = Machine(environ={"HADOOP_CONF_DIR": "/etc/hadoop"}, cores=4, python="/env/bin/python")


def plan(mode: str | None = None, machine: Machine = LAPTOP, **parameters: Any) -> SessionPlan:
    return plan_session(mode, machine=machine, **parameters)


class TestLocal:
    @pytest.mark.parametrize(
        ("parameters", "master"),
        [
            ({}, "local[*]"),
            ({"cores": "*"}, "local[*]"),
            ({"cores": 2}, "local[2]"),
            ({"cores": "2"}, "local[2]"),
            ({"cores": 1, "num_nodes": 2}, "local-cluster[2,1,2048]"),
            ({"cores": 1, "num_nodes": 2, "memory": "512m"}, "local-cluster[2,1,512]"),
            ({"num_nodes": 2}, "local-cluster[2,2,2048]"),
            ({"num_nodes": 9}, "local-cluster[9,1,2048]"),
            ({"options": {"master": "local[2,4]"}}, "local[2,4]"),
            ({"conf": {"spark.master": "local[3]"}}, "local[3]"),
        ],
    )
    @pytest.mark.parametrize("mode", [None, "local"])
    def test_master(self, mode: str | None, parameters: dict[str, Any], master: str) -> None:
        result = plan(mode, **parameters)
        assert (result.mode, result.settings["spark.master"]) == ("local", master)
        assert result.notes == ()

    def test_an_embedded_session_keeps_to_itself(self) -> None:
        result = plan("local")
        assert result.settings == {
            "spark.app.name": "firesteel",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.master": "local[*]",
            "spark.pyspark.python": "/env/bin/python",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        assert result.environment == {"SPARK_LOCAL_IP": "127.0.0.1"}
        assert result.log_level == "WARN"

    def test_memory_is_the_drivers_or_each_executors(self) -> None:
        assert plan("local", memory="3g").settings["spark.driver.memory"] == "3g"
        executors = plan("local", cores=1, num_nodes=2, memory="3g").settings
        assert executors["spark.executor.memory"] == "3072m"
        assert executors["spark.executor.cores"] == "1"
        assert "spark.driver.memory" not in executors

    def test_conf_wins_over_parameters_and_parameters_over_the_machine(self) -> None:
        machine = Machine(configured={"spark.ui.enabled": "true", "spark.driver.memory": "8g", "spark.a": "file"})
        assert plan("local", machine).settings["spark.driver.memory"] == "8g"
        settings = plan("local", machine, memory="3g", conf={"spark.a": "conf"}).settings
        assert settings["spark.driver.memory"] == "3g"
        assert settings["spark.ui.enabled"] == "true"
        assert settings["spark.a"] == "conf"
        assert plan("local", machine, memory="3g", conf={"spark.driver.memory": "5g"}).settings[
            "spark.driver.memory"
        ] == ("5g")

    @pytest.mark.parametrize(
        ("machine", "conf"),
        [
            (Machine(environ={"SPARK_LOCAL_IP": "10.0.0.1"}), {}),
            (Machine(configured={"spark.driver.bindAddress": "0.0.0.0"}), {}),
            (Machine(), {"spark.driver.host": "10.0.0.1"}),
        ],
    )
    def test_a_users_address_is_left_alone(self, machine: Machine, conf: dict[str, str]) -> None:
        result = plan("local", machine, conf=conf)
        assert "127.0.0.1" not in result.settings.values()
        assert "SPARK_LOCAL_IP" not in result.environment

    def test_workers_run_the_drivers_python_unless_the_user_says_otherwise(self) -> None:
        key = "spark.pyspark.python"
        theirs = Machine(environ={"PYSPARK_PYTHON": "/theirs"}, python="/env/bin/python")
        assert plan("local", theirs).settings[key] == "/theirs"
        assert plan("local", theirs, options={"python_location": "/given"}).settings[key] == "/given"
        assert plan("local", conf={key: "/conf"}).settings[key] == "/conf"

    def test_conf_values_are_spelt_as_spark_spells_them(self) -> None:
        settings = plan("local", conf={"spark.a": True, "spark.b": 3}).settings
        assert (settings["spark.a"], settings["spark.b"]) == ("true", "3")


class TestSubmitted:
    @pytest.mark.parametrize("mode", [None, "spark-submit", "bigdl-submit", "yarn-cluster", "k8s-cluster"])
    def test_what_submit_configured_is_used(self, mode: str | None) -> None:
        """The defaults file must not be laid over the command line's ``--executor-memory`` a second time."""
        result = plan(mode, SUBMITTED, conf={"spark.a": "b"})
        assert result.settings == {"spark.a": "b"}
        assert result.log_level is None
        assert result.notes == ()

    def test_sizes_are_ignored_with_a_warning(self) -> None:
        (note,) = plan("spark-submit", SUBMITTED, cores=2, memory="3g", num_nodes=4).notes
        assert "cores, memory, num_nodes ignored" in note

    def test_a_master_in_the_configuration_is_used(self) -> None:
        machine = Machine(configured={"spark.master": "spark://h:7077"}, python="/env/bin/python")
        result = plan(None, machine)
        assert result.mode == "spark-submit"
        assert result.settings == {"spark.master": "spark://h:7077", "spark.app.name": "firesteel"}

    @pytest.mark.parametrize("mode", ["yarn-cluster", "k8s-cluster"])
    def test_cluster_modes_have_to_be_submitted(self, mode: str) -> None:
        with pytest.raises(PlanError, match="spark-submit --master"):
            plan(mode)

    def test_local_defaults_yield_to_the_command_line(self) -> None:
        result = plan("local", SUBMITTED)
        assert "spark.ui.enabled" in result.defaults
        assert "spark.master" not in result.defaults


class TestClusters:
    def test_standalone(self) -> None:
        options = {"master": "spark://h:7077"}
        settings = plan("standalone", cores=4, memory="6g", num_nodes=3, options=options).settings
        assert settings == {
            "spark.app.name": "firesteel",
            "spark.cores.max": "12",
            "spark.driver.memory": "2g",
            "spark.executor.cores": "4",
            "spark.executor.memory": "6g",
            "spark.master": "spark://h:7077",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.submit.deployMode": "client",
        }

    @pytest.mark.parametrize("mode", ["yarn", "yarn-client"])
    def test_yarn(self, mode: str) -> None:
        settings = plan(mode, GATEWAY, cores=4, num_nodes=3).settings
        assert settings["spark.master"] == "yarn"
        assert settings["spark.executor.instances"] == "3"
        assert settings["spark.executor.cores"] == "4"
        assert "spark.cores.max" not in settings
        with pytest.raises(PlanError, match="HADOOP_CONF_DIR"):
            plan(mode)
        given = plan(mode, cores=1, options={"hadoop_conf": "/conf", "hadoop_user_name": "ann"})
        assert given.environment == {"HADOOP_CONF_DIR": "/conf", "HADOOP_USER_NAME": "ann"}

    def test_kubernetes(self) -> None:
        options = {"master": "k8s://https://h:443", "container_image": "me/spark:4"}
        settings = plan("k8s-client", cores=1, num_nodes=2, options=options).settings
        assert settings["spark.kubernetes.container.image"] == "me/spark:4"
        assert settings["spark.executor.instances"] == "2"
        with pytest.raises(PlanError, match="container_image"):
            plan("k8s-client", options={"master": "k8s://https://h:443"})

    @pytest.mark.parametrize("mode", ["standalone", "k8s-client"])
    def test_master_is_needed(self, mode: str) -> None:
        with pytest.raises(PlanError, match="needs master="):
            plan(mode, cores=1)
        with pytest.raises(PlanError, match="begins with"):
            plan(mode, cores=1, options={"master": "local[2]"})

    @pytest.mark.parametrize(
        ("master", "mode"), [("spark://h:7077", "standalone"), ("yarn", "yarn"), ("local[2]", "local")]
    )
    def test_a_master_alone_says_the_mode(self, master: str, mode: str) -> None:
        assert plan(None, GATEWAY, options={"master": master}).mode == mode
        assert plan(None, GATEWAY, conf={"spark.master": master}).mode == mode

    def test_cores_not_given_are_two_and_said(self) -> None:
        result = plan("yarn", GATEWAY)
        assert result.settings["spark.executor.cores"] == "2"
        assert "each executor gets 2" in result.notes[0]
        configured = Machine(environ=GATEWAY.environ, configured={"spark.executor.cores": "8"})
        result = plan("yarn", configured)
        assert (result.settings["spark.executor.cores"], result.notes) == ("8", ())

    def test_options_become_settings(self) -> None:
        options = {
            "driver_cores": 2,
            "driver_memory": "4g",
            "py_files": ["a.zip", "b.py"],
            "extra_python_lib": "c.zip,d.py",
            "jars": "x.jar",
            "penv_archive": "hdfs:///env.tar.gz",
            "additional_archive": "data.zip#data",
            "spark_yarn_archive": "hdfs:///spark.zip",
            "spark_log_level": "error",
        }
        result = plan("yarn", GATEWAY, cores=1, options=options)
        expected = {
            "spark.archives": "hdfs:///env.tar.gz#environment,data.zip#data",
            "spark.driver.cores": "2",
            "spark.driver.memory": "4g",
            "spark.jars": "x.jar",
            "spark.pyspark.python": "./environment/bin/python",
            "spark.submit.pyFiles": "a.zip,b.py,c.zip,d.py",
            "spark.yarn.archive": "hdfs:///spark.zip",
        }
        assert {key: result.settings[key] for key in expected} == expected
        assert result.log_level == "ERROR"

    def test_workers_python_elsewhere_is_not_the_drivers(self) -> None:
        assert "spark.pyspark.python" not in plan("yarn", GATEWAY, cores=1).settings


class TestConnect:
    def test_connect(self) -> None:
        result = plan("connect", options={"remote": "sc://h:15002"}, conf={"spark.sql.shuffle.partitions": 3})
        assert result.settings == {
            "spark.app.name": "firesteel",
            "spark.remote": "sc://h:15002",
            "spark.sql.shuffle.partitions": "3",
        }
        assert plan(None, options={"remote": "sc://h:15002"}).mode == "connect"

    def test_remote_is_needed(self) -> None:
        with pytest.raises(PlanError, match="needs remote="):
            plan("connect")

    def test_sizes_are_the_servers_business(self) -> None:
        (note,) = plan("connect", cores=3, options={"remote": "sc://h:15002", "jars": "a.jar"}).notes
        assert "cores, jars ignored" in note


class TestWrongInput:
    def test_unknown_mode_names_the_modes(self) -> None:
        with pytest.raises(UnknownName) as raised:
            plan("mesos")
        assert "'mesos'" in str(raised.value)
        assert all(mode in str(raised.value) for mode in MODES)

    def test_unknown_option_lists_the_known(self) -> None:
        with pytest.raises(PlanError) as raised:
            plan("local", options={"coers": 2})
        assert all(name in str(raised.value) for name in ("coers", *OPTIONS))

    @pytest.mark.parametrize(
        "parameters",
        [
            {"cores": 0},
            {"cores": True},
            {"cores": "two"},
            {"cores": 1.5},
            {"num_nodes": 0},
            {"memory": "2 elephants"},
            {"memory": "100k", "num_nodes": 2, "cores": "x"},
            {"conf": {"spark.a": None}},
            {"options": {"driver_memory": "much"}},
            {"options": {"spark_log_level": "LOUD"}},
            {"options": {"master": "spark://h:7077"}},
        ],
    )
    def test_values_that_make_no_sense(self, parameters: dict[str, Any]) -> None:
        with pytest.raises(PlanError):
            plan("local", **parameters)

    def test_unknown_master(self) -> None:
        with pytest.raises(UnknownName, match="mesos://"):
            plan(None, options={"master": "mesos://h:5050"})


class TestDifferences:
    def test_only_what_was_asked_for_is_compared(self) -> None:
        active = {"spark.master": "yarn", "spark.app.name": "theirs"}
        assert differing_settings(plan(None).asked, active) == []
        assert differing_settings(plan(None, cores=2, memory="3g").asked, active) == [
            ("spark.driver.memory", "3g", "unset"),
            ("spark.master", "local[2]", "yarn"),
        ]

    def test_other_spellings_of_the_same_are_no_difference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("firesteel.cluster.settings.available_cores", lambda: 2)
        asked = {"spark.master": "local[*]", "spark.driver.memory": "2g"}
        assert differing_settings(asked, {"spark.master": "local[2]", "spark.driver.memory": "2048m"}) == []


class TestConfigured:
    def test_defaults_file(self, tmp_path: Path) -> None:
        text = "# spark.a no\n\nspark.b  1\nspark.c=two words \n spark.d: 3\nspark.e -Da=b -Dc=d\nother 1\n"
        (tmp_path / "spark-defaults.conf").write_text(text)
        assert read_configured({"SPARK_CONF_DIR": str(tmp_path)}) == {
            "spark.b": "1",
            "spark.c": "two words",
            "spark.d": "3",
            "spark.e": "-Da=b -Dc=d",
        }

    def test_submit_arguments_win_over_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\n")
        arguments = (
            "--master local[2] --conf 'spark.x=a b' -c spark.y=c=d --driver-memory=3g --jars j.jar pyspark-shell"
        )
        assert read_configured({"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments}) == {
            "spark.master": "local[2]",
            "spark.x": "a b",
            "spark.y": "c=d",
            "spark.driver.memory": "3g",
        }

    def test_nothing_configured(self, tmp_path: Path) -> None:
        assert read_configured({"SPARK_HOME": str(tmp_path)}) == {}
