"""Rules about differences inside a pool of equal GPUs or machines. Pure."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gpufleet.fleet.rules.logic import Column, at_least
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily, RuleScope
from gpufleet.model.finding import Severity

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
    counted = Counter(
        (pool, value) for pool, value in zip(pools, values, strict=True) if pool is not None and value is not None
    )
    totals: Counter[str] = Counter()
    for (pool, _), count in counted.items():
        totals[pool] += count
    majority = {pool: value for (pool, value), count in counted.items() if count > MAJORITY * totals[pool]}
    return np.array(
        [
            np.nan if pool is None or value is None else float(majority.get(pool, value) != value)
            for pool, value in zip(pools, values, strict=True)
        ],
        np.float64,
    )


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
        action="Update the VBIOS with the next maintenance.",
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
        explanation="A change of MIG mode waits for a reset.",
        action="Reset the GPU when it is free.",
        unknown_when="The GPU has no MIG mode.",
    ),
)
