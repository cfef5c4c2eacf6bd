"""An environment of its own for each outside peer: made once, under ``benchmarks/.envs``, which git ignores."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import ROOT
from benchmarks.harness import CannotRun

__all__ = ["ENVIRONMENTS", "Environment", "python_of"]

_FOLDER = ROOT / "benchmarks" / ".envs"
_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class Environment:
    """What pip installs, one call after the other, and what its processes need to see."""

    name: str
    steps: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


ENVIRONMENTS = {
    each.name: each
    for each in (
        # Its own metadata names packages that no longer install; pyspark 3.5 wants pandas and NumPy of its time.
        Environment(
            "orca",
            (
                "pyspark==3.5.9 numpy==1.26.4 pandas<2.3 pyarrow<20 torch==2.13.0 setuptools<81",
                "psutil cloudpickle tqdm pyzmq filelock packaging protobuf six",
                "--no-deps bigdl-orca-spark3==2.4.0 bigdl-dllib-spark3==2.4.0",
                "--no-deps bigdl-core==2.4.0.dev0 bigdl-tf==2.4.0.dev0 bigdl-math==2.4.0.dev0",
            ),
            (("PYTHONHOME", ""),),
        ),
        Environment(
            "sparktorch",
            (
                "pyspark==4.3.0 pandas<3 pyarrow numpy torch==2.13.0 setuptools<81 typing_extensions<4.15",
                "sparktorch==0.2.0 torch==2.13.0 pyspark==4.3.0",
            ),
        ),
        Environment("elephas", ("elephas==7.3.0",)),
        # It is of TensorFlow 1's days; peers/tf1_names gives it those names.
        Environment(
            "sparkflow",
            (
                "pyspark==4.3.0 pandas<3 pyarrow numpy tensorflow-cpu==2.21.0 setuptools<81 flask requests dill",
                "--no-deps tf-keras==2.21.0 sparkflow==0.7.0",
            ),
            (("TF_USE_LEGACY_KERAS", "1"),),
        ),
        # Its Keras is the second; it asks setuptools for its own version.
        Environment(
            "tensorflowonspark",
            (
                "pyspark==4.3.0 pandas<3 pyarrow numpy tensorflow-cpu==2.21.0 tf-keras==2.21.0 setuptools<81 packaging",
                "--no-deps tensorflowonspark==2.2.5",
            ),
            (("TF_USE_LEGACY_KERAS", "1"),),
        ),
        Environment("ray", ("ray[train,data]==2.60.* torch==2.13.0 numpy pyarrow pandas",)),
    )
}


def python_of(environment: Environment, say: Callable[[str], None] = lambda line: None) -> str:
    """The interpreter of this environment, which is made if it is not there.

    Raises:
        CannotRun: something of it does not install.
    """
    folder = _FOLDER / environment.name
    python = folder / "bin" / "python"
    stamp = folder / f".installed-{hashlib.sha256(repr(environment.steps).encode()).hexdigest()[:12]}"
    if not stamp.exists():
        say(f"  making the environment of {environment.name} (minutes, once)")
        if not python.exists():
            venv.create(folder, with_pip=True)
        for step in environment.steps:
            _install(python, step)
        stamp.touch()
    return str(python)


def _install(python: Path, packages: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"pip install {packages} took more than {_TIMEOUT_SECONDS:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
        raise CannotRun(f"does not install on Python {sys.version_info[0]}.{sys.version_info[1]}: {why[:200]}")
