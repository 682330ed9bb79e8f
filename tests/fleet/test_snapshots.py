"""Judgement of snapshot documents: states and identities that their own readings support."""

import datetime as dt

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import decode_snapshot, encode_snapshot
from gpufleet.fleet.snapshots import judge_snapshot
from gpufleet.model.absence import Reason
from gpufleet.model.reading import DimReading, Provenance, Reading
from gpufleet.model.snapshot import Device, Snapshot, Source
from gpufleet.model.view import Side, ViewKind
from tests.support.snapshots import example_snapshot

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def value(found: object, reader: str = "nvml", age: float = 0) -> Reading:
    return Reading(value=found, reader=reader, measured_at=AT - dt.timedelta(seconds=age))  # type: ignore[arg-type]


def absent(reason: Reason, reader: str = "nvml", age: float = 0) -> Reading:
    return Reading(absent=reason, reader=reader, measured_at=AT - dt.timedelta(seconds=age))


def gpu(*sources: Source, **readings: Reading) -> Device:
    return Device(
        key="gpu/GPU-1",
        kind=ViewKind.GPU,
        side=Side.HOST,
        uuid="GPU-1",
        pci_address=None,
        readings=readings,
        sources=sources,
    )


def judged(*devices: Device) -> dict[str, Reading]:
    """Return the readings of the first device of a document with these devices."""
    snapshot = msgspec.structs.replace(example_snapshot(), devices=devices, readers=())
    return judge_snapshot(snapshot).devices[0].readings


def test_document_of_an_agent_is_not_changed() -> None:
    assert judge_snapshot(example_snapshot()) == example_snapshot()
    received = decode_snapshot(encode_snapshot(example_snapshot()))
    assert Side.PCI_ONLY in {device.side for device in received.devices}
    assert judge_snapshot(received) == received


OK = {"gpu_state": value("ok"), "gpu_power_watts": value(1.0)}
LOSS = absent(Reason.GPU_LOST)


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        ({"gpu_temperature_celsius": LOSS}, ("lost", "nvml")),
        ({"gpu_serial": LOSS}, ("lost", "nvml")),
        ({"gpu_temperature_celsius": absent(Reason.RESET_REQUIRED)}, ("reset_required", "nvml")),
        ({"gpu_temperature_celsius": absent(Reason.DRIVER_ERROR)}, ("error", "nvml")),
        ({"gpu_fan_speed_rpm": absent(Reason.DRIVER_ERROR)}, ("ok", "nvml")),
        ({"gpu_temperature_celsius": absent(Reason.NOT_SUPPORTED)}, ("ok", "nvml")),
        ({"gpu_sm_activity_ratio": absent(Reason.GPU_LOST, "dcgm")}, ("lost", "dcgm")),
        ({"gpu_sm_activity_ratio": absent(Reason.GPU_LOST, "dcgm", 30)}, ("lost", "dcgm")),
        ({"gpu_sm_activity_ratio": absent(Reason.GPU_LOST, "dcgm", 31)}, ("ok", "nvml")),
        ({"gpu_state": value("lost")}, ("lost", "nvml")),
        ({"gpu_serial": absent(Reason.GPU_LOST, age=20)}, ("ok", "nvml")),
        ({"gpu_state": value("ok", age=30), "gpu_serial": absent(Reason.GPU_LOST, age=20)}, ("lost", "nvml")),
    ],
)
def test_state_is_the_worst_that_readings_prove(readings: dict[str, Reading], state: tuple[str, str]) -> None:
    found = judged(gpu(**{**OK, **readings}))["gpu_state"]
    assert (found.value, found.reader) == state


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.NO_DATA, Reason.NOT_PERMITTED])
@pytest.mark.parametrize("serial", [value("1"), absent(Reason.DRIVER_ERROR)])
def test_document_without_a_core_value_is_not_ok(reason: Reason, serial: Reading) -> None:
    failed = absent(reason)
    readings = {"gpu_power_watts": failed, "gpu_temperature_celsius": failed, "gpu_serial": serial}
    state = "error" if reason is Reason.TIMEOUT and serial.value else "unreadable"
    assert judged(gpu(gpu_state=value("ok"), **readings))["gpu_state"].value == state


def test_second_reader_without_core_readings_is_no_evidence() -> None:
    failed = absent(Reason.TIMEOUT, "dcgm")
    assert judged(gpu(**OK, gpu_sm_activity_ratio=failed))["gpu_state"].value == "ok"


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.NOT_SUPPORTED])
def test_missing_core_reading_is_no_evidence_of_an_unreadable_gpu(reason: Reason) -> None:
    assert judged(gpu(gpu_state=value("ok"), gpu_power_watts=absent(reason)))["gpu_state"].value == "ok"


def test_count_without_a_known_ecc_mode_is_no_evidence() -> None:
    readings = {"gpu_ecc_mode": absent(Reason.GPU_LOST, age=20), "gpu_ecc_corrected_errors_total": value(0)}
    found = judged(gpu(**OK, **readings))
    assert found["gpu_state"].value == "ok"
    assert found["gpu_ecc_corrected_errors_total"].absent is Reason.GPU_LOST


def test_loss_without_a_state_is_a_state() -> None:
    assert judged(gpu(gpu_power_watts=LOSS))["gpu_state"].value == "lost"


@pytest.mark.parametrize(("metric", "age", "state"), [
    *(("gpu_serial", 20, "ok"), ("gpu_row_remap_failed", 20, "ok"), ("gpu_serial", 0, "lost")),
    ("gpu_sm_activity_ratio", 20, "lost"),
])  # fmt: skip
def test_slow_pass_of_another_reader_is_no_evidence_after_it(metric: str, age: float, state: str) -> None:
    """The state of a reader follows from its fast lane, which the document may have from another reader only."""
    stated = value("ok", "dcgm", age=10)
    found = judged(gpu(gpu_state=stated, **{metric: absent(Reason.GPU_LOST, "nvidia_smi", age)}))
    assert found["gpu_state"].value == state


def test_loss_read_before_an_absent_state_is_no_state() -> None:
    """The reader read the GPU as lost, then as ok, and stopped."""
    stopped = absent(Reason.STALE, age=20)
    assert judged(gpu(gpu_state=stopped, gpu_serial=absent(Reason.GPU_LOST, age=50)))["gpu_state"] == stopped
    assert judged(gpu(gpu_state=stopped, gpu_serial=absent(Reason.GPU_LOST, age=20)))["gpu_state"].value == "lost"


@pytest.mark.parametrize(("age", "state"), [(50, None), (20, "lost")])
def test_loss_read_before_the_last_pass_of_any_reader_is_no_state(age: float, state: str | None) -> None:
    """The first reader stopped before the loss. The second one read the GPU as lost, then as ok, and stopped."""
    passes = {"nvml": 90, "dcgm": 30}
    sources = [
        Source(
            reader=reader,
            lane="fast",
            provenance=Provenance.HOST_LOCAL_PROBE,
            measured_at=AT - dt.timedelta(seconds=seconds),
        )
        for reader, seconds in passes.items()
    ]
    lost = absent(Reason.GPU_LOST, "dcgm", age)
    mig = msgspec.structs.replace(
        gpu(gpu_serial=absent(Reason.GPU_LOST, "dcgm", 50)),
        key="mig/MIG-1",
        kind=ViewKind.MIG,
        parent="gpu/GPU-1",
    )
    found = judged(gpu(*sources, gpu_state=absent(Reason.STALE, age=90), gpu_row_remap_pending=lost), mig)
    assert found["gpu_state"].value == state


def test_imported_loss_is_no_proof_beside_an_own_state() -> None:
    source = Source(reader="exporter/a", lane="fast", provenance=Provenance.IMPORTED, measured_at=AT)
    readings = {**OK, "gpu_sm_clock_hertz": absent(Reason.GPU_LOST, "exporter/a")}
    assert judged(gpu(source, **readings))["gpu_state"].value == "ok"


@pytest.mark.parametrize(("reason", "state"), [(Reason.NO_DATA, None), (Reason.TIMEOUT, "error")])
def test_imported_series_that_ended_are_no_proof(reason: Reason, state: str | None) -> None:
    source = Source(reader="exporter/a", lane="fast", provenance=Provenance.IMPORTED, measured_at=AT)
    power = absent(reason, "exporter/a")
    found = judged(gpu(source, gpu_power_watts=power, gpu_name=value("NVIDIA H100", "exporter/a")))
    assert found.get("gpu_state", power).value == state


def test_lost_mig_device_is_a_lost_gpu() -> None:
    mig = msgspec.structs.replace(
        gpu(gpu_memory_used_bytes=LOSS), key="mig/MIG-1", kind=ViewKind.MIG, uuid="MIG-1", parent="gpu/GPU-1"
    )
    assert judged(gpu(**OK), mig)["gpu_state"].value == "lost"


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("gpu_serial", "0"),
        ("gpu_vbios_version", "00.00.00.00.00"),
        ("gpu_fabric_guid", "0x0000000000000000"),
        ("gpu_chassis_serial", ""),
    ],
)
def test_identity_of_zeros_is_not_supported(metric: str, text: str) -> None:
    found = judged(gpu(**OK, **{metric: value(text)}))[metric]
    assert (found.value, found.absent, found.reader) == (None, Reason.NOT_SUPPORTED, "nvml")


def test_counts_without_ecc_are_not_supported() -> None:
    location = DimReading(
        metric="gpu_ecc_location_errors_total", labels={"location": "sram", "severity": "corrected"}, value=0
    )
    device = gpu(gpu_ecc_mode=value("disabled"), gpu_ecc_corrected_errors_total=value(0))
    device = msgspec.structs.replace(device, dimensions=(location,))
    snapshot: Snapshot = msgspec.structs.replace(example_snapshot(), devices=(device,))
    (found,) = judge_snapshot(snapshot).devices
    assert found.readings["gpu_ecc_corrected_errors_total"].absent is Reason.NOT_SUPPORTED
    assert [(one.value, one.absent) for one in found.dimensions] == [(None, Reason.NOT_SUPPORTED)]
