"""What Spark is to be told: the caller's few words become a plan of settings (a value), without a JVM."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from firesteel.core.errors import PlanError, UnknownName

if TYPE_CHECKING:
    from pyspark import SparkConf

    Conf: TypeAlias = Mapping[str, Any] | SparkConf | None

__all__ = [
    "LOG_LEVELS",
    "MODES",
    "OPTIONS",
    "Machine",
    "SessionPlan",
    "available_cores",
    "differing_settings",
    "plan_session",
    "read_configured",
]

MODES = (
    "local",
    "spark-submit",
    "bigdl-submit",
    "standalone",
    "yarn",
    "yarn-client",
    "yarn-cluster",
    "k8s-client",
    "k8s-cluster",
    "connect",
)
OPTIONS = (
    "additional_archive",
    "container_image",
    "driver_cores",
    "driver_memory",
    "extra_python_lib",
    "hadoop_conf",
    "hadoop_user_name",
    "jars",
    "master",
    "penv_archive",
    "py_files",
    "python_location",
    "remote",
    "spark_log_level",
    "spark_yarn_archive",
)
LOG_LEVELS = ("ALL", "DEBUG", "ERROR", "FATAL", "INFO", "OFF", "TRACE", "WARN")

DEFAULT_APP_NAME = "firesteel"
DEFAULT_MEMORY = "2g"
DEFAULT_CLUSTER_CORES = 2
LOOPBACK = "127.0.0.1"

# The beginning of a master says which mode it belongs to.
_MASTER_MODES = {"local": "local", "spark://": "standalone", "yarn": "yarn", "k8s://": "k8s-client"}


@dataclass(frozen=True)
class Machine:
    """What a plan depends on besides its parameters: this process and what is configured around it.

    Attributes:
        environ: the environment variables.
        configured: Spark settings from ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS``.
        cores: how many cores this process may use.
        python: the driver's own interpreter.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1
    python: str = ""

    @classmethod
    def here(cls) -> Machine:
        """Describe the process this is called in."""
        return cls(dict(os.environ), read_configured(os.environ), available_cores(), sys.executable or "")

    @property
    def is_submitted(self) -> bool:
        """Whether ``spark-submit`` started this Python program, so that its JVM is already there."""
        return "PYSPARK_GATEWAY_PORT" in self.environ


@dataclass(frozen=True)
class SessionPlan:
    """A session as it will be created: nothing in it needs a JVM to be looked at.

    Attributes:
        mode: the cluster mode after defaults, one of ``MODES``.
        settings: all Spark settings, ours and the caller's.
        asked: those of them the caller asked for; compared with a context that is already active.
        defaults: names of those that nobody asked for: they yield to what a program was submitted with.
        environment: variables that the launched JVM sees, and nobody else.
        log_level: Spark's log level, or ``None`` to leave it.
        notes: what the caller should be warned of when the plan is carried out.
    """

    mode: str
    settings: Mapping[str, str]
    asked: Mapping[str, str]
    defaults: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    log_level: str | None = None
    notes: tuple[str, ...] = ()


def plan_session(
    cluster_mode: str | None = None,
    *,
    cores: int | str | None = None,
    memory: str = DEFAULT_MEMORY,
    num_nodes: int = 1,
    conf: Conf = None,
    app_name: str = DEFAULT_APP_NAME,
    options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
) -> SessionPlan:
    """Turn ``init_context``'s parameters into Spark settings; starts nothing.

    Settings come from four layers, the later ones win: our defaults, what is configured on the machine, the parameters,
    and ``conf``. A parameter left at its default counts as one of our defaults.

    Raises:
        PlanError: a value that makes no sense, an option nobody knows, or one that the mode needs and does not have.
        UnknownName: a mode that does not exist.
    """
    machine = Machine.here() if machine is None else machine
    given = {name: value for name, value in (options or {}).items() if value is not None}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise PlanError(f"init_context does not know {', '.join(unknown)}; it takes: {', '.join(OPTIONS)}")
    if cluster_mode is not None and cluster_mode not in MODES:
        raise UnknownName("cluster mode", cluster_mode, MODES)
    if "spark_log_level" in given and str(given["spark_log_level"]).upper() not in LOG_LEVELS:
        raise UnknownName("log level", given["spark_log_level"], LOG_LEVELS)

    overlay = _conf_items(conf)
    request = _Request(
        mode=_resolve_mode(cluster_mode, given, overlay, machine),
        is_mode_given=cluster_mode is not None,
        cores=_check_cores(cores),
        memory_mib=_mebibytes(memory, "memory"),
        memory=memory if memory != DEFAULT_MEMORY else None,
        num_nodes=_check_count(num_nodes, "num_nodes"),
        app_name=app_name,
        given=given,
        overlay=overlay,
        machine=machine,
    )
    return _PLANNERS[request.mode](request)


@dataclass(frozen=True)
class _Request:
    """The parameters after checking. ``memory`` and ``cores`` are ``None`` where the caller left them alone."""

    mode: str
    is_mode_given: bool
    cores: int | None
    memory_mib: int
    memory: str | None
    num_nodes: int
    app_name: str
    given: Mapping[str, Any]
    overlay: Mapping[str, str]
    machine: Machine

    def is_configured(self, *keys: str) -> bool:
        """Whether the user set one of these, in ``conf`` or on the machine."""
        return any(key in self.overlay or key in self.machine.configured for key in keys)

    def plan(
        self,
        defaults: Mapping[str, str],
        asked: Mapping[str, str],
        *,
        required: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        log_level: str | None = "WARN",
        notes: tuple[str, ...] = (),
    ) -> SessionPlan:
        """Lay the layers over each other. ``required`` wins over the machine's, but nobody asked for it by name."""
        named = {"spark.app.name": self.app_name} if self.app_name != DEFAULT_APP_NAME else {}
        wanted = {**named, **asked, **self.overlay}
        level = self.given.get("spark_log_level", log_level)
        # A submitted program's JVM has its configuration already, with the command line's word over the file's.
        configured = {} if self.machine.is_submitted else self.machine.configured
        firm = {**configured, **(required or {}), **wanted}
        return SessionPlan(
            mode=self.mode,
            settings={**defaults, **firm},
            asked=wanted,
            defaults=frozenset(defaults) - frozenset(firm),
            environment=dict(environment or {}),
            log_level=None if level is None else str(level).upper(),
            notes=notes,
        )


def _resolve_mode(
    cluster_mode: str | None, given: Mapping[str, Any], overlay: Mapping[str, str], machine: Machine
) -> str:
    if cluster_mode in ("yarn-cluster", "k8s-cluster"):
        if not machine.is_submitted:
            raise PlanError(
                f"cluster_mode={cluster_mode!r} has its driver inside the cluster, so this program must be submitted: "
                f"spark-submit --master {cluster_mode.partition('-')[0]} --deploy-mode cluster program.py. "
                f"Use {cluster_mode.replace('cluster', 'client')!r} to keep the driver here."
            )
        return cluster_mode
    if cluster_mode is not None:
        return cluster_mode
    if "remote" in given:
        return "connect"
    master = given.get("master") or overlay.get("spark.master")
    if master is not None:
        for beginning, mode in _MASTER_MODES.items():
            if str(master).startswith(beginning):
                return mode
        raise UnknownName("master", master, ("local[2]", "spark://host:7077", "yarn", "k8s://https://host:443"))
    if machine.is_submitted or "spark.master" in machine.configured:
        return "spark-submit"
    return "local"


def _plan_local(request: _Request) -> SessionPlan:
    """``local[cores]`` in the driver's JVM, or with several nodes real executors on this machine."""
    given, machine = request.given, request.machine
    defaults = {
        "spark.app.name": DEFAULT_APP_NAME,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_worker_python(request),
    }
    environment = {}
    # Nobody outside this machine has to reach an embedded session. The two belong together: either one disables both.
    if "SPARK_LOCAL_IP" not in machine.environ and not request.is_configured(
        "spark.driver.host", "spark.driver.bindAddress"
    ):
        defaults |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        environment["SPARK_LOCAL_IP"] = LOOPBACK

    asked: dict[str, str] = {}
    required: dict[str, str] = {}
    if request.num_nodes > 1:
        cores = request.cores or max(1, machine.cores // request.num_nodes)
        master = f"local-cluster[{request.num_nodes},{cores},{request.memory_mib}]"
        # A worker of this size starts no executor that wants more, and Spark would then wait without end.
        required |= {"spark.executor.memory": f"{request.memory_mib}m", "spark.executor.cores": str(cores)}
    else:
        master = f"local[{request.cores or '*'}]"
        if request.memory is None:
            defaults["spark.driver.memory"] = DEFAULT_MEMORY
        else:
            asked["spark.driver.memory"] = request.memory
    if "master" in given:
        master = _check_master(request, "local")
    required["spark.master"] = master
    if request.is_mode_given or request.cores or request.num_nodes > 1 or "master" in given:
        asked["spark.master"] = master
    return request.plan(
        defaults,
        asked | _option_settings(request),
        required=required,
        environment=environment | _option_environment(request),
    )


def _plan_submitted(request: _Request) -> SessionPlan:
    """Whatever submit configured; only ``conf``, the application's name and the options are laid over it."""
    ignored = {
        "cores": request.cores is not None,
        "memory": request.memory is not None,
        "num_nodes": request.num_nodes != 1,
        "master": "master" in request.given,
    }
    names = [name for name, is_given in ignored.items() if is_given]
    notes = (f"{', '.join(names)} ignored: spark-submit has configured this session",) if names else ()
    defaults: dict[str, str] = {}
    if not request.machine.is_submitted:  # the JVM is ours to launch, on a master somebody else configured
        defaults["spark.app.name"] = DEFAULT_APP_NAME
        if request.machine.configured.get("spark.master", "local").startswith("local"):
            defaults |= _worker_python(request)
    return request.plan(
        defaults,
        _option_settings(request),
        environment=_option_environment(request),
        log_level=None,
        notes=notes,
    )


def _plan_standalone(request: _Request) -> SessionPlan:
    master = _check_master(request, "standalone")
    return _plan_cluster(request, master, lambda cores: {"spark.cores.max": str(cores * request.num_nodes)})


def _plan_yarn(request: _Request) -> SessionPlan:
    if "hadoop_conf" not in request.given and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & set(request.machine.environ):
        raise PlanError(
            f"cluster_mode={request.mode!r} needs Hadoop's configuration: "
            f"set HADOOP_CONF_DIR or pass hadoop_conf='/etc/hadoop/conf'"
        )
    master = _check_master(request, "yarn") if "master" in request.given else "yarn"
    return _plan_cluster(request, master, lambda _: {"spark.executor.instances": str(request.num_nodes)})


def _plan_kubernetes(request: _Request) -> SessionPlan:
    master = _check_master(request, "k8s-client")
    if "container_image" not in request.given and not request.is_configured("spark.kubernetes.container.image"):
        raise PlanError(f"cluster_mode={request.mode!r} needs container_image=, the image that executors run in")
    return _plan_cluster(request, master, lambda _: {"spark.executor.instances": str(request.num_nodes)})


def _plan_cluster(request: _Request, master: str, count: Callable[[int], dict[str, str]]) -> SessionPlan:
    """The driver here, executors elsewhere; ``count`` says how many, given the cores of one."""
    defaults = {
        "spark.app.name": DEFAULT_APP_NAME,
        "spark.driver.memory": DEFAULT_MEMORY,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.submit.deployMode": "client",
    }
    asked = {"spark.master": master}
    configured_cores = {**request.machine.configured, **request.overlay}.get("spark.executor.cores")
    notes: tuple[str, ...] = ()
    cores = request.cores or _check_count(configured_cores or DEFAULT_CLUSTER_CORES, "spark.executor.cores")
    if request.cores is None and configured_cores is None:
        notes = (f"cores was not given: each executor gets {cores} (cluster_mode={request.mode!r})",)
    for is_given, settings in (
        (request.cores is not None, {"spark.executor.cores": str(cores)}),
        (request.memory is not None, {"spark.executor.memory": request.memory or DEFAULT_MEMORY}),
        (request.num_nodes != 1, count(cores)),
    ):
        (asked if is_given else defaults).update(settings)
    return request.plan(
        defaults,
        asked | _option_settings(request),
        environment=_option_environment(request),
        notes=notes,
    )


def _plan_connect(request: _Request) -> SessionPlan:
    remote = request.given.get("remote") or request.machine.environ.get("SPARK_REMOTE")
    if not remote:
        raise PlanError("cluster_mode='connect' needs remote='sc://host:15002', the address of a Spark Connect server")
    sizes = {
        "cores": request.cores is not None,
        "memory": request.memory is not None,
        "num_nodes": request.num_nodes != 1,
    }
    names = [name for name, is_given in sizes.items() if is_given]
    names += sorted(set(request.given) - {"remote"})
    notes = (f"{', '.join(names)} ignored: the Spark Connect server has its own settings",) if names else ()
    named = {"spark.app.name": request.app_name} if request.app_name != DEFAULT_APP_NAME else {}
    # What is configured on this machine is the server's business, not a client's: only what was asked for travels.
    asked = {**named, **request.overlay, "spark.remote": str(remote)}
    environment = {}
    if str(remote).startswith("local"):  # a server in this process; its JVM reads which Python runs functions
        environment["PYSPARK_PYTHON"] = _worker_python(request).get("spark.pyspark.python", "python3")
    return SessionPlan(
        request.mode,
        settings={"spark.app.name": DEFAULT_APP_NAME, **asked},
        asked=asked,
        environment=environment,
        notes=notes,
    )


_PLANNERS = {
    "local": _plan_local,
    "spark-submit": _plan_submitted,
    "bigdl-submit": _plan_submitted,
    "standalone": _plan_standalone,
    "yarn": _plan_yarn,
    "yarn-client": _plan_yarn,
    "yarn-cluster": _plan_submitted,
    "k8s-client": _plan_kubernetes,
    "k8s-cluster": _plan_submitted,
    "connect": _plan_connect,
}


def _option_settings(request: _Request) -> dict[str, str]:
    """Each known option as the Spark setting of that meaning."""
    given = request.given
    settings: dict[str, str] = {}
    for option, key in (
        ("container_image", "spark.kubernetes.container.image"),
        ("driver_cores", "spark.driver.cores"),
        ("jars", "spark.jars"),
        ("spark_yarn_archive", "spark.yarn.archive"),
    ):
        if option in given:
            settings[key] = ",".join(listed(given[option]))
    if "driver_memory" in given:
        _mebibytes(given["driver_memory"], "driver_memory")
        settings["spark.driver.memory"] = str(given["driver_memory"])
    python_files = [*listed(given.get("py_files")), *listed(given.get("extra_python_lib"))]
    if python_files:
        settings["spark.submit.pyFiles"] = ",".join(python_files)
    archives = [*listed(given.get("additional_archive"))]
    python = given.get("python_location")
    if "penv_archive" in given:
        path, _, folder = str(given["penv_archive"]).partition("#")
        folder = folder or "environment"
        archives.insert(0, f"{path}#{folder}")
        python = python or f"./{folder}/bin/python"
    if archives:
        settings["spark.archives"] = ",".join(archives)
    if python:
        settings["spark.pyspark.python"] = str(python)
    return settings


def _option_environment(request: _Request) -> dict[str, str]:
    """Options that Hadoop's client reads from the environment only."""
    names = {"hadoop_conf": "HADOOP_CONF_DIR", "hadoop_user_name": "HADOOP_USER_NAME"}
    return {variable: str(request.given[option]) for option, variable in names.items() if option in request.given}


def _worker_python(request: _Request) -> dict[str, str]:
    """Workers on this machine run the driver's Python, not the first ``python3`` on PATH, which is Spark's default."""
    python = request.machine.environ.get("PYSPARK_PYTHON") or request.machine.python
    return {"spark.pyspark.python": python} if python else {}


def _check_master(request: _Request, mode: str) -> str:
    beginning = next(beginning for beginning, known in _MASTER_MODES.items() if known == mode)
    master = request.given.get("master") or request.overlay.get("spark.master")
    if not master:
        raise PlanError(f"cluster_mode={request.mode!r} needs master='{beginning}…'")
    if not str(master).startswith(beginning):
        raise PlanError(f"cluster_mode={request.mode!r} needs a master that begins with {beginning!r}, not {master!r}")
    return str(master)


def _check_cores(cores: int | str | None) -> int | None:
    if cores is None or cores == "*":
        return None
    return _check_count(cores, "cores")


def _check_count(value: object, name: str) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be a positive whole number, not {value!r}")
    return value


_UNITS = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


def _mebibytes(size: object, name: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt])b?", str(size).strip().lower())
    if match is None or (mebibytes := int(int(match[1]) * _UNITS[match[2]])) < 1:
        raise PlanError(f"{name} must be a size like '2g' or '512m', not {size!r}")
    return mebibytes


def listed(value: object) -> list[str]:
    """The parts of an option that may be a list, or one string with commas."""
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
    return [str(part).strip() for part in parts if str(part).strip()]


def _conf_items(conf: Conf) -> dict[str, str]:
    """A dict or ``SparkConf`` as strings; Spark spells booleans in lower case."""
    if conf is None:
        return {}
    pairs = conf.items() if isinstance(conf, Mapping) else conf.getAll()
    items: dict[str, str] = {}
    for key, value in pairs:
        if value is None:
            raise PlanError(f"conf holds {key!r} without a value (None): leave it out")
        items[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return items


def differing_settings(asked: Mapping[str, str], active: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, value asked for and value found (``"unset"``) of each setting that an active context has otherwise."""
    return [
        (key, value, active.get(key, "unset"))
        for key, value in sorted(asked.items())
        if _canonical(key, value) != _canonical(key, active.get(key, "unset"))
    ]


def _canonical(key: str, value: str) -> str:
    """Spellings that mean the same to Spark as one: ``local[*]`` with its number, ``2g`` with ``2048m``."""
    if key == "spark.master":
        return re.sub(r"^local\[\*", f"local[{available_cores()}", value)
    if key.endswith(".memory"):
        try:
            return f"{_mebibytes(value, key)}m"
        except PlanError:
            return value
    return value


def available_cores() -> int:
    """How many cores this process may use, which is less than the machine has in a container or under taskset."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def read_configured(environ: Mapping[str, str]) -> dict[str, str]:
    """Spark settings that a JVM launched from here would find: ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS``."""
    return {**_defaults_file(environ), **_submit_arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))}


def _defaults_file(environ: Mapping[str, str]) -> dict[str, str]:
    folder = environ.get("SPARK_CONF_DIR")
    if not folder:
        home = environ.get("SPARK_HOME")
        if not home:
            spec = importlib.util.find_spec("pyspark")
            if spec is None or not spec.submodule_search_locations:
                return {}
            home = spec.submodule_search_locations[0]
        folder = str(Path(home) / "conf")
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(re.findall(r"^[ \t]*(spark\.[^\s=:]+)[ \t]*[\s=:][ \t]*(.*?)[ \t]*$", text, flags=re.MULTILINE))


_SUBMIT_FLAGS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--deploy-mode": "spark.submit.deployMode",
    "--driver-memory": "spark.driver.memory",
    "--driver-cores": "spark.driver.cores",
    "--executor-memory": "spark.executor.memory",
    "--executor-cores": "spark.executor.cores",
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max",
}


def _submit_arguments(text: str) -> dict[str, str]:
    """The settings among ``spark-submit``'s arguments; what is not a setting stays for ``spark-submit`` itself."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--conf", action="append", default=[])
    for flag, key in _SUBMIT_FLAGS.items():
        parser.add_argument(flag, dest=key)
    try:
        known = vars(parser.parse_known_args(shlex.split(text))[0])
    except (argparse.ArgumentError, ValueError) as error:
        raise PlanError(f"PYSPARK_SUBMIT_ARGS cannot be read ({error}): {text}") from error
    pairs = dict(setting.partition("=")[::2] for setting in known.pop("conf"))
    return {**pairs, **{key: value for key, value in known.items() if value is not None}}
