"""Format version 1: stored bytes keep their meaning, and newer and older senders are understood."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from gpufleet.codecs.batch import decode, encode, renumber, to_rows
from gpufleet.codecs.bundle import unpack
from gpufleet.model.catalogue import CATALOGUE_VERSION
from gpufleet.model.errors import WireError
from gpufleet.spool import Spool
from tests.codecs.batch.batches import EXAMPLE
from tests.codecs.batch.stored import STORED, expected, plain

EVERYTHING = (STORED / "everything.msgpack").read_bytes()
"""`EXAMPLE` as it was encoded when the format was written down."""

ADDED_TO_PARTS: list[Any] = [None, []]
"""Fields of a part that were added since, with their defaults."""

ADDED_TO_BATCHES = [None]
"""Fields of a batch that were added since, with their defaults."""


def elements() -> list[Any]:
    found: list[Any] = msgspec.msgpack.decode(EVERYTHING)
    return found


@pytest.mark.parametrize("file", sorted(STORED.glob("*.msgpack*")), ids=lambda file: file.name)
def test_stored_batch_keeps_its_content(file: Path) -> None:
    assert plain(to_rows(decode(file.read_bytes()))) == expected()[file.name.partition(".")[0]]


def test_encoding_changes_only_with_the_catalogue_version() -> None:
    stored = elements()
    stored[1] = CATALOGUE_VERSION
    for part in stored[13]:
        part += ADDED_TO_PARTS
    stored += ADDED_TO_BATCHES
    content = msgspec.msgpack.decode(encode(EXAMPLE, compress=False))  # the size of a map's header may change
    assert msgspec.msgpack.encode(content) == msgspec.msgpack.encode(stored)


def test_stored_bundle_has_its_batches() -> None:
    bodies = unpack((STORED / "relay.bundle").read_bytes())
    names = ("node", "node-later", "everything")
    assert [plain(to_rows(decode(body))) for body in bodies] == [expected()[name] for name in names]


def test_stored_spool_is_read_and_continued(tmp_path: Path) -> None:
    spool = Spool.open(shutil.copytree(STORED / "spool", tmp_path / "spool"), max_bytes=1 << 20)
    assert spool.epoch == (STORED / "spool" / "epoch").read_text().strip()
    queued = spool.read(max_records=100, max_bytes=1 << 20)
    assert [one.seq for one in queued] == [2, 4, 5, 6, 7]
    for one in queued:
        batch = decode(one.body)
        assert (batch.seq, batch.epoch, batch.sent_at) == (one.seq, spool.epoch, one.at)
    assert spool.append(b"next") == 8
    assert (spool.recovery.torn_bytes, spool.recovery.lost_records, spool.recovery.damaged_bytes) == (0, 0, 0)
    spool.close()


@pytest.mark.parametrize("compressed", [False, True])
def test_renumbering_keeps_unknown_fields(compressed: bool) -> None:
    newer: list[Any] = msgspec.msgpack.decode((STORED / "node.msgpack").read_bytes())
    newer[8][0]["new"] = [2**64 - 1]
    newer += [*ADDED_TO_BATCHES, {"newer": [1]}]
    body = msgspec.msgpack.encode(newer)
    changed = renumber(zstandard.ZstdCompressor().compress(body) if compressed else body, "f" * 32, 99)
    assert decode(changed).seq == 99
    newer[4], newer[5] = "f" * 32, 99
    assert msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(changed) if compressed else changed) == newer


def test_newer_sender_may_add_fields_at_the_end() -> None:
    batch = elements()
    batch += [*ADDED_TO_BATCHES, {"new": [1]}]
    batch[8][0]["new"] = 1
    batch[10][0][0].append("new")
    batch[11][0].append(["new"])
    batch[12][0].append("new")
    batch[13][0] += [*ADDED_TO_PARTS, {"newer": 1}]
    batch[13][0][2][0]["new"] = None
    assert to_rows(decode(msgspec.msgpack.encode(batch))) == EXAMPLE


def test_sender_may_omit_defaulted_fields_at_the_end() -> None:
    wire = decode(msgspec.msgpack.encode(elements()[:7]))
    assert wire.heartbeat is None
    assert wire.samples == []
    assert to_rows(wire).reports == ()


def test_absence_may_omit_its_detail() -> None:
    batch = elements()
    batch[10] = [[entry[:2] for entry in entries] for entries in batch[10]]
    assert decode(msgspec.msgpack.encode(batch)).absences[0][0].detail == ""


@pytest.mark.parametrize("kept", range(7))
def test_field_without_default_is_required(kept: int) -> None:
    with pytest.raises(WireError):
        decode(msgspec.msgpack.encode(elements()[:kept]))
