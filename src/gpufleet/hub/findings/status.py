"""Status of the evaluation of the rules, for metrics and answers."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.hub.query.finding_records import RuleEvaluation
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.stored.findings import cluster_of

LOG = logging.getLogger(__name__)

FindingCounts = Mapping[tuple[str, Severity, FindingState, str], int]
"""Rule, severity, state and cluster (empty for the hub itself) to the number of open findings."""


class EvaluationStatus:
    """Status of the newest judgement, and the open findings. Written by the evaluator's thread, read by any.

    Attributes:
        interval_seconds: configured time between two judgements.
        at: time of the newest judgement whose result is durable, nanoseconds since 1970; None if there was none.
        seconds: duration of the newest judgement; None if there was none.
        subjects: number of judged subjects; None before the first judgement.
        untracked: as in `Findings`, at that judgement; None if there was none.
        open: open findings.
        failures: parts that failed at the newest judgement, with the reason.
        waiting: why nothing is judged; empty if it is.
        errors: number of failed judgements by part.
    """

    def __init__(self, interval_seconds: float) -> None:
        """Take the configured time between two judgements."""
        self.interval_seconds = interval_seconds
        self.at: int | None = None
        self.seconds: float | None = None
        self.subjects: int | None = None
        self.untracked: int | None = None
        self.open: tuple[Finding, ...] = ()
        self.failures: Mapping[str, str] = {}
        self.waiting = ""
        self.errors: Counter[str] = Counter()

    @property
    def failure(self) -> str:
        """Reason why nothing is judged, or the failures of the newest judgement; empty for neither."""
        return self.waiting or "; ".join(f"{part}: {reason}" for part, reason in self.failures.items())

    def open_findings(self) -> Sequence[Finding]:
        """Return the open findings as of the newest saved judgement, or as loaded at the start."""
        return self.open

    def evaluation(self) -> RuleEvaluation:
        """Return the status for answers."""
        return RuleEvaluation(
            at=self.at, failure=self.failure, untracked=self.untracked, interval_seconds=self.interval_seconds
        )

    def counts(self) -> FindingCounts:
        """Count the open findings."""
        return count_findings(self.open)

    def wait(self, reason: str) -> None:
        """Record that nothing is judged."""
        self.waiting = reason

    def note(self, failures: Mapping[str, str]) -> None:
        """Record a judgement, and the parts that failed; log what changed."""
        self.waiting = ""
        for part, reason in failures.items():
            self.errors[part] += 1
            if self.failures.get(part) != reason:
                LOG.warning("rules are evaluated without the %s, which stay unknown: %s", part, reason)
        for part in self.failures.keys() - failures.keys():
            LOG.info("rules are evaluated with the %s again", part)
        self.failures = dict(failures)


def count_findings(found: Iterable[Finding]) -> FindingCounts:
    """Count findings by rule, severity, state and cluster."""
    return Counter((one.rule, one.severity, one.state, cluster_of(one.scope) or "") for one in found)
