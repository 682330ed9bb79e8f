"""Counts of ECC errors, which a board has only while ECC is enabled. Pure; shared by readers."""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason, as_unsupported
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.products import may_lack_ecc
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import ViewKind

ECC_COUNTS = frozenset(
    name
    for name in CATALOGUE
    if name.startswith(("gpu_ecc_corrected_", "gpu_ecc_uncorrected_", "gpu_ecc_location_", "gpu_sram_"))
)
"""Metrics that count only while ECC is enabled."""

_ECC_TOTALS = frozenset(
    f"gpu_ecc_{severity}_{span}_total"
    for severity in ("corrected", "uncorrected")
    for span in ("errors", "lifetime_errors")
)

ECC_MODE = "gpu_ecc_mode"
_ECC_OFF, _ECC_ON = "disabled", "enabled"

EccMode = Value | Absent | None
"""Reading of `gpu_ecc_mode`; None if its source does not report it."""

NO_ECC = Absent(Reason.NOT_SUPPORTED, ECC_MODE)
"""Mode of a board without a mode, if its source has the cells of `nvidia-smi` and omits what a board does not have."""


def ecc_count(metric: str, value: Value | Absent, mode: EccMode, where: str) -> Value | Absent:
    """Return a reading, or its absence if the ECC mode of its board proves it invalid. Only counts of errors change.

    - If ECC is disabled or does not exist, a count is `not_supported`.
    - If the mode cannot be read, a count of zero proves nothing and is absent for the mode's reason.

    Args:
        metric: catalogue name.
        value: the reading.
        mode: result of `proven_ecc_mode`.
        where: detail of the absence.
    """
    if is_ecc_off(mode):
        return as_unsupported(value, where) if metric in ECC_COUNTS else value
    if isinstance(mode, Absent) and mode.reason is not Reason.STALE and metric in ECC_COUNTS and value == 0:
        return Absent(mode.reason, where)
    return value


def proven_ecc_mode(mode: EccMode, counts: Iterable[tuple[str, Value | Absent]]) -> EccMode:
    """Return the ECC mode of a board. If it cannot be read, a count above zero proves that ECC is enabled.

    Args:
        mode: as read.
        counts: metrics and readings of the board.
    """
    if not isinstance(mode, Absent) or is_ecc_off(mode):
        return mode
    return _ECC_ON if any(_is_error_count(metric, value) for metric, value in counts) else mode


def missing_ecc_mode(samples: Iterable[Sample]) -> EccMode:
    """Return the ECC mode of a board whose source has no modes: absent if the product may lack ECC, otherwise None."""
    names = [sample.values.get("gpu_name") for sample in samples]
    is_unproven = any(isinstance(name, str) and may_lack_ecc(name) for name in names)
    return Absent(Reason.NOT_REPORTED, ECC_MODE) if is_unproven else None


def is_ecc_off(mode: EccMode) -> bool:
    """Return whether a reading of `gpu_ecc_mode` proves that ECC is disabled or does not exist."""
    return mode == _ECC_OFF or (isinstance(mode, Absent) and mode.reason is Reason.NOT_SUPPORTED)


def with_ecc_mode(sample: Sample, mode: EccMode) -> Sample:
    """Return a sample without the counts of errors that the ECC mode of its board rules out: see `ecc_count`."""
    if mode in (None, _ECC_ON) or not has_ecc_counts(sample):
        return sample
    counts = ECC_COUNTS & sample.values.keys()
    values = {name: ecc_count(name, sample.values[name], mode, ECC_MODE) for name in counts}
    dims = [DimValue(dim.metric, dim.labels, ecc_count(dim.metric, dim.value, mode, ECC_MODE)) for dim in sample.dims]
    return msgspec.structs.replace(sample, values={**sample.values, **values}, dims=tuple(dims))


def drop_counts_without_ecc(samples: Sequence[Sample], *, lists_modes: bool = False) -> list[Sample]:
    """Return the samples of one machine without the ECC counts that the modes of their boards rule out.

    A MIG device has the mode of its GPU.

    Args:
        samples: all samples of one page or pass.
        lists_modes: whether `NO_ECC` is the mode of a board without a mode.
    """
    boards: dict[str, list[Sample]] = {}
    for sample in samples:
        if (board := board_of(sample)) is not None:
            boards.setdefault(board, []).append(sample)
    modes: dict[str | None, EccMode] = {}
    for board, own in boards.items():
        if any(map(has_ecc_counts, own)):
            missing = NO_ECC if lists_modes else missing_ecc_mode(own)
            mode = next((one.values[ECC_MODE] for one in reversed(own) if ECC_MODE in one.values), missing)
            modes[board] = board_ecc_mode(mode, own)
    return [with_ecc_mode(sample, modes.get(board_of(sample))) for sample in samples]


def board_ecc_mode(mode: EccMode, samples: Iterable[Sample]) -> EccMode:
    """Return the ECC mode of the board of some samples: see `proven_ecc_mode`.

    `NO_ECC` is disproved by counts above zero, and by totals: for a board without ECC, `nvidia-smi` can print counts of
    SRAM errors as 0, but it prints the totals as `[N/A]` (RTX 2080 SUPER, driver 610).
    """
    if mode is NO_ECC:
        counts = [count for sample in samples for count in _counts(sample)]
        return None if any(_is_error_count(*one) or _is_total(*one) for one in counts) else mode
    return proven_ecc_mode(mode, (count for sample in samples for count in _counts(sample)))


def board_of(sample: Sample) -> str | None:
    """Return the key of the GPU that a sample is about or whose MIG device it is about; None for the machine itself."""
    view = sample.view
    if view is None:
        return None
    return view.parent if view.kind is ViewKind.MIG else view.key


def has_ecc_counts(sample: Sample) -> bool:
    """Return whether a sample has counts of ECC errors, or their absences."""
    return not ECC_COUNTS.isdisjoint(sample.values) or any(dim.metric in ECC_COUNTS for dim in sample.dims)


def _counts(sample: Sample) -> list[tuple[str, Value | Absent]]:
    counts = [(name, sample.values[name]) for name in ECC_COUNTS & sample.values.keys()]
    return counts + [(dim.metric, dim.value) for dim in sample.dims if dim.metric in ECC_COUNTS]


def _is_error_count(metric: str, value: Value | Absent) -> bool:
    return metric in ECC_COUNTS and isinstance(value, int | float) and value > 0


def _is_total(metric: str, value: Value | Absent) -> bool:
    return metric in _ECC_TOTALS and isinstance(value, int | float)
