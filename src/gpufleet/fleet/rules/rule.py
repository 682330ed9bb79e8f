"""Records of a rule about the fleet: scope, severity, inputs, thresholds, and texts for people. Pure."""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from gpufleet.fleet.rules.logic import Column
from gpufleet.model.errors import ConfigError
from gpufleet.model.finding import RuleScope, Severity

ID_PREFIX = MappingProxyType(
    {
        RuleScope.HUB: "hub",
        RuleScope.CLUSTER: "cluster",
        RuleScope.MACHINE: "node",
        RuleScope.SENDER: "sender",
        RuleScope.ALLOCATION: "allocation",
        RuleScope.DEVICE: "gpu",
    }
)
"""First part of the ids of the rules of each scope."""


class RuleFamily(enum.StrEnum):
    """Family of rules, as the documentation lists them."""

    FRESHNESS = "heartbeat and freshness"
    COUNTS = "counts"
    IDENTITY = "identity and duplicates"
    VALUES = "frozen and impossible values"
    USE = "use and allocation"
    DELIVERY = "clocks and delivery"
    FAULTS = "GPU faults"
    XIDS = "XIDs"
    DRIFT = "drift"
    HUB = "hub"


class Hides(enum.StrEnum):
    """Findings that a firing rule hides, because they are effects of the same cause."""

    NOTHING = "nothing"
    BELOW = "below"  # other findings of the subject, and all findings of its parts
    FRESHNESS = "freshness"  # findings of the family freshness, of the subject and its parts


class Threshold(msgspec.Struct, frozen=True):
    """Configurable number of a rule.

    Attributes:
        name: unique in the rule.
        default: default value.
        unit: unit, or empty for a plain number.
        help: meaning.
    """

    name: str
    default: float
    unit: str
    help: str


Columns = Mapping[str, Column]
Limits = Mapping[str, float]
Condition = Callable[[Columns, Limits], Column]
"""Three-valued condition over the columns of a rule's inputs and its thresholds; see `logic`."""

PENDING, CLOSING = "pending_seconds", "closing_seconds"
ESCALATION = "escalation_seconds"

DEFAULT_CLOSING_SECONDS = 120.0


class FindingRule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule about a kind of subject.

    Attributes:
        id: name, such as `node.missing`.
        scope: kind of its subjects.
        family: where the documentation lists it.
        severity: severity of its findings.
        inputs: inputs of the condition; the condition can read no others.
        condition: true if the rule fires.
        explanation: the state of a subject for which the rule fires.
        action: first step of the operator.
        unknown_when: when the verdict is unknown.
        thresholds: configurable numbers of the condition.
        pending_seconds: time for which the rule must fire until a finding opens.
        closing_seconds: time for which the subject must be healthy until its finding closes.
        texts: text inputs that are part of the evidence.
        escalation: condition under which the finding has `escalated_severity`, or None.
        escalation_seconds: time of firing after which the finding has `escalated_severity`; 0 for never.
        escalated_severity: severity after escalation.
        hides: findings that are effects of this one.
        suspicion: condition under which it already hides them, before it fires; None if that is its condition.
        can_be_hidden: whether other rules can hide its findings.
        judges_retired: whether it judges retired subjects too, unless a parent is retired.
    """

    id: str
    scope: RuleScope
    family: RuleFamily
    severity: Severity
    inputs: tuple[str, ...]
    condition: Condition
    explanation: str
    action: str
    unknown_when: str = "An input is missing."
    thresholds: tuple[Threshold, ...] = ()
    pending_seconds: float = 0.0
    closing_seconds: float = DEFAULT_CLOSING_SECONDS
    texts: tuple[str, ...] = ()
    escalation: Condition | None = None
    escalation_seconds: float = 0.0
    escalated_severity: Severity = Severity.CRITICAL
    hides: Hides = Hides.NOTHING
    suspicion: Condition | None = None
    can_be_hidden: bool = True
    judges_retired: bool = False

    @property
    def all_thresholds(self) -> tuple[Threshold, ...]:
        """Return the thresholds of the condition, and the times until findings open, close and escalate."""
        times = [
            Threshold(PENDING, self.pending_seconds, "s", "Time of firing until a finding opens."),
            Threshold(CLOSING, self.closing_seconds, "s", "Time of health until a finding closes."),
        ]
        if self.escalation_seconds:
            help_ = f"Time of firing until the finding is {self.escalated_severity}."
            times.append(Threshold(ESCALATION, self.escalation_seconds, "s", help_))
        return (*self.thresholds, *times)


class Thresholds:
    """Value of every threshold of a set of rules."""

    def __init__(
        self,
        rules: Iterable[FindingRule],
        configured: Mapping[str, Mapping[str, float]] | None = None,
        source: str = "configuration",
    ) -> None:
        """Take the rules and the configured values by rule id and threshold name, and the name of their source.

        Raises:
            ConfigError: if a rule or threshold does not exist, or a value is negative or not finite.
        """
        self._limits = {rule.id: {one.name: one.default for one in rule.all_thresholds} for rule in rules}
        for rule_id, values in (configured or {}).items():
            limits = self._limits.get(rule_id)
            if limits is None:
                key = configuration_key(rule_id)
                raise ConfigError(source, key, "no rule has this id: see docs/reference/findings.md")
            for name, value in values.items():
                key = configuration_key(rule_id, name)
                if name not in limits:
                    raise ConfigError(source, key, f"the rule has no such threshold: use one of {', '.join(limits)}")
                if not math.isfinite(value) or value < 0:
                    raise ConfigError(source, key, f"{value} is not allowed: give a finite number of at least 0")
                limits[name] = float(value)

    def of(self, rule: FindingRule) -> Limits:
        """Return the thresholds of a rule by name."""
        return self._limits[rule.id]


def configuration_key(rule_id: str, threshold: str = "") -> str:
    """Return the key of a rule in the hub's configuration, or of a threshold of the rule."""
    key = f'findings.rules."{rule_id}"'
    return f"{key}.{threshold}" if threshold else key
