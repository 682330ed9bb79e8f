"""Alerts for Alertmanager: labels, annotations and times."""

import datetime as dt
from typing import Any

import msgspec
import pytest

from gpufleet.hub.notify.alerts import MAX_EVIDENCE, VALID_SECONDS, AlertBuilder, alert_name, gpu_of
from gpufleet.hub.notify.notices import Mutes
from gpufleet.model.finding import Finding, Severity
from gpufleet.model.stored.findings import FindingTransition, Silence, TransitionKind, TransitionReason
from gpufleet.model.time import NANOS, to_datetime
from tests.support.findings import make_finding, transitions_of

T0 = 1_767_225_600 * NANOS
NOW = T0 + 60 * NANOS
GPU = make_finding("gpu.lost", "east/m1/gpu/GPU-1", T0, evidence={"lost": "1", "xid_codes": "79"})
CLOSED = make_finding("gpu.lost", "east/m1/gpu/GPU-1", T0, closed_at=NOW)


def builder(**labels: str) -> AlertBuilder:
    found = AlertBuilder(labels, lambda id_: f"https://hub.example/ui/#/findings/{id_}")
    found.name(["m1", "m2"], {"m1": "node-1"})
    return found


def plain(alerts: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(alerts))


def test_alert_of_an_open_finding() -> None:
    (alert,) = plain(builder(site="lab").of_open([GPU], Mutes(NOW, ()), ())[0])
    assert alert["labels"] == {
        "site": "lab",
        "alertname": "GpufleetGpuLost",
        "rule": "gpu.lost",
        "severity": "warning",
        "cluster": "east",
        "machine": "m1",
        "node": "node-1",
        "gpu": "GPU-1",
    }
    assert alert["generatorURL"] == f"https://hub.example/ui/#/findings/{GPU.id}"
    annotations = alert["annotations"]
    assert annotations.pop("link") == alert["generatorURL"]
    assert annotations.pop("summary")
    assert annotations.pop("action")
    assert annotations == {
        "evidence": "lost=1, xid_codes=79",
        "finding": GPU.id,
        "subject": "east/m1/gpu/GPU-1",
        "state": "open",
    }
    assert dt.datetime.fromisoformat(alert["startsAt"]) == to_datetime(T0)
    assert dt.datetime.fromisoformat(alert["endsAt"]) == to_datetime(NOW) + dt.timedelta(seconds=VALID_SECONDS)


def test_alert_has_no_link_without_the_hubs_address() -> None:
    (alert,) = plain(AlertBuilder({}, lambda _: None).of_open([GPU], Mutes(NOW, ()), ())[0])
    assert "generatorURL" not in alert
    assert "link" not in alert["annotations"]


def test_labels_name_the_subject_of_each_scope() -> None:
    findings = [
        make_finding("hub.flush_lag", "", T0),
        make_finding("cluster.stale", "east", T0),
        make_finding("node.missing", "east/m2", T0),
        make_finding("sender.gap", "east/scrape/kube", T0),
        make_finding("allocation.unavailable", "east/a-1", T0),
        make_finding("gpu.hung", "east/m2/gpu/pci/0000:01:00.0", T0),
    ]
    common = {"alertname", "rule", "severity"}
    alerts, _ = builder().of_open(findings, Mutes(NOW, ()), ())
    subjects = [{name: value for name, value in one.labels.items() if name not in common} for one in alerts]
    assert subjects == [
        {},
        {"cluster": "east"},
        {"cluster": "east", "machine": "m2"},
        {"cluster": "east", "sender": "scrape/kube"},
        {"cluster": "east", "allocation": "a-1"},
        {"cluster": "east", "machine": "m2", "gpu": "0000:01:00.0"},
    ]


@pytest.mark.parametrize("identity", ["GPU-1", "GPU-1/2", "a/b/c"])
@pytest.mark.parametrize("prefix", ["gpu/", "gpu/pci/"])
def test_gpu_is_the_whole_identity_of_the_device(prefix: str, identity: str) -> None:
    assert gpu_of(f"east/m1/{prefix}{identity}") == identity


def test_alert_name_is_in_camel_case() -> None:
    assert alert_name("cluster.collector_broken") == "GpufleetClusterCollectorBroken"


def test_closing_ends_the_same_alert() -> None:
    found = builder()
    opened, closed = found.of_transitions(transitions_of(CLOSED), Mutes(NOW + 5, ()))
    assert opened.labels == closed.labels
    assert (closed.starts_at, closed.ends_at) == (to_datetime(T0), to_datetime(NOW))
    assert closed.annotations["state"] == "closed: healthy"


def test_labels_are_kept_when_a_machine_is_renamed() -> None:
    found = builder()
    before = found.of_open([GPU], Mutes(NOW, ()), ())[0]
    assert found.unnamed([GPU]) == set()
    found.prune({"m1"})
    assert found.of_open([GPU], Mutes(NOW, ()), ())[0][0].labels == before[0].labels
    found.prune(set())
    assert found.unnamed([GPU]) == {"m1"}


def test_escalation_ends_the_alerts_of_lower_severities() -> None:
    worse = msgspec.structs.replace(GPU, severity=Severity.CRITICAL)
    escalated = FindingTransition(kind=TransitionKind.ESCALATED, at=NOW, reason=TransitionReason.FIRING, finding=worse)
    alerts = builder().of_transitions([escalated], Mutes(NOW, ()))
    assert [(one.labels["severity"], one.ends_at > to_datetime(NOW)) for one in alerts] == [
        ("info", False),
        ("warning", False),
        ("critical", True),
    ]


def test_alert_of_a_muted_finding_ends_once() -> None:
    found, silence = builder(), Silence(id="s", at=T0, until=NOW + NANOS, actor="local", scope="east")
    muted, other = Mutes(NOW, [silence]), make_finding("hub.flush_lag", "", T0)

    def states(findings: list[Finding], mutes: Mutes, ended: set[str]) -> tuple[list[str], set[str]]:
        alerts, ids = found.of_open(findings, mutes, ended)
        return [one.annotations["state"] for one in alerts], ids

    assert states([GPU, other], muted, set()) == (["open", "muted"], {GPU.id})
    assert states([GPU, other], muted, {GPU.id}) == (["open"], {GPU.id})
    assert states([GPU, other], Mutes(NOW + NANOS, [silence]), {GPU.id}) == (["open", "open"], set())
    (ended,) = found.of_transitions(transitions_of(GPU), muted)
    assert (ended.ends_at, ended.annotations["state"]) == (to_datetime(NOW), "muted")


def test_evidence_is_bounded() -> None:
    long = make_finding("gpu.lost", "east/m1/gpu/GPU-1", T0, evidence={"text": "x" * 10_000})
    (alert,) = builder().of_open([long], Mutes(NOW, ()), ())[0]
    assert len(alert.annotations["evidence"]) == MAX_EVIDENCE
