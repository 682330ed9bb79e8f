"""Rules about values that do not change, cannot be true, or contradict each other. Pure."""

import numpy as np

from gpufleet.fleet.rules.logic import HOUR_SECONDS, Column, all_of, any_known, any_of, at_least, equal, in_window, over
from gpufleet.fleet.rules.rule import Columns, FindingRule, Limits, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.VALUES

UNIT_FACTORS = (100.0, 1000.0, 1024.0, 1e6, 2.0**20)
"""Quotients of values in different units: percent and ratio, milli and base units, KiB, mega, MiB."""


def _is_frozen(facts: Columns, limits: Limits) -> Column:
    busy = over(facts["utilization_ratio"], 0)
    cycles = np.where(busy == 1, limits["busy_cycles"], limits["idle_cycles"])
    return all_of(
        at_least(facts["noisy_readings"], limits["readings"]),
        at_least(facts["identical_cycles"], cycles),
    )


def _has_impossible_value(facts: Columns, limits: Limits) -> Column:
    return any_known(
        over(facts["memory_used_bytes"], facts["memory_total_bytes"]),
        over(facts["power_watts"], limits["power_factor"] * facts["power_limit_watts"]),
        over(facts["sm_clock_hertz"], limits["clock_factor"] * facts["sm_clock_max_hertz"]),
    )


def _has_unit_factor(facts: Columns, limits: Limits) -> Column:
    ratio, tolerance = facts["reader_ratio"], limits["tolerance"]
    near = [
        all_of(at_least(ratio, factor * (1 - tolerance)), at_least(factor * (1 + tolerance), ratio))
        for factor in UNIT_FACTORS
    ]
    return any_of(*near)


VALUE_RULES = (
    FindingRule(
        id="gpu.frozen",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("noisy_readings", "identical_cycles", "utilization_ratio"),
        condition=_is_frozen,
        thresholds=(
            Threshold("readings", 5, "readings", "Minimum number of identical readings."),
            Threshold("busy_cycles", 10, "samples", "Identical samples of a busy GPU."),
            Threshold("idle_cycles", 30, "samples", "Identical samples of an idle GPU, or without utilisation."),
        ),
        explanation="Power, temperatures, clocks and activity stay identical: the source repeats old values.",
        action="Restart the exporter or host engine that reports the GPU.",
        unknown_when="The GPU has no successive samples.",
    ),
    FindingRule(
        id="gpu.counter_frozen",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("identical_energy_cycles", "power_watts"),
        condition=lambda facts, limits: all_of(
            at_least(facts["identical_energy_cycles"], limits["cycles"]), over(facts["power_watts"], 0)
        ),
        thresholds=(Threshold("cycles", 3, "samples", "Samples with the same energy counter."),),
        explanation="The energy counter does not increase while the GPU draws power.",
        action="Do not use the GPU's energy in reports. Update the driver or the exporter.",
        unknown_when="Energy or power is missing.",
    ),
    FindingRule(
        id="gpu.counter_reset",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("unexplained_resets",),
        condition=lambda facts, _: over(facts["unexplained_resets"], 0),
        explanation="A counter decreased without a restart, a driver reload or a reset.",
        action="Look for two exporters that report the same GPU, and for a restored snapshot.",
        unknown_when="The GPU has no counters.",
    ),
    FindingRule(
        id="gpu.invalid_value",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("invalid_readings",),
        condition=lambda facts, _: over(facts["invalid_readings"], 0),
        pending_seconds=120,
        explanation="A source gives a sentinel, NaN or a value out of range. The readings are absent.",
        action="Run `gpufleet why` on the machine. Update the driver or the exporter.",
        unknown_when="No reader reports the GPU.",
    ),
    FindingRule(
        id="gpu.impossible_value",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=(
            *("memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts"),
            *("sm_clock_hertz", "sm_clock_max_hertz"),
        ),
        condition=_has_impossible_value,
        thresholds=(
            Threshold("power_factor", 1.5, "", "Power as a multiple of the power limit."),
            Threshold("clock_factor", 1.05, "", "Clock as a multiple of its maximum."),
        ),
        pending_seconds=120,
        explanation="More memory is in use than exists, or power or clock exceed their maximum.",
        action="Compare the readings of all readers of the GPU in `gpufleet snapshot`.",
        unknown_when="No pair of value and maximum is known.",
    ),
    FindingRule(
        id="gpu.unit_mismatch",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("reader_ratio",),
        condition=_has_unit_factor,
        thresholds=(Threshold("tolerance", 0.05, "ratio", "Deviation of the quotient from a unit factor."),),
        pending_seconds=180,
        explanation="Two readers report a metric of the GPU with a quotient of 100, 1000, 1024, 10^6 or 2^20.",
        action="Report the exporter and its version: its unit is mapped wrongly.",
        unknown_when="Only one reader reports the GPU.",
    ),
    FindingRule(
        id="gpu.source_mismatch",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("bound_to_vfio", "host_values"),
        condition=lambda facts, _: all_of(at_least(facts["bound_to_vfio"], 1), at_least(facts["host_values"], 1)),
        pending_seconds=120,
        explanation="The GPU is passed through to a guest, but a source on the host reports values of it.",
        action="Remove the source: its values are old, or of another GPU.",
        unknown_when="The host does not report its PCI buses.",
    ),
    FindingRule(
        id="gpu.utilization_missing_at_power",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("utilization_ratio", "power_watts", "power_limit_watts"),
        condition=lambda facts, limits: all_of(
            equal(facts["utilization_ratio"], 0),
            over(facts["power_watts"], limits["power_share"] * facts["power_limit_watts"]),
        ),
        thresholds=(Threshold("power_share", 0.6, "ratio", "Power as a share of the power limit."),),
        pending_seconds=300,
        explanation="The GPU draws power like a busy GPU with a utilisation of 0: the utilisation is wrong.",
        action="Restart the host engine or exporter that reports the utilisation.",
        unknown_when="Utilisation, power or its limit is missing, as on a GPU in MIG mode.",
    ),
    FindingRule(
        id="cluster.zero_anomaly",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("zero_utilization_ratio", "busy_before_ratio", "uptime_seconds"),
        condition=lambda facts, limits: all_of(
            over(facts["zero_utilization_ratio"], limits["zero_share"]),
            in_window(over(facts["busy_before_ratio"], limits["busy_share"]), facts["uptime_seconds"], HOUR_SECONDS),
        ),
        thresholds=(
            Threshold("zero_share", 0.95, "ratio", "Share of the GPUs with a utilisation that report 0."),
            Threshold("busy_share", 0.2, "ratio", "Share of reporting GPUs in use in the hour before."),
        ),
        pending_seconds=60,
        explanation="Almost all GPUs of the cluster that have a utilisation dropped to 0. The likely cause is a defect "
        "of the collection, not the end of all work.",
        action="Compare with the power of the GPUs, and check the cluster's exporter.",
        unknown_when="The cluster has no utilisation, or a part of the hour before is unknown.",
    ),
)
