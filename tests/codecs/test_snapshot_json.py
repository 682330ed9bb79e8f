"""Snapshot document: round trip, hostile bytes and schema."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.snapshot_json import decode_snapshot, encode_snapshot, snapshot_schema
from gpufleet.model.errors import WireError, WireVersionError
from tests.support.snapshots import example_snapshot

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_snapshot_round_trips() -> None:
    snapshot = example_snapshot()
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_every_top_level_field_is_always_present() -> None:
    assert list(json.loads(encode_snapshot(example_snapshot()))) == [
        "schema", "catalogue", "version", "node", "measured_at", "devices", "host", "guests", "readers",
        "capabilities", "aggregate", "events", "unresolved",
    ]  # fmt: skip


def test_document_follows_the_published_schema() -> None:
    schema = json.loads((REFERENCE / "snapshot.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(encode_snapshot(example_snapshot()))
    jsonschema.validate(document, schema, format_checker=jsonschema.FormatChecker())
    document["schema"] = "gpufleet.snapshot/2"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_published_schema_is_current() -> None:
    assert json.loads((REFERENCE / "snapshot.schema.json").read_text()) == json.loads(json.dumps(snapshot_schema()))


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        (b"", WireError, "not JSON"),
        (b"{", WireError, "not JSON"),
        (b"\xff", WireError, "not JSON"),
        (b"[]", WireError, "Expected `object`"),
        (b"{}", WireVersionError, "schema: ''"),
        (b'{"schema":"gpufleet.snapshot/9"}', WireVersionError, "gpufleet.snapshot/9"),
        (b'{"schema":"gpufleet.snapshot/1"}', WireError, "missing required field"),
        (b'{"schema":7}', WireError, "$.schema"),
        (b"[" * 100_000, WireError, "Expected `object`"),
        (b'{"schema":"gpufleet.snapshot/1","x":' + b"[" * 100_000, WireError, "not JSON"),
    ],
)
def test_invalid_snapshot_is_rejected(document: bytes, error: type[WireError], message: str) -> None:
    with pytest.raises(error) as caught:
        decode_snapshot(document)
    assert message in str(caught.value)


@given(st.data())
def test_damaged_snapshot_raises_at_most_a_wire_error(data: st.DataObject) -> None:
    document = bytearray(encode_snapshot(example_snapshot()))
    for _ in range(data.draw(st.integers(1, 4))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    try:
        snapshot = decode_snapshot(bytes(document))
    except WireError:
        return
    assert msgspec.json.encode(snapshot)
