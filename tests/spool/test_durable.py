"""Durable records that are missing from the end of a spool, distinguished from half-written ones."""

from pathlib import Path

import pytest

from gpufleet.spool import Spool
from gpufleet.spool.durable import MARK_FILE
from gpufleet.spool.record import RECORD_HEADER_BYTES

RECORD_BYTES = RECORD_HEADER_BYTES + len(b"body 1")


def open_spool(folder: Path) -> Spool:
    return Spool.open(folder, max_bytes=1 << 20)


def filled(folder: Path, count: int = 3) -> Path:
    """Fill a spool with durable records and return its only segment."""
    spool = open_spool(folder)
    for number in range(1, count + 1):
        spool.append(b"body %d" % number)
    spool.close()
    (segment,) = folder.glob("*.seg")
    return segment


def cut(segment: Path, count: int) -> None:
    segment.write_bytes(segment.read_bytes()[:-count])


@pytest.mark.parametrize(("cut_bytes", "lost"), [(1, 1), (11, 1), (RECORD_BYTES, 1), (RECORD_BYTES + 1, 2)])
def test_durable_records_cut_off_the_end_are_lost(tmp_path: Path, cut_bytes: int, lost: int) -> None:
    cut(filled(tmp_path), cut_bytes)
    spool = open_spool(tmp_path)
    assert (spool.recovery.records, spool.recovery.lost_records) == (3 - lost, lost)
    assert spool.next_seq == 4  # the numbers of lost records are not used again
    spool.close()


def test_record_that_was_never_durable_is_not_lost(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    half = segment.read_bytes()[:-3]
    segment.write_bytes(half)
    mark = tmp_path / MARK_FILE
    mark.unlink()
    spool = open_spool(tmp_path)  # makes two records durable again
    assert (spool.recovery.lost_records, spool.next_seq) == (0, 3)
    spool.close()


def test_acknowledged_records_cut_off_the_end_are_not_lost(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    spool = open_spool(tmp_path)
    spool.acknowledge([2, 3])
    spool.close()
    cut(segment, 40)
    spool = open_spool(tmp_path)
    assert (spool.recovery.lost_records, spool.next_seq) == (0, 4)
    spool.close()


def test_mark_of_another_epoch_is_ignored(tmp_path: Path) -> None:
    filled(tmp_path / "a", 9)
    filled(tmp_path / "b", 3)
    (tmp_path / "a" / MARK_FILE).replace(tmp_path / "b" / MARK_FILE)
    spool = open_spool(tmp_path / "b")
    assert (spool.recovery.lost_records, spool.next_seq) == (0, 4)
    spool.close()
