"""Rules about the number of GPUs by different sources. Pure."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gpufleet.fleet.rules.logic import Column, all_of, at_least, equal, under
from gpufleet.fleet.rules.rule import Columns, FindingRule, Hides, Limits, RuleFamily
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.COUNTS


def class_maxima(
    known: Mapping[str, int], classes: Sequence[str | None], gpus: Column
) -> tuple[dict[str, int], Column]:
    """Return the largest number of GPUs of each class, and the column `class_gpus`.

    A maximum never falls by itself: a person lowers it, by removing the class from `known`.

    Args:
        known: maximum of each class so far.
        classes: class of each machine, such as GPU model and instance type; None if unknown.
        gpus: number of GPUs of each machine now, NaN if unknown.
    """
    maxima = dict(known)
    for name, count in zip(classes, gpus.tolist(), strict=True):
        if name is not None and not math.isnan(count):
            maxima[name] = max(maxima.get(name, 0), int(count))
    column = np.array([np.nan if name is None else maxima.get(name, np.nan) for name in classes], np.float64)
    return maxima, column


def _counts_differ(facts: Columns, _: Limits) -> Column:
    """Compare the known counts with each other; unknown with fewer than two."""
    driver = facts["nvml_gpus"] + np.nan_to_num(facts["lost_gpus"])
    bus = facts["pci_gpus"] - np.nan_to_num(facts["passthrough_gpus"])
    counts = np.stack([bus, driver, facts["kubernetes_gpus"], facts["allocatable_gpus"]])
    known = ~np.isnan(counts)
    low = np.where(known, counts, np.inf).min(axis=0)
    high = np.where(known, counts, -np.inf).max(axis=0)
    return np.where(known.sum(axis=0) < 2, np.nan, low != high)


COUNT_RULES = (
    FindingRule(
        id="node.gpu_count_mismatch",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("pci_gpus", "passthrough_gpus", "nvml_gpus", "lost_gpus", "kubernetes_gpus", "allocatable_gpus"),
        condition=_counts_differ,
        pending_seconds=120,
        explanation="PCI bus, driver and Kubernetes count different numbers of GPUs. GPUs bound to vfio-pci are not "
        "expected of the driver. Lost GPUs have findings of their own.",
        action="Compare the counts in the evidence. A count that differs from the others shows the faulty layer.",
        unknown_when="Fewer than two sources have a count.",
    ),
    FindingRule(
        id="node.expected_unknown",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("expectation_sources",),
        condition=lambda facts, _: equal(facts["expectation_sources"], 0),
        pending_seconds=600,
        explanation="No source has an expected number of the machine's GPUs, so a missing GPU would not be detected.",
        action="Let the agent read the PCI bus, or run the cluster collector.",
        unknown_when="The sources could not be queried.",
    ),
    FindingRule(
        id="node.below_class_max",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("nvml_gpus", "lost_gpus", "class_gpus"),
        condition=lambda facts, _: under(facts["nvml_gpus"] + np.nan_to_num(facts["lost_gpus"]), facts["class_gpus"]),
        texts=("machine_class",),
        pending_seconds=120,
        explanation="The machine has fewer GPUs than a machine of its class ever had. A restart of the hub changes "
        "nothing.",
        action="Check the machine's hardware. If the class has changed, set `findings.relearn_classes` and restart the "
        "hub.",
        unknown_when="The machine's GPUs or its class are unknown.",
    ),
    FindingRule(
        id="node.hidden_when_idle",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("imported", "reporting_gpus", "allocated_gpus", "kubernetes_gpus"),
        condition=lambda facts, _: all_of(
            at_least(facts["imported"], 1),
            equal(facts["reporting_gpus"], facts["allocated_gpus"]),
            under(facts["reporting_gpus"], facts["kubernetes_gpus"]),
        ),
        pending_seconds=120,
        explanation="The machine's exporter reports exactly the allocated GPUs: it hides idle GPUs.",
        action="Configure the exporter to report all GPUs, or install the agent.",
        unknown_when="An exporter reports the machine, and its allocated GPUs or its capacity are unknown.",
    ),
    FindingRule(
        id="gpu.lost",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("lost",),
        condition=lambda facts, _: at_least(facts["lost"], 1),
        texts=("xid_codes",),
        explanation="The GPU fell off the bus: it does not respond.",
        action="Drain and restart the machine. If it happens again, check power, seating and the board.",
        unknown_when="The state of the GPU is not reported.",
        hides=Hides.BELOW,
    ),
    FindingRule(
        id="allocation.partial",
        scope=RuleScope.ALLOCATION,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("devices", "expected_devices"),
        condition=lambda facts, _: under(facts["devices"], facts["expected_devices"]),
        pending_seconds=120,
        explanation="Fewer devices of the allocation report than expected.",
        action="Compare the expected devices of the allocation with the devices of its machine.",
        unknown_when="No number is expected, or the devices are unknown.",
    ),
)
