"""GPUs that a fallback reader knows only by their place in a list: shown where nothing better is, never twice. Pure.

A place in a list names nothing, so such a GPU is never joined to another one.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.model.absence import Reason
from gpufleet.model.reading import Reading

ELSEWHERE = frozenset({Reason.NO_DRIVER, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER})
"""Why the bus shows a GPU that NVIDIA's driver on this host does not hold."""


class Shown(NamedTuple):
    """One GPU of a machine as it would be shown.

    Attributes:
        key: of the GPU.
        unnamed: whether it is known by its place in a list only.
        why: why there is no value of it at all; None if there is one.
    """

    key: str
    unnamed: bool
    why: Reason | None = None

    @classmethod
    def of(cls, key: str, *, named: bool, readings: Mapping[str, Reading]) -> "Shown":
        """Judge a GPU by its readings."""
        absent = None
        for reading in readings.values():
            if reading.absent is None:
                return cls(key, not named)
            absent = absent or reading.absent
        return cls(key, not named, absent)


def left_out(gpus: Iterable[Shown]) -> frozenset[str]:
    """Return the keys of those that are not to be shown, because another one may be the same.

    Unnamed ones are left out where another reader has values of GPUs. Where the others have none, and there are as
    many of them that NVIDIA's driver holds, they are the same ones, and those without values are left out; where the
    numbers differ nobody can tell which is which, and the named ones stay; so they do where no unnamed one has a value.
    """
    gpus = list(gpus)
    unnamed = frozenset(gpu.key for gpu in gpus if gpu.unnamed)
    named = [gpu for gpu in gpus if not gpu.unnamed]
    held = frozenset(gpu.key for gpu in named if gpu.why is not None and gpu.why not in ELSEWHERE)
    read = any(gpu.why is None for gpu in named)
    told = any(gpu.why is None for gpu in gpus if gpu.unnamed)
    if not unnamed:
        return frozenset()
    return unnamed if read or (held and (len(held) != len(unnamed) or not told)) else held
