"""A failure survives its way to the driver: kind, place, text, and the exception itself where it can be rebuilt."""

from __future__ import annotations

import json
import pickle

import pytest

from firesteel.cluster.failure import Failure, with_lines
from firesteel.core.errors import ClusterError, PlanError, ReplicaFailed, SchemaError, SyncError, UnknownName


class OddError(Exception):
    """Not to be built from its text alone."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"odd {code}: {detail}")


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class TimeoutError(Exception):
    """Named like a builtin, and not it."""


def arrived(error: BaseException, step: int | None = None) -> Failure:
    """The failure that ``error`` means, after its journey."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - as a replica does
        failure = Failure.of(caught, rank=1, host="10.0.0.7", step=step)
    return Failure.from_json(json.loads(json.dumps(failure.to_json())))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom"), "user"),
        (KeyboardInterrupt(), "user"),
        (SystemExit(3), "user"),
        (SchemaError("a null", column="x"), "plan"),
        (SyncError("lost the others", rank=0), "collateral"),
        (ClusterError("no disk"), "infrastructure"),
        (ClusterError("no file", is_lasting=True), "plan"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert arrived(error).kind == kind


def test_a_users_error_has_everything_in_its_text_and_the_original_as_cause() -> None:
    error = arrived(RuntimeError("boom"), step=3).error()
    assert isinstance(error, ReplicaFailed)
    assert (error.rank, error.host, error.step, error.kind) == (1, "10.0.0.7", 3, "user")
    for part in ("replica 1", "10.0.0.7", "step 3", "RuntimeError: boom", "Traceback", "in arrived"):
        assert part in str(error)
    assert type(error.__cause__) is RuntimeError
    assert error.__cause__.args == ("boom",)


def test_a_dead_process_is_not_said_to_have_failed_at_a_step() -> None:
    error = Failure("infrastructure", 1, "10.0.0.7", "its process ended with status 3").error()
    assert str(error) == "replica 1 on 10.0.0.7 failed: its process ended with status 3"
    assert error.__cause__ is None


def test_the_original_survives_with_its_arguments() -> None:
    assert arrived(KeyError("label")).error().__cause__.args == ("label",)
    assert arrived(OSError(28, "No space left")).error().__cause__.errno == 28


def test_what_another_task_would_meet_with_too_is_raised_as_it_was() -> None:
    error = arrived(ClusterError("the file is gone", is_lasting=True)).error()
    assert type(error) is ClusterError
    assert (str(error), error.is_lasting) == ("the file is gone", True)


def test_a_plans_error_is_raised_as_it_was() -> None:
    error = arrived(SchemaError("column 'x' has a null", column="x", expected="numbers", found="null")).error()
    assert type(error) is SchemaError
    assert (error.column, error.expected, error.found) == ("x", "numbers", "null")
    assert str(error) == "column 'x' has a null"
    assert arrived(UnknownName("loss", "mze", ["mse"])).error().known == ["mse"]


@pytest.mark.parametrize("error", [OddError(7, detail="?"), RudeError()])
def test_what_cannot_be_rebuilt_is_still_reported(error: Exception) -> None:
    failed = arrived(error).error()
    assert isinstance(failed, ReplicaFailed)
    assert type(error).__name__ in str(failed)


def test_classes_that_the_driver_does_not_have() -> None:
    class Local(Exception):
        pass

    assert arrived(Local("x")).error().__cause__ is None
    missing = Failure("user", 0, "h", "m", type_module="no_such_module_anywhere", type_name="E", args=("x",))
    assert missing.error().__cause__ is None


def test_only_exceptions_are_ever_built() -> None:
    """A message names a class; it must not be able to call something else."""
    for module, name in (("builtins", "print"), ("os", "system"), ("subprocess", "Popen"), ("builtins", "dict")):
        assert (
            Failure("user", 0, "h", "m", type_module=module, type_name=name, args=("true",)).error().__cause__ is None
        )


def test_a_class_named_like_a_builtin_is_itself() -> None:
    import builtins

    cause = arrived(TimeoutError("mine")).error().__cause__
    assert not isinstance(cause, builtins.TimeoutError)


def test_arguments_that_are_not_json_become_text() -> None:
    assert arrived(ValueError(object, 1)).error().__cause__.args[0].startswith("(<class 'object'>")


def test_it_pickles() -> None:
    error = pickle.loads(pickle.dumps(arrived(PlanError("no rows")).error()))  # noqa: S301 - our own
    assert (type(error), str(error)) == (PlanError, "no rows")


def test_the_last_lines_are_the_processes_own() -> None:
    noise = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795008601.265837    8636 port.cc:153] oneDNN custom operations are on. You may see slightly",
        "2026-11-18 13:40:17.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary",
        "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow",
    ]
    assert with_lines("it was killed", noise) == "it was killed"
    own = ["epoch 3", "E0000 00:00:1795008601.265837    8636 cuda.cc:1] out of memory"]
    assert with_lines("it was killed", [*noise, *own]) == "\n".join(["it was killed", "Its last lines:", *own])
