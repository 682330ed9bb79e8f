"""Alerts for Alertmanager's API v2. Pure.

A finding is one alert. Alertmanager identifies an alert by its labels, so these depend on the finding's rule, subject
and severity, and on the name of the machine when the alert was first sent. An escalated finding is a new alert.

Specification: github.com/prometheus/alertmanager, `api/v2/openapi.yaml`.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from gpufleet.hub.notify.notices import Mutes, lower_severities
from gpufleet.hub.query.finding_records import finding_record, machine_of
from gpufleet.model.api.findings import FindingRecord
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import FindingTransition, TransitionKind
from gpufleet.model.time import NANOS, to_datetime

VALID_SECONDS = 3600.0
"""Time after which an alert that is not sent again ends. A shorter outage of the hub ends no alert."""

MAX_EVIDENCE = 1000
"""Characters of the evidence in an annotation."""


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Alert as Alertmanager receives it; `ends_at` in the past means that it is resolved.

    `generator_url` is the page of the finding.
    """

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: dt.datetime
    ends_at: dt.datetime
    generator_url: str | None = msgspec.field(default=None, name="generatorURL")


class AlertBuilder:
    """Builds the alerts of findings. The name of a machine is kept while it has alerts: their labels do not change."""

    def __init__(self, labels: Mapping[str, str], link: Callable[[str], str | None]) -> None:
        """Take additional labels of every alert, and a function that returns the URL of a finding's page or None."""
        self._more, self._link = dict(labels), link
        self._nodes: dict[str, str] = {}

    def unnamed(self, findings: Iterable[Finding]) -> set[str]:
        """Return the machines of findings that `name` was not called with."""
        return machines_of(findings) - self._nodes.keys()

    def name(self, machines: Iterable[str], nodes: Mapping[str, str]) -> None:
        """Take the names of machines by id; a machine without a name has no label `node`."""
        self._nodes |= {one: nodes.get(one, "") for one in machines}

    def prune(self, machines: Collection[str]) -> None:
        """Drop the names of all other machines."""
        self._nodes = {id_: name for id_, name in self._nodes.items() if id_ in machines}

    def of_transitions(self, transitions: Iterable[FindingTransition], mutes: Mutes) -> list[Alert]:
        """Return the alerts that result from transitions, in order."""
        alerts = []
        for one in transitions:
            finding = one.finding
            if one.kind is TransitionKind.ESCALATED:
                for severity in lower_severities(finding.severity):
                    before = msgspec.structs.replace(finding, severity=severity)
                    alerts.append(self._ended(before, one.at, f"escalated to {finding.severity}"))
            if one.kind is TransitionKind.CLOSED:
                alerts.append(self._ended(finding, one.at, f"closed: {one.reason}"))
            elif mutes.is_muted(finding):
                alerts.append(self._ended(finding, mutes.now, "muted"))
            else:
                alerts.append(self._firing(finding, mutes.now))
        return alerts

    def of_open(
        self, findings: Sequence[Finding], mutes: Mutes, ended: Collection[str]
    ) -> tuple[list[Alert], set[str]]:
        """Return the alerts of open findings, and the ids of the muted findings.

        The alert of a muted finding is ended, unless its id is one of `ended`.
        """
        muted = {one.id for one in findings if mutes.is_muted(one)}
        alerts = [self._firing(one, mutes.now) for one in findings if one.id not in muted]
        newly = [one for one in findings if one.id in muted and one.id not in ended]
        return alerts + [self._ended(one, mutes.now, "muted") for one in newly], muted

    def _firing(self, finding: Finding, now: int) -> Alert:
        return self._alert(finding, now + int(VALID_SECONDS * NANOS), "open")

    def _ended(self, finding: Finding, at: int, state: str) -> Alert:
        return self._alert(finding, max(at, finding.opened_at), state)

    def _alert(self, finding: Finding, ends_at: int, state: str) -> Alert:
        record = finding_record(finding, finding.opened_at, nodes=self._nodes, acknowledgement=None, silences=())
        link = self._link(finding.id)
        return Alert(
            labels={**self._more, **_labels(record)},
            annotations=_annotations(record, state, link),
            starts_at=record.opened_at,
            ends_at=to_datetime(ends_at),
            generator_url=link,
        )


def machines_of(findings: Iterable[Finding]) -> set[str]:
    """Return the ids of the machines of findings."""
    return {found[1] for one in findings if (found := machine_of(one)) is not None}


def gpu_of(device: str) -> str:
    """Return the UUID or PCI address of a device by its key, `CLUSTER/MACHINE/gpu/UUID` or `.../gpu/pci/ADDRESS`."""
    *_, identity = device.split("/", 3)
    return identity.removeprefix("pci/")


def alert_name(rule: str) -> str:
    """Return the name of the alert of a rule: `GpufleetNodeMissing` for `node.missing`."""
    return "Gpufleet" + "".join(part.capitalize() for part in rule.replace(".", "_").split("_"))


def _labels(record: FindingRecord) -> dict[str, str]:
    labels = {
        "alertname": alert_name(record.rule),
        "rule": record.rule,
        "severity": record.severity.value,
        "cluster": record.cluster,
        "machine": record.machine,
        "node": record.node,
        "gpu": None if record.device is None else gpu_of(record.device),
        "sender": record.sender,
        "allocation": record.allocation,
    }
    return {name: value for name, value in labels.items() if value}


def _annotations(record: FindingRecord, state: str, link: str | None) -> dict[str, str]:
    evidence = ", ".join(f"{name}={value}" for name, value in record.evidence.items())
    annotations = {
        "summary": record.explanation,
        "action": record.action,
        "evidence": evidence[:MAX_EVIDENCE],
        "finding": record.id,
        "subject": record.subject,
        "state": state,
        "link": link,
    }
    return {name: value for name, value in annotations.items() if value}
