"""Rules about clocks, late data and loss on the way to the hub. Pure."""

import numpy as np

from gpufleet.fleet.rules.logic import HOUR_SECONDS, at_least, in_window, over
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily, Threshold
from gpufleet.model.finding import RuleScope, Severity

_FAMILY = RuleFamily.DELIVERY

DELIVERY_RULES = (
    FindingRule(
        id="sender.clock_skew",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("clock_ahead_seconds",),
        condition=lambda facts, limits: over(np.abs(facts["clock_ahead_seconds"]), limits["seconds"]),
        escalation=lambda facts, limits: over(np.abs(facts["clock_ahead_seconds"]), limits["critical_seconds"]),
        thresholds=(
            Threshold("seconds", 5, "s", "Offset of the sender's clock in either direction."),
            Threshold("critical_seconds", 60, "s", "Offset from which it is critical."),
        ),
        pending_seconds=120,
        explanation="The sender's clock differs from the hub's. Its measurement times are wrong by the offset.",
        action="Synchronise the machine's clock by NTP or PTP. If all senders differ, check the hub's clock.",
        unknown_when="The sender never reported, is stale, or sends no batches of its own: its clock is then unknown.",
        can_be_hidden=False,  # values from a clock far ahead are not stored: that looks like stale GPUs
    ),
    FindingRule(
        id="sender.late_data",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("data_delay_seconds", "interval_seconds"),
        condition=lambda facts, limits: over(
            facts["data_delay_seconds"], limits["intervals"] * facts["interval_seconds"]
        ),
        thresholds=(Threshold("intervals", 2, "intervals", "Delay in declared intervals."),),
        pending_seconds=300,
        explanation="The sender's newest values arrive late.",
        action="Check the connection and the load of the relay between sender and hub.",
        unknown_when="The sender sent no values.",
    ),
    FindingRule(
        id="sender.gap",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("missing_batches",),
        condition=lambda facts, _: over(facts["missing_batches"], 0),
        pending_seconds=300,
        explanation="Numbered batches of the sender did not arrive, and the sender reports them neither as queued nor "
        "as dropped. The finding closes when they are backfilled.",
        action="Read the gaps in `/v1/senders`, and look for a deleted spool or a full disk on the machine.",
        unknown_when="The sender does not number its batches.",
    ),
    FindingRule(
        id="sender.dropping",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.CRITICAL,
        inputs=("dropped_batches", "uptime_seconds"),
        condition=lambda facts, _: in_window(over(facts["dropped_batches"], 0), facts["uptime_seconds"], HOUR_SECONDS),
        explanation="The sender drops batches: its spool is full or its disk refuses writes.",
        action="Enlarge the spool or its disk. The dropped measurements are lost.",
        unknown_when="The sender sent no heartbeat of its own, or the hub started less than an hour before.",
    ),
    FindingRule(
        id="sender.backlog",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("oldest_queued_seconds",),
        condition=lambda facts, limits: over(facts["oldest_queued_seconds"], limits["seconds"]),
        thresholds=(Threshold("seconds", 900, "s", "Age of the oldest queued batch."),),
        pending_seconds=60,
        explanation="Old batches are queued at the sender.",
        action="Check the sender's connection and the hub's responses to it.",
        unknown_when="The sender sent no heartbeat of its own, or could not read its spool.",
    ),
    FindingRule(
        id="sender.backfilled",
        scope=RuleScope.SENDER,
        family=_FAMILY,
        severity=Severity.INFO,
        inputs=("backfilled_seconds",),
        condition=lambda facts, _: over(facts["backfilled_seconds"], 0),
        explanation="Old batches of the sender arrived: its past has new data. The finding closes when the rules have "
        "judged the interval again.",
        action="Nothing. Answers about the interval that were read before can differ from those of now.",
        can_be_hidden=False,
    ),
    FindingRule(
        id="cluster.machine_limit",
        scope=RuleScope.CLUSTER,
        family=_FAMILY,
        severity=Severity.WARNING,
        inputs=("machines_ratio",),
        condition=lambda facts, limits: at_least(facts["machines_ratio"], limits["share"]),
        escalation=lambda facts, limits: at_least(facts["machines_ratio"], 1.0),
        thresholds=(Threshold("share", 0.9, "ratio", "Share of the limit on machines."),),
        explanation="The cluster has almost as many machines as the hub accepts: not retired ones, those of one sender "
        "(half of the limit), or with retired ones (four times the limit). At the limit, which is critical, batches "
        "with new machines are rejected with 403 `too_many_machines`.",
        action="Retire machines that are gone, look for made-up host names, or raise `ingest.max_machines`. Only the "
        "last makes room for more retired machines.",
        unknown_when="The registry does not answer.",
    ),
)
