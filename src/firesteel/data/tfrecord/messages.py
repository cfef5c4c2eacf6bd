"""The messages inside a TFRecord file, made at run time: nothing generated is kept, and TensorFlow's own are elsewhere.

TensorFlow's ``Example`` is public and small::

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    …List     { repeated … value = 1; }                                        numbers are packed

A message and a string of bytes look alike on the wire. So beside the true messages there is an ``Envelope``, an
``Example`` whose map takes each ``Feature`` as the bytes that it is made of: a list of 784 floats is written from one
buffer, instead of 784 Python objects. A pool of their own keeps these messages apart from TensorFlow's, which may be
loaded in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from firesteel.core.errors import missing_extra

__all__ = ["Messages", "messages"]

_PACKAGE = "firesteel.tfrecord"


@dataclass(frozen=True)
class Messages:
    """The classes, and what they raise for bytes that are no such message."""

    example: Any
    feature: Any
    bytes_list: Any
    envelope: Any
    decode_error: type[Exception]


@cache
def messages() -> Messages:
    """Made once in a process. Raises ``ImportError`` with the line that installs protobuf where it is missing."""
    try:
        from google.protobuf import (  # type: ignore[import-untyped, unused-ignore]
            descriptor_pb2,
            descriptor_pool,
            message,
            message_factory,
        )
    except ImportError:
        raise missing_extra("protobuf", "tfrecord") from None

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="firesteel/tfrecord.proto", package=_PACKAGE, syntax="proto3")

    def add(parent: Any, name: str, number: int, kind: int, **more: Any) -> Any:
        found = parent.field.add(name=name, number=number, type=kind, **more)
        found.label = more.get("label", field.LABEL_OPTIONAL)
        return found

    for name, kind in (("Bytes", field.TYPE_BYTES), ("Float", field.TYPE_FLOAT), ("Int64", field.TYPE_INT64)):
        values = file.message_type.add(name=f"{name}List")
        add(values, "value", 1, kind, label=field.LABEL_REPEATED)  # proto3 packs numbers unless told not to
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), start=1):
        more = {"type_name": f".{_PACKAGE}.{name}List", "oneof_index": 0}
        add(feature, f"{name.lower()}_list", number, field.TYPE_MESSAGE, **more)
    for message_name, features_name in (("Example", "Features"), ("Envelope", "OpaqueFeatures")):
        is_opaque = message_name == "Envelope"
        features = file.message_type.add(name=features_name)
        # A map is a repeated message of this form, by protobuf's own definition of maps.
        entry = features.nested_type.add(name="FeatureEntry")
        entry.options.map_entry = True
        add(entry, "key", 1, field.TYPE_STRING)
        if is_opaque:
            add(entry, "value", 2, field.TYPE_BYTES)
        else:
            add(entry, "value", 2, field.TYPE_MESSAGE, type_name=f".{_PACKAGE}.Feature")
        more = {"type_name": f".{_PACKAGE}.{features_name}.FeatureEntry", "label": field.LABEL_REPEATED}
        add(features, "feature", 1, field.TYPE_MESSAGE, **more)
        outer = file.message_type.add(name=message_name)
        add(outer, "features", 1, field.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{features_name}")

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())

    def made(name: str) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))

    return Messages(made("Example"), made("Feature"), made("BytesList"), made("Envelope"), message.DecodeError)
