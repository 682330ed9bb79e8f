"""What version 1 was, it stays: stored bytes decode for ever, newer and older senders are understood."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.errors import WireError
from tests.codecs.batch.batches import EXAMPLE, in_bytes

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["version-1.msgpack", "version-1.msgpack.zst"])
def test_stored_bytes_decode(name: str) -> None:
    assert to_rows(decode((GOLDEN / name).read_bytes())) == EXAMPLE


def elements() -> list[Any]:
    plain: list[Any] = msgspec.msgpack.decode((GOLDEN / "version-1.msgpack").read_bytes())
    return plain


def test_encoding_changes_only_with_the_catalogue_version() -> None:
    """A part has gained a list of processes since these were stored."""
    *before, parts = [elements()[0], CATALOGUE_VERSION, *elements()[2:]]
    expected = [*before, [[*part, []] for part in parts]]
    assert in_bytes(EXAMPLE, 1) == msgspec.msgpack.encode(expected)
    assert msgspec.msgpack.encode(elements()) == (GOLDEN / "version-1.msgpack").read_bytes()


def test_a_newer_sender_has_more_fields_at_the_end() -> None:
    batch = elements()
    batch.append({"new": [1]})
    batch[8][0]["new"] = 1
    batch[10][0][0].append("new")
    batch[11][0].append(["new"])
    batch[12][0].append("new")
    batch[13][0] += [[], {"newer": 1}]
    batch[13][0][2][0]["new"] = None
    assert to_rows(decode(msgspec.msgpack.encode(batch))) == EXAMPLE


def test_an_older_sender_lacks_defaulted_fields_at_the_end() -> None:
    wire = decode(msgspec.msgpack.encode(elements()[:7]))
    assert wire.heartbeat is None
    assert wire.samples == []
    assert to_rows(wire).reports == ()


def test_an_older_absence_has_no_detail() -> None:
    batch = elements()
    batch[10] = [[entry[:2] for entry in entries] for entries in batch[10]]
    assert decode(msgspec.msgpack.encode(batch)).absences[0][0].detail == ""


@pytest.mark.parametrize("kept", range(7))
def test_fields_without_default_must_be_there(kept: int) -> None:
    with pytest.raises(WireError):
        decode(msgspec.msgpack.encode(elements()[:kept]))
