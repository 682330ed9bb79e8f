"""Rules about the use of allocated and unallocated GPUs. Pure."""

from gpufleet.fleet.rules.logic import Column, all_of, any_known, at_least, equal, negate, over, under
from gpufleet.fleet.rules.rule import Columns, FindingRule, Limits, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.USE

_UTILIZATION = Threshold("utilization", 0.01, "ratio", "Utilisation below which a GPU is not in use.")
_MEMORY_SHARE = Threshold("memory_share", 0.05, "ratio", "Memory in use as a share of the GPU's memory.")
_HELD_SECONDS = Threshold("held_seconds", 900, "s", "Age of the newest holding: a younger holder is starting.")
_HELD_INPUTS = ("held", "held_seconds", "utilization_ratio", "memory_used_bytes", "memory_total_bytes")


def _has_memory_in_use(facts: Columns, limits: Limits) -> Column:
    return at_least(facts["memory_used_bytes"], limits["memory_share"] * facts["memory_total_bytes"])


def _is_held_without_compute(facts: Columns, limits: Limits) -> Column:
    return all_of(
        at_least(facts["held"], 1),
        at_least(facts["held_seconds"], limits["held_seconds"]),
        under(facts["utilization_ratio"], limits["utilization"]),
    )


def _is_used_without_holder(facts: Columns, limits: Limits) -> Column:
    used = any_known(
        over(facts["utilization_ratio"], limits["utilization"]),
        over(facts["processes"], 0),
        over(facts["memory_used_bytes"], limits["memory_bytes"]),
    )
    return all_of(equal(facts["held"], 0), used)


USE_RULES = (
    FindingRule(
        id="gpu.allocated_idle",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=_HELD_INPUTS,
        condition=lambda facts, limits: all_of(
            _is_held_without_compute(facts, limits), negate(_has_memory_in_use(facts, limits))
        ),
        thresholds=(_UTILIZATION, _MEMORY_SHARE, _HELD_SECONDS),
        pending_seconds=1800,
        escalation_seconds=7200,
        explanation="The GPU is allocated, and neither computes nor has memory in use.",
        action="Contact the holder, or end the allocation.",
        unknown_when="The holders of the GPU are unknown, or utilisation or memory is missing.",
    ),
    FindingRule(
        id="gpu.allocated_parked",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=_HELD_INPUTS,
        condition=lambda facts, limits: all_of(
            _is_held_without_compute(facts, limits), _has_memory_in_use(facts, limits)
        ),
        thresholds=(_UTILIZATION, _MEMORY_SHARE, _HELD_SECONDS),
        pending_seconds=3600,
        explanation="The GPU is allocated and has memory in use, but does not compute.",
        action="Contact the holder. It is often a notebook or a model server that is not in use.",
        unknown_when="The holders of the GPU are unknown, or utilisation or memory is missing.",
    ),
    FindingRule(
        id="gpu.used_unallocated",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("held", "utilization_ratio", "processes", "memory_used_bytes"),
        condition=_is_used_without_holder,
        thresholds=(
            Threshold("utilization", 0.1, "ratio", "Utilisation from which a GPU is in use."),
            Threshold("memory_bytes", 2**30, "bytes", "Memory in use from which a GPU is in use."),
        ),
        pending_seconds=300,
        explanation="The GPU is free for every holder source, but in use.",
        action="Run `gpufleet who` on the machine: it lists the processes of the GPU.",
        unknown_when="The holders of the GPU are unknown, or no reading shows its use.",
    ),
    FindingRule(
        id="gpu.busy_at_low_power",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("utilization_ratio", "power_watts", "power_limit_watts"),
        condition=lambda facts, limits: all_of(
            at_least(facts["utilization_ratio"], limits["utilization"]),
            under(facts["power_watts"], limits["power_share"] * facts["power_limit_watts"]),
        ),
        thresholds=(
            Threshold("utilization", 0.99, "ratio", "Utilisation of a busy GPU."),
            Threshold("power_share", 0.4, "ratio", "Power as a share of the power limit."),
        ),
        pending_seconds=900,
        explanation="The GPU is fully utilised at low power: a program that hangs or spins, often in NCCL.",
        action="Check the progress of the job. Compare with the job's other GPUs.",
        unknown_when="Utilisation, power or its limit is missing, as on a GPU in MIG mode.",
    ),
    FindingRule(
        id="cluster.attribution_gap",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("allocated_devices", "unattributed_devices"),
        condition=lambda facts, limits: over(
            facts["unattributed_devices"], limits["share"] * facts["allocated_devices"]
        ),
        thresholds=(Threshold("share", 0.02, "ratio", "Share of allocated devices without a known holder."),),
        pending_seconds=3600,
        explanation="Allocated devices have no known holder: their use is reported without pod or job.",
        action="Check the holder sources with `gpufleet doctor` on the machines.",
        unknown_when="No cluster collector and no SLURM controller reports allocated devices.",
    ),
    FindingRule(
        id="node.unresolved_devices",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("unresolved_devices",),
        condition=lambda facts, _: over(facts["unresolved_devices"], 0),
        pending_seconds=600,
        explanation="A holder source has device names that identify no device of the machine.",
        action="Run `gpufleet who` on the machine: it lists the names with the reason.",
        unknown_when="The machine has no agent with holder sources, or a source fails and no other has such names.",
    ),
)
