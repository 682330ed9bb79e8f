"""Registry of imported dialects, and detection of the dialect of a page."""

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.kube_state_metrics import KUBE_STATE_METRICS
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.model.catalogue import Subject
from gpufleet.model.stored.samples import ImportedSeries

MACHINE_ONLY = (Subject.MACHINE,)

DIALECTS: tuple[Dialect, ...] = (NATIVE, DCGM_EXPORTER, ALL_SMI, NVIDIA_GPU_EXPORTER, KUBEVIRT)
"""Dialects of pages from the exporter of one machine."""

CLUSTER_DIALECTS: tuple[Dialect, ...] = (*DIALECTS, KUBE_STATE_METRICS)
"""Dialects of series from a cluster: from exporters of its machines, and from kube-state-metrics."""


_LISTING_ECC_MODES = frozenset(dialect.name for dialect in DIALECTS if dialect.lists_ecc_modes)


def lists_ecc_modes(reader: str) -> bool:
    """Return whether imported rows of a reader are of a dialect with `Dialect.lists_ecc_modes`.

    Args:
        reader: its name, which ends with that of the dialect.
    """
    return reader.rpartition("/")[2] in _LISTING_ECC_MODES


def recognise(names: Iterable[str]) -> Dialect | None:
    """Return the dialect of most series of a page, or None if no dialect is known.

    A page is imported in one dialect: an exporter with two dialects reports every device twice. Families about the
    exporter itself do not count: an agent adds its own to every page.
    """
    counted: Counter[int] = Counter()
    for name in names:
        for place, dialect in enumerate(DIALECTS):
            if dialect.is_mine(name):
                counted[place] += not dialect.is_about_exporter(name)
    if not counted:
        return None
    ((best, _),) = counted.most_common(1)
    return DIALECTS[best]


_BELIEVED = {
    dialect.name: msgspec.structs.replace(
        dialect,
        families={
            name: msgspec.structs.replace(family, unread="", zero=None) if family.unread or family.zero else family
            for name, family in dialect.families.items()
        },
    )
    for dialect in DIALECTS
    if any(family.unread for family in dialect.families.values())
}
"""Dialects of our own page, for dialects with families that their project fills wrongly. The zeros of dcgm-exporter are
kept: our page, too, has 0 as the newest XID of a GPU without XIDs."""


def believed(dialect: Dialect, series: Collection[ImportedSeries]) -> Dialect:
    """Return the dialect for the series of a page.

    A page with families of gpufleet was written by an agent: under another project's names its values are the driver's,
    so the families that this project itself fills wrongly are imported, too, and 0 is a value. The label `job`
    shows that the series come from a Prometheus, which can have other targets, too.
    """
    own = _BELIEVED.get(dialect.name)
    if own is None or not any(NATIVE.is_mine(one.name) for one in series):
        return dialect
    return dialect if any("job" in one.labels for one in series) else own


def device_dialects(names: Iterable[str]) -> tuple[Dialect, ...]:
    """Return the dialects with device families on a page, in the order of `DIALECTS`.

    If there are none, return the dialects with special families, such as that of a lost GPU without a number. If there
    are none either, because there is no device, return the dialects with machine families.
    """
    found = frozenset(names)
    special = tuple(dialect for dialect in DIALECTS if not found.isdisjoint(dialect.special))
    return _dialects_with(found, devices=True) or special or _dialects_with(found, devices=False)


def _dialects_with(found: frozenset[str], *, devices: bool) -> tuple[Dialect, ...]:
    return tuple(
        dialect
        for dialect in DIALECTS
        if any(
            name in found and (family.subjects != MACHINE_ONLY or not devices)
            for name, family in dialect.families.items()
        )
    )
