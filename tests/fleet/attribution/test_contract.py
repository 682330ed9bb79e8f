"""Answers of bare-metal allocations, and of kinds without an answering source."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.contract import NO_ANSWERER
from gpufleet.model.absence import REASON_TEXTS, Absent, Reason
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.status import ReaderState
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Scope, Side, View, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view, host_sample
from tests.fleet.attribution.answers import (
    FAILING,
    FRESH,
    NOW,
    STALE_AFTER,
    answer_for,
    at,
    bare_metal,
    record,
    shown_readings,
    shown_values,
    status,
    stored,
)


def test_bare_metal_is_answered_by_the_host_itself() -> None:
    found = answer_for(bare_metal(), FRESH, readers=(FAILING,))
    assert (found.source, found.reason, found.machine) == (Provenance.HOST_LOCAL_PROBE, None, "m-a")
    assert found.host["host_load_1m"].value == 0.5
    (device,) = found.devices
    assert device.id == "local/m-a/gpu/GPU-1"
    assert device.readings["gpu_power_watts"].value == 100.0
    assert device.readings["gpu_temperature_celsius"].absent is Reason.TIMEOUT
    assert device.readings["gpu_temperature_celsius"].detail == "nvmlX"
    assert found.aggregate.coverage == "1 of 1 devices"
    assert (found.age_seconds, found.received_at, found.measured_at) == (1.0, at(-1), at(-2))
    assert found.last_error == "driver text"


def test_machine_may_be_named_by_its_id() -> None:
    assert answer_for(bare_metal("m-a"), FRESH).machine == "m-a"


def test_machine_without_a_record_is_unknown() -> None:
    found = answer_for(bare_metal("elsewhere"), FRESH)
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.TARGET_UNKNOWN)
    assert not shown_values(found)


@pytest.mark.parametrize(
    "machine",
    [record(cluster="other"), record(machine=Machine(name="node-a", kind=MachineKind.GUEST, hypervisor="h"))],
)
def test_machine_of_another_cluster_or_a_guest_does_not_answer(machine: MachineRecord) -> None:
    assert answer_for(bare_metal(), FRESH, machines=[machine]).reason is Reason.TARGET_UNKNOWN


def test_two_machines_with_one_name_are_ambiguous() -> None:
    found = answer_for(bare_metal(), FRESH, machines=[record(), record("m-b")])
    assert found.reason is Reason.AMBIGUOUS_TARGET
    assert "m-a" in found.detail
    assert "m-b" in found.detail
    assert not shown_values(found)


def test_name_belongs_to_the_replacement_machine() -> None:
    gone, back = record("m-b", retired_at=at(1)), record("m-b", retired_at=at(-1))
    assert answer_for(bare_metal(), FRESH, machines=[gone, record()]).machine == "m-a"
    assert (
        answer_for(bare_metal(), FRESH, machines=[record(), back]).reason is Reason.AMBIGUOUS_TARGET
    )  # reported since
    assert answer_for(bare_metal(), FRESH, machines=[gone]).machine == "m-b"
    assert answer_for(bare_metal("m-b"), FRESH, machines=[gone, record()]).machine == "m-b"


@pytest.mark.parametrize(
    ("allocation", "reason"),
    [
        (bare_metal(valid_from=at(1)), Reason.NOT_STARTED),
        (bare_metal(valid_to=at(0)), Reason.ENDED),
        (msgspec.structs.replace(bare_metal(), closed_at=at(-1)), Reason.ENDED),
    ],
)
def test_allocation_outside_its_period_has_no_values(allocation: Allocation, reason: Reason) -> None:
    found = answer_for(allocation, FRESH)
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, reason)
    assert not shown_values(found)


def test_stale_machine_has_no_current_value() -> None:
    old = [stored(one.sample, age=STALE_AFTER + 1) for one in FRESH]
    found = answer_for(bare_metal(), old, readers=(status(lane=Lane.STATIC, interval=600),))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    assert found.age_seconds == STALE_AFTER + 1
    assert not shown_values(found)
    readings = [*found.host.values(), *found.devices[0].readings.values()]
    assert {one.absent for one in readings} == {Reason.STALE}
    assert found.aggregate.coverage == "0 of 1 devices"


def test_samples_from_before_a_hub_clock_step_are_stale() -> None:
    dead = stored(gpu_sample(gpu_view(1), NOW), age=-3600)
    found = answer_for(bare_metal(), [dead])
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    found = answer_for(bare_metal(), [dead, FRESH[0]])
    assert (found.source, found.age_seconds) == (Provenance.HOST_LOCAL_PROBE, 1.0)
    assert found.host["host_load_1m"].value == 0.5
    assert {one.absent for one in found.devices[0].readings.values()} == {Reason.STALE}


def test_stale_reader_affects_only_its_own_readings() -> None:
    found = answer_for(bare_metal(), [FRESH[0], stored(FRESH[1].sample, age=STALE_AFTER + 1)])
    assert found.reason is None
    assert found.host["host_load_1m"].value == 0.5
    assert found.devices[0].readings["gpu_power_watts"].absent is Reason.STALE


def test_slow_lane_is_current_for_three_of_its_intervals() -> None:
    sample = Sample(view=gpu_view(1), reader="nvml", lane=Lane.STATIC, measured_at=NOW, values={"gpu_name": "H200"})
    for age, value in ((1700.0, "H200"), (1900.0, None)):
        found = answer_for(
            bare_metal(), [*FRESH, stored(sample, age)], readers=(status(lane=Lane.STATIC, interval=600),)
        )
        assert found.devices[0].readings["gpu_name"].value == value


def test_reported_interval_cannot_disable_staleness() -> None:
    sample = Sample(
        view=gpu_view(1), reader="nvml", lane=Lane.SLOW, measured_at=NOW, values={"gpu_row_remap_failed": 0}
    )
    readers = (status(lane=Lane.SLOW, interval=1e12),)
    found = answer_for(bare_metal(), [*FRESH, stored(sample, 3601)], readers=readers)
    assert found.devices[0].readings["gpu_row_remap_failed"].absent is Reason.STALE


def test_nvml_precedes_nvidia_smi_and_values_precede_absences() -> None:
    view = gpu_view(1)
    smi = Sample(
        view=view,
        reader="nvidia_smi",
        lane=Lane.FAST,
        measured_at=NOW,
        values={"gpu_power_watts": 1.0, "gpu_temperature_celsius": 40.0},
    )
    (device,) = answer_for(bare_metal(), [stored(smi), FRESH[1]]).devices
    assert device.readings["gpu_power_watts"].value == 100.0
    assert (device.readings["gpu_temperature_celsius"].value, device.readings["gpu_temperature_celsius"].reader) == (
        40.0,
        "nvidia_smi",
    )


def test_imported_values_answer_if_no_nearer_source_reports() -> None:
    imported = msgspec.structs.replace(FRESH[1].sample, provenance=Provenance.IMPORTED)
    found = answer_for(bare_metal(), [stored(imported)])
    assert (found.source, [one.source for one in found.devices]) == (Provenance.IMPORTED, [Provenance.IMPORTED])
    assert found.devices[0].readings["gpu_power_watts"].value == 100.0
    near = answer_for(bare_metal(), [FRESH[0], stored(imported)])
    assert (near.source, near.devices) == (Provenance.HOST_LOCAL_PROBE, ())  # a probe excludes imported values
    stale = answer_for(
        bare_metal(), [stored(FRESH[0].sample, age=500), stored(FRESH[1].sample, age=500), stored(imported)]
    )
    assert (stale.source, [one.source for one in stale.devices], stale.host) == (
        Provenance.IMPORTED,
        [Provenance.IMPORTED],
        {},
    )
    neither = answer_for(bare_metal(), [stored(FRESH[0].sample, age=500), stored(imported, age=500)])
    assert (neither.source, neither.reason, neither.devices) == (Provenance.UNAVAILABLE, Reason.STALE, ())


def test_device_bound_to_vfio_keeps_its_reason() -> None:
    view = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1b:00.0")
    found = answer_for(
        bare_metal(), [FRESH[0], stored(gpu_sample(view, NOW, gpu_power_watts=Absent(Reason.BOUND_TO_VFIO)))]
    )
    (device,) = found.devices
    assert device.side is Side.PCI_ONLY
    assert device.readings["gpu_power_watts"].absent is Reason.BOUND_TO_VFIO
    assert found.aggregate.coverage == "0 of 1 devices"


def test_device_that_got_its_driver_is_counted_once() -> None:
    before = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0")
    found = answer_for(bare_metal(), [FRESH[1], stored(gpu_sample(before, NOW - 60 * NANOS), age=60)])
    assert [device.uuid for device in found.devices] == ["GPU-1"]


def test_only_listed_devices_answer() -> None:
    samples = [FRESH[0], *(stored(gpu_sample(gpu_view(n), NOW)) for n in (1, 2, 3))]
    listed = ("GPU-2", "00000000:03:00.0", "GPU-gone")
    found = answer_for(bare_metal(devices=listed), samples)
    assert [device.uuid for device in found.devices] == ["GPU-2", "GPU-3", "GPU-gone"]
    assert {one.absent for one in found.devices[2].readings.values()} == {Reason.NOT_REPORTED}
    assert found.aggregate.coverage == "2 of 3 devices"


PASSED_THROUGH = [
    stored(gpu_sample(gpu_view(1), NOW - 60 * NANOS), age=60),
    stored(
        gpu_sample(
            View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:01:00.0"),
            NOW,
            gpu_power_watts=Absent(Reason.BOUND_TO_VFIO),
        )
    ),
]
"""A GPU that the driver listed until it was passed through to a guest."""


def test_passed_through_device_is_found_by_either_name() -> None:
    for name in ("GPU-1", "0000:01:00.0"):
        (device,) = answer_for(bare_metal(devices=(name,)), PASSED_THROUGH).devices
        assert device.readings["gpu_power_watts"].absent is Reason.BOUND_TO_VFIO


@pytest.mark.parametrize("name", ["GPU-1", "0000:01:00.0"])
def test_lost_gpu_is_found_without_its_uuid(name: str) -> None:
    """A reader that started after the loss knows the address only. A GPU with measurements may be another one."""
    before = stored(gpu_sample(gpu_view(1), NOW - 500 * NANOS), age=500)
    slot = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:01:00.0")
    lost = gpu_sample(slot, NOW, gpu_state="lost", gpu_power_watts=Absent(Reason.GPU_LOST))
    found = answer_for(bare_metal(devices=(name,)), [FRESH[0], before, stored(lost)])
    (device,) = found.devices
    assert (found.reason, device.readings["gpu_state"].value) == (None, "lost")
    assert device.readings["gpu_power_watts"].absent is Reason.GPU_LOST
    other = gpu_sample(slot, NOW, gpu_state="ok", gpu_power_watts=1.0)
    assert answer_for(bare_metal(devices=(name,)), [FRESH[0], before, stored(other)]).reason is Reason.NOT_REPORTED


@pytest.mark.parametrize("name", ["GPU-1", "GPU-9"])
def test_lost_gpu_answers_for_the_last_uuid_in_its_slot(name: str) -> None:
    """GPU-9 replaced GPU-1, which has left the machine, and was lost then."""
    slot = View(kind=ViewKind.GPU, side=Side.HOST, pci_address="0000:01:00.0")
    later = msgspec.structs.replace(slot, uuid="GPU-9")
    before = [stored(gpu_sample(one, NOW - age * NANOS), age=age) for one, age in ((gpu_view(1), 900), (later, 500))]
    lost = stored(gpu_sample(slot, NOW, gpu_state="lost", gpu_power_watts=Absent(Reason.GPU_LOST)))
    (device,) = answer_for(bare_metal(devices=(name,)), [FRESH[0], *before, lost]).devices
    assert ("gpu_state" in device.readings) is (name == "GPU-9")


def test_device_listed_by_both_its_names_is_counted_once() -> None:
    found = answer_for(bare_metal(devices=("GPU-1", "0000:01:00.0")), FRESH)
    assert found.aggregate.coverage == "1 of 1 devices"


def test_unreadable_kernel_log_is_no_reason_for_missing_gpus() -> None:
    error = "/dev/kmsg: Operation not permitted"
    log = status("kmsg", Lane.EVENT, state=ReaderState.FAILED, error_class="not_permitted", last_error=error)
    log = msgspec.structs.replace(log, last_attempt=NOW)
    driver = status(last_error="text", state=ReaderState.FAILED, error_class="no_driver", last_attempt=NOW - 1)
    missing = answer_for(bare_metal(devices=("GPU-9",)), FRESH, readers=(log,))
    assert (missing.reason, missing.last_error) == (
        Reason.NOT_REPORTED,
        "kmsg: not_permitted: " + REASON_TEXTS[Reason.NOT_PERMITTED],
    )
    broken = answer_for(bare_metal(expected={"H200": 8}), [stored(host_sample(NOW))], readers=(log, driver))
    assert (broken.reason, broken.last_error) == (Reason.NO_DRIVER, "text")


def test_failure_of_other_devices_is_no_reason_of_a_missing_one() -> None:
    partial = status(last_error="GPU-5: lost", state=ReaderState.PARTIAL, error_class="partial", last_attempt=NOW)
    found = answer_for(bare_metal(devices=("GPU-9",)), FRESH, readers=(partial,))
    assert (found.reason, found.last_error) == (Reason.NOT_REPORTED, None)


def test_machine_without_the_listed_gpu_is_not_named() -> None:
    """It can have another tenant's name by now."""
    found = answer_for(bare_metal(devices=("GPU-9",)), FRESH)
    assert (found.reason, "node-a" in found.detail) == (Reason.NOT_REPORTED, False)


@pytest.mark.parametrize("state", [ReaderState.OK, ReaderState.FAILED])
def test_expected_gpus_that_no_reader_shows_are_unavailable(state: ReaderState) -> None:
    """State ok: the bus has no GPU, so the reader has nothing to read, but keeps the driver's message."""
    message = "No supported GPUs were found"
    readers = (status(last_error=message, state=state, error_class="no_supported_gpu", last_attempt=NOW),)
    found = answer_for(bare_metal(expected={"H200": 2}), [stored(host_sample(NOW))], readers=readers)
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.NO_SUPPORTED_GPU)
    assert (found.last_error, found.aggregate.coverage) == (message, "0 of 2 devices")
    unexpected = answer_for(bare_metal(), [stored(host_sample(NOW))], readers=readers)
    assert unexpected.source is Provenance.HOST_LOCAL_PROBE
    without_error = answer_for(bare_metal(expected={"H200": 2}), [stored(host_sample(NOW))])
    assert (without_error.source, without_error.reason) == (Provenance.UNAVAILABLE, Reason.NOT_REPORTED)


def test_machine_without_samples_is_not_collected() -> None:
    found = answer_for(bare_metal(), [])
    assert (found.reason, found.machine) == (Reason.NOT_COLLECTED, "m-a")


# --- invariant: a host's GPU never answers for a guest's ---------------------------------------------

PLAIN = [name for name, metric in CATALOGUE.items() if not metric.dims]
IDS = st.sampled_from(["m-a", "node-a", "11111111-2222-3333-4444-555555555555", "a" * 32, "GPU-1", "vm-1", "4711"])
VIEWS = st.one_of(
    st.none(),
    st.builds(
        View,
        kind=st.sampled_from(ViewKind),
        side=st.sampled_from(Side),
        uuid=IDS,
        pci_address=st.sampled_from([None, "0000:1b:00.0"]),
    ),
)
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(), st.text(max_size=5), st.just(Absent(Reason.TIMEOUT)))
SAMPLES = st.builds(
    Sample,
    view=VIEWS,
    reader=st.sampled_from(["host", "nvml", "dcgm"]),
    lane=st.sampled_from(Lane),
    measured_at=st.just(NOW),
    values=st.dictionaries(st.sampled_from(PLAIN), VALUES, max_size=6),
    dims=st.lists(
        st.builds(DimValue, st.just("gpu_fan_speed_ratio"), st.just(("0",)), st.floats(0, 1)), max_size=2
    ).map(tuple),
    provenance=st.sampled_from(Provenance),
)
STORED = st.builds(StoredSample, sample=SAMPLES, received_at=st.just(NOW))
MACHINES = st.builds(
    Machine,
    name=IDS,
    kind=st.sampled_from(MachineKind),
    machine_id=st.one_of(st.none(), IDS),
    system_uuid=st.one_of(st.none(), IDS),
)
RECORDS = st.builds(
    MachineRecord,
    id=IDS,
    cluster=st.just("local"),
    machine=MACHINES,
    sender=st.just("s"),
    first_seen=st.just(at(-9)),
    last_seen=st.just(at(0)),
)


@st.composite
def slices(draw: st.DrawFn) -> Allocation:
    kind = draw(st.sampled_from([kind for kind in AllocationKind if kind is not AllocationKind.BARE_METAL]))
    fields: dict[str, Value] = {REQUIRED_TARGET_FIELD[kind]: draw(IDS)}
    if draw(st.booleans()):  # includes fields that the API would reject
        fields["machine"] = draw(IDS)
    spec = AllocationSpec(
        kind=kind,
        target=Target(cluster="local", **fields),  # type: ignore[arg-type]
        devices=draw(st.one_of(st.none(), st.lists(IDS, max_size=3).map(tuple))),
        valid_from=at(-10),
    )
    return Allocation(id="slice", generation=1, spec=spec, created_at=at(-10))


@given(slices(), st.lists(RECORDS, max_size=4), st.lists(STORED, max_size=6))
def test_slice_answer_never_has_a_host_value(
    allocation: Allocation, machines: list[MachineRecord], samples: list[StoredSample]
) -> None:
    found = answer_for(
        allocation, samples, machines=machines, readers=(status(last_error="host text", last_attempt=1),)
    )
    assert found.source is Provenance.UNAVAILABLE
    assert found.reason is NO_ANSWERER[allocation.spec.kind][0]
    assert found.detail
    assert (found.devices, found.host, found.host_dimensions) == ((), {}, ())
    assert (found.machine, found.last_error, found.measured_at) == (None, None, None)
    assert found.aggregate.reporting == 0
    assert all(total.value is None for total in found.aggregate.metrics.values())
    assert not shown_values(found)


@given(st.lists(STORED, max_size=8))
def test_bare_metal_shows_no_guest_value(samples: list[StoredSample]) -> None:
    found = answer_for(bare_metal(), samples)
    trusted = [Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA]
    own = [
        value
        for one in samples
        if one.sample.provenance in ([Provenance.IMPORTED] if found.source is Provenance.IMPORTED else trusted)
        and (one.sample.view is None or one.sample.view.side is not Side.GUEST)
        for value in [*one.sample.values.values(), *(dim.value for dim in one.sample.dims)]
    ]
    assert all(one.value in own for one in shown_readings(found) if one.value is not None)
    assert all((one.value is None) != (one.absent is None) for one in shown_readings(found))


# --- MIG devices: own readings, and readings of the parent GPU where marked ---------------------------


def mig(number: int) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number}", instance=f"{number}/0", parent=gpu_view(1).key)


CUT_GPU = [
    stored(
        gpu_sample(gpu_view(1), NOW, gpu_power_watts=400.0, gpu_memory_used_bytes=30, gpu_name="H200", gpu_last_xid=31)
    ),
    stored(gpu_sample(mig(1), NOW, gpu_memory_used_bytes=10)),
    stored(gpu_sample(mig(2), NOW, gpu_memory_used_bytes=20)),
]


def test_mig_device_shows_readings_of_its_gpu_as_the_parent() -> None:
    found = answer_for(bare_metal(devices=("MIG-2",)), CUT_GPU)

    (device,) = found.devices
    assert device.uuid == "MIG-2"
    used, power = device.readings["gpu_memory_used_bytes"], device.readings["gpu_power_watts"]
    assert (used.value, used.scope) == (20, Scope.OWN)
    assert (power.value, power.scope) == (400.0, Scope.PARENT)
    assert not {"gpu_name", "gpu_last_xid"} & device.readings.keys()
    assert found.aggregate.metrics["gpu_memory_used_bytes"].value == 20
    assert found.aggregate.metrics["gpu_power_watts"].value is None
    assert found.aggregate.coverage == "1 of 1 devices"


def test_machine_counts_a_partitioned_gpu_once() -> None:
    found = answer_for(bare_metal(), CUT_GPU)
    assert len(found.devices) == 3
    assert found.aggregate.coverage == "1 of 1 devices"
    assert found.aggregate.metrics["gpu_memory_used_bytes"].value == 30
    assert "gpu_power_watts" not in found.devices[1].readings


def test_mig_device_missing_from_the_newest_pass_is_gone() -> None:
    earlier = [stored(gpu_sample(mig(3), NOW - 10 * NANOS, gpu_memory_used_bytes=5), age=11)]
    assert [device.uuid for device in answer_for(bare_metal(), CUT_GPU + earlier).devices] == [
        "GPU-1",
        "MIG-1",
        "MIG-2",
    ]
