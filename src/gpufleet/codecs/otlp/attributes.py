"""Attributes of resources, points and records, bounded."""

import base64
from typing import Any

import msgspec

from gpufleet.codecs.otlp.limits import OtlpLimits
from gpufleet.codecs.otlp.records import Scalar
from gpufleet.model.text import clean


class AttributesError(Exception):
    """Attributes that are not taken."""


def attributes_of(told: Any, limits: OtlpLimits, *, of_resource: bool = False) -> dict[str, Scalar]:
    """Return a repeated KeyValue as a mapping. Empty values and names are left out: they say nothing.

    Of a resource those that are too long are left out, too: a host tells its command line beside its name.

    Raises:
        AttributesError: if they are too many or too long, or one comes twice.
    """
    if len(told) > limits.attributes:
        raise AttributesError
    attributes: dict[str, Scalar] = {}
    for one in told:
        name, held = one.key, one.value
        value = held.string_value or scalar_of(held)
        if len(name) > limits.name_bytes or (isinstance(value, str) and len(value) > limits.value_bytes):
            if of_resource:
                continue
            raise AttributesError
        name = clean(name)
        if name in attributes:
            raise AttributesError
        if name and value is not None:
            attributes[name] = clean(value) if isinstance(value, str) else value
    return attributes


def scalar_of(held: Any) -> Scalar | None:
    """Return an AnyValue; lists, maps and bytes as a text of JSON; None for an empty one."""
    which = held.WhichOneof("value")
    if which is None or (which == "string_value" and not held.string_value):
        return None
    if which in ("array_value", "kvlist_value", "bytes_value"):
        return msgspec.json.encode(_plain(held, which)).decode()
    value: Scalar | None = getattr(held, which, None) if which.endswith("_value") else None
    return value


def _plain(held: Any, which: str | None) -> Any:
    """Return an AnyValue as JSON has it. protobuf's own bound on nesting holds here."""
    if which == "array_value":
        return [_plain(one, one.WhichOneof("value")) for one in held.array_value.values]
    if which == "kvlist_value":
        return {one.key: _plain(one.value, one.value.WhichOneof("value")) for one in held.kvlist_value.values}
    if which == "bytes_value":
        return base64.b64encode(held.bytes_value).decode()
    return getattr(held, which) if which and which.endswith("_value") else None
