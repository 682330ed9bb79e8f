"""XIDs of GPUs at every step: those since the last reset, within a day."""

from gpufleet.fleet.facts.past_xids import past_xids
from gpufleet.model.event import EventKind
from gpufleet.model.stored.samples import StoredEvent
from gpufleet.model.time import NANOS

HOUR = 3600 * NANOS
START = 1_795_000_000 * NANOS
VIEWS = ("gpu/GPU-1", "gpu/GPU-2")


def event(kind: EventKind, hour: float, view: str | None = VIEWS[1], code: int = 0) -> StoredEvent:
    at = START + int(hour * HOUR)
    return StoredEvent(
        id=at, cluster="east", machine="m1", view=view, at=at, kind=kind, code=code, attributes={}, received_at=at
    )


def hours_with_xids(
    *events: StoredEvent, boots: tuple[int, ...] = (), works: dict[str, list[int]] | None = None
) -> dict[int, dict[int, int]]:
    """Return the codes of the second GPU by hour; the first must have none."""
    found = past_xids(VIEWS, range(START, START + 30 * HOUR, HOUR), events, boots, works or {})
    assert all(row % 2 == 1 for row in found)
    return {row // 2: dict(codes) for row, codes in found.items()}


def test_xids_count_until_the_next_reset() -> None:
    first, again = event(EventKind.XID, 2.5, code=31), event(EventKind.XID, 3.5, code=31)
    other, reset = event(EventKind.XID, 3.6, code=119), event(EventKind.GPU_RESET, 4.5, code=10)
    later = event(EventKind.XID, 6.5, code=43)
    found = hours_with_xids(later, reset, other, again, first)  # in any order
    assert {hour: codes for hour, codes in found.items() if hour < 8} == {
        3: {31: 1},
        4: {31: 2, 119: 1},
        7: {43: 1},
    }


def test_xids_count_for_a_day() -> None:
    assert [*hours_with_xids(event(EventKind.XID, 2.5, code=31))] == [*range(3, 27)]


def test_resets_of_other_gpus_end_nothing() -> None:
    own, of_other = event(EventKind.XID, 2.5, code=31), event(EventKind.GPU_RESET, 4.5, VIEWS[0], code=10)
    of_machine = event(EventKind.DRIVER_RELOADED, 4.5, None, code=10)
    assert max(hours_with_xids(own, of_other)) == 26
    assert max(hours_with_xids(own, of_machine)) == 4
    assert max(hours_with_xids(own, boots=(START + int(4.5 * HOUR), START - HOUR))) == 4


def test_xid_between_a_reset_and_the_pass_that_shows_it_counts() -> None:
    """The driver was loaded within the three hours before 5.5, as the kernel log has it at 4.5."""
    xids = [event(EventKind.XID, hour, code=code) for hour, code in ((2.4, 31), (3.5, 48), (4.6, 119))]
    reloaded, loaded = event(EventKind.DRIVER_RELOADED, 5.5, None, 3 * 3600), event(EventKind.DRIVER_LOADED, 4.5, None)
    assert hours_with_xids(*xids, reloaded)[6] == {48: 1, 119: 1}
    assert hours_with_xids(*xids, reloaded, loaded)[6] == {119: 1}


def test_recovery_from_an_error_ends_nothing() -> None:
    own = event(EventKind.XID, 2.5, code=119)
    assert max(hours_with_xids(own, event(EventKind.GPU_RECOVERED, 4.5, code=0))) == 26
    assert max(hours_with_xids(own, event(EventKind.GPU_RECOVERED, 4.5, code=10))) == 4


def test_gpu_that_works_after_a_loss_had_a_reset() -> None:
    works = {VIEWS[1]: [START + hour * HOUR for hour in (1, 6, 7)]}
    xid, lost = event(EventKind.XID, 2.5, code=119), event(EventKind.GPU_LOST, 3.5)
    assert [*hours_with_xids(xid, lost, works=works)] == [3, 4, 5, 6]
    assert max(hours_with_xids(xid, works=works)) == 26
    later = event(EventKind.XID, 4.5, code=31)
    assert hours_with_xids(xid, lost, later, works=works)[7] == {31: 1}


def test_xids_of_unknown_views_count_for_nothing() -> None:
    assert hours_with_xids(event(EventKind.XID, 2.5, "gpu/0000:01:00.0", 31)) == {}
