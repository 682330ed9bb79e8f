"""Files of /proc that lxcfs shows in a container in place of the kernel's. Pure."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.reading import Value

OF_LXCFS = Absent(Reason.NOT_REPORTED, "lxcfs shows 0 for what it does not know of a container")


def wrote_meminfo(slabs: Value | Absent | None) -> bool:
    """Return whether lxcfs wrote /proc/meminfo, by its size of slabs: lxcfs writes 0, a kernel always has slabs."""
    return slabs == 0
