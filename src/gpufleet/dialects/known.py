"""Every dialect that is read, and which one a page is of."""

from collections import Counter
from collections.abc import Iterable

from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.native import NATIVE

DIALECTS: tuple[Dialect, ...] = (NATIVE, DCGM_EXPORTER, ALL_SMI)


def recognise(names: Iterable[str]) -> Dialect | None:
    """Return the dialect that most of a page's series are of, or None if none is known.

    One page is read in one dialect: an exporter that speaks two of them tells every device twice.
    """
    counted = Counter(dialect.name for name in names for dialect in DIALECTS if dialect.is_mine(name))
    if not counted:
        return None
    (best, _), *_ = counted.most_common(1)
    return next(dialect for dialect in DIALECTS if dialect.name == best)
