"""Get or create the SparkContext: carry a plan of settings out, or hand back the context that is already active."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from firesteel.cluster.java import Java, require_java
from firesteel.cluster.settings import (
    DEFAULT_APP_NAME,
    DEFAULT_MEMORY,
    SessionPlan,
    differing_settings,
    listed,
    plan_session,
)
from firesteel.core.environment import with_variables
from firesteel.core.errors import ClusterError, PlanError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from firesteel.cluster.settings import Conf

__all__ = [
    "active_context",
    "init_context",
    "init_nncontext",
    "init_orca_context",
    "stop_context",
    "stop_orca_context",
]

# PySpark sets this for a Connect session and leaves it behind; with it no SparkContext can be made in this process.
_CONNECT_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"


@dataclass
class _Ours:
    """What this process has created, so that exit stops it and a later session does not inherit its settings.

    Attributes:
        context: the SparkContext made here, if it is the last one made.
        session: the Spark Connect session made here.
        asked: what that context or session was asked to be.
        process: who made them; a forked child must not stop them.
        launched_with: settings that our launch left in the JVM as system properties.
        driver_memory: the JVM's, which cannot change while the JVM lives.
    """

    context: SparkContext | None = None
    session: SparkSession | None = None
    asked: dict[str, str] = field(default_factory=dict)
    process: int = 0
    launched_with: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str | None = None


_ours = _Ours()
_lock = threading.RLock()


def init_context(
    cluster_mode: str | None = None,
    *,
    cores: int | str | None = None,
    memory: str = DEFAULT_MEMORY,
    num_nodes: int = 1,
    conf: Conf = None,
    app_name: str = DEFAULT_APP_NAME,
    **kwargs: Any,
) -> SparkContext:
    """Return the active SparkContext, or create one. Runs on the driver.

    A context that is already active is returned unchanged, with one warning that names each setting that would have
    differed. A context made here is stopped at interpreter exit. ``JAVA_HOME`` and the like are set while the JVM is
    being launched and put back afterwards; where there is no Java, that of ``pip install 'firesteel[java]'`` serves.

    ``local[k]`` never runs a failed task again: a training that lost one is launched anew, from its last commit point,
    and reads its rows once more. ``master="local[2,4]"`` (four attempts per task), ``num_nodes=2`` and real clusters
    retry the one task. ``num_nodes > 1`` in local mode needs a Spark
    installation that this user can write to: Spark keeps its executors' files under it.

    Args:
        cluster_mode: ``"local"``, ``"standalone"``, ``"yarn"`` (or ``"yarn-client"``), ``"k8s-client"``, ``"connect"``;
            ``"spark-submit"``, ``"yarn-cluster"`` and ``"k8s-cluster"`` for a program that was submitted. ``None``:
            what was submitted or configured, else ``"local"``.
        cores: task slots in local mode (``None`` or ``"*"``: all), cores of each executor elsewhere (``None``: 2).
        memory: the driver's in local mode, each executor's elsewhere.
        num_nodes: executors. More than one in local mode starts real executors on this machine.
        conf: Spark settings laid over all others, a dict or a ``SparkConf``.
        app_name: the application's name.
        **kwargs: ``master``, ``remote``, ``hadoop_conf``, ``container_image``, ``driver_cores``, ``driver_memory``,
            ``py_files``, ``extra_python_lib``, ``jars``, ``penv_archive``, ``additional_archive``,
            ``hadoop_user_name``, ``spark_yarn_archive``, ``python_location``, ``spark_log_level``.

    Returns:
        The SparkContext. With ``"connect"`` a ``SparkSession``, for Spark Connect has no context.

    Raises:
        PlanError: a parameter or mode that makes no sense; raised before anything starts.
        ClusterError: no Java, or a Spark Connect session is in the way.
    """
    plan = plan_session(
        cluster_mode,
        cores=cores,
        memory=memory,
        num_nodes=num_nodes,
        conf=conf,
        app_name=app_name,
        options=kwargs,
    )
    return _get_or_create(plan, is_mode_given=cluster_mode is not None)


def init_orca_context(
    cluster_mode: str | None = None,
    *,
    runtime: str = "spark",
    cores: int | str | None = None,
    memory: str = DEFAULT_MEMORY,
    num_nodes: int = 1,
    init_ray_on_spark: bool = False,
    init_executor_gateway: bool = True,
    **kwargs: Any,
) -> SparkContext:
    """``init_context`` under Orca's name. There is no Ray here: its parameters are taken with a warning, to no effect.

    Raises:
        PlanError: ``runtime`` is not ``"spark"``, or as ``init_context``.
    """
    if runtime != "spark":
        raise PlanError(f"runtime={runtime!r}: there is no Ray here, the only runtime is 'spark'")
    _warn_without_effect(
        kwargs,
        init_ray_on_spark=init_ray_on_spark is not False,
        init_executor_gateway=init_executor_gateway is not True,
    )
    return init_context(cluster_mode, cores=cores, memory=memory, num_nodes=num_nodes, **kwargs)


def init_nncontext(
    conf: Conf | str = None,
    cluster_mode: str | None = None,
    spark_log_level: str = "WARN",
    redirect_spark_log: bool = True,
    **kwargs: Any,
) -> SparkContext:
    """``init_context`` under Analytics Zoo's name; ``conf`` may also be a string, the application's name."""
    _warn_without_effect(kwargs, redirect_spark_log=redirect_spark_log is not True)
    if isinstance(conf, str):
        kwargs["app_name"] = conf
    else:
        kwargs["conf"] = conf
    if spark_log_level != "WARN":  # the default must not override what spark-submit configured
        kwargs["spark_log_level"] = spark_log_level
    return init_context(cluster_mode, **kwargs)


def stop_context() -> None:
    """Stop the active context, whoever created it. May be called when there is none, and a new one can follow."""
    with _lock:
        remote = _active_connect_session()
        if remote is not None:
            remote.stop()
            os.environ.pop(_CONNECT_VARIABLE, None)
        context = active_context()
        if context is not None:
            from pyspark.sql import SparkSession

            # A session's stop also forgets Spark SQL's default session; the context's own does not.
            (SparkSession.getActiveSession() or context).stop()
        _ours.context = _ours.session = None
        _forget_launch_settings()


stop_orca_context = stop_context


# Parameters of older libraries that mean nothing here, as they come in through ``**kwargs``.
_WITHOUT_EFFECT = (
    "enable_numa_binding",
    "extra_executor_memory_for_ray",
    "init_executor_gateway",
    "init_ray_on_spark",
    "redirect_spark_log",
)


def _warn_without_effect(kwargs: dict[str, Any], **is_given: bool) -> None:
    """Take the parameters without effect out of ``kwargs``, with one warning each."""
    names = {name for name, given in is_given.items() if given}
    for name in _WITHOUT_EFFECT:
        if name in kwargs:
            del kwargs[name]
            names.add(name)
    for name in sorted(names):
        _warn(f"{name} has no effect: " + ("there is no Ray here" if "_ray" in name else "it means nothing here"))


def _get_or_create(plan: SessionPlan, *, is_mode_given: bool) -> SparkContext:
    with _lock:
        # First, for a Connect session on "local[2]" has a server with a SparkContext in this same process.
        remote = _active_connect_session()
        if remote is not None:
            if is_mode_given and plan.mode != "connect":
                raise ClusterError(
                    f"cluster_mode={plan.mode!r} needs a SparkContext, but a Spark Connect session is active: "
                    f"stop_context() first"
                )
            if plan.mode == "connect" and remote is _ours.session:
                _warn_of_differences(plan, _ours.asked)
            return cast("SparkContext", remote)
        context = active_context()
        is_ours = context is _ours.context
        if context is not None:
            # What was asked of us counts as asked: Spark rewrites some of it, paths of files for one.
            _warn_of_differences(plan, dict(context.getConf().getAll()) | (_ours.asked if is_ours else {}))
            if plan.mode != "connect":
                return context
            from pyspark.sql import SparkSession

            return cast("SparkContext", SparkSession.builder.getOrCreate())
        for note in plan.notes:
            _warn(note)
        if plan.mode == "connect":
            return cast("SparkContext", _create_connect(plan))
        return _create(plan)


def _create(plan: SessionPlan) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    is_launch = SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    settings = dict(plan.settings)
    variables = dict(plan.environment)
    if "spark.pyspark.python" in settings:
        # Spark reads that setting in spark-submit only. Here the variable decides which Python the tasks run, and
        # PySpark reads it while the context is made.
        variables["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    if is_launch:
        java = require_java()
        variables |= _launch_variables(java)
        if java.is_bundled and settings.get("spark.master", "").startswith("local-cluster"):
            settings.setdefault("spark.executorEnv.JAVA_HOME", str(java.home))
        _ours.launched_with = settings
        _ours.driver_memory = settings.get("spark.driver.memory")
    else:
        _forget_launch_settings()
        _warn_of_driver_memory(plan)
    conf = SparkConf()
    for key, value in settings.items():
        if key in plan.defaults:
            conf.setIfMissing(key, value)
        else:
            conf.set(key, value)
    with with_variables(variables):
        context = SparkContext(conf=conf)
    _remember(context=context, asked=plan.asked)
    if not is_launch:
        # A launch hands Python files to the tasks. In a JVM that already runs the setting does nothing for them.
        for path in listed(settings.get("spark.submit.pyFiles")):
            context.addPyFile(path)
    if plan.log_level is not None:
        context.setLogLevel(plan.log_level)
    return context


def _create_connect(plan: SessionPlan) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = dict(plan.settings)
    remote = settings.pop("spark.remote")
    variables = dict(plan.environment)
    if remote.startswith("local"):  # a server of our own, in a JVM of our own
        variables |= _launch_variables(require_java())
    builder = SparkSession.builder.remote(remote)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with with_variables(variables):
            session = builder.getOrCreate()
    except BaseException:
        os.environ.pop(_CONNECT_VARIABLE, None)
        raise
    _remember(session=session, asked=plan.asked)
    return session


def _launch_variables(java: Java) -> dict[str, str]:
    # Spark's launch script looks for Spark's own folder with the driver's Python, else with the workers', which may not
    # exist here.
    python = os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable
    return {"JAVA_HOME": str(java.home), "PYSPARK_DRIVER_PYTHON": python}


def active_context() -> SparkContext | None:
    """The SparkContext of this process, ours or the user's, or ``None``; imports nothing to find out."""
    if "pyspark" not in sys.modules:  # then there is none, and importing it takes half a second
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _active_connect_session() -> SparkSession | None:
    """The Spark Connect session of this process, ours or the user's."""
    connect = sys.modules.get("pyspark.sql.connect.session")
    session = None if connect is None else connect.SparkSession._default_session
    return None if session is None or session.is_stopped else cast("SparkSession", session)


def _warn_of_differences(plan: SessionPlan, active: Mapping[str, str]) -> None:
    differences = differing_settings(plan.asked, active)
    if differences:
        found = "; ".join(f"{key} is {found}, not {asked}" for key, asked, found in differences)
        _warn(f"the active context is used and stays as it is: {found}. To change that, stop_context() first")


def _warn_of_driver_memory(plan: SessionPlan) -> None:
    asked = plan.asked.get("spark.driver.memory")
    if asked is not None and _ours.driver_memory is not None:
        active = {"spark.driver.memory": _ours.driver_memory}
        if differing_settings({"spark.driver.memory": asked}, active):
            _warn(
                f"spark.driver.memory stays {_ours.driver_memory}, not {asked}: the JVM lives as long as this process"
            )


def _warn(message: str) -> None:
    """Warn at the line that called this module, whichever way it came in."""
    level, frame = 1, sys._getframe()
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _forget_launch_settings() -> None:
    """Take our settings back out of the JVM, which outlives a context.

    ``spark-submit`` keeps what a JVM was launched with as system properties, and every later configuration begins with
    those: a second context would quietly inherit the first one's settings.
    """
    settings, _ours.launched_with = _ours.launched_with, {}
    if not settings:
        return
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    if jvm is not None:
        system = jvm.java.lang.System
        for key, value in settings.items():
            if system.getProperty(key) == value:
                system.clearProperty(key)


def _remember(
    *, context: SparkContext | None = None, session: SparkSession | None = None, asked: Mapping[str, str]
) -> None:
    if _ours.process != os.getpid():
        atexit.register(_stop_at_exit)
    _ours.context, _ours.session, _ours.asked, _ours.process = context, session, dict(asked), os.getpid()


def _stop_at_exit() -> None:
    if _ours.process != os.getpid():  # a forked child leaves through here too, but the session is its parent's
        return
    is_ours_active = _ours.context is not None and _ours.context is active_context()
    if is_ours_active or (_ours.session is not None and _ours.session is _active_connect_session()):
        stop_context()
