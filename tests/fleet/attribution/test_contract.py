"""Answers of bare-metal allocations, and of kinds without an answering source."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.contract import NO_ANSWERER, answer
from gpufleet.model.absence import REASON_TEXTS, Absent, Reason
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import DimReading, DimValue, Provenance, Reading, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope, Side, View, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view, host_sample

NOW = 1_800_000_000 * NANOS
STALE_AFTER = 120.0


def at(seconds: float) -> dt.datetime:
    return to_datetime(NOW) + dt.timedelta(seconds=seconds)


def record(id_: str = "m-a", name: str = "node-a", **more: object) -> MachineRecord:
    machine = Machine(name=name, system_uuid="11111111-2222-3333-4444-555555555555", machine_id="a" * 32)
    fields = {"id": id_, "cluster": "local", "machine": machine, "sender": "s", **more}
    return MachineRecord(first_seen=at(-100), last_seen=at(0), **fields)  # type: ignore[arg-type]


def bare_metal(machine: str = "node-a", **more: object) -> Allocation:
    fields = {"valid_from": at(-3600), **more}
    spec = AllocationSpec(
        kind=AllocationKind.BARE_METAL,
        target=Target(cluster="local", machine=machine),
        **fields,  # type: ignore[arg-type]
    )
    return Allocation(id="a", generation=1, spec=spec, created_at=at(-3600))


def stored(sample: Sample, age: float = 1.0) -> StoredSample:
    return StoredSample(sample=sample, received_at=NOW - int(age * NANOS))


def status(reader: str = "nvml", lane: Lane = Lane.FAST, interval: float = 10, **more: object) -> ReaderStatus:
    fields = {"state": ReaderState.OK, **more}
    return ReaderStatus(reader=reader, lane=lane, interval_seconds=interval, **fields)  # type: ignore[arg-type]


FAILING = status(last_error="driver text", state=ReaderState.PARTIAL, last_attempt=NOW)


def answer_for(
    allocation: Allocation,
    samples: list[StoredSample],
    *,
    machines: list[MachineRecord] | None = None,
    readers: tuple[ReaderStatus, ...] = (),
    own_xids: Mapping[str, int] = {},
) -> AllocationAnswer:
    return answer(
        allocation,
        [record()] if machines is None else machines,
        samples,
        readers,
        NOW,
        stale_after_seconds=STALE_AFTER,
        own_xids=own_xids,
    )


FRESH = [stored(host_sample(NOW - 2 * NANOS)), stored(gpu_sample(gpu_view(1), NOW - 2 * NANOS))]


def shown(found: AllocationAnswer) -> list[Reading | DimReading]:
    """Return every reading in an answer."""
    every: list[Reading | DimReading] = [*found.host.values(), *found.host_dimensions]
    for device in found.devices:
        every += [*device.readings.values(), *device.dimensions]
    return every


def values(found: AllocationAnswer) -> list[object]:
    """Return every value in an answer."""
    totals = [one.value for one in found.aggregate.metrics.values()]
    return [one for one in (*(one.value for one in shown(found)), *totals) if one is not None]


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
    assert not values(found)


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
    assert not values(found)


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
    assert not values(found)


def test_stale_machine_has_no_current_value() -> None:
    old = [stored(one.sample, age=STALE_AFTER + 1) for one in FRESH]
    found = answer_for(bare_metal(), old, readers=(status(lane=Lane.STATIC, interval=600),))
    assert (found.source, found.reason) == (Provenance.UNAVAILABLE, Reason.STALE)
    assert found.age_seconds == STALE_AFTER + 1
    assert not values(found)
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
    found = answer_for(bare_metal(), [FRESH[1], stored(gpu_sample(before, NOW), age=60)])
    assert [device.uuid for device in found.devices] == ["GPU-1"]


def test_only_listed_devices_answer() -> None:
    samples = [FRESH[0], *(stored(gpu_sample(gpu_view(n), NOW)) for n in (1, 2, 3))]
    listed = ("GPU-2", "00000000:03:00.0", "GPU-gone")
    found = answer_for(bare_metal(devices=listed), samples)
    assert [device.uuid for device in found.devices] == ["GPU-2", "GPU-3", "GPU-gone"]
    assert {one.absent for one in found.devices[2].readings.values()} == {Reason.NOT_REPORTED}
    assert found.aggregate.coverage == "2 of 3 devices"


PASSED_THROUGH = [
    stored(gpu_sample(gpu_view(1), NOW), age=60),
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


@pytest.mark.parametrize(
    "text",
    [
        "gpu/GPU-1: nvmlDeviceGetPowerUsage did not return",
        "gpu/GPU-2: process 4711 (their-job) hangs",
        "Unable to determine the device handle for GPU0000:64:00.0: GPU is lost",
        "their-job holds the driver, as does GPU-1",
        "GPU-1: used by alice at 10.0.0.7",
    ],
)
def test_only_the_tenant_of_a_whole_machine_sees_error_texts(text: str) -> None:
    readers = (status(last_error=text, state=ReaderState.FAILED, error_class="timeout", last_attempt=NOW),)
    found = answer_for(bare_metal(devices=("GPU-1", "0000:01:00.0")), FRESH, readers=readers)
    assert found.last_error == "nvml: timeout: The call did not return in time."
    assert answer_for(bare_metal(), FRESH, readers=readers).last_error == text


@pytest.mark.parametrize(
    ("reader", "error_class", "shown"),
    [
        ("nvml", "AliceError", "nvml: error"),
        ("nvml", "", "nvml: error"),
        ("exporter/of-alice", "AliceError", "exporter: error"),
        ("exporter/of-alice", "gpu_lost", "exporter: gpu_lost: The GPU has fallen off the bus."),
    ],
)
def test_error_class_and_reader_name_no_tenant(reader: str, error_class: str, shown: str) -> None:
    failing = status(last_error="text", state=ReaderState.FAILED, error_class=error_class, last_attempt=NOW)
    failing = msgspec.structs.replace(failing, reader=reader)
    assert answer_for(bare_metal(devices=("GPU-1",)), FRESH, readers=(failing,)).last_error == shown


def test_error_of_single_devices_is_not_shown_to_tenants_of_others() -> None:
    partial = status(last_error="GPU-5: lost", state=ReaderState.PARTIAL, error_class="partial", last_attempt=NOW)
    failed = status(last_error="text", state=ReaderState.FAILED, error_class="no_driver", last_attempt=NOW - 1)
    for spec, shown in (
        (bare_metal(devices=("GPU-1",)), "nvml: no_driver: " + REASON_TEXTS[Reason.NO_DRIVER]),
        (bare_metal(), "GPU-5: lost"),
    ):
        assert answer_for(spec, FRESH, readers=(failed, partial)).last_error == shown
    assert answer_for(bare_metal(devices=("GPU-1",)), FRESH, readers=(partial,)).last_error is None


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


def test_error_from_before_the_allocation_is_not_shown() -> None:
    readers = (status(last_error="text", state=ReaderState.FAILED, last_attempt=NOW - 5 * NANOS),)
    for begin, shown in ((-4, None), (-6, "text")):
        assert answer_for(bare_metal(valid_from=at(begin)), FRESH, readers=readers).last_error == shown


def test_absences_of_a_shared_machine_do_not_name_other_devices() -> None:
    absent = Absent(Reason.DRIVER_ERROR, "gpu/GPU-2: hangs in process 4711")
    sample = msgspec.structs.replace(host_sample(NOW), values={"nvidia_driver_version": absent})
    samples = [*FRESH, stored(sample)]
    for devices, detail in ((("GPU-1",), ""), (None, "gpu/GPU-2: hangs in process 4711")):
        reading = answer_for(bare_metal(devices=devices), samples).host["nvidia_driver_version"]
        assert (reading.absent, reading.detail) == (Reason.DRIVER_ERROR, detail)


@pytest.mark.parametrize(
    "detail",
    [
        "nvmlDeviceGetPowerUsage: timeout",
        "the job of team-x holds the driver",
        "gpu/GPU-1: timeout",
        "gpu/GPU-1: in use by team-x",
        "0000:64:00.0: GPU is lost",
    ],
)
def test_absences_of_a_listed_device_have_no_texts_of_drivers(detail: str) -> None:
    absent = Absent(Reason.DRIVER_ERROR, detail)
    dims = tuple(DimValue(metric, ("0",), absent) for metric in ("gpu_fan_speed_ratio", "host_cpu_seconds_total"))
    samples = [
        gpu_sample(gpu_view(1), NOW, gpu_power_watts=absent),
        host_sample(NOW),
    ]
    samples = [msgspec.structs.replace(one, dims=(dim,)) for one, dim in zip(samples, dims, strict=True)]
    for devices, details, count in ((("GPU-1",), {""}, 2), (None, {detail}, 3)):
        found = answer_for(bare_metal(devices=devices), [stored(one) for one in samples])
        assert {one.detail for one in shown(found) if one.absent} == details
        assert len([one for one in shown(found) if one.absent is Reason.DRIVER_ERROR]) == count


def test_listed_device_has_no_dimensions_of_its_machine() -> None:
    """A mount or an interface can name another tenant."""
    dims = (DimValue("host_filesystem_size_bytes", ("/home/team-x", "nfs:/x", "nfs4"), 1),)
    samples = [*FRESH, stored(msgspec.structs.replace(host_sample(NOW), dims=dims))]
    for devices, count in ((("GPU-1",), 0), (None, 1)):
        found = answer_for(bare_metal(devices=devices), samples)
        assert (len(found.host_dimensions), bool(found.host)) == (count, True)


@pytest.mark.parametrize(
    ("devices", "peers"),
    [(("GPU-1",), [""]), (("GPU-1", "GPU-2"), ["", "0000:02:00.0"]), (None, ["", "0000:02:00.0", "0000:03:00.0"])],
)
def test_listed_device_names_no_linked_gpu_of_others(devices: tuple[str, ...] | None, peers: list[str]) -> None:
    links = [DimValue("gpu_nvlink_gpu_links", (f"0000:0{number}:00.0",), 4) for number in (2, 3)]
    dims = (DimValue("gpu_nvlink_up", ("0",), 1), *links)
    samples = [msgspec.structs.replace(gpu_sample(gpu_view(1), NOW), dims=dims), gpu_sample(gpu_view(2), NOW)]
    found = answer_for(bare_metal(devices=devices), [stored(one) for one in samples])
    shown_dims = [dim for one in found.devices for dim in one.dimensions]
    assert [dim.labels.get("peer_pci_address", "") for dim in shown_dims] == peers


@pytest.mark.parametrize(("value", "age"), [(4, 600), (Absent(Reason.GPU_LOST), 1)])
def test_link_without_value_names_no_gpu_of_others(value: Value | Absent, age: int) -> None:
    peer, unknown = [DimValue("gpu_nvlink_gpu_links", (name,), value) for name in ("0000:02:00.0", "unknown")]
    static = msgspec.structs.replace(gpu_sample(gpu_view(1), NOW), lane=Lane.STATIC, dims=(peer, unknown))
    readers = (status(lane=Lane.STATIC, interval=60),)
    (device,) = answer_for(bare_metal(devices=("GPU-1",)), [*FRESH, stored(static, age=age)], readers=readers).devices
    assert [(dim.labels, dim.value) for dim in device.dimensions] == [({"peer_pci_address": "unknown"}, None)]


def test_listed_device_has_no_probe_of_its_machine() -> None:
    """Its texts name every GPU of the machine, and the files of claims."""
    values: dict[str, Value | Absent] = {"probe_pci_links": "0000:02:00.0 x16 of x16, 32 GT/s"}
    probe = Sample(view=None, reader="probe", lane=Lane.STATIC, measured_at=NOW, values=values)
    for devices, is_shown in (("GPU-1",), False), (None, True):
        found = answer_for(bare_metal(devices=devices), [*FRESH, stored(probe)])
        assert ("probe_pci_links" in found.host, "host_load_1m" in found.host) == (is_shown, True)


def test_failure_of_other_devices_is_no_reason_of_a_missing_one() -> None:
    partial = status(last_error="GPU-5: lost", state=ReaderState.PARTIAL, error_class="partial", last_attempt=NOW)
    found = answer_for(bare_metal(devices=("GPU-9",)), FRESH, readers=(partial,))
    assert (found.reason, found.last_error) == (Reason.NOT_REPORTED, None)


def test_machine_without_the_listed_gpu_is_not_named() -> None:
    """It can have another tenant's name by now."""
    found = answer_for(bare_metal(devices=("GPU-9",)), FRESH)
    assert (found.reason, "node-a" in found.detail) == (Reason.NOT_REPORTED, False)


@pytest.mark.parametrize("reason", list(Reason))
def test_only_constant_details_without_a_device_are_shown(reason: Reason) -> None:
    """Texts of drivers, commands and files may be about another tenant, whatever they contain."""
    texts = ("nvmlDeviceGetPowerUsage", "gpu/GPU-1: text", "gpu/GPU-2: text")
    visible = set()
    for text in texts:
        sample = gpu_sample(gpu_view(1), NOW, gpu_power_watts=Absent(reason, text))
        found = answer_for(bare_metal(devices=("GPU-1",)), [stored(sample)])
        visible |= {one.detail for one in shown(found) if one.detail in texts}
    is_constant = reason in {
        *(Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST),
        *(Reason.NO_DATA, Reason.NOT_REPORTED, Reason.NOT_COLLECTED, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER),
    }
    assert visible == ({"nvmlDeviceGetPowerUsage"} if is_constant else set())


@pytest.mark.parametrize("lane", [Lane.STATIC, Lane.FAST])
def test_no_lane_shows_details_from_before_the_allocation(lane: Lane) -> None:
    absent = Absent(Reason.DRIVER_ERROR, "their process")
    earlier = gpu_sample(gpu_view(1), NOW - 9 * NANOS, gpu_power_watts=absent)
    earlier = msgspec.structs.replace(earlier, lane=lane, dims=(DimValue("gpu_fan_speed_ratio", ("0",), absent),))
    found = answer_for(bare_metal(valid_from=at(-1)), [stored(earlier)])
    assert {one.detail for one in shown(found)} == {""}


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


def test_values_before_the_allocation_are_not_shown() -> None:
    static = msgspec.structs.replace(gpu_sample(gpu_view(1), NOW - 9 * NANOS, gpu_name="H200"), lane=Lane.STATIC)
    samples = [*FRESH, stored(static)]

    (device,) = answer_for(bare_metal(valid_from=at(-1)), samples).devices

    assert device.readings["gpu_power_watts"].absent is Reason.NO_DATA
    assert device.readings["gpu_power_watts"].detail == "not measured since the allocation began"
    assert device.readings["gpu_temperature_celsius"].absent is Reason.TIMEOUT
    assert device.readings["gpu_name"].value == "H200"
    assert not [
        one for one in answer_for(bare_metal(valid_from=at(-1)), samples).host.values() if one.value is not None
    ]


@pytest.mark.parametrize(("begin", "xid"), [(-60, 79), (-10, None)])
def test_newest_xid_from_before_the_allocation_is_not_shown(begin: float, xid: int | None) -> None:
    """The reading is current, and is about an event in the time of another tenant."""
    values = {"gpu_last_xid": 79, "gpu_last_xid_timestamp_seconds": (NOW - 30 * NANOS) / NANOS}
    found = answer_for(bare_metal(valid_from=at(begin)), [stored(gpu_sample(gpu_view(1), NOW, **values))])
    assert found.devices[0].readings["gpu_last_xid"].value == xid
    assert (found.devices[0].readings["gpu_last_xid_timestamp_seconds"].value is None) is (xid is None)


@pytest.mark.parametrize("own", [{}, {gpu_view(1).key: 31}, {gpu_view(2).key: 79}])
def test_newest_xid_without_time_is_not_shown(own: dict[str, int]) -> None:
    """Its own time is not known, and nothing shows that it occurred in the allocation's time."""
    samples = [stored(gpu_sample(gpu_view(1), NOW, gpu_last_xid=79))]
    found = answer_for(bare_metal(valid_from=at(-60)), samples, own_xids=own)
    reading = found.devices[0].readings["gpu_last_xid"]
    assert (reading.value, reading.absent) == (None, Reason.NO_DATA)
    found = answer_for(bare_metal(valid_from=at(-60)), samples, own_xids={gpu_view(1).key: 79})
    assert found.devices[0].readings["gpu_last_xid"].value == 79


@pytest.mark.parametrize(("since", "shown"), [(-61, False), (-60, True), (None, False)])
def test_xid_counts_from_before_the_allocation_are_not_shown(since: int | None, shown: bool) -> None:
    """The numbers by code would be those of XIDs of another tenant."""
    values: dict[str, Any] = {"gpu_xid_events_total": 4}
    if since is not None:
        values["gpu_xid_watched_since_timestamp_seconds"] = (NOW + since * NANOS) / NANOS
    sample = msgspec.structs.replace(
        gpu_sample(gpu_view(1), NOW, **values), dims=(DimValue("gpu_xid_errors_total", ("31",), 4),)
    )
    (device,) = answer_for(bare_metal(valid_from=at(-60)), [stored(sample)]).devices
    assert device.readings["gpu_xid_events_total"].value == (4 if shown else None)
    assert [one.labels for one in device.dimensions] == ([{"xid": "31"}] if shown else [])


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
    assert not values(found)


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
    assert all(one.value in own for one in shown(found) if one.value is not None)
    assert all((one.value is None) != (one.absent is None) for one in shown(found))


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
