"""Filters of what a tenant may see of a shared machine and of earlier times, by the answers of allocations."""

from typing import Any

import msgspec
import pytest

from gpufleet.model.absence import REASON_TEXTS, Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.status import ReaderState
from gpufleet.model.time import NANOS
from tests.fakes.batches import gpu_sample, gpu_view, host_sample
from tests.fleet.attribution.answers import (
    FAILING,
    FRESH,
    NOW,
    answer_for,
    at,
    bare_metal,
    shown_readings,
    status,
    stored,
)


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
        assert {one.detail for one in shown_readings(found) if one.absent} == details
        assert len([one for one in shown_readings(found) if one.absent is Reason.DRIVER_ERROR]) == count


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


@pytest.mark.parametrize("reason", list(Reason))
def test_only_constant_details_without_a_device_are_shown(reason: Reason) -> None:
    """Texts of drivers, commands and files may be about another tenant, whatever they contain."""
    texts = ("nvmlDeviceGetPowerUsage", "gpu/GPU-1: text", "gpu/GPU-2: text")
    visible = set()
    for text in texts:
        sample = gpu_sample(gpu_view(1), NOW, gpu_power_watts=Absent(reason, text))
        found = answer_for(bare_metal(devices=("GPU-1",)), [stored(sample)])
        visible |= {one.detail for one in shown_readings(found) if one.detail in texts}
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
    assert {one.detail for one in shown_readings(found)} == {""}


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


@pytest.mark.parametrize(
    ("begin", "age", "shown"),
    [
        (-60, 300, ["GPU-1"]),
        (-600, 300, ["GPU-1", "GPU-2"]),  # it was there in the time of the allocation
        (-1, 300, ["GPU-1"]),  # no pass since the start; the last one did not list it
        (-1, 5, ["GPU-1", "GPU-2"]),
    ],
)
@pytest.mark.parametrize("reader", ["nvml", "dcgm"])
def test_device_that_left_before_the_allocation_is_not_shown(
    begin: float, age: float, shown: list[str], reader: str
) -> None:
    """It can be another tenant's on another machine."""
    left = msgspec.structs.replace(gpu_sample(gpu_view(2), NOW - int(age) * NANOS, gpu_serial="1"), reader=reader)
    found = answer_for(bare_metal(valid_from=at(begin)), [*FRESH, stored(left, age=age)])
    assert [one.uuid for one in found.devices] == shown
    assert found.aggregate.devices == len(shown)


def test_last_device_that_left_before_the_allocation_is_not_shown() -> None:
    """Its reader fails since then."""
    left = [stored(gpu_sample(gpu_view(1), NOW - 300 * NANOS), age=300), FRESH[0]]
    assert len(answer_for(bare_metal(valid_from=at(-60)), left).devices) == 1
    assert not answer_for(bare_metal(valid_from=at(-60)), left, readers=(FAILING,)).devices


@pytest.mark.parametrize(("begin", "shown"), [(-5, None), (-15, 7)])
def test_counter_of_the_static_lane_from_before_the_allocation_is_not_shown(begin: float, shown: int | None) -> None:
    counted = gpu_sample(gpu_view(1), NOW - 9 * NANOS, gpu_name="H200", gpu_nvlink_corrected_total=7)
    counted = msgspec.structs.replace(counted, lane=Lane.STATIC)
    (device,) = answer_for(bare_metal(valid_from=at(begin)), [stored(counted)]).devices
    assert (device.name, device.readings["gpu_nvlink_corrected_total"].value) == ("H200", shown)


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
