"""Rules about differences inside a pool of equal GPUs or machines. Pure."""

from collections.abc import Sequence

import numpy as np

from gpufleet.fleet.rules.logic import Column, at_least
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.DRIFT

MAJORITY = 0.5
"""Share of a pool that must have the same value: without a majority no member differs."""


def differs_from_pool(pools: Sequence[str | None], values: Sequence[str | None]) -> Column:
    """Return whether the value of each member differs from the value of most members of its pool.

    0 if the pool has no majority. NaN if pool or value is unknown.

    Args:
        pools: pool of each member, such as cluster and GPU model.
        values: value of each member, such as its driver version.
    """
    return positions_differ(_positions(pools), _positions(values))


def positions_differ(pools: Column, values: Column) -> Column:
    """Return the same as `differs_from_pool` for pools and values as numbers of at least 0; less is unknown."""
    found = np.full(len(pools), np.nan)
    known = np.flatnonzero((pools >= 0) & (values >= 0))
    if not len(known):
        return found
    _, pool = np.unique(pools[known], return_inverse=True)
    width = int(values.max()) + 1
    pairs, place, counts = np.unique(pool * width + values[known], return_inverse=True, return_counts=True)
    totals = np.bincount(pool)
    is_majority = counts > MAJORITY * totals[pairs // width]
    has_majority = np.zeros(len(totals), bool)
    has_majority[pairs[is_majority] // width] = True
    found[known] = has_majority[pool] & ~is_majority[place]
    return found


def _positions(texts: Sequence[str | None]) -> Column:
    """Return the position of each text among the distinct ones, -1 for None."""
    positions: dict[str | None, int] = {None: -1}
    return np.array([positions.setdefault(text, len(positions) - 1) for text in texts], np.int64)


DRIFT_RULES = (
    FindingRule(
        id="node.driver_drift",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("driver_differs",),
        condition=lambda facts, _: at_least(facts["driver_differs"], 1),
        texts=("driver_version",),
        pending_seconds=86400,
        explanation="The machine's driver differs from that of most machines of its pool for a day.",
        action="Update the driver, or finish the rollout. `/v1/gpus/pools` has all versions.",
        unknown_when="The driver version or the pool is unknown.",
    ),
    FindingRule(
        id="gpu.vbios_drift",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("vbios_differs",),
        condition=lambda facts, _: at_least(facts["vbios_differs"], 1),
        texts=("vbios_version",),
        pending_seconds=3600,
        explanation="The GPU's VBIOS differs from that of most GPUs of its pool.",
        action="Update the VBIOS at the next maintenance.",
        unknown_when="The VBIOS version or the pool is unknown.",
    ),
    FindingRule(
        id="gpu.mig_layout_drift",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("mig_layout_differs",),
        condition=lambda facts, _: at_least(facts["mig_layout_differs"], 1),
        texts=("mig_layout",),
        pending_seconds=3600,
        explanation="The GPU's MIG profiles differ from those of most GPUs of its pool.",
        action="Apply the pool's MIG configuration again.",
        unknown_when="The GPU has no MIG mode, or its profiles are unknown.",
    ),
    FindingRule(
        id="gpu.mig_mode_pending",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("mig_mode_pending",),
        condition=lambda facts, _: at_least(facts["mig_mode_pending"], 1),
        pending_seconds=3600,
        explanation="A change of the MIG mode is pending until a reset.",
        action="Reset the GPU when it is free.",
        unknown_when="The GPU has no MIG mode.",
    ),
)
