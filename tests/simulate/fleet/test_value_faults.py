"""Faults that change readings: their values are possible, they begin, end, and leave other GPUs unchanged."""

from collections.abc import Mapping

import pytest

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import MachineReport
from gpufleet.simulate.fleet.faults import FAULTS, FaultKind, FaultLevel, parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports
from gpufleet.simulate.fleet.value_faults import SECOND_READER, VALUE_FAULTS, Times, ValueFault

START = 1_795_000_000 * NANOS
LANES = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}
NODE, OTHER = 3, 8
WHOLE = (FaultKind.RESET_REQUIRED, FaultKind.GPU_UNREADABLE, FaultKind.DRIVER_BROKEN)
"""Faults that remove all other readings, too."""

TABLE = {**VALUE_FAULTS, **SECOND_READER}
XIDS = {FaultKind.XID_BLIND: [metric.name for metric in CATALOGUE.values() if metric.lane is Lane.EVENT]}
"""Counts of XIDs, which only GPUs with faults of XIDs report."""


def fleet_with(faults: str) -> Fleet:
    return Fleet(FleetSpec(clusters=1, nodes=8, gpus=2, faults=parse_faults(faults, START)))


def report(fleet: Fleet, seconds: float, node: int = NODE) -> MachineReport:
    at = START + int(seconds * NANOS)
    pass_ = CollectionPass(at=at, since=at - 10 * NANOS, lanes=LANES, intervals=LANES)
    return machine_reports(fleet, fleet.node(1, node), pass_)[0]


def at_place(kind: FaultKind, lasts: str = "/10m") -> str:
    place = {FaultLevel.CLUSTER: "c1", FaultLevel.NODE: f"c1/n{NODE}", FaultLevel.GPU: f"c1/n{NODE}/g0"}
    return f"{kind}@+5m{lasts}:{place[FAULTS[kind].level]}"


Key = tuple[str | None, str, str, tuple[str, ...]]


def readings(found: MachineReport) -> dict[Key, Value | Absent]:
    """Return all readings by device, reader, metric and labels."""
    every: dict[Key, Value | Absent] = {}
    for sample in found.samples:
        view = sample.view.key if sample.view else None
        every |= {(view, sample.reader, name, ()): value for name, value in sample.values.items()}
        every |= {(view, sample.reader, one.metric, one.labels): one.value for one in sample.dims}
    return every


def changed(before: MachineReport, after: MachineReport) -> dict[Key, Value | Absent | None]:
    """Return the readings that differ, None for one that is no longer there."""
    known, now = readings(before), readings(after)
    return {key: now.get(key) for key in {*known, *now} if known.get(key) != now.get(key)}


@pytest.mark.parametrize("kind", TABLE)
def test_value_fault_changes_its_readings_only_while_it_lasts(kind: FaultKind) -> None:
    row = TABLE[kind]
    faulty, clean = fleet_with(at_place(kind)), fleet_with("")
    of_row = {*row.readings, *row.frozen, *row.restarted, *(name for name, _ in row.dims)}
    always = {*(name for name, _ in row.dims), *(row.readings if kind in SECOND_READER else ()), *XIDS.get(kind, ())}
    for seconds, is_present in ((200, False), (500, True), (1000, False)):
        names = {name for _, _, name, _ in changed(report(clean, seconds), report(faulty, seconds))}
        if not is_present:
            assert names <= always  # readings that only GPUs with this fault have
        elif kind not in WHOLE:
            assert names
            assert names <= of_row | always
    is_alone = FAULTS[kind].level is not FaultLevel.CLUSTER
    assert not (is_alone and changed(report(clean, 500, OTHER), report(faulty, 500, OTHER)))


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_changed_values_are_of_the_catalogue(row: ValueFault) -> None:
    every: Mapping[str, object] = {**row.readings, **{name: value for (name, _), value in row.dims.items()}}
    for name, value in every.items():
        metric = CATALOGUE[name]
        if isinstance(value, Times):
            assert value.metric in CATALOGUE
        elif isinstance(value, str):
            assert not metric.states or value in metric.states
        elif isinstance(value, int | float):
            assert metric.low is None or value >= metric.low
            assert metric.high is None or value <= metric.high
    assert {*row.frozen, *row.restarted} <= set(CATALOGUE)


def gpu_sample(found: MachineReport, lane: Lane = Lane.FAST, reader: str = "nvml") -> Sample:
    return next(one for one in found.samples if one.view is not None and (one.lane, one.reader) == (lane, reader))


def test_frozen_values_and_energy_stay_the_same() -> None:
    frozen, energy = fleet_with(at_place(FaultKind.FROZEN_VALUES)), fleet_with(at_place(FaultKind.FROZEN_ENERGY))
    first, later = (gpu_sample(report(frozen, seconds)).values for seconds in (300, 890))
    assert first == later
    first, later = (gpu_sample(report(energy, seconds)).values for seconds in (300, 890))
    assert first["gpu_energy_joules_total"] == later["gpu_energy_joules_total"]
    assert first["gpu_power_watts"] != later["gpu_power_watts"]


def test_restarted_counter_decreases_in_one_driver_session() -> None:
    fleet = fleet_with(at_place(FaultKind.COUNTER_RESET))
    samples = [gpu_sample(report(fleet, seconds)) for seconds in (290, 310, 320, 910)]
    assert len({one.driver_session for one in samples}) == 1
    before, restarted, later, after = (one.values["gpu_energy_joules_total"] for one in samples)
    assert isinstance(before, float)
    assert isinstance(restarted, float)
    assert isinstance(later, float)
    assert isinstance(after, float)
    assert restarted < later < before < after


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (FaultKind.GPU_LOST, "lost"),
        (FaultKind.GPU_HUNG, "hung"),
        (FaultKind.RESET_REQUIRED, "reset_required"),
        (FaultKind.GPU_UNREADABLE, "unreadable"),
        (FaultKind.CORE_FAILED, "error"),
    ],
)
def test_unreadable_gpu_has_its_state(kind: FaultKind, state: str) -> None:
    fleet = fleet_with(at_place(kind))
    assert [gpu_sample(report(fleet, seconds)).values["gpu_state"] for seconds in (290, 310, 910)] == [
        "ok",
        state,
        "ok",
    ]


def test_broken_driver_leaves_the_gpus_to_the_bus() -> None:
    fleet = fleet_with(at_place(FaultKind.DRIVER_BROKEN))
    found = report(fleet, 310)
    assert {one.reader for one in found.samples if one.view is not None} == {"pci"}
    assert readings(found)[None, "nvml", "nvidia_driver_state", ()] == "mismatch"
    assert found.inventory is not None
    assert len(found.inventory) == 2


def test_reported_numbers_of_gpus_differ_by_the_fault() -> None:
    for kind, listed, on_bus in ((FaultKind.GPU_UNLISTED, 1, 2), (FaultKind.GPU_REMOVED, 1, 1)):
        found = report(fleet_with(at_place(kind)), 310)
        assert found.inventory is not None
        assert len(found.inventory) == on_bus
        assert readings(found)[None, "nvml", "nvidia_devices", ()] == listed
        assert len({one.view.key for one in found.samples if one.view is not None}) == on_bus


def test_replaced_gpu_has_another_identity_in_the_same_slot() -> None:
    fleet = fleet_with(at_place(FaultKind.GPU_REPLACED, ""))
    before, after = (gpu_sample(report(fleet, seconds), Lane.STATIC) for seconds in (290, 310))
    assert before.view is not None
    assert after.view is not None
    assert before.view.uuid != after.view.uuid
    assert before.view.pci_address == after.view.pci_address
    assert before.values["gpu_serial"] != after.values["gpu_serial"]
    assert {one.view for one in report(fleet, 310).holdings} == {
        gpu.view.key for gpu in fleet.node_at(fleet.node(1, NODE), START + 310 * NANOS).gpus
    }
