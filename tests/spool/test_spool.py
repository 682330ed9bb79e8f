"""Spool without faults: order, durability, acknowledgements, limits and age."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool
from tests.fakes.clock import FakeClock

MIB = 1 << 20


def open_spool(folder: Path, *, max_bytes: int = 64 * MIB, segment_bytes: int = 8 * MIB) -> Spool:
    return Spool.open(folder, max_bytes=max_bytes, segment_bytes=segment_bytes)


def everything(spool: Spool) -> list[tuple[int, bytes]]:
    return [(one.seq, one.body) for one in spool.read(max_records=1_000_000, max_bytes=1 << 40)]


def test_new_spool_is_empty_and_has_an_epoch(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "deep" / "spool")
    assert len(spool.epoch) == 32
    assert int(spool.epoch, 16) >= 0
    assert spool.next_seq == 1
    assert (spool.depth.records, spool.depth.bytes, spool.depth.oldest_seq) == (0, 0, None)
    assert everything(spool) == []
    spool.close()
    spool.close()


def test_two_spools_have_two_epochs(tmp_path: Path) -> None:
    one, other = open_spool(tmp_path / "one"), open_spool(tmp_path / "other")
    assert one.epoch != other.epoch
    one.close()
    other.close()


def test_epoch_numbers_and_records_survive_the_process(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    epoch = spool.epoch
    assert [spool.append(body) for body in (b"a", b"", b"c")] == [1, 2, 3]
    spool.close()
    spool = open_spool(tmp_path)
    assert (spool.epoch, spool.next_seq) == (epoch, 4)
    assert everything(spool) == [(1, b"a"), (2, b""), (3, b"c")]
    assert spool.recovery.torn_bytes == spool.recovery.lost_records == 0
    spool.close()


def test_records_keep_their_times(tmp_path: Path) -> None:
    times = [7, -(1 << 63), 0, (1 << 63) - 1]
    spool = open_spool(tmp_path)
    for at in times:
        spool.append(b"body", at)
    spool.close()
    spool = open_spool(tmp_path)
    assert [one.at for one in spool.read(max_records=9, max_bytes=MIB)] == times
    assert (spool.depth.oldest_seq, spool.depth.oldest_at) == (1, 7)
    spool.acknowledge([1])
    assert spool.depth.oldest_at == times[1]
    spool.acknowledge([2, 3, 4])
    assert spool.depth.oldest_at is None
    spool.close()


def test_numbers_continue_after_everything_was_acknowledged(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=200)
    for _ in range(20):
        spool.append(bytes(60))
    spool.sync()
    spool.acknowledge(range(1, 21))
    assert spool.depth.records == 0
    assert len(list(tmp_path.glob("*.seg"))) == 1
    epoch = spool.epoch
    spool.close()
    for _ in range(2):
        spool = open_spool(tmp_path, segment_bytes=200)
        assert (spool.epoch, spool.next_seq, spool.depth.records) == (epoch, 21, 0)
        spool.close()


def test_wiped_spool_has_a_new_epoch(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    epoch = spool.epoch
    spool.close()
    for path in tmp_path.glob("*.seg"):
        path.unlink()
    spool = open_spool(tmp_path)
    assert spool.epoch != epoch
    assert spool.next_seq == 1
    spool.close()


def test_only_durable_records_are_read(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(b"a")
    assert everything(spool) == []
    spool.acknowledge([1])
    spool.sync()
    assert everything(spool) == [(1, b"a")]
    spool.close()


def test_reading_continues_after_a_number_within_limits(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=300)
    for number in range(1, 31):
        spool.append(b"%03d" % number * 10)
    spool.sync()
    assert [one.seq for one in spool.read(5, max_records=3, max_bytes=MIB)] == [6, 7, 8]
    assert [one.seq for one in spool.read(max_records=100, max_bytes=95)] == [1, 2, 3]
    assert [one.seq for one in spool.read(max_records=100, max_bytes=1)] == [1]
    assert spool.read(30, max_records=100, max_bytes=MIB) == []
    spool.close()


def test_records_are_acknowledged_in_any_order(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=300)
    for _ in range(30):
        spool.append(bytes(30))
    spool.sync()
    spool.acknowledge([30, 2, 17, 2, 999])
    queued = [seq for seq in range(1, 31) if seq not in (2, 17, 30)]
    assert [seq for seq, _ in everything(spool)] == queued
    assert (spool.depth.records, spool.depth.bytes, spool.depth.oldest_seq) == (27, 27 * 30, 1)
    spool.close()
    spool = open_spool(tmp_path, segment_bytes=300)
    assert [seq for seq, _ in everything(spool)] == queued
    spool.close()


def test_acknowledged_segment_is_deleted(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=300)
    for _ in range(30):
        spool.append(bytes(30))
    spool.sync()
    before = len(list(tmp_path.glob("*.seg")))
    spool.acknowledge(range(1, 11))
    after = len(list(tmp_path.glob("*.seg")))
    assert after < before
    assert not {path.stem for path in tmp_path.glob("*.acks")} - {path.stem for path in tmp_path.glob("*.seg")}
    spool.close()


def test_oldest_segments_are_dropped_and_counted(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=3000, segment_bytes=500)
    for _ in range(200):
        spool.append(bytes(40))
        spool.sync()
        assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) <= 3000
    dropped = spool.dropped_total
    assert dropped > 0
    assert spool.depth.records == 200 - dropped
    assert [seq for seq, _ in everything(spool)] == list(range(dropped + 1, 201))
    spool.close()
    spool = open_spool(tmp_path, max_bytes=3000, segment_bytes=500)
    assert spool.dropped_total == dropped
    assert spool.recovery.lost_records == 0
    spool.close()


def test_acknowledged_record_is_not_counted_as_dropped(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=3000, segment_bytes=500)
    for _ in range(200):
        seq = spool.append(bytes(40))
        spool.sync()
        spool.acknowledge([seq])
    assert spool.dropped_total == 0
    spool.close()


def test_body_larger_than_a_segment_is_rejected(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=1000)
    with pytest.raises(SpoolError, match="1000 bytes"):
        spool.append(bytes(1000))
    assert spool.append(bytes(900)) == 1
    spool.close()


def test_spool_has_one_owner(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    with pytest.raises(SpoolError, match="another process has it open"):
        open_spool(tmp_path)
    spool.close()
    open_spool(tmp_path).close()


def test_closed_spool_rejects_all_calls(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.close()
    for use in (lambda: spool.append(b""), spool.sync, lambda: spool.read(max_records=1, max_bytes=1)):
        with pytest.raises(SpoolError, match="is closed"):
            use()


def test_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"cannot open it: (Not a directory|File exists)"):
        open_spool(tmp_path / "file")


async def test_concurrent_puts_are_durable_and_in_order(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    seqs = await asyncio.gather(*(spool.put(b"%d" % number) for number in range(500)))
    assert seqs == list(range(1, 501))
    assert everything(spool) == [(number + 1, b"%d" % number) for number in range(500)]
    spool.close()


async def test_cancelled_put_does_not_affect_the_others(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    tasks = [asyncio.create_task(spool.put(b"x")) for _ in range(10)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == list(range(2, 11))
    spool.close()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=120)),
        st.tuples(st.just("acknowledge"), st.lists(st.integers(1, 40), max_size=6)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=actions)
def test_any_history_reads_like_a_plain_queue(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = open_spool(folder, segment_bytes=250)
    model: dict[int, bytes] = {}
    seq = 0
    for action, argument in actions:
        if action == "append":
            assert isinstance(argument, bytes)
            seq += 1
            assert spool.append(argument) == seq
            model[seq] = argument
            spool.sync()
        elif action == "acknowledge":
            assert isinstance(argument, list)
            spool.acknowledge(argument)
            for number in argument:
                model.pop(number, None)
        else:
            spool.close()
            spool = open_spool(folder, segment_bytes=250)
            assert spool.next_seq == seq + 1
        assert dict(everything(spool)) == model
        assert spool.depth.records == len(model)
        assert spool.depth.bytes == sum(map(len, model.values()))
    spool.close()


def test_newest_records_are_read_newest_first(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, segment_bytes=300)
    for number in range(1, 31):
        spool.append(b"%03d" % number * 10)
    spool.sync()
    spool.append(b"not durable")
    spool.acknowledge([29])
    assert [one.seq for one in spool.read_newest(max_records=3, max_bytes=MIB)] == [30, 28, 27]
    assert [one.seq for one in spool.read_newest(26, max_records=9, max_bytes=MIB)] == [30, 28, 27]
    assert [one.seq for one in spool.read_newest(max_records=9, max_bytes=65)] == [30, 28]
    assert [one.seq for one in spool.read_newest(max_records=9, max_bytes=1)] == [30]
    assert [one.seq for one in spool.read_newest(max_records=3, max_bytes=MIB, skip={30, 27})] == [28, 26, 25]
    assert [one.seq for one in spool.read(max_records=3, max_bytes=MIB, skip={1, 3})] == [2, 4, 5]
    assert spool.read_newest(30, max_records=9, max_bytes=MIB) == []
    newest = spool.read_newest(max_records=99, max_bytes=MIB)
    assert [(one.seq, one.body) for one in newest] == everything(spool)[::-1]
    spool.close()


class TestAge:
    def test_record_above_the_maximum_age_is_dropped_and_counted(self, tmp_path: Path) -> None:
        clock = FakeClock()
        spool = Spool.open(tmp_path, max_bytes=MIB, max_age_seconds=1600, monotonic=clock.monotonic)
        for _ in range(60):
            spool.append(b"body")
            clock.advance(100)
        spool.sync()
        queued = [seq for seq, _ in everything(spool)]
        assert queued == list(range(queued[0], 61))
        # A segment spans at most a sixteenth of the maximum age, and is dropped as a whole.
        assert 16 <= len(queued) <= 18
        assert spool.dropped_total == queued[0] - 1
        spool.close()
        again = open_spool(tmp_path)
        assert again.dropped_total == queued[0] - 1
        again.close()

    def test_clock_step_drops_nothing(self, tmp_path: Path) -> None:
        clock = FakeClock()
        spool = Spool.open(tmp_path, max_bytes=MIB, max_age_seconds=1600, monotonic=clock.monotonic)
        for _ in range(10):
            spool.append(b"body")
            clock.step(10**6)
        assert (spool.dropped_total, spool.depth.records) == (0, 10)
        spool.close()

    def test_age_includes_time_without_a_process(self, tmp_path: Path) -> None:
        spool = open_spool(tmp_path)
        spool.append(b"old")
        spool.close()
        (segment,) = tmp_path.glob("*.seg")
        written = segment.stat().st_mtime
        os.utime(segment, (written - 1000, written - 1000))
        spool = Spool.open(tmp_path, max_bytes=MIB, max_age_seconds=900)
        assert spool.depth.records == 1
        assert spool.append(b"new") == 2
        spool.sync()
        assert everything(spool) == [(2, b"new")]
        assert spool.dropped_total == 1
        spool.close()

    def test_acknowledged_record_is_not_dropped_by_age(self, tmp_path: Path) -> None:
        clock = FakeClock()
        spool = Spool.open(tmp_path, max_bytes=MIB, max_age_seconds=10, monotonic=clock.monotonic)
        for _ in range(20):
            seq = spool.append(b"body")
            spool.sync()
            spool.acknowledge([seq])
            clock.advance(100)
        assert (spool.dropped_total, spool.depth.records) == (0, 0)
        spool.close()


def test_spool_without_dropping_rejects_records_when_full(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path, max_bytes=10_000, segment_bytes=1000, drops=False)
    kept: list[int] = []
    refused = ""
    while not refused:
        try:
            kept.append(spool.append(b"queued"))
            passing = spool.append(b"x" * 400)
            spool.sync()
            spool.acknowledge([passing])
        except SpoolError as error:
            refused = str(error)
    assert "is full" in refused
    spool.sync()
    assert [seq for seq, body in everything(spool) if body == b"queued"] == kept
    assert spool.dropped_total == 0
    spool.acknowledge(kept[:10])  # frees whole segments
    assert spool.append(b"space again") == spool.next_seq - 1
    spool.close()


def test_opening_keeps_records_beyond_the_limit(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=64_000, segment_bytes=1000)
    for _ in range(50):
        spool.append(b"x" * 400)
    spool.close()
    newest = max(tmp_path.glob("*.seg"))
    newest.write_bytes(newest.read_bytes() + b"not of a spool" * 10)  # makes opening create another segment
    spool = Spool.open(tmp_path, max_bytes=10_000, segment_bytes=1000, drops=False)
    assert (len(everything(spool)), spool.dropped_total) == (50, 0)
    spool.close()
