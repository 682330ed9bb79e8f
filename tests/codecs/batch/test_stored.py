"""Bytes of every version that there ever was are read for ever, and mean what they meant."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from gpufleet.codecs.batch import decode, renumber, to_rows
from gpufleet.codecs.bundle import unpack
from gpufleet.model.wire.batch import WIRE_VERSION
from gpufleet.spool import Spool
from tests.codecs.batch.stored import VERSIONS, expected, plain

STORED = [(folder, path.name) for folder in VERSIONS for path in sorted(folder.glob("*.msgpack*"))]


def test_every_version_is_stored() -> None:
    assert [folder.name for folder in VERSIONS] == [f"version-{number}" for number in range(1, WIRE_VERSION + 1)]
    for folder in VERSIONS:
        assert {path.name.partition(".")[0] for path in folder.glob("*.msgpack*")} == set(expected(folder))


@pytest.mark.parametrize(("folder", "name"), STORED, ids=lambda one: one if isinstance(one, str) else one.name)
def test_a_stored_batch_means_what_it_meant(folder: Path, name: str) -> None:
    assert plain(to_rows(decode((folder / name).read_bytes()))) == expected(folder)[name.partition(".")[0]]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda one: one.name)
def test_a_relay_s_bundle_holds_its_batches(folder: Path) -> None:
    bodies = unpack((folder / "relay.bundle").read_bytes())
    meant = expected(folder)
    assert [plain(to_rows(decode(body))) for body in bodies] == [
        meant[name] for name in ("node", "node-later", "everything")
    ]


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda one: one.name)
def test_a_spool_that_was_left_behind_is_emptied_and_goes_on(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder / "spool", tmp_path / "spool")
    spool = Spool.open(copy, max_bytes=1 << 20)
    assert spool.epoch == (folder / "spool" / "epoch").read_text().strip()
    waiting = dict(spool.read(max_records=100, max_bytes=1 << 20))
    assert list(waiting) == [2, 4, 5, 6, 7]
    for seq, body in waiting.items():
        batch = decode(body)
        assert (batch.seq, batch.epoch) == (seq, spool.epoch)
    assert spool.append(b"next") == 8
    assert (spool.recovery.torn_bytes, spool.recovery.lost_records, spool.recovery.damaged_bytes) == (0, 0, 0)
    spool.close()


@pytest.mark.parametrize("packed", [False, True])
def test_another_number_takes_nothing_of_what_is_newer(packed: bool) -> None:
    elements: list[Any] = msgspec.msgpack.decode((VERSIONS[-1] / "node.msgpack").read_bytes())
    elements[8][0]["new"] = [2**64 - 1]
    elements.append({"newer": [1]})
    body = msgspec.msgpack.encode(elements)
    changed = renumber(zstandard.ZstdCompressor().compress(body) if packed else body, "f" * 32, 99)
    assert decode(changed).seq == 99
    elements[4], elements[5] = "f" * 32, 99
    assert msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(changed) if packed else changed) == elements
