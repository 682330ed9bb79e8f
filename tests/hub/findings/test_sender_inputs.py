"""Readings of senders, from their reports, the ledger and the newest values."""

from typing import Any

import msgspec
import numpy as np
import pytest

from gpufleet.fleet.facts.senders import SenderReading
from gpufleet.hub.findings.gatherer import NO_READINGS
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.reports import machine_columns, sender_columns
from gpufleet.hub.findings.sender_inputs import data_delays, dropped_totals, sender_readings, start_dropped
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS, to_datetime
from tests.hub.findings.test_reports import case, record
from tests.hub.liveness.test_tally import CLUSTER, fleet_of


def hub_at(liveness: LivenessSnapshot, **fields: Any) -> HubInstant:
    return HubInstant(
        **{
            "liveness": liveness,
            "served": frozenset({CLUSTER}),
            "missing": {},
            "conflicts": {},
            "counts": {},
            "is_ingesting": True,
            "down_seconds": None,
            "flush_lag_seconds": 0.0,
            "disk_free_ratio": None,
            "log_used_ratio": 0.0,
            "unknown_names": frozenset(),
            "registry_error": "",
            "store_error": "",
            **fields,
        }
    )


def rows(*given: tuple[str, float, float], now: int) -> NewestColumns:
    """Return newest rows by machine, seconds since receipt, and seconds from measurement to receipt."""
    machines = sorted({machine for machine, _, _ in given})
    received = np.array([now - int(ago * NANOS) for _, ago, _ in given])
    zeros = np.zeros(len(given), np.int64)
    return msgspec.structs.replace(
        NO_READINGS,
        machines=machines,
        machine=np.array([machines.index(machine) for machine, _, _ in given]),
        received_at=received,
        measured_at=received - np.array([int(delay * NANOS) for _, _, delay in given]),
        view=zeros,
        reader=zeros,
        lane=zeros,
    )


def test_delay_is_that_of_the_newest_values_by_a_correct_clock() -> None:
    instant, marks = fleet_of([case(), msgspec.structs.replace(case(), ahead=-40.0), case()])
    senders = sender_columns(instant, CLUSTER)
    machines = machine_columns(instant, [record(one) for one in marks], senders)
    given = [("m0", 60, 500.0), ("m0", 5, 20.0), ("m0", 5, 70.0), ("m1", 5, 41.0), ("gone", 5, 9.0)]
    delays = data_delays(rows(*given, now=instant.now), machines, senders)
    found = dict(zip(senders.names, delays.tolist(), strict=True))
    assert found["s00"] == pytest.approx(20)
    assert found["s01"] == pytest.approx(1)
    assert np.isnan(found["s02"])
    assert np.isnan(data_delays(NO_READINGS, machines, senders)).all()


def test_sender_with_an_unknown_clock_has_a_delay_but_no_offset() -> None:
    instant, marks = fleet_of([msgspec.structs.replace(case(), interval=None)])
    senders = sender_columns(instant, CLUSTER)
    machines = machine_columns(instant, [record(one) for one in marks], senders)
    delays = data_delays(rows(("m0", 5, 20.0), now=instant.now), machines, senders)
    (found,) = sender_readings(CLUSTER, senders, delays, {}, {}, hub_at(instant), 600.0)
    assert found.clock_ahead_seconds is None
    assert found.data_delay_seconds == pytest.approx(20)


def test_polled_target_has_no_backlog_and_no_dropped_batches() -> None:
    instant, _ = fleet_of([msgspec.structs.replace(case(), answered_ago=0)])
    senders = sender_columns(instant, CLUSTER)
    (found,) = sender_readings(CLUSTER, senders, np.zeros(1), {}, {}, hub_at(instant), 600.0)
    assert (found.dropped_batches, found.oldest_queued_seconds) == (None, None)
    assert dropped_totals(instant.senders, CLUSTER) == {}


def test_stale_sender_has_only_what_the_hub_knows() -> None:
    fresh = msgspec.structs.replace(case(), dropped=1, queued=2, unsent_ago=50)
    instant, _ = fleet_of([fresh, case(400)])
    at = to_datetime(instant.now)
    conflict = EpochConflict(epoch="e", batches=4, first_at=at, last_at=at, detail="")
    old = msgspec.structs.replace(conflict, last_at=to_datetime(instant.now - 25 * 3600 * NANOS))
    hub = hub_at(
        instant,
        missing={(CLUSTER, "s00"): 6, (CLUSTER, "s01"): 3},
        conflicts={(CLUSTER, "s00"): old, (CLUSTER, "s01"): conflict},
    )
    senders = sender_columns(instant, CLUSTER)
    delays = np.full(len(senders.names), 3.0)
    found = sender_readings(CLUSTER, senders, delays, {(CLUSTER, "s00"): 1}, {(CLUSTER, "s01"): 400.0}, hub, 600.0)
    by_name = dict(zip(senders.names, found, strict=True))
    assert by_name["s00"] == SenderReading(
        clock_ahead_seconds=0,
        interval_seconds=30,
        data_delay_seconds=3,
        missing_batches=3,
        dropped_batches=1,
        oldest_queued_seconds=50,
        backfilled_seconds=0,
        shared_epoch_batches=0,
        uptime_seconds=600,
    )
    assert by_name["s01"] == SenderReading(
        missing_batches=3, backfilled_seconds=400, shared_epoch_batches=4, uptime_seconds=600
    )


def test_totals_of_an_earlier_process_are_the_baseline() -> None:
    before = msgspec.structs.replace(case(), since_start=False, dropped=7)
    instant, _ = fleet_of([before])
    dropped = start_dropped(instant.senders)
    assert dropped.add(0, {(CLUSTER, "s00"): ("e", 9)}) == {(CLUSTER, "s00"): 2}
