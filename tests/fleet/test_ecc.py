import pytest

from gpufleet.fleet.ecc import ECC_COUNTS, ECC_MODE, drop_counts_without_ecc, ecc_count, proven_ecc_mode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.model.view import ViewKind
from tests.fleet.boards import COUNT, board_sample


@pytest.mark.parametrize(
    ("mode", "value", "found"),
    [
        (None, 0, 0),
        ("enabled", 0, 0),
        ("disabled", 3, Absent(Reason.NOT_SUPPORTED, "x")),
        (Absent(Reason.NOT_SUPPORTED), 0, Absent(Reason.NOT_SUPPORTED, "x")),
        (Absent(Reason.NOT_SUPPORTED), Absent(Reason.GPU_LOST), Absent(Reason.GPU_LOST)),
        (Absent(Reason.NOT_SUPPORTED), Absent(Reason.NOT_PERMITTED), Absent(Reason.NOT_PERMITTED)),
        (Absent(Reason.NOT_SUPPORTED), Absent(Reason.NOT_REPORTED), Absent(Reason.NOT_SUPPORTED, "x")),
        (Absent(Reason.TIMEOUT), 0, Absent(Reason.TIMEOUT, "x")),
        (Absent(Reason.TIMEOUT), 3, 3),
        (Absent(Reason.TIMEOUT), Absent(Reason.GPU_LOST), Absent(Reason.GPU_LOST)),
        (Absent(Reason.STALE), 0, 0),  # the mode was read before
    ],
)
def test_count_of_zero_needs_a_known_ecc_mode(
    mode: Value | Absent | None, value: Value | Absent, found: Value | Absent
) -> None:
    assert ecc_count("gpu_sram_threshold_exceeded", value, mode, "x") == found
    assert ecc_count("gpu_row_remap_pending", value, mode, "x") == value


def test_count_above_zero_proves_ecc() -> None:
    timeout = Absent(Reason.TIMEOUT)
    assert proven_ecc_mode(timeout, [(COUNT, 0), ("gpu_sram_errors_total", 1)]) == "enabled"
    assert proven_ecc_mode(timeout, [(COUNT, 0), ("gpu_power_watts", 1)]) == timeout
    assert proven_ecc_mode("disabled", [(COUNT, 1)]) == "disabled"


def test_ecc_counts_can_be_unsupported() -> None:
    assert len(ECC_COUNTS) >= 10
    for name in ECC_COUNTS:
        assert Reason.NOT_SUPPORTED in {case.reason for case in CATALOGUE[name].absent_when}, name


@pytest.mark.parametrize(
    ("mode", "lists_modes", "count", "why"),
    [
        ("disabled", False, 3, Reason.NOT_SUPPORTED),
        ("enabled", True, 0, None),
        (Absent(Reason.NOT_SUPPORTED), False, 0, Reason.NOT_SUPPORTED),
        (Absent(Reason.GPU_LOST), True, 0, Reason.GPU_LOST),
        (Absent(Reason.GPU_LOST), True, 3, None),
        (None, False, 0, None),
        (None, True, 0, Reason.NOT_SUPPORTED),
        (None, True, 3, None),
    ],
)
def test_counts_of_a_page_need_ecc(
    mode: Value | Absent | None, lists_modes: bool, count: int, why: Reason | None
) -> None:
    metric = "gpu_sram_threshold_exceeded"
    samples = [
        board_sample(mode),
        board_sample(None, (metric, count)),
        board_sample(None, (metric, 0), kind=ViewKind.MIG),
    ]
    _, gpu, mig = drop_counts_without_ecc(samples, lists_modes=lists_modes)
    absent = None if why is None else Absent(why, ECC_MODE)
    assert (gpu.values[metric], mig.values[metric]) == (absent or count, absent or 0)


def test_total_shows_that_the_mode_of_a_board_was_left_out() -> None:
    (gpu,) = drop_counts_without_ecc([board_sample(None, (COUNT, 0))], lists_modes=True)
    assert gpu.values[COUNT] == 0
