"""What ``firesteel`` exports. A change to this list is a change to the public surface: it belongs in the changelog."""

import inspect

import pytest

import firesteel
from firesteel.core import errors

NAMES = [
    "CheckpointError",
    "ClusterError",
    "EnvironmentMismatch",
    "Estimator",
    "FiresteelError",
    "NotEnoughSlots",
    "PlanError",
    "ReplicaFailed",
    "SchemaError",
    "SparkAsyncDL",
    "SparkAsyncDLModel",
    "SyncError",
    "TFCluster",
    "TFDataset",
    "TFNet",
    "TFOptimizer",
    "TFPredictor",
    "UnknownName",
    "UnsupportedError",
    "XShards",
    "build_graph",
    "init_context",
    "init_nncontext",
    "init_orca_context",
    "stop_context",
    "stop_orca_context",
]


def public_names():
    return [name for name in firesteel.__all__ if not name.startswith("__")]


def test_snapshot():
    assert public_names() == NAMES


def test_sorted():
    assert list(firesteel.__all__) == sorted(firesteel.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_had(name):
    assert getattr(firesteel, name) is not None
    assert name in dir(firesteel)


def test_all_errors_are_exported():
    tree = {
        name for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.FiresteelError)
    }
    assert tree <= set(public_names())


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        firesteel.no_such_name  # noqa: B018


def test_aliases_are_the_same_object():
    assert firesteel.stop_orca_context is firesteel.stop_context
    from firesteel.learn import Estimator
    from firesteel.learn.pytorch import Estimator as TorchEstimator

    assert Estimator is firesteel.Estimator
    assert TorchEstimator is firesteel.Estimator
