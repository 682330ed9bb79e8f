"""Rules about the hub itself. Pure."""

import numpy as np

from gpufleet.fleet.rules.logic import HOUR_SECONDS, all_of, at_least, in_window, over, under
from gpufleet.fleet.rules.rule import FindingRule, Hides, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_HOUR_UNKNOWN = "The hub started less than an hour before, and has not counted enough of them since."


def _hub(rule_id: str, severity: Severity, name: str, explanation: str, action: str) -> FindingRule:
    """Return a rule of the hub that fires while a number of the last hour is above 0."""
    return FindingRule(
        id=rule_id,
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=severity,
        inputs=(name, "uptime_seconds"),
        condition=lambda facts, _: in_window(over(facts[name], 0), facts["uptime_seconds"], HOUR_SECONDS),
        explanation=explanation,
        action=action,
        unknown_when=_HOUR_UNKNOWN,
    )


def _unreachable(rule_id: str, name: str, explanation: str, action: str) -> FindingRule:
    """Return a rule about a dependency that does not answer."""
    return FindingRule(
        id=rule_id,
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.CRITICAL,
        inputs=(name,),
        condition=lambda facts, _: under(facts[name], 1),
        pending_seconds=60,
        explanation=explanation,
        action=action,
        unknown_when="The hub has just started.",
    )


HUB_RULES = (
    FindingRule(
        id="hub.not_ingesting",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.CRITICAL,
        inputs=("ingesting",),
        condition=lambda facts, _: under(facts["ingesting"], 1),
        pending_seconds=60,
        explanation="The hub rejects batches. Senders keep them in their spools.",
        action="Read the hub's log: its disk or its log is full, or its store does not accept rows.",
        unknown_when="The hub has just started.",
        hides=Hides.FRESHNESS,
    ),
    FindingRule(
        id="hub.outage",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.WARNING,
        inputs=("down_seconds",),
        condition=lambda facts, limits: over(facts["down_seconds"], limits["seconds"]),
        thresholds=(Threshold("seconds", 300, "s", "Time without a hub process."),),
        explanation="The hub was down. Nothing was judged meanwhile. The finding closes an hour after the start.",
        action="Read the log of the previous process. Compare the time with the freshness of the clusters.",
        unknown_when="The hub has just started, or for the first time.",
    ),
    _unreachable(
        *("hub.store_unreachable", "store_answers", "The store does not answer. Batches stay in the hub's log."),
        "Check the store. Rules that need it are unknown until it answers.",
    ),
    _unreachable(
        *("hub.registry_unreachable", "registry_answers", "The registry does not answer: new machines are rejected."),
        "Check the database of the registry.",
    ),
    FindingRule(
        id="hub.flush_lag",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.CRITICAL,
        inputs=("flush_lag_seconds",),
        condition=lambda facts, limits: over(facts["flush_lag_seconds"], limits["seconds"]),
        thresholds=(Threshold("seconds", 60, "s", "Age of the oldest batch that is not in the store."),),
        pending_seconds=60,
        explanation="Acknowledged batches reach the store late: query results are old.",
        action="Check the load and the disk of the store.",
        unknown_when="The hub has just started.",
    ),
    FindingRule(
        id="hub.log_filling",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.WARNING,
        inputs=("log_used_ratio",),
        condition=lambda facts, limits: over(facts["log_used_ratio"], limits["share"]),
        escalation=lambda facts, limits: over(facts["log_used_ratio"], limits["critical_share"]),
        thresholds=(
            Threshold("share", 0.5, "ratio", "Backlog of the log as a share of its limit."),
            Threshold("critical_share", 0.9, "ratio", "Share from which it is critical."),
        ),
        pending_seconds=60,
        explanation="The log of acknowledged batches fills up. A full log rejects batches.",
        action="Repair the store, or enlarge the log.",
        unknown_when="The hub has just started.",
    ),
    FindingRule(
        id="hub.disk_filling",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.WARNING,
        inputs=("disk_free_ratio",),
        condition=lambda facts, limits: under(facts["disk_free_ratio"], limits["share"]),
        escalation=lambda facts, limits: under(facts["disk_free_ratio"], limits["critical_share"]),
        thresholds=(
            Threshold("share", 0.1, "ratio", "Free space as a share of the file system."),
            Threshold("critical_share", 0.03, "ratio", "Share below which it is critical."),
        ),
        pending_seconds=60,
        explanation="A file system of the hub is almost full. A full one rejects batches.",
        action="Enlarge the disk, or shorten the retention of the store.",
        unknown_when="The file systems do not report their space.",
    ),
    FindingRule(
        id="hub.rejecting",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.WARNING,
        inputs=("rejected_bodies", "received_bodies", "uptime_seconds"),
        condition=lambda facts, limits: in_window(
            all_of(
                over(facts["rejected_bodies"], limits["share"] * facts["received_bodies"]),
                at_least(facts["rejected_bodies"], limits["bodies"]),
            ),
            facts["uptime_seconds"],
            HOUR_SECONDS,
        ),
        thresholds=(
            Threshold("share", 0.05, "ratio", "Share of rejected bodies in the last hour."),
            Threshold("bodies", 10, "", "Minimum number of them."),
        ),
        pending_seconds=300,
        explanation="The hub rejects many bodies as invalid or not permitted.",
        action="Read the reasons in `gpufleet_hub_rejected_batches_total` on the hub's `/metrics`.",
        unknown_when=_HOUR_UNKNOWN,
    ),
    FindingRule(
        id="hub.clock_skew",
        scope=RuleScope.HUB,
        family=RuleFamily.HUB,
        severity=Severity.WARNING,
        inputs=("clock_behind_seconds",),
        condition=lambda facts, limits: over(np.abs(facts["clock_behind_seconds"]), limits["seconds"]),
        escalation=lambda facts, limits: over(np.abs(facts["clock_behind_seconds"]), limits["critical_seconds"]),
        thresholds=(
            Threshold("seconds", 5, "s", "Median offset to the senders' clocks in either direction."),
            Threshold("critical_seconds", 60, "s", "Offset from which it is critical."),
        ),
        pending_seconds=120,
        explanation="The hub's clock differs from those of most senders.",
        action="Synchronise the hub's clock by NTP.",
        unknown_when="Fewer than three senders with a known clock report.",
    ),
    _hub(
        *("hub.flush_failing", Severity.CRITICAL, "flush_failures", "Writes to the store failed in the last hour."),
        "Read the hub's log for the error of the store.",
    ),
    _hub(
        *("hub.quarantine", Severity.CRITICAL, "quarantined_batches", "Acknowledged batches cannot be stored."),
        "Read the notes in the hub's folder `quarantine`, and report the error in them.",
    ),
    _hub(
        *("hub.task_restarts", Severity.WARNING, "task_restarts", "A background task of the hub crashed."),
        "Report the traceback in the hub's log.",
    ),
    _hub(
        *("hub.schema_drift", Severity.INFO, "unknown_names", "Imports have metrics or labels that no table has."),
        "Look the names up on the hub's `/metrics`. Their values are dropped.",
    ),
    _hub(
        *("hub.series_churn", Severity.WARNING, "uncached_series", "Imports have more series than the cache holds."),
        "Remove labels that change with each scrape, or enlarge the series cache.",
    ),
)
