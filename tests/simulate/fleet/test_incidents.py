"""Incidents: a schedule by seed, within the fleet, and their effect on readings, events and series."""

from itertools import islice

import pytest

from gpufleet.agent.collect.state import EVENTS_READER
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import EventKind
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.incidents import DAYS, GPU_SECONDS, INTERVAL_SECONDS, KINDS, make_incidents
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports

START = 1_795_000_000 * NANOS
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0}


def test_schedule_depends_on_the_seed_only() -> None:
    first = list(make_incidents(1, 3, 40, 8, START))
    assert first == list(make_incidents(1, 3, 40, 8, START))
    assert first[:20] != list(islice(make_incidents(2, 3, 40, 8, START), 20))
    assert [one.kind for one in first[:4]] == list(KINDS)
    assert all(1 <= one.cluster <= 3 and 1 <= one.node <= 40 and 0 <= one.gpu < 8 for one in first)
    assert first[1].begin - first[0].begin == INTERVAL_SECONDS * NANOS


@pytest.mark.parametrize(("nodes", "interval"), [(1, GPU_SECONDS), (10, GPU_SECONDS / 10), (200_000, INTERVAL_SECONDS)])
def test_small_fleet_has_fewer_incidents(nodes: int, interval: float) -> None:
    found = list(make_incidents(0, 1, nodes, 1, START))
    assert len(found) == int(DAYS * 86_400 / interval)
    assert found[-1].begin <= START + DAYS * 86_400 * NANOS


def samples_at(fault: FleetFault | None, at: int, lane: Lane = Lane.FAST, reader: str = "nvml") -> Sample:
    """Return the sample of the first GPU of a training node."""
    fleet = Fleet(FleetSpec(faults=(fault,) if fault else ()))
    (report,) = machine_reports(
        fleet, fleet.node(1, 1), CollectionPass(at=at, since=START - 1, lanes=LANES, intervals=LANES)
    )
    return next(
        one
        for one in report.samples
        if one.view is not None and one.view.pci_address == "0000:1b:00.0" and (one.lane, one.reader) == (lane, reader)
    )


def fault(kind: FaultKind, amount: float = 0, seconds: int = 0) -> FleetFault:
    return FleetFault(kind=kind, begin=START, end=START + seconds * NANOS, amount=amount)


def test_xid_is_counted_before_and_after_it_happens() -> None:
    one = fault(FaultKind.XID, 31)
    before, after = (samples_at(one, at, Lane.EVENT, EVENTS_READER) for at in (START - 1, START + 1))
    assert (before.values["gpu_xid_events_total"], after.values["gpu_xid_events_total"]) == (0, 1)
    assert (after.values["gpu_last_xid"], after.values["gpu_last_xid_timestamp_seconds"]) == (31, START / NANOS)
    assert [(value.metric, value.labels, value.value) for value in after.dims] == [("gpu_xid_errors_total", ("31",), 1)]


def test_throttled_gpu_has_clock_events_until_it_ends() -> None:
    one = fault(FaultKind.HOT_GPU, 3, 300)
    active = [
        {value.labels[0] for value in samples_at(one, START + seconds * NANOS).dims if value.value == 1}
        for seconds in (1, 301)
    ]
    assert active[0] == {"hw_slowdown", "hw_thermal"}
    assert active[1] <= {"gpu_idle"}
    assert samples_at(None, START).dims == ()


def test_memory_errors_grow_counters_and_send_events() -> None:
    one = fault(FaultKind.ECC_ERROR, 2)
    fast, slow = (samples_at(one, START + 1, lane).values for lane in (Lane.FAST, Lane.SLOW))
    assert (fast["gpu_ecc_uncorrected_errors_total"], slow["gpu_ecc_uncorrected_lifetime_errors_total"]) == (2, 2)
    assert (slow["gpu_remapped_rows_uncorrectable"], slow["gpu_row_remap_pending"]) == (2, 1)
    assert samples_at(one, START - 1, Lane.SLOW).values["gpu_row_remap_pending"] == 0
    fleet = Fleet(FleetSpec(faults=(one,)))
    (report,) = machine_reports(
        fleet, fleet.node(1, 1), CollectionPass(at=START, since=START - 1, lanes=LANES, intervals=LANES)
    )
    kinds = [(event.kind, event.code) for event in report.events]
    assert kinds == [(EventKind.XID, 94), (EventKind.ECC_UNCORRECTED, 2), (EventKind.ROW_REMAP_PENDING, 0)]
