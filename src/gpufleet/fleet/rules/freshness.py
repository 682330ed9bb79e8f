"""Rules about heartbeats, freshness and partial data. Pure."""

from gpufleet.fleet.rules.logic import Column, all_of, any_of, at_least, over, under
from gpufleet.fleet.rules.rule import Columns, FindingRule, Hides, Limits, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.FRESHNESS


def _has_stale_gpus(facts: Columns, limits: Limits, seconds: float) -> Column:
    return all_of(
        over(facts["gpu_value_seconds"], seconds),
        over(facts["gpu_value_seconds"], limits["intervals"] * facts["gpu_interval_seconds"]),
    )


FRESHNESS_RULES = (
    FindingRule(
        id="hub.network",
        scope=RuleScope.HUB,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("jointly_late_clusters", "clusters"),
        condition=lambda facts, limits: all_of(
            at_least(facts["jointly_late_clusters"], limits["clusters"]),
            over(facts["jointly_late_clusters"], limits["share"] * facts["clusters"]),
        ),
        thresholds=(
            Threshold("share", 0.3, "ratio", "Share of late or stale clusters."),
            Threshold("clusters", 3, "", "Minimum number of such clusters."),
        ),
        explanation="Many clusters stopped reporting at the same time.",
        unknown_when="The hub has just started.",
        action="Check the network, the load balancer and the certificate in front of the hub.",
        hides=Hides.FRESHNESS,
    ),
    FindingRule(
        id="cluster.stale",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("unseen_seconds", "late_after_seconds", "stale_after_seconds"),
        condition=lambda facts, _: at_least(facts["unseen_seconds"], facts["stale_after_seconds"]),
        suspicion=lambda facts, _: at_least(facts["unseen_seconds"], facts["late_after_seconds"]),
        explanation="No sender of the cluster reports. The limit is that of the [state](../freshness.md) `stale`. "
        "Its effects are hidden from the state `late` on.",
        action="Check the cluster's outbound connection to the hub, then the logs of its agents.",
        unknown_when="The cluster never reported.",
        hides=Hides.BELOW,
    ),
    FindingRule(
        id="cluster.collector_broken",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("unseen_seconds", "late_after_seconds", "newest_value_seconds"),
        condition=lambda facts, limits: all_of(
            under(facts["unseen_seconds"], facts["late_after_seconds"]),
            over(facts["newest_value_seconds"], limits["age_seconds"]),
        ),
        thresholds=(Threshold("age_seconds", 300, "s", "Age of the newest GPU value."),),
        pending_seconds=60,
        explanation="The cluster's senders report, but without GPU values.",
        action="Read the errors of the readers in `gpufleet query nodes`.",
        unknown_when="The cluster never reported, or never had a GPU value.",
        hides=Hides.FRESHNESS,
    ),
    FindingRule(
        id="cluster.partial",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("expected_gpus", "reporting_gpus"),
        condition=lambda facts, _: under(facts["reporting_gpus"], facts["expected_gpus"]),
        escalation=lambda facts, limits: under(
            facts["reporting_gpus"], limits["critical_share"] * facts["expected_gpus"]
        ),
        thresholds=(Threshold("critical_share", 0.9, "ratio", "Share of reporting GPUs below which it is critical."),),
        pending_seconds=300,
        explanation="Fewer GPUs report than expected. The findings of the cluster's machines name the causes.",
        action="Open the findings of the cluster's machines. Register the expected GPUs if the number is wrong.",
        unknown_when="The number of expected or reporting GPUs is unknown.",
    ),
    FindingRule(
        id="node.missing",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("unseen_seconds", "interval_seconds"),
        condition=lambda facts, limits: over(facts["unseen_seconds"], limits["intervals"] * facts["interval_seconds"]),
        escalation=lambda facts, limits: over(facts["unseen_seconds"], limits["critical_seconds"]),
        thresholds=(
            Threshold("intervals", 3, "intervals", "Declared intervals without a report."),
            Threshold("critical_seconds", 900, "s", "Time without a report after which it is critical."),
        ),
        pending_seconds=60,
        explanation="An expected machine does not report, or never reported.",
        action="Check the machine and its agent. Retire the machine if it was decommissioned.",
        unknown_when="The time without a report is unknown.",
        hides=Hides.BELOW,
    ),
    FindingRule(
        id="node.retired",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("node_deleted_seconds",),
        condition=lambda facts, limits: under(facts["node_deleted_seconds"], limits["shown_seconds"]),
        thresholds=(Threshold("shown_seconds", 86400, "s", "Time for which the finding is shown."),),
        explanation="Kubernetes deleted the machine's node, and the machine no longer reports: the hub retired it. Its "
        "history is kept, and its next report makes it live again.",
        action="Nothing, if the node was removed on purpose. Otherwise check who deleted it.",
        unknown_when="The hub has just started, or its cluster's collector has no current copy of the nodes.",
        can_be_hidden=False,
        judges_retired=True,
    ),
    FindingRule(
        id="node.inventory_unconfirmed",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("inventory_age_seconds", "inventory_interval_seconds"),
        condition=lambda facts, limits: over(
            facts["inventory_age_seconds"], limits["intervals"] * facts["inventory_interval_seconds"]
        ),
        thresholds=(Threshold("intervals", 2, "intervals", "Intervals of the static readings without a new sample."),),
        pending_seconds=60,
        explanation="The machine reports, but its static readings are older than two of their intervals.",
        action="Read the errors of the readers of the lane `static` in `gpufleet query nodes`.",
        unknown_when="The machine never reported static readings, or its clock is over 600 s ahead.",
    ),
    FindingRule(
        id="node.gpus_stale",
        scope=RuleScope.MACHINE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("gpu_value_seconds", "gpu_interval_seconds"),
        condition=lambda facts, limits: _has_stale_gpus(facts, limits, limits["age_seconds"]),
        suspicion=lambda facts, limits: _has_stale_gpus(facts, limits, limits["age_seconds"] / 2),
        thresholds=(
            Threshold("age_seconds", 300, "s", "Age of the newest readings of the machine's GPUs."),
            Threshold("intervals", 3, "intervals", "Age in intervals of these readings."),
        ),
        pending_seconds=120,
        escalation_seconds=900,
        explanation="The machine reports, but all readings of its GPUs are old. The effects are hidden from half of "
        "that age on.",
        action="Read the errors of the machine's readers in `gpufleet query nodes`, and restart its agent or exporter.",
        unknown_when="The driver has no GPUs on the machine, a guest does not answer, no GPU was ever reported, or the "
        "machine's clock is over 600 s ahead: its values are then not stored.",
        hides=Hides.BELOW,
    ),
    FindingRule(
        id="gpu.metrics_missing",
        scope=RuleScope.DEVICE,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("failed_core_readings", "missing_core_readings"),
        condition=lambda facts, _: any_of(
            over(facts["failed_core_readings"], 0), over(facts["missing_core_readings"], 0)
        ),
        texts=("missing_readings",),
        pending_seconds=180,
        explanation="Core readings of the GPU fail, such as power or memory, or the reader of its utilisation, memory, "
        "temperature or power no longer gives them.",
        action="Run `gpufleet why` on the machine: it shows the failed call of each reading. For a missing reading, "
        "compare version and configuration of the exporter or agent with those of the hour before.",
        unknown_when="No reader reports the GPU, or the reader that gave a missing reading reports the GPU no longer. "
        "A reading that no reader gave since the hub's start is missing only if an open finding names it.",
    ),
    FindingRule(
        id="allocation.unavailable",
        scope=RuleScope.ALLOCATION,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("answers",),
        condition=lambda facts, _: under(facts["answers"], 1),
        texts=("reason",),
        pending_seconds=300,
        explanation="No source answers for the allocation.",
        action="Read `reason` and `detail` in `/v1/allocations/{id}/metrics`.",
        unknown_when="The sources of the allocation could not be queried.",
    ),
)
