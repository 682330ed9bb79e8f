"""Every dialect of pages that is read, and which one a page is of."""

from collections import Counter
from collections.abc import Iterable

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.kube_state_metrics import KUBE_STATE_METRICS
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.model.catalogue import Subject

MACHINE_ONLY = (Subject.MACHINE,)

DIALECTS: tuple[Dialect, ...] = (NATIVE, DCGM_EXPORTER, ALL_SMI, NVIDIA_GPU_EXPORTER, KUBEVIRT)
"""Of pages that one machine's exporter writes."""

CLUSTER_DIALECTS: tuple[Dialect, ...] = (*DIALECTS, KUBE_STATE_METRICS)
"""Of series that a cluster's collector brings: those of its machines' exporters, and what is said of its machines."""


def recognise(names: Iterable[str]) -> Dialect | None:
    """Return the dialect that most of a page's series are of, or None if none is known.

    One page is read in one dialect: an exporter that speaks two of them tells every device twice.
    """
    counted = Counter(place for name in names for place, dialect in enumerate(DIALECTS) if dialect.is_mine(name))
    if not counted:
        return None
    ((best, _),) = counted.most_common(1)
    return DIALECTS[best]


def device_dialects(names: Iterable[str]) -> tuple[Dialect, ...]:
    """Return the dialects in which a page tells of devices, in the order of `DIALECTS`; others may be on it, too.

    Where it tells of none, because there is none, those in which it tells of the machine.
    """
    told = frozenset(names)
    return _dialects_with(told, devices=True) or _dialects_with(told, devices=False)


def _dialects_with(told: frozenset[str], *, devices: bool) -> tuple[Dialect, ...]:
    return tuple(
        dialect
        for dialect in DIALECTS
        if any(
            name in told and (family.subjects != MACHINE_ONLY or not devices)
            for name, family in dialect.families.items()
        )
    )
