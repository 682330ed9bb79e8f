"""JSON codec of the snapshot document, and its JSON Schema."""

import datetime as dt
import inspect
from typing import Any, get_args

import msgspec

from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.event import EventReport
from gpufleet.model.reading import DimReading, Reading
from gpufleet.model.snapshot import SNAPSHOT_SCHEMA, ReaderReport, Snapshot

MAX_BYTES = 64 << 20
"""Maximum size of a document from another process."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


class _SchemaHeader(msgspec.Struct):
    schema: str = ""


_header_decoder = msgspec.json.Decoder(_SchemaHeader)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the document as one line of UTF-8 JSON. Unset fields are omitted, except at the top level."""
    return _encoder.encode(snapshot)


def decode_snapshot(document: bytes) -> Snapshot:
    """Decode a document from another process.

    Raises:
        WireLimitError: if it is larger than `MAX_BYTES`.
        WireVersionError: if it has another schema.
        WireError: if it does not follow the schema; `field` is the JSON path.
    """
    if len(document) > MAX_BYTES:
        raise WireLimitError("", f"the snapshot has {len(document)} bytes, more than {MAX_BYTES}")
    try:
        schema = _header_decoder.decode(document).schema
        if schema != SNAPSHOT_SCHEMA:
            raise WireVersionError("schema", f"{schema[:80]!r} is not {SNAPSHOT_SCHEMA}")
        return _decoder.decode(document)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise WireError(path.strip("`"), reason) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("", f"not JSON: {error}") from error


def snapshot_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document, generated from the records."""
    schema = msgspec.json.schema(Snapshot)
    definitions = schema["$defs"]
    for record in (Snapshot, Reading, DimReading, ReaderReport, EventReport):
        properties = definitions[record.__name__]["properties"]
        for field in msgspec.structs.fields(record):
            if dt.datetime in (field.type, *get_args(field.type)):
                _instant(properties[field.encode_name])["format"] = "date-time"
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    definitions["Snapshot"]["properties"]["schema"]["const"] = SNAPSHOT_SCHEMA
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SNAPSHOT_SCHEMA.replace('/', ':')}",
        **schema,
    }


def _instant(field: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a field's schema that is the text of an instant."""
    options: list[dict[str, Any]] = field.get("anyOf", [field])
    return next(option for option in options if option.get("type") == "string")
