"""One Example at a time: a dict of values to a record and back. For whole files ``columns`` is many times faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from firesteel.core.errors import PlanError, SchemaError, UnknownName
from firesteel.data.tfrecord.columns import KINDS, pack_list
from firesteel.data.tfrecord.messages import messages

__all__ = ["make_example", "parse_example"]


def make_example(features: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> bytes:
    """A ``tf.train.Example`` as bytes, its features sorted by name, so that equal dicts make equal bytes.

    Args:
        features: by name: a number, boolean, string or bytes, or a list, tuple or ndarray of them (of any shape; an
            Example keeps no shape). ``None`` leaves the feature out.
        kinds: ``"float"``, ``"int64"`` or ``"bytes"`` for features whose values do not tell, as an empty list; a
            feature of kind ``"float"`` also takes integers.

    Raises:
        SchemaError: values that are none of these, or that do not fit their kind.
    """
    kinds = kinds or {}
    message = messages().envelope()
    message.features.SetInParent()  # there also when it is empty, as TensorFlow has it
    for name, value in features.items():
        if value is not None:
            message.features.feature[name] = _feature(name, value, kinds.get(name))
    return bytes(message.SerializeToString(deterministic=True))


def parse_example(record: bytes) -> dict[str, npt.NDArray[Any] | list[bytes]]:
    """The features of a ``tf.train.Example``: float32 and int64 arrays, and lists of bytes; always lists, also of one.

    Raises:
        PlanError: these bytes are no Example.
    """
    found: dict[str, npt.NDArray[Any] | list[bytes]] = {}
    try:
        features = messages().example.FromString(record).features.feature
    except messages().decode_error as error:
        raise PlanError(f"these {len(record)} bytes are not a tf.train.Example") from error
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values = getattr(feature, kind).value
            is_bytes, is_float = kind == "bytes_list", kind == "float_list"
            found[name] = list(values) if is_bytes else np.array(values, np.float32 if is_float else np.int64)
    return found


def _feature(name: str, value: Any, kind: str | None) -> bytes:
    if kind is not None and kind not in KINDS:
        raise UnknownName("kind of feature", kind, KINDS)
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        value = [value]
    elif not isinstance(value, (list, tuple, np.ndarray)):
        value = [value] if np.ndim(value) == 0 else np.asarray(value)
    holds_bytes = len(value) > 0 and all(isinstance(each, (str, bytes, bytearray, memoryview)) for each in value)
    if holds_bytes or kind == "bytes":
        if kind not in (None, "bytes") or (len(value) and not holds_bytes):
            raise _misfit(name, value, kind)
        return pack_list("bytes", [each.encode() if isinstance(each, str) else bytes(each) for each in value])
    try:
        numbers = np.asarray(value).reshape(-1)
    except ValueError as error:  # lists of other lengths
        raise _misfit(name, value, kind) from error
    if not len(numbers) and kind is None and not isinstance(value, np.ndarray):
        raise SchemaError(f"feature {name!r} is an empty list of unknown kind; name it in kinds", column=name)
    if len(numbers) and numbers.dtype.kind not in "biuf":
        raise _misfit(name, value, kind)
    kind = kind or ("float" if numbers.dtype.kind == "f" else "int64")
    if kind == "int64" and len(numbers) and (numbers.dtype.kind == "f" or int(numbers.max()) > np.iinfo(np.int64).max):
        raise _misfit(name, value, kind)
    return pack_list(kind, numbers)


def _misfit(name: str, value: Any, kind: str | None) -> SchemaError:
    found = f"{type(value).__name__} of {type(value[0]).__name__}" if len(value) else type(value).__name__
    wanted = KINDS[kind] if kind else "numbers, or strings and bytes"
    return SchemaError(
        f"feature {name!r} cannot be made of a {found}; an Example holds {wanted}",
        column=name,
        expected=wanted,
        found=found,
    )
