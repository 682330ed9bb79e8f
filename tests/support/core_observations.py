"""Core readings of one GPU at a judgement."""

from collections.abc import Sequence

import numpy as np

from gpufleet.fleet.facts.core_readings import WATCHED_METRICS, CoreObservation

POWER = WATCHED_METRICS.index("gpu_power_watts")


def core(
    reader: int | None = 1,
    *,
    is_explained: bool = False,
    is_known: bool = True,
    has_mig: bool = False,
    reporters: Sequence[int] = (1,),
    missing_before: int = 0,
) -> CoreObservation:
    """Return the core readings of one GPU, all by reader 1, and the power by this reader; None if it is absent.

    Args:
        reader: reader of the power.
        reporters: readers that report the GPU now.
    """
    given, readers, explained = (np.full((1, len(WATCHED_METRICS)), one) for one in (True, 1, False))
    given[0, POWER], readers[0, POWER], explained[0, POWER] = reader is not None, reader or 0, is_explained
    return CoreObservation(
        is_given=given,
        reader=readers,
        is_explained=explained,
        is_known=np.array([is_known]),
        has_mig=np.array([has_mig]),
        reporters=np.array(reporters),
        missing_before=np.array([missing_before], np.uint8),
    )
