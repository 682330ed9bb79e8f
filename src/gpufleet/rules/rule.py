"""Model of rules, independent of the file format."""

import enum
from collections.abc import Mapping

import msgspec


class RuleInput(enum.StrEnum):
    """Exporters whose series the rules read."""

    NATIVE = "native"  # gpufleet agents
    DCGM = "dcgm-exporter"
    KUBEVIRT = "kubevirt"  # kube-state-metrics and KubeVirt


class AlertSeverity(enum.StrEnum):
    """Severity of an alert, as in its label."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class RecordingRule(msgspec.Struct, frozen=True, kw_only=True):
    """Recording rule.

    Attributes:
        record: name of the series, `level:metric:operation`.
        expr: query.
        help: description, one line.
        labels: added labels.
    """

    record: str
    expr: str
    help: str
    labels: Mapping[str, str] = {}


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """Alert.

    Attributes:
        alert: name; alerts of one name have one section in the runbooks.
        expr: query.
        wait: duration for which the query must have a result, as in `for`; empty to fire at once.
        severity: value of the label `severity`.
        summary: template that names the subject and its holder.
        labels: added labels.
    """

    alert: str
    expr: str
    wait: str
    severity: AlertSeverity
    summary: str
    labels: Mapping[str, str] = {}


class RuleGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that are evaluated in order, so that a rule can use the earlier ones.

    Attributes:
        name: unique name.
        interval: evaluation interval.
        rules: rules in order.
    """

    name: str
    interval: str
    rules: tuple[RecordingRule | AlertRule, ...]
