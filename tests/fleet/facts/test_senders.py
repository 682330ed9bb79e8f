import numpy as np
import pytest

from gpufleet.fleet.facts.senders import (
    DroppedBatches,
    SenderReading,
    missing_batches,
    oldest_queued_seconds,
    sender_table,
)
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS

WHO = ("c", "s")


def heartbeat(queued: int | None = 0, oldest: float | None = None, dropped: int | None = 0) -> Heartbeat:
    unsent = None if oldest is None else int(oldest * NANOS)
    return Heartbeat(
        interval_seconds=30,
        version="1",
        started_at=1,
        queue_records=queued,
        oldest_unsent=unsent,
        dropped_total=dropped,
    )


@pytest.mark.parametrize(
    ("newest", "seconds"),
    [
        (None, None),
        (heartbeat(), 0),
        (heartbeat(3), None),
        (heartbeat(None), None),
        (heartbeat(3, 900), 110),
        (heartbeat(3, 1200), 10),
    ],
)
def test_age_of_the_backlog(newest: Heartbeat | None, seconds: float | None) -> None:
    assert oldest_queued_seconds(newest, 1000 * NANOS, 10) == seconds


def test_queued_batches_are_not_missing() -> None:
    assert [missing_batches(5, one) for one in (None, heartbeat(), heartbeat(3, 1), heartbeat(9, 1))] == [5, 5, 2, 0]


def test_dropped_batches_are_not_missing() -> None:
    beats = (heartbeat(dropped=2), heartbeat(3, 1, dropped=1), heartbeat(dropped=9))
    assert [missing_batches(5, one) for one in beats] == [3, 1, 0]


def test_missing_batches_may_be_in_a_spool_that_cannot_be_opened() -> None:
    assert [missing_batches(number, heartbeat(None, dropped=None)) for number in (0, 5)] == [0, None]


def test_dropped_batches_count_for_an_hour() -> None:
    dropped = DroppedBatches([(WHO, "e", 100)])  # before the start
    found = [
        dropped.add(second, {WHO: total}).get(WHO, 0)
        for second, total in (
            *((10, ("e", 110)), (70, ("e", 110)), (130, ("e", 115)), (190, ("f", 3))),
            *((3610, ("f", 3)), (3730, ("f", 3)), (3800, ("f", 3))),
        )
    ]
    assert found == [10, 10, 15, 18, 8, 3, 0]


def test_drops_are_counted_once_while_a_disk_fails() -> None:
    dropped = DroppedBatches([(WHO, "spool", 5)])
    found = [
        dropped.add(second, {WHO: total}).get(WHO, 0)
        for second, total in ((10, ("memory", 5)), (20, ("memory", 6)), (30, ("spool", 6)), (40, ("spool", 7)))
    ]
    assert found == [0, 1, 1, 2]


def test_earlier_drops_of_an_unknown_sender_do_not_count() -> None:
    dropped = DroppedBatches()
    assert dropped.add(0, {WHO: ("e", 7)}) == {}
    assert dropped.add(60, {WHO: ("e", 8)}) == {WHO: 1}


def test_unknown_readings_of_a_sender_are_missing() -> None:
    table = sender_table(
        ["c/s", "c/t"],
        [SenderReading(clock_ahead_seconds=-3, missing_batches=0), SenderReading()],
        clusters=[0, 0],
        machines=[-1, -1],
        retired=[False, True],
    )
    assert table.column("clock_ahead_seconds")[0] == -3
    assert table.column("missing_batches")[0] == 0
    assert np.isnan(table.column("data_delay_seconds")[0])
    assert np.isnan(table.column("missing_batches")[1])
