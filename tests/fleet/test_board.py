"""Readings that belong to something a board may not have."""

import pytest

from gpufleet.fleet.board import ECC_COUNTS, RACK_PLACE, drop_rack_defaults, ecc_absence
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value

DEFAULTS: dict[str, Value | Absent] = dict(zip(RACK_PLACE, ("0", "0", "1"), strict=True))


@pytest.mark.parametrize("serial", ["", "0000000000000", Absent(Reason.NO_DATA), Absent(Reason.NOT_SUPPORTED)])
@pytest.mark.parametrize("guid", ["0x0000000000000000", Absent(Reason.NO_DATA), Absent(Reason.NOT_SUPPORTED)])
def test_defaults_without_a_chassis_are_not_supported(serial: Value | Absent, guid: Value | Absent) -> None:
    values = {**DEFAULTS, "gpu_chassis_serial": serial, "gpu_fabric_guid": guid, "gpu_platform_module_id": "1"}
    drop_rack_defaults(values)
    module = values.pop("gpu_platform_module_id")
    assert {value.reason for value in values.values() if isinstance(value, Absent)} == {Reason.NOT_SUPPORTED}
    assert all(isinstance(value, Absent) for value in values.values())
    assert module == "1"


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


def test_place_without_evidence_is_kept() -> None:
    values = dict(DEFAULTS)
    drop_rack_defaults(values)
    assert values == DEFAULTS


def test_counts_need_ecc() -> None:
    assert ecc_absence("gpu_sram_threshold_exceeded", 0, has_ecc=True, where="x") == 0
    assert ecc_absence("gpu_sram_threshold_exceeded", 0, has_ecc=False, where="x") == Absent(Reason.NOT_SUPPORTED, "x")
    assert ecc_absence("gpu_row_remap_pending", 0, has_ecc=False, where="x") == 0
    for kept in (Absent(Reason.GPU_LOST), Absent(Reason.NOT_PERMITTED)):
        assert ecc_absence("gpu_sram_threshold_exceeded", kept, has_ecc=False, where="x") == kept
    missing = Absent(Reason.NOT_REPORTED)
    assert ecc_absence("gpu_sram_errors_total", missing, has_ecc=False, where="x") == Absent(Reason.NOT_SUPPORTED, "x")


def test_ecc_counts_can_be_unsupported() -> None:
    assert len(ECC_COUNTS) >= 10
    for name in ECC_COUNTS:
        assert Reason.NOT_SUPPORTED in {case.reason for case in CATALOGUE[name].absent_when}, name
