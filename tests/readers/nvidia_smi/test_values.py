"""Printed values: units are checked, and invalid values have a reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.nvidia_smi import DeviceRecord
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.nvidia_smi.mapping.account import report_unread
from gpufleet.readers.nvidia_smi.mapping.devices import ALL_METRICS, GpuModes, map_gpu, metrics_of_columns
from gpufleet.readers.nvidia_smi.mapping.values import read_text, sum_counts
from gpufleet.readers.nvidia_smi.views import address_of, uuid_of

INVALID = Absent(Reason.INVALID_VALUE, "x")


@pytest.mark.parametrize(
    ("metric", "text", "value"),
    [
        ("gpu_memory_used_bytes", "143771 MiB", 143771 << 20),
        ("gpu_memory_used_bytes", "0 MiB", 0),
        ("gpu_memory_used_bytes", "143771", INVALID),
        ("gpu_memory_used_bytes", "0x1F", INVALID),
        ("gpu_memory_used_bytes", "143771 W", INVALID),
        ("gpu_memory_used_bytes", "1.5 MiB", INVALID),
        ("gpu_memory_used_bytes", "-1 MiB", INVALID),
        ("gpu_memory_used_bytes", "9999999999999999999 MiB", INVALID),
        ("gpu_memory_used_bytes", "4294967295 MiB", INVALID),
        ("gpu_remapped_rows_correctable", "4294967295", INVALID),
        ("gpu_remapped_rows_correctable", "18446744073709551615", INVALID),
        ("gpu_clock_event_reasons_mask", "0xFFFFFFFFFFFFFFFF", INVALID),
        ("gpu_clock_event_reasons_mask", "0x00000000FFFFFFFF", INVALID),
        ("gpu_memory_temperature_celsius", "0", Absent(Reason.NOT_SUPPORTED, "x")),
        ("gpu_memory_temperature_celsius", "1 C", 1.0),
        ("gpu_temperature_celsius", "0", 0.0),
        ("gpu_power_watts", "78.28 W", 78.28),
        ("gpu_power_watts", "78.28 C", INVALID),
        ("gpu_power_watts", "99999 W", INVALID),
        ("gpu_power_watts", "nan W", INVALID),
        ("gpu_power_watts", "1e3 W", INVALID),
        ("gpu_temperature_celsius", "28 C", 28.0),
        ("gpu_temperature_celsius", "28", 28.0),
        ("gpu_temperature_celsius", "28 MHz", INVALID),
        ("gpu_temperature_margin_celsius", "-2 C", -2.0),
        ("gpu_utilization_ratio", "7 %", 0.07),
        ("gpu_utilization_ratio", "7", INVALID),
        ("gpu_utilization_ratio", "101 %", INVALID),
        ("gpu_sm_clock_hertz", "1980 MHz", 1_980_000_000),
        ("gpu_performance_state", "P8", 8),
        ("gpu_performance_state", "P99", INVALID),
        ("gpu_pcie_link_width", "16x", 16),
        ("gpu_pcie_link_width", "16", 16),
        ("gpu_clock_event_reasons_mask", "0x0000000000000004", 4),
        ("gpu_row_remap_pending", "No", 0),
        ("gpu_row_remap_pending", "Yes", 1),
        ("gpu_row_remap_pending", "Maybe", INVALID),
        ("gpu_recovery_action", "None", "none"),
        ("gpu_recovery_action", "Reset", "gpu_reset"),
        ("gpu_recovery_action", "Drain P2P", "drain_p2p"),
        ("gpu_recovery_action", "Dance", INVALID),
        ("gpu_compute_mode", "Exclusive_Process", "exclusive_process"),
        ("gpu_virtualization_mode", "Host VGPU", "vgpu_host"),
        ("gpu_vgpu_host_mode", "SR-IOV", "sriov"),
        ("gpu_architecture", "Ada Lovelace", "Ada"),
        ("gpu_pci_address", "00000000:1B:00.0", "0000:1b:00.0"),
        ("gpu_pci_address", "somewhere", INVALID),
        ("gpu_name", "N\x1b[0m", "N [0m"),
        ("vgpu_license_state", "Licensed (Expiry: 2026-7-7 16:1:44 GMT)", "licensed"),
        ("vgpu_license_state", "Unlicensed (Restricted)", "unlicensed_restricted"),
        ("vgpu_license_state", "N/A (Expiry: N/A)", Absent(Reason.NOT_SUPPORTED, "x")),
        ("vgpu_license_expiry_timestamp_seconds", "Licensed (Expiry: 2026-7-7 16:1:44 GMT)", 1_783_440_104),
        ("vgpu_license_expiry_timestamp_seconds", "Licensed (Expiry: 2026-77-7 16:1:44 GMT)", INVALID),
        ("vgpu_license_expiry_timestamp_seconds", "Licensed (Expiry: Permanent)", Absent(Reason.NO_DATA, "x")),
        ("vgpu_license_expiry_timestamp_seconds", "Unlicensed", Absent(Reason.NO_DATA, "x")),
        ("vgpu_guest_driver_version", "N/A", Absent(Reason.NO_DATA, "x")),
        ("gpu_power_watts", "[N/A]", Absent(Reason.NOT_SUPPORTED, "x")),
        ("gpu_power_watts", "[Unknown Error]", Absent(Reason.DRIVER_ERROR, "x")),
        ("gpu_power_watts", "[Insufficient Permissions]", Absent(Reason.NOT_PERMITTED, "x")),
        ("gpu_power_watts", "[A message of driver 999]", Absent(Reason.DRIVER_ERROR, "x")),
        ("gpu_power_watts", "In use by another client", Absent(Reason.DRIVER_ERROR, "x")),
        ("gpu_power_watts", "[GPU is lost: reboot]", Absent(Reason.GPU_LOST, "x")),
        ("gpu_power_watts", "GPU requires reset.", Absent(Reason.RESET_REQUIRED, "x")),
        ("gpu_serial", "[Argument version mismatch]", Absent(Reason.DRIVER_ERROR, "x")),
        ("gpu_fabric_guid", "[Insufficient Resources]", Absent(Reason.DRIVER_ERROR, "x")),
        ("gpu_name", "GPU is lost.  Reboot the system to recover this GPU", Absent(Reason.GPU_LOST, "x")),
        ("gpu_compute_mode", "[Invalid State]", Absent(Reason.DRIVER_ERROR, "x")),
    ],
)
def test_printed_text_is_converted(metric: str, text: str, value: Value | Absent) -> None:
    assert read_text(CATALOGUE[metric], text, "x") == value


def test_error_in_place_of_the_chassis_serial_proves_no_rack() -> None:
    cell = {"platform.chassis_serial_number": "[Argument version mismatch]", "platform.slot_number": "0"}
    requested = metrics_of_columns(cell)
    values, _ = map_gpu(DeviceRecord(name="", fields=cell), Lane.STATIC, requested, GpuModes())
    assert set(values.values()) == {Absent(Reason.DRIVER_ERROR, "platform.chassis_serial_number")}


def test_sum_leaves_out_counts_that_the_chip_lacks() -> None:
    metric = CATALOGUE["gpu_ecc_corrected_errors_total"]
    assert sum_counts(metric, {"sram": "3", "dram": "4"}) == 7
    assert sum_counts(metric, {"sram": "N/A", "dram": "4"}) == 4
    assert sum_counts(metric, {"sram": "N/A", "dram": "N/A"}) == Absent(Reason.NOT_SUPPORTED, "sram")


@pytest.mark.parametrize(
    ("sram", "dram", "reason", "where"),
    [
        ("N/A", "GPU is lost", Reason.GPU_LOST, "dram"),
        ("GPU is lost", "N/A", Reason.GPU_LOST, "sram"),
        ("3", "Unknown Error", Reason.DRIVER_ERROR, "dram"),
        ("Unknown Error", "GPU requires reset", Reason.RESET_REQUIRED, "dram"),
        ("Insufficient Permissions", "N/A", Reason.NOT_PERMITTED, "sram"),
    ],
)
def test_sum_has_the_worst_reason(sram: str, dram: str, reason: Reason, where: str) -> None:
    metric = CATALOGUE["gpu_ecc_corrected_errors_total"]
    assert sum_counts(metric, {"sram": sram, "dram": dram}) == Absent(reason, where)


@given(metric=st.sampled_from(list(CATALOGUE.values())), text=st.text(max_size=60))
def test_any_text_is_a_valid_value_or_absent(metric: Metric, text: str) -> None:
    value = read_text(metric, text, "x")
    if isinstance(value, Absent):
        return
    if metric.type is ValueType.ENUM:
        assert value in metric.states
    elif metric.type is ValueType.TEXT:
        assert isinstance(value, str)
        assert value
    else:
        assert isinstance(value, int | float)
        assert math.isfinite(value)
        assert metric.low is None or value >= metric.low
        assert metric.high is None or value <= metric.high


@given(text=st.text(max_size=60))
def test_any_text_is_a_valid_identity_or_none(text: str) -> None:
    record = DeviceRecord(name=text, fields={"uuid": text, "pci.bus_id": text})
    uuid = uuid_of(record)
    assert uuid is None or uuid.startswith("GPU-")
    address_of(record)


@pytest.mark.parametrize("shared", ["texture_shm", "texture_shared"])
def test_ecc_errors_of_chips_before_turing(shared: str) -> None:
    names = ("device_memory", "register_file", "l1_cache", "l2_cache", "texture_memory", shared, "cbu", "total")
    leaves = {
        f"ecc_errors/{counter}/{bits}/{name}": str(100 * a + 10 * b + c)
        for a, counter in enumerate(("volatile", "aggregate"), 1)
        for b, bits in enumerate(("single_bit", "double_bit"), 1)
        for c, name in enumerate(names)
    }
    record = DeviceRecord(name="", leaves={**leaves, "ecc_errors/volatile/single_bit/cbu": "N/A"})
    found = {lane: map_gpu(record, lane, ALL_METRICS, GpuModes()) for lane in (Lane.FAST, Lane.SLOW)}
    totals = {name: value for values, _ in found.values() for name, value in values.items() if "_ecc_" in name}
    assert {name: totals[f"gpu_ecc_{name}_errors_total"] for name in ("corrected", "uncorrected")} == {
        "corrected": 117,
        "uncorrected": 127,
    }
    assert totals["gpu_ecc_corrected_lifetime_errors_total"] == 217
    assert totals["gpu_ecc_uncorrected_lifetime_errors_total"] == 227
    dims = {(one.metric, *one.labels): one.value for _, found_dims in found.values() for one in found_dims}
    assert dims["gpu_ecc_location_errors_total", "dram", "corrected"] == 110
    assert dims["gpu_ecc_location_errors_total", "texture_shm", "uncorrected"] == 125
    assert dims["gpu_ecc_location_lifetime_errors_total", "register_file", "uncorrected"] == 221
    assert ("gpu_ecc_location_errors_total", "cbu", "corrected") not in dims
    assert report_unread([record]).unknown == []
