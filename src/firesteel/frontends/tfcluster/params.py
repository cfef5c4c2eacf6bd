"""The Params of ``TFEstimator`` and ``TFModel``, a mixin for each, and how a program's arguments go with them."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from firesteel.core.errors import PlanError

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "HasTimeouts",
    "Namespace",
    "TFParams",
]

_WORDS = {"ps": "PS", "tfrecord": "TFRecord"}

Convert = Callable[[Any], Any]


class Namespace:
    """A program's arguments as attributes: from a dict, an ``argparse.Namespace`` or another ``Namespace``.

    From a list they are words, in ``argv``. ``in``, iteration and equality go by names (by words, for a list).
    """

    argv: list[Any] | None = None

    def __init__(self, d: Any) -> None:
        if isinstance(d, list):
            self.argv = list(d)
        elif isinstance(d, dict):
            self.__dict__.update(d)
        elif isinstance(d, (argparse.Namespace, Namespace)):
            self.__dict__.update(vars(d))
        else:
            raise TypeError(f"a Namespace is made from a list, a dict, an argparse.Namespace or a Namespace, not {d!r}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.argv if self.argv is not None else vars(self))

    def __contains__(self, name: object) -> bool:
        return name in (self.argv if self.argv is not None else vars(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return self.argv == other
        return isinstance(other, Namespace) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its attributes may change

    def __repr__(self) -> str:
        inside = self.argv if self.argv is not None else vars(self)
        return f"Namespace({inside!r})"


class _Has(Params):
    """A class that lists Params gets ``getX`` and ``setX`` for each."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, param in list(vars(cls).items()):
            if isinstance(param, Param):
                words = "".join(_WORDS.get(word, word.capitalize()) for word in name.split("_"))
                setattr(cls, f"get{words}", _getter(param))
                setattr(cls, f"set{words}", _setter(param))


def _getter(param: Param[Any]) -> Callable[[Any], Any]:
    def get(self: Params) -> Any:
        return self.getOrDefault(param.name)

    get.__doc__ = f"The Param ``{param.name}``: {param.doc}."
    return get


def _setter(param: Param[Any]) -> Callable[[Any, Any], Any]:
    def set_(self: Params, value: Any) -> Any:
        return self._set(**{param.name: value})

    set_.__doc__ = f"Set the Param ``{param.name}``: {param.doc}."
    return set_


def _param(name: str, doc: str, convert: Convert) -> Param[Any]:
    return Param(Params._dummy(), name, doc, typeConverter=convert)


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"Could not convert {value} to a whole number")
    return int(value) if isinstance(value, int) else int(TypeConverters.toInt(value))


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise TypeError(f"Could not convert {value!r} to a dict of names")
    return dict(value)


class HasInputMapping(_Has):
    """Which columns are which tensors."""

    input_mapping = _param("input_mapping", "columns, and the tensors that they are fed to", _mapping)


class HasOutputMapping(_Has):
    """Which tensors become which columns."""

    output_mapping = _param("output_mapping", "tensors, and the columns that they become", _mapping)


class HasClusterSize(_Has):
    """How many nodes."""

    cluster_size = _param("cluster_size", "number of nodes", _whole)


class HasNumPS(_Has):
    """How many of the nodes are parameter servers, and where."""

    num_ps = _param("num_ps", "number of nodes that are parameter servers", _whole)
    driver_ps_nodes = _param("driver_ps_nodes", "whether parameter servers run on the driver", TypeConverters.toBoolean)


class HasInputMode(_Has):
    """How the program gets its data: SPARK only."""

    input_mode = _param("input_mode", "how the program gets its data", _whole)


class HasMasterNode(_Has):
    """The role ahead of the workers."""

    master_node = _param("master_node", "chief, master or none", _optional(TypeConverters.toString))


class HasProtocol(_Has):
    """For the program."""

    protocol = _param("protocol", "network protocol, for the program", TypeConverters.toString)


class HasReaders(_Has):
    """For the program."""

    readers = _param("readers", "number of readers, for the program", _whole)


class HasGraceSecs(_Has):
    """Accepted."""

    grace_secs = _param("grace_secs", "accepted and never slept: nothing is cut off", TypeConverters.toFloat)


class HasTensorboard(_Has):
    """Whether TensorBoard runs beside the training."""

    tensorboard = _param("tensorboard", "whether to start TensorBoard", TypeConverters.toBoolean)


class HasModelDir(_Has):
    """Where checkpoints are."""

    model_dir = _param("model_dir", "folder of checkpoints", _optional(TypeConverters.toString))


class HasExportDir(_Has):
    """Where the SavedModel is."""

    export_dir = _param("export_dir", "folder of the SavedModel", _optional(TypeConverters.toString))


class HasTFRecordDir(_Has):
    """For the program."""

    tfrecord_dir = _param(
        "tfrecord_dir", "folder of TFRecord files, for the program", _optional(TypeConverters.toString)
    )


class HasBatchSize(_Has):
    """Rows of a batch."""

    batch_size = _param("batch_size", "number of rows of a batch", _whole)


class HasEpochs(_Has):
    """Passes over the data."""

    epochs = _param("epochs", "number of passes over the data", _whole)


class HasSteps(_Has):
    """For the program."""

    steps = _param("steps", "number of steps, for the program", _whole)


class HasSignatureDefKey(_Has):
    """Which signature of the SavedModel."""

    signature_def_key = _param("signature_def_key", "signature of the SavedModel", _optional(TypeConverters.toString))


class HasTagSet(_Has):
    """Which graph of the SavedModel."""

    tag_set = _param("tag_set", "tags of the SavedModel's graph, with commas", _optional(TypeConverters.toString))


class HasTimeouts(_Has):
    """How long to wait; ours."""

    feed_timeout = _param(
        "feed_timeout", "seconds for which nothing may be taken from the feed", TypeConverters.toFloat
    )
    reservation_timeout = _param("reservation_timeout", "seconds for all nodes to report", TypeConverters.toFloat)


class TFParams(_Has):
    """What both stages have: a program's arguments, in ``args``, with which Params are merged."""

    args: Any = None

    def merge_args_params(self) -> Namespace:
        """A copy of the arguments with every Param that has a value as an attribute; Params win."""
        merged = Namespace(copy.copy(self.args) if self.args is not None else {})
        for param in self.params:
            if self.isDefined(param):
                setattr(merged, param.name, self.getOrDefault(param))
        return merged

    def _positive(self, *names: str) -> None:
        for name in names:
            if self.getOrDefault(name) < 1:
                raise PlanError(f"{name} must be a positive number, not {self.getOrDefault(name)}")
