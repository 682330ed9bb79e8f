"""Spool files that a crash, a disk or a person changed."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool
from gpufleet.spool.record import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, pack_record_header, seed_of

BODIES = {seq: b"body of record %d " % seq * 3 for seq in range(1, 41)}
RECORD = RECORD_HEADER_BYTES + len(BODIES[40])

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def reopen(folder: Path) -> Spool:
    return Spool.open(folder, max_bytes=1 << 20, segment_bytes=1000)


def found(spool: Spool) -> dict[int, bytes]:
    return {one.seq: one.body for one in spool.read(max_records=1000, max_bytes=1 << 30)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "spool"
    spool = reopen(folder)
    for body in BODIES.values():
        spool.append(body)
    spool.close()
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "spool")


def copy_of(filled: Path, factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(filled, factory.mktemp("copy") / "spool")


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def before_offset(folder: Path, path: Path, offset: int) -> int:
    """Return the number of the last record that ends at or before `offset` of a segment."""
    seq, at = int(path.stem) - 1, SEGMENT_HEADER_BYTES
    while seq + 1 in BODIES and at + RECORD_HEADER_BYTES + len(BODIES[seq + 1]) <= offset:
        seq += 1
        at += RECORD_HEADER_BYTES + len(BODIES[seq])
    return seq


@relaxed
@given(data=st.data())
def test_truncated_tail_loses_only_its_records(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = copy_of(filled, tmp_path_factory)
    newest = segments(folder)[-1]
    content = newest.read_bytes()
    end = data.draw(st.integers(SEGMENT_HEADER_BYTES, len(content)))
    newest.write_bytes(content[:end])
    last = before_offset(folder, newest, end)
    spool = reopen(folder)
    assert found(spool) == {seq: body for seq, body in BODIES.items() if seq <= last}
    assert spool.recovery.lost_records == 40 - last
    assert spool.append(b"next") == 41
    spool.sync()
    assert found(spool)[41] == b"next"
    spool.close()
    spool = reopen(folder)
    assert found(spool)[41] == b"next"
    assert spool.recovery.torn_bytes == 0
    spool.close()


@relaxed
@given(data=st.data())
def test_flipped_bits_lose_only_their_records(
    filled: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = copy_of(filled, tmp_path_factory)
    path = data.draw(st.sampled_from(segments(folder)))
    content = bytearray(path.read_bytes())
    places = data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=5))
    for place in places:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    spool = reopen(folder)
    kept = found(spool)
    assert kept.items() <= BODIES.items()
    first_damaged = before_offset(folder, path, min(places)) + 1
    next_segments = [int(other.stem) for other in segments(filled) if int(other.stem) > int(path.stem)]
    outside = {seq for seq in BODIES if seq < first_damaged or (next_segments and seq >= next_segments[0])}
    assert outside <= kept.keys()
    assert len(BODIES) - len(kept) <= len(set(places))
    assert spool.recovery.records == len(kept)
    seq = spool.append(b"next")
    spool.sync()
    assert seq > max(kept, default=0)
    assert found(spool) == kept | {seq: b"next"}
    spool.close()


def test_damage_in_an_older_segment_loses_its_record_only(folder: Path) -> None:
    path = segments(folder)[1]
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + 3] ^= 0xFF
    path.write_bytes(content)
    spool = reopen(folder)
    assert BODIES.keys() - found(spool).keys() == {int(path.stem)}
    assert spool.recovery.lost_records == 1
    assert spool.recovery.damaged_bytes == RECORD_HEADER_BYTES + len(BODIES[int(path.stem)])
    assert spool.next_seq == 41
    spool.close()


def test_lost_end_of_an_older_segment_is_counted(folder: Path) -> None:
    first, second = segments(folder)[:2]
    content = first.read_bytes()
    first.write_bytes(content[:-10])
    spool = reopen(folder)
    assert BODIES.keys() - found(spool).keys() == {int(second.stem) - 1}
    assert spool.recovery.lost_records == 1
    spool.close()


def test_number_of_a_damaged_last_record_is_not_reused(folder: Path) -> None:
    newest = segments(folder)[-1]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    spool = reopen(folder)
    assert 40 not in found(spool)
    assert spool.next_seq == 41
    spool.close()


def test_zeros_after_a_power_cut_are_torn(folder: Path) -> None:
    with segments(folder)[-1].open("ab") as file:
        file.write(bytes(300))
    spool = reopen(folder)
    assert found(spool) == BODIES
    assert spool.next_seq == 41
    assert spool.recovery.torn_bytes == 300
    spool.close()


def test_body_is_not_recovered_as_a_record(tmp_path: Path) -> None:
    spool = reopen(tmp_path / "spool")
    forged = b"".join(
        pack_record_header(seed, seq, 0, b"forged") + b"forged" for seed in (0, seed_of("0" * 32)) for seq in (1, 2, 3)
    )
    spool.append(forged)
    spool.append(b"genuine")
    spool.close()
    (path,) = segments(tmp_path / "spool")
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES] ^= 0xFF
    path.write_bytes(content)
    spool = reopen(tmp_path / "spool")
    assert found(spool) == {2: b"genuine"}
    assert spool.recovery.lost_records == 1
    spool.close()


def test_partly_written_segment_header_is_ignored(folder: Path) -> None:
    (folder / f"{41:020d}.seg").write_bytes(b"GFSP")
    spool = reopen(folder)
    assert found(spool) == BODIES
    assert spool.append(b"next") == 41
    spool.close()


def test_lost_epoch_file_is_written_again(folder: Path) -> None:
    epoch = (folder / "epoch").read_text()
    for content in (None, b"\xff\xfe"):
        (folder / "epoch").unlink() if content is None else (folder / "epoch").write_bytes(content)
        spool = reopen(folder)
        assert spool.epoch == epoch.strip()
        spool.close()
        assert (folder / "epoch").read_text() == epoch


def test_files_of_two_spools_are_rejected(folder: Path, tmp_path: Path) -> None:
    other = reopen(tmp_path / "other")
    other.append(b"x")
    other.close()
    shutil.copy(segments(tmp_path / "other")[0], folder / f"{99:020d}.seg")
    with pytest.raises(SpoolError, match="two spools"):
        reopen(folder)


def test_records_with_damaged_acknowledgements_are_read_again(folder: Path) -> None:
    spool = reopen(folder)
    spool.acknowledge([1, 2, 3])
    spool.close()
    path = folder / f"{1:020d}.acks"
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content[:-5])
    spool = reopen(folder)
    assert BODIES.keys() - found(spool).keys() == {1}
    spool.acknowledge([5])
    spool.close()
    spool = reopen(folder)
    assert BODIES.keys() - found(spool).keys() == {1, 5}
    spool.close()


def test_record_corrupted_while_open_is_skipped_and_counted(folder: Path) -> None:
    spool = reopen(folder)
    path = segments(folder)[0]
    content = bytearray(path.read_bytes())
    content[SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    path.write_bytes(content)
    assert BODIES.keys() - found(spool).keys() == {1}
    assert spool.dropped_total == 1
    assert spool.depth.records == 39
    spool.close()
