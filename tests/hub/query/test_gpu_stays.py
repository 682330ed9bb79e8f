"""Stays of GPUs of a machine with two ids: "s" of its agent, and "e" of its exporter before the agent's return."""

from collections.abc import Mapping

import msgspec
import pytest

from gpufleet.fleet.identity import MachineIds
from gpufleet.hub.query.gpu_stays import PastReports, stays_of
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.ledger import SucceededMachine
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept

T0 = 1_800_000_000 * NANOS
HOUR = 3600 * NANOS
IDS = MachineIds([SucceededMachine("c", machine="e", successor="s", last_seen=1, was_reported=True)])
A, B = "0000:01:00.0", "0000:02:00.0"
POWER = {"gpu_power_watts": 1.0}

Report = tuple[str, int, str, str]
"""Id of the machine, hour, UUID and slot."""


def stored(*reports: Report) -> MemoryStore:
    store = MemoryStore()
    for seq, (id_, hour, uuid, slot) in enumerate(reports, start=1):
        at = T0 + hour * HOUR
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=slot)
        samples = [gpu_sample(view, at, gpu_power_watts=1.0, gpu_pci_address=slot)]
        store.write([accept("c", id_, samples, received_at=at, sent_at=at, seq=seq)], str(seq))
    return store


def hours(
    store: MemoryStore, id_: str, uuid: str, now: int = 40, within: tuple[int, int] = (-1, 100)
) -> list[tuple[float, float]] | None:
    """Return the bounded stays of a GPU, in hours; None if it was always there."""
    span = T0 + within[0] * HOUR, T0 + within[1] * HOUR
    stays = stays_of(store, "c", store.latest_of("c", ["s", "e"]), IDS, span, T0 + now * HOUR)
    found = stays.get((id_, f"gpu/{uuid}"))
    return None if found is None else [(max((a - T0) / HOUR, -1), min((b - T0) / HOUR, 100)) for a, b in found]


def test_gpu_of_one_id_displaces_none_of_the_other() -> None:
    store = stored(("s", 0, "GPU-0", A), ("e", 10, "GPU-1", A), ("s", 30, "GPU-0", A))
    assert (hours(store, "s", "GPU-0"), hours(store, "e", "GPU-1")) == (None, None)


def test_replacement_counts_under_the_id_that_reported_both() -> None:
    store = stored(("s", 0, "GPU-0", A), ("e", 10, "GPU-1", A), ("s", 30, "GPU-1", A))
    assert [end for _, end in hours(store, "s", "GPU-0") or ()] == [30]
    assert [start for start, _ in hours(store, "s", "GPU-1") or ()] == [30]
    assert hours(store, "e", "GPU-1") is None


def test_gpu_that_comes_back_under_another_id_came_then() -> None:
    """GPU-0 was away for repair, and GPU-2 was in its slot."""
    before = [("s", 0, "GPU-0", A), ("s", 0, "GPU-1", B), ("s", 2, "GPU-2", A)]
    both = [
        (id_, hour, uuid, slot) for id_, hour in (("e", 20), ("s", 30)) for uuid, slot in (("GPU-0", A), ("GPU-1", B))
    ]
    store = stored(*before, ("e", 12, "GPU-1", B), *both)
    assert [start for start, _ in hours(store, "e", "GPU-0") or ()] == [20]
    assert hours(store, "e", "GPU-1") is None


def test_gpu_that_both_ids_reported_never_moved() -> None:
    store = stored(("s", 0, "GPU-0", A), ("s", 0, "GPU-1", B), ("e", 10, "GPU-0", A), ("s", 30, "GPU-0", A))
    assert (hours(store, "s", "GPU-0"), hours(store, "e", "GPU-0")) == (None, None)


def every_hour(*with_first: int, last: int = 10, values: Mapping[str, Value] = POWER) -> MemoryStore:
    """Return a store with hourly reports of GPU-1, and with those of GPU-0 in these hours."""
    store = MemoryStore()
    for seq in range(last + 1):
        at = T0 + seq * HOUR
        gpus = [("GPU-1", B, POWER), *([("GPU-0", A, values if seq else POWER)] if seq in with_first else [])]
        samples = [
            gpu_sample(
                View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=slot), at, **of, gpu_pci_address=slot
            )
            for uuid, slot, of in gpus
        ]
        store.write([accept("c", "s", samples, received_at=at, sent_at=at, seq=seq)], str(seq))
    return store


def test_removed_gpu_was_there_until_the_end_of_an_hour_without_it() -> None:
    store = every_hour(0, 1, 2)
    assert hours(store, "s", "GPU-0", now=3) is None
    assert hours(store, "s", "GPU-0", now=4) == [(-1, 4)]
    assert hours(store, "s", "GPU-1") is None


def test_return_of_a_gpu_does_not_change_when_it_left() -> None:
    assert hours(every_hour(0, 1, 2, 8, 9, 10), "s", "GPU-0") == [(-1, 4), (8, 100)]
    assert hours(every_hour(0, 1, 2, 4, 5, 6, 7, 8, 9, 10), "s", "GPU-0") is None


@pytest.mark.parametrize(("within", "stays"), [((-1, 2), None), ((3, 5), [(-1, 4), (8, 100)]), ((8, 9), None)])
def test_only_absences_of_an_interval_are_searched(
    within: tuple[int, int], stays: list[tuple[float, float]] | None
) -> None:
    assert hours(every_hour(0, 1, 2, 8, 9, 10), "s", "GPU-0", within=within) == stays


def test_ambiguous_zero_is_a_report() -> None:
    """A GPU that computes, then is idle, then is not read; and computes again."""
    store = MemoryStore()
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-0")
    zero, none = Absent(Reason.AMBIGUOUS_ZERO), Absent(Reason.NO_DATA)
    readings: list[tuple[int | Absent, int | Absent]] = [(9, zero), (zero, zero), (none, none), (9, 9)]
    for hour, values in enumerate(readings):
        samples = [
            msgspec.structs.replace(
                gpu_sample(view, T0 + hour * HOUR + place, gpu_memory_used_bytes=value), provenance=Provenance.IMPORTED
            )
            for place, value in enumerate(values)
        ]
        store.write([accept("c", "s", samples, seq=hour)], str(hour))
    reports, place = PastReports(store, "c", Side.HOST), ("s", view.key)
    within = T0, T0 + 4 * HOUR
    assert reports.imported("s", frozenset({view.key}), *within) == {T0 + hour * HOUR for hour in (0, 1, 3)}
    assert [reports.any_within(place, T0 + hour * HOUR, T0 + (hour + 1) * HOUR) for hour in range(3)] == [
        True,
        True,
        False,
    ]
    assert reports.last_within(place, T0, T0 + 3 * HOUR) == T0 + HOUR


def test_lost_gpu_is_there() -> None:
    assert hours(every_hour(*range(11), values={"gpu_state": "lost"}), "s", "GPU-0") is None
