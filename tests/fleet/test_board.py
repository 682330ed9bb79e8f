"""Readings that belong to something a board may not have."""

import pytest

from gpufleet.fleet.board import (
    METRICS_OF_PART,
    PART_OF_USE,
    RACK_PLACE,
    drop_activity_without_memory,
    drop_attached_display,
    drop_board_defaults,
    drop_defaults,
    drop_empty_protected_memory,
    drop_fabric_defaults,
    drop_module_of_card,
    drop_rack_defaults,
    drop_readiness_without_confidential_mode,
    drop_unproven_uses,
    drop_zero_identities,
    in_mig_mode,
    is_vgpu_guest,
    part_absence,
    unproven_uses,
    without_unproven_uses,
)
from gpufleet.fleet.ecc import ECC_MODE
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.view import ViewKind
from tests.fleet.boards import COUNT, board_sample

DEFAULTS: dict[str, Value | Absent] = dict(zip(RACK_PLACE, ("0", "0", "1"), strict=True))


@pytest.mark.parametrize("serial", ["", "0000000000000", Absent(Reason.NO_DATA), Absent(Reason.NOT_SUPPORTED)])
@pytest.mark.parametrize("guid", ["0x0000000000000000", Absent(Reason.NO_DATA), Absent(Reason.NOT_SUPPORTED)])
def test_defaults_without_a_chassis_are_not_supported(serial: Value | Absent, guid: Value | Absent) -> None:
    values = {**DEFAULTS, "gpu_chassis_serial": serial, "gpu_fabric_guid": guid}
    drop_rack_defaults(values)
    assert {value.reason for value in values.values() if isinstance(value, Absent)} == {Reason.NOT_SUPPORTED}
    assert all(isinstance(value, Absent) for value in values.values())


def test_place_in_a_chassis_is_kept_even_if_zero() -> None:
    values = {**DEFAULTS, "gpu_chassis_serial": "1820924000000", "gpu_fabric_guid": "0x1f"}
    before = dict(values)
    drop_rack_defaults(values)
    assert values == before


def test_place_is_lost_with_its_gpu() -> None:
    lost = Absent(Reason.GPU_LOST)
    values = {**DEFAULTS, "gpu_chassis_serial": lost}
    drop_rack_defaults(values)
    assert set(values.values()) == {lost}


@pytest.mark.parametrize("reported", [RACK_PLACE, RACK_PLACE[:1], RACK_PLACE[1:]])
def test_defaults_without_a_reported_serial_are_not_reported(reported: tuple[str, ...]) -> None:
    values = {name: DEFAULTS[name] for name in reported}
    drop_rack_defaults(values)
    assert values == dict.fromkeys(reported, Absent(Reason.NOT_REPORTED, "gpu_chassis_serial"))


def test_place_that_differs_from_the_defaults_is_kept() -> None:
    values = {**DEFAULTS, "gpu_tray_index": "4"}
    before = dict(values)
    drop_rack_defaults(values)
    assert values == before


FABRIC: dict[str, Value | Absent] = {
    "gpu_fabric_state": "completed",
    "gpu_fabric_status": "SUCCESS",
    "gpu_fabric_cluster_uuid": "5d1c0ea6-0000-4000-8000-000000000001",
    "gpu_fabric_clique": "0",
    "gpu_fabric_health_status": "healthy",
    "gpu_fabric_incorrect_configuration": "none",
}
HEALTH = (DimValue("gpu_fabric_health", ("route_unhealthy",), 0), DimValue("gpu_fan_speed_ratio", ("0",), 0.5))


def test_fabric_of_a_gpu_that_has_joined_is_kept() -> None:
    values = dict(FABRIC)
    assert drop_fabric_defaults(values, HEALTH) == HEALTH
    assert values == FABRIC


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("not_supported", Reason.NOT_SUPPORTED),
        (Absent(Reason.NOT_SUPPORTED), Reason.NOT_SUPPORTED),
        ("in_progress", Reason.NO_DATA),
        (Absent(Reason.GPU_LOST), Reason.GPU_LOST),
    ],
)
def test_details_of_a_fabric_need_a_gpu_that_has_joined(state: Value | Absent, reason: Reason) -> None:
    values = FABRIC | {"gpu_fabric_state": state}
    dims = drop_fabric_defaults(values, HEALTH)
    shown = values.pop("gpu_fabric_state")
    assert shown == "in_progress" or (isinstance(shown, Absent) and shown.reason is reason)
    found = [*values.values(), dims[0].value]
    assert all(isinstance(value, Absent) for value in found)
    assert {value.reason for value in found if isinstance(value, Absent)} == {reason}
    assert dims[1] == HEALTH[1]


def reason_of(value: Value | Absent) -> Reason | None:
    return value.reason if isinstance(value, Absent) else None


@pytest.mark.parametrize("without", [Reason.NOT_SUPPORTED, Reason.NO_DATA])
@pytest.mark.parametrize(("state", "shown"), [("not_supported", Reason.NOT_SUPPORTED), ("in_progress", Reason.NO_DATA)])
def test_state_of_the_fabric_is_the_reason_for_absent_details(without: Reason, state: str, shown: Reason) -> None:
    lost = Absent(Reason.GPU_LOST)
    values: dict[str, Value | Absent] = {"gpu_fabric_state": state, "gpu_fabric_status": lost}
    values["gpu_fabric_clique"] = Absent(without)
    (health,) = drop_fabric_defaults(values, [DimValue(HEALTH[0].metric, HEALTH[0].labels, Absent(without))])
    assert [reason_of(values["gpu_fabric_clique"]), reason_of(health.value)] == [shown, shown]
    assert values["gpu_fabric_status"] == lost


def test_health_that_the_driver_does_not_report_is_no_value() -> None:
    names = ("gpu_fabric_health_status", "gpu_fabric_incorrect_configuration")
    values = FABRIC | dict.fromkeys(names, "not_reported")
    drop_fabric_defaults(values, ())
    assert [values[name] for name in names] == [Absent(Reason.NOT_SUPPORTED, name) for name in names]


TOTAL, USED = "gpu_protected_memory_total_bytes", "gpu_protected_memory_used_bytes"
NO_MEMORY = Absent(Reason.NOT_SUPPORTED, TOTAL)


@pytest.mark.parametrize(
    ("total", "used", "found"),
    [
        (0, 0, NO_MEMORY),
        (Absent(Reason.NOT_SUPPORTED), 0, Absent(Reason.NOT_SUPPORTED)),
        (Absent(Reason.TIMEOUT), 0, Absent(Reason.TIMEOUT)),
        (None, 0, Absent(Reason.NOT_REPORTED, TOTAL)),
        (None, 4, 4),
        (8, 0, 0),
        (0, Absent(Reason.TIMEOUT), Absent(Reason.TIMEOUT)),
    ],
)
def test_used_protected_memory_of_zero_needs_a_total(
    total: Value | Absent | None, used: Value | Absent, found: Value | Absent
) -> None:
    values: dict[str, Value | Absent] = {USED: used} if total is None else {TOTAL: total, USED: used}
    drop_empty_protected_memory(values)
    assert values[USED] == found
    assert values.get(TOTAL) == (NO_MEMORY if total == 0 else total)


@pytest.mark.parametrize("size", [0, 150 << 30])
def test_unprotected_memory_needs_protected_memory(size: int) -> None:
    off: dict[str, Value | Absent] = {TOTAL: 0, "gpu_unprotected_memory_total_bytes": size}
    drop_empty_protected_memory(off)
    assert off == {TOTAL: NO_MEMORY, "gpu_unprotected_memory_total_bytes": NO_MEMORY}
    on: dict[str, Value | Absent] = {TOTAL: 8, "gpu_unprotected_memory_total_bytes": size}
    drop_empty_protected_memory(on)
    assert on["gpu_unprotected_memory_total_bytes"] == size


CONFIDENTIAL, MULTI_GPU, READY = (f"nvidia_confidential_{name}" for name in ("computing", "multi_gpu", "gpus_ready"))
NOT_CONFIDENTIAL = Absent(Reason.NOT_SUPPORTED, CONFIDENTIAL)


@pytest.mark.parametrize(
    ("computing", "multi_gpu", "ready", "found"),
    [
        ("enabled", "none", 0, 0),
        ("enabled", Absent(Reason.NOT_IN_DRIVER), 1, 1),
        ("disabled", "protected_pcie", 0, 0),
        ("disabled", "none", 0, NOT_CONFIDENTIAL),
        ("disabled", Absent(Reason.NOT_IN_DRIVER), 0, NOT_CONFIDENTIAL),
        ("disabled", Absent(Reason.TIMEOUT), 0, Absent(Reason.TIMEOUT)),
        (Absent(Reason.NOT_PERMITTED), Absent(Reason.DRIVER_ERROR), 0, Absent(Reason.DRIVER_ERROR)),
        (Absent(Reason.NOT_PERMITTED), "none", 1, 1),
        ("disabled", "none", Absent(Reason.TIMEOUT), Absent(Reason.TIMEOUT)),
    ],
)
def test_readiness_needs_a_mode_of_confidential_computing(
    computing: Value | Absent, multi_gpu: Value | Absent, ready: Value | Absent, found: Value | Absent
) -> None:
    values = {CONFIDENTIAL: computing, MULTI_GPU: multi_gpu, READY: ready}
    drop_readiness_without_confidential_mode(values)
    assert values == {CONFIDENTIAL: computing, MULTI_GPU: multi_gpu, READY: found}


@pytest.mark.parametrize(
    ("total", "activity", "found"),
    [
        (Absent(Reason.NOT_SUPPORTED), 0.0, Absent(Reason.NOT_SUPPORTED)),
        (Absent(Reason.NOT_SUPPORTED), 0.2, 0.2),
        (Absent(Reason.TIMEOUT), 0.0, 0.0),
        (8, 0.0, 0.0),
        (None, 0.0, 0.0),
    ],
)
def test_memory_activity_of_zero_needs_memory(
    total: Value | Absent | None, activity: Value, found: Value | Absent
) -> None:
    values: dict[str, Value | Absent] = {"gpu_memory_activity_ratio": activity}
    if total is not None:
        values["gpu_memory_total_bytes"] = total
    drop_activity_without_memory(values)
    assert values["gpu_memory_activity_ratio"] == found


def test_mig_is_the_reason_for_what_it_hides() -> None:
    hidden, unsupported, lost = "gpu_row_remap_failed", Absent(Reason.NOT_SUPPORTED), Absent(Reason.GPU_LOST)
    assert in_mig_mode(hidden, unsupported) == Absent(Reason.NOT_IN_MIG_MODE)
    assert [in_mig_mode(hidden, value) for value in (0, lost)] == [0, lost]
    assert in_mig_mode("gpu_fabric_guid", unsupported) == unsupported


@pytest.mark.parametrize("text", ["00.00.00.00.00", "0000000000000", "0"])
def test_identity_of_zeros_is_none(text: str) -> None:
    values: dict[str, Value | Absent] = {"gpu_vbios_version": text, "gpu_serial": "1320924000000"}
    drop_zero_identities(values)
    assert values == {
        "gpu_vbios_version": Absent(Reason.NOT_SUPPORTED, "gpu_vbios_version"),
        "gpu_serial": "1320924000000",
    }


@pytest.mark.parametrize("number", ["0", "1", "8"])
def test_module_zero_is_no_place_on_a_baseboard(number: str) -> None:
    values: dict[str, Value | Absent] = {"gpu_module_id": number, "gpu_platform_module_id": number}
    drop_zero_identities(values)
    module = Absent(Reason.NOT_SUPPORTED, "gpu_module_id") if number == "0" else number
    assert values == {"gpu_module_id": module, "gpu_platform_module_id": number}


LOST = Absent(Reason.GPU_LOST)


@pytest.mark.parametrize(
    ("product", "serial", "shown"),
    [
        ("NVIDIA H200", None, "1"),
        ("NVIDIA GB300", "1820924000000", "1"),
        ("NVIDIA X900", "1820924000000", "1"),
        ("Tesla T4", None, Absent(Reason.NOT_SUPPORTED, "gpu_name")),
        ("NVIDIA L40S", Absent(Reason.NOT_SUPPORTED), Absent(Reason.NOT_SUPPORTED, "gpu_name")),
        (None, None, Absent(Reason.NOT_REPORTED, "gpu_name")),
        (LOST, LOST, LOST),
    ],
)
def test_module_1_of_a_card_is_absent(
    product: Value | Absent | None, serial: Value | Absent | None, shown: Value | Absent
) -> None:
    ids: dict[str, Value | Absent] = {"gpu_module_id": "1", "gpu_platform_module_id": "1"}
    values = ids if serial is None else {**ids, "gpu_chassis_serial": serial}
    drop_module_of_card(values, product)
    assert [values[name] for name in ids] == [shown, shown]


def test_other_modules_than_1_are_kept() -> None:
    values: dict[str, Value | Absent] = {"gpu_module_id": "7", "gpu_platform_module_id": "2"}
    before = dict(values)
    drop_module_of_card(values, None)
    assert values == before


def test_attached_display_counts_only_while_it_is_active() -> None:
    values: dict[str, Value | Absent] = {"gpu_display_attached": "enabled", "gpu_display_active": "disabled"}
    drop_attached_display(values)
    assert values.pop("gpu_display_attached") == Absent(Reason.NO_DATA, "gpu_display_attached")
    assert values == {"gpu_display_active": "disabled"}
    lost = Absent(Reason.GPU_LOST)
    for value, active in (("enabled", "enabled"), ("disabled", "disabled"), (lost, lost)):
        values = {"gpu_display_attached": value, "gpu_display_active": active}
        drop_attached_display(values)
        assert values == {"gpu_display_attached": value, "gpu_display_active": active}


ENCODER_USE, JPEG_USE, FLOW_USE = list(PART_OF_USE)[:3]
FAN_USES = {name for name in PART_OF_USE if name.startswith("gpu_fan_")}
MEMORY_USE = "gpu_memory_activity_ratio"
NVLINK_USES = PART_OF_USE.keys() - {ENCODER_USE, JPEG_USE, FLOW_USE, *FAN_USES, MEMORY_USE}


@pytest.mark.parametrize(
    ("product", "lacked", "reason"),
    [
        ("NVIDIA H200", {ENCODER_USE}, Reason.NOT_SUPPORTED),
        ("GRID A100-20C", {ENCODER_USE}, Reason.NOT_SUPPORTED),
        ("Tesla T4", {JPEG_USE, *NVLINK_USES}, Reason.NOT_SUPPORTED),
        ("NVIDIA L40S", NVLINK_USES, Reason.NOT_SUPPORTED),
        ("NVIDIA T400", {JPEG_USE, FLOW_USE, *NVLINK_USES}, Reason.NOT_SUPPORTED),
        ("NVIDIA A10G", {JPEG_USE, *FAN_USES, *NVLINK_USES}, Reason.NOT_SUPPORTED),
        ("NVIDIA GB300", {ENCODER_USE}, Reason.NOT_SUPPORTED),
        ("NVIDIA GB10", {MEMORY_USE, *NVLINK_USES}, Reason.NOT_SUPPORTED),
        (None, PART_OF_USE.keys() - {MEMORY_USE}, Reason.NOT_REPORTED),
        (Absent(Reason.TIMEOUT), PART_OF_USE.keys() - {MEMORY_USE}, Reason.TIMEOUT),
    ],
)
def test_use_of_a_part_of_zero_needs_the_part(
    product: Value | Absent | None, lacked: set[str], reason: Reason | None
) -> None:
    values: dict[str, Value | Absent] = dict.fromkeys(PART_OF_USE, 0.0)
    dims = without_unproven_uses([DimValue(name, ("0",), 0) for name in PART_OF_USE], unproven_uses(product))
    drop_unproven_uses(values, unproven_uses(product))
    for found in (values, {dim.metric: dim.value for dim in dims}):
        absent = {name: value.reason for name, value in found.items() if isinstance(value, Absent)}
        assert absent == dict.fromkeys(lacked, reason)


@pytest.mark.parametrize("value", [0.25, Absent(Reason.GPU_LOST)])
def test_measured_use_of_a_part_and_failures_stay(value: Value | Absent) -> None:
    values, unproven = {ENCODER_USE: value}, unproven_uses("NVIDIA H200")
    drop_unproven_uses(values, unproven)
    assert values == {ENCODER_USE: value}
    dim = DimValue(ENCODER_USE, ("0",), value)
    assert without_unproven_uses([dim], unproven) == (dim,)


@pytest.mark.parametrize(
    ("product", "virtualization", "reason"),
    [
        ("NVIDIA RTXA6000-24Q", None, Reason.NOT_IN_GUEST),
        (None, "vgpu_guest", Reason.NOT_IN_GUEST),
        (None, None, None),
        ("NVIDIA RTX A6000", None, None),
        (None, "none", None),
    ],
)
def test_defaults_of_a_guest_need_a_physical_gpu(
    product: str | None, virtualization: str | None, reason: Reason | None
) -> None:
    defaults: dict[str, Value | Absent] = {
        "gpu_mig_mode": "disabled",
        "gpu_mig_mode_pending": "disabled",
        "gpu_retired_pages_pending": 0,
    }
    other: dict[str, Value | Absent] = {"gpu_mig_mode": "enabled", "gpu_retired_pages_pending": 1}
    values = {**defaults}
    pages = [DimValue("gpu_retired_pages", ("single_bit",), 0), DimValue("gpu_retired_pages", ("double_bit",), 2)]
    is_guest = is_vgpu_guest(product, virtualization)
    zero, retired = drop_defaults(values, pages, product, is_guest=is_guest)
    found = [one.reason if isinstance(one, Absent) else one for one in (*values.values(), zero.value)]
    assert found == ([*defaults.values(), 0] if reason is None else [reason] * 4)
    assert retired == pages[1]
    drop_defaults(readings := {**other}, (), product, is_guest=is_guest)
    assert readings == other


def test_clique_counts_only_in_a_known_cluster() -> None:
    one_host = Absent(Reason.NO_DATA, "gpu_fabric_cluster_uuid")
    uuid = "5d1c0ea6-0000-4000-8000-000000000001"
    for cluster, clique, found in (
        (one_host, "0", one_host),
        (one_host, "7", one_host),
        (uuid, "0", "0"),
        (None, "0", Absent(Reason.NOT_REPORTED, "gpu_fabric_cluster_uuid")),
        (None, "7", "7"),
    ):
        values: dict[str, Value | Absent] = {"gpu_fabric_state": "completed", "gpu_fabric_clique": clique}
        if cluster is not None:
            values["gpu_fabric_cluster_uuid"] = cluster
        drop_fabric_defaults(values, ())
        assert values["gpu_fabric_clique"] == found


def test_readings_of_a_part_need_the_part() -> None:
    name = "gpu_nvlink_transmit_bytes_total"
    assert part_absence(name, 0, (), name) == 0
    assert part_absence(name, 0, ("ecc",), name) == 0
    assert part_absence(name, 0, ("ecc", "nvlink"), name) == Absent(Reason.NOT_SUPPORTED, name)
    assert part_absence(name, Absent(Reason.GPU_LOST), ("nvlink",), name) == Absent(Reason.GPU_LOST)
    assert "gpu_nvswitch_links" in METRICS_OF_PART["nvlink"]


def test_readings_of_parts_can_be_unsupported() -> None:
    for name in (*METRICS_OF_PART["nvlink"], *PART_OF_USE):
        assert Reason.NOT_SUPPORTED in {case.reason for case in CATALOGUE[name].absent_when}, name


def test_page_has_no_defaults_of_the_driver() -> None:
    texts: list[tuple[str, Value | Absent]] = [
        ("gpu_fabric_state", "not_supported"),
        ("gpu_vbios_version", "00.00.00.00.00"),
        ("gpu_serial", "132"),
        ("gpu_display_attached", "enabled"),
        (COUNT, 0),
    ]
    (found,) = drop_board_defaults([board_sample("enabled", *texts)])
    assert {name: isinstance(value, Absent) for name, value in found.values.items()} == {
        ECC_MODE: False,
        "gpu_fabric_state": True,
        "gpu_vbios_version": True,
        "gpu_serial": False,
        "gpu_display_attached": True,
        COUNT: False,
    }


def test_use_of_a_mig_device_of_zero_is_none() -> None:
    uses: list[tuple[str, Value | Absent]] = [
        ("gpu_utilization_ratio", 0.0),
        ("gpu_decoder_utilization_ratio", 0.5),
        ("gpu_graphics_activity_ratio", 0.0),
    ]
    mig, gpu = drop_board_defaults([board_sample(None, *uses, kind=kind) for kind in (ViewKind.MIG, ViewKind.GPU)])
    assert mig.values == dict(uses) | {"gpu_utilization_ratio": Absent(Reason.NOT_IN_MIG_MODE, "gpu_utilization_ratio")}
    assert gpu.values == dict(uses)


def test_page_has_no_use_of_engines_that_its_product_lacks() -> None:
    encoder = "gpu_encoder_utilization_ratio"
    names = board_sample(None, ("gpu_name", "NVIDIA H100 80GB HBM3"))
    found = drop_board_defaults([board_sample(None, (encoder, 0.0)), names])
    assert [dict(one.values) for one in found] == [
        {encoder: Absent(Reason.NOT_SUPPORTED, encoder)},
        {"gpu_name": "NVIDIA H100 80GB HBM3"},
    ]
