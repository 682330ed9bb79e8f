"""MIG devices and vGPU instances come and go: which of those that were told of are no more."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

Source = TypeVar("Source", bound=Hashable)


def is_gone(instance: Mapping[Source, float], parent: Mapping[Source, float]) -> bool:
    """Tell whether a newer pass over the GPU did not list the instance: a pass lists every one there is.

    Args:
        instance: reader and lane to the time of its newest sample.
        parent: the same of the GPU it is cut from, by a clock that gives everything of one pass the same time.
    """
    return any(parent.get(source, at) > at for source, at in instance.items())
