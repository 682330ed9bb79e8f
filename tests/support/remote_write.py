"""Remote write messages through Google's protobuf, to verify the codec independently.

Field numbers are those of the specifications (prometheus/prompb `types.proto`, `remote.proto`;
io.prometheus.write.v2).
"""

from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _F.TYPE_STRING,
    "double": _F.TYPE_DOUBLE,
    "int64": _F.TYPE_INT64,
    "uint32": _F.TYPE_UINT32,
    "bytes": _F.TYPE_BYTES,
}
_MESSAGES: dict[str, list[tuple[int, str, str, bool]]] = {
    "Label": [(1, "name", "string", False), (2, "value", "string", False)],
    "Sample": [(1, "value", "double", False), (2, "timestamp", "int64", False)],
    "Exemplar": [(1, "labels", "Label", True), (2, "value", "double", False), (3, "timestamp", "int64", False)],
    "Histogram": [(1, "count", "uint32", False), (15, "timestamp", "int64", False)],
    "Series1": [
        (1, "labels", "Label", True),
        (2, "samples", "Sample", True),
        (3, "exemplars", "Exemplar", True),
        (4, "histograms", "Histogram", True),
    ],
    "Metadata1": [
        (1, "type", "uint32", False),
        (2, "metric_family_name", "string", False),
        (4, "help", "string", False),
        (5, "unit", "string", False),
    ],
    "Request1": [(1, "timeseries", "Series1", True), (3, "metadata", "Metadata1", True)],
    "Metadata2": [(1, "type", "uint32", False), (3, "help_ref", "uint32", False), (4, "unit_ref", "uint32", False)],
    "Series2": [
        (1, "labels_refs", "uint32", True),
        (2, "samples", "Sample", True),
        (3, "histograms", "Histogram", True),
        (4, "exemplars", "Exemplar", True),
        (5, "metadata", "Metadata2", False),
        (6, "created_timestamp", "int64", False),
    ],
    "Request2": [(4, "symbols", "string", True), (5, "timeseries", "Series2", True)],
}


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package="rw", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=_KINDS.get(kind, _F.TYPE_MESSAGE),
                type_name=None if kind in _KINDS else f".rw.{kind}",
                label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rw.{name}")) for name in _MESSAGES}


MESSAGES = _build()


def request(version: int, **fields: Any) -> bytes:
    """Return a body of remote write 1 or 2, written by Google's protobuf."""
    return pack(MESSAGES[f"Request{version}"](**fields).SerializeToString())


def pack(message: bytes) -> bytes:
    """Return a snappy block."""
    return bytes(cramjam.snappy.compress_raw(message))


def parse(version: int, body: bytes) -> Any:
    """Return the message of a body, parsed by Google's protobuf."""
    return MESSAGES[f"Request{version}"].FromString(bytes(cramjam.snappy.decompress_raw(body)))
