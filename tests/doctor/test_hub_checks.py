"""Doctor checks of a hub, from given facts."""

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.doctor import CheckResult, CheckVerdict
from gpufleet.doctor.hub import HubFacts, examine_hub
from gpufleet.doctor.hub.facts import (
    STOPPED,
    CertificateDetails,
    DaemonStatus,
    DatabaseState,
    DiskUsage,
    KernelClock,
    LogBacklog,
)
from gpufleet.hub.receive.listener import Listener
from gpufleet.model.access import Role, Token
from gpufleet.model.stored.ledger import MachineCounts

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
GIB = 1 << 30
DISK = DiskUsage(free=100 * GIB, size=200 * GIB, used={"store": 10 * GIB}, day_bytes=GIB, day="2026-05-31")
DAEMON = DaemonStatus(version="0.1.0", ready="", figures={"wal_records": 3})


def token(role: Role, days: float | None = None, *, revoked: bool = False) -> Token:
    expires_at = None if days is None else NOW + dt.timedelta(days=days)
    return Token(
        id=f"{role.value}{days or ''}",
        role=role,
        created_at=NOW,
        expires_at=expires_at,
        revoked_at=NOW if revoked else None,
    )


def certificate(**changed: object) -> CertificateDetails:
    known = CertificateDetails(names=("hub",), not_after=NOW + dt.timedelta(days=90), key_mode=0o640, name_matches=True)
    return msgspec.structs.replace(known, **changed)


LISTENER = Listener(address="0.0.0.0:8470", tls=True, tokens=True)
UNGUARDED = Listener(address="0.0.0.0:1", tls=True, tokens=False)
LOOPBACK = Listener(address="127.0.0.1:1", tls=False, tokens=False)


def machine_counts(by_cluster: dict[str, int], **ratios: float) -> MachineCounts:
    used = {cluster: count / 100 for cluster, count in by_cluster.items()}
    return MachineCounts(by_cluster=by_cluster, limit=100, ratios=used | ratios)


HEALTHY = HubFacts(
    at=NOW,
    folder="/var/lib/gpufleet/hub",
    folder_error="",
    configured=LISTENER,
    listener=LISTENER,
    holder=4711,
    daemon=DAEMON,
    disk=DISK,
    clock=KernelClock(True, 0.01),
    registry=DatabaseState(2, 2),
    store=DatabaseState(1, 1),
    backlog=LogBacklog(3, 4000, 0.5),
    wal_max_bytes=4 * GIB,
    machines=machine_counts({"a": 20, "b": 89}),
    certificate=certificate(),
    clock_skews={"node-a": -0.2, "node-b": 0.0},
    tokens=(token(Role.SENDER), token(Role.ADMIN, 90)),
)


def judge(name: str, **changed: object) -> CheckResult:
    facts = msgspec.structs.replace(HEALTHY, **changed)
    return next(check for check in examine_hub(facts) if check.name == name)


def test_healthy_hub_passes_every_check() -> None:
    assert {check.name: check.found for check in examine_hub(HEALTHY) if check.verdict is not CheckVerdict.OK} == {}


def test_checks_without_facts_are_unknown() -> None:
    checks = examine_hub(HubFacts(at=NOW, folder="/x", configured=LISTENER))
    wrong = {check.name for check in checks if check.verdict is not CheckVerdict.UNKNOWN}
    assert wrong == {"certificate"}, "this check needs no gathered facts"


@given(
    st.sets(
        st.sampled_from(["holder", "daemon", "disk", "clock", "registry", "store", "backlog", "clock_skews", "tokens"])
    )
)
def test_missing_hub_facts_never_improve_a_verdict(missing: set[str]) -> None:
    poorer = msgspec.structs.replace(HEALTHY, **dict.fromkeys(missing, "unavailable"))
    for before, after in zip(examine_hub(HEALTHY), examine_hub(poorer), strict=True):
        assert after.verdict in (before.verdict, CheckVerdict.UNKNOWN)
    sick = msgspec.structs.replace(poorer, registry=DatabaseState(2, 2, "page 3 is never used"))
    assert any(check.verdict is CheckVerdict.FAILED for check in examine_hub(sick))


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "expected"),
    [
        ("daemon", {"daemon": "no answer", "holder": 0}, CheckVerdict.WARNING, "stopped"),
        ("daemon", {"daemon": "answers 401"}, CheckVerdict.UNKNOWN, "4711"),
        (
            "daemon",
            {"daemon": DaemonStatus(version="1", ready="3 flushes in a row failed", figures={})},
            CheckVerdict.FAILED,
            "3 flushes",
        ),
        ("state_folder", {"folder_error": "ENOENT"}, CheckVerdict.WARNING, "/var/lib/gpufleet/hub does not exist"),
        ("state_folder", {"folder_error": "EROFS"}, CheckVerdict.FAILED, "EROFS"),
        ("state_folder", {"other_owner": "gpufleet-hub"}, CheckVerdict.UNKNOWN, "gpufleet-hub"),
        ("disk", {"disk": msgspec.structs.replace(DISK, free=GIB // 2)}, CheckVerdict.FAILED, "512.0 MiB free"),
        ("disk", {"disk": msgspec.structs.replace(DISK, free=5 * GIB)}, CheckVerdict.WARNING, "full in 5 days"),
        (
            "disk",
            {"disk": msgspec.structs.replace(DISK, free=3 * GIB, day_bytes=None)},
            CheckVerdict.WARNING,
            "may take 4.0 GiB",
        ),
        ("disk", {"disk": msgspec.structs.replace(DISK, day_bytes=None)}, CheckVerdict.OK, "no complete day"),
        ("clock", {"clock": KernelClock(False, 16.0)}, CheckVerdict.WARNING, "not synchronised"),
        (
            "registry",
            {"registry": DatabaseState(3, 2)},
            CheckVerdict.FAILED,
            "version 3, but this build supports up to 2",
        ),
        ("registry", {"registry": DatabaseState(1, 2)}, CheckVerdict.WARNING, "version 1, migrated to 2"),
        (
            "registry",
            {"registry": DatabaseState(2, 2, "wrong # of entries")},
            CheckVerdict.FAILED,
            "wrong # of entries",
        ),
        ("registry", {"registry": None}, CheckVerdict.NOT_APPLICABLE, "relay"),
        ("store", {"store": DatabaseState(9, 1)}, CheckVerdict.FAILED, "version 9"),
        ("store", {"store": DatabaseState(1, 1, "store: insert failed")}, CheckVerdict.FAILED, "insert failed"),
        ("store", {"store": None}, CheckVerdict.NOT_APPLICABLE, "relay"),
        ("log", {"backlog": LogBacklog(0, 0, None)}, CheckVerdict.OK, "no backlog"),
        (
            "log",
            {"backlog": LogBacklog(9, 100, 900.0, 4)},
            CheckVerdict.WARNING,
            "4 of them rejected",
        ),
        ("log", {"backlog": LogBacklog(9, GIB, 900.0)}, CheckVerdict.WARNING, "for 900 s"),
        ("log", {"backlog": LogBacklog(9, 3 * GIB, 9.0)}, CheckVerdict.FAILED, "4,096 MiB"),
        ("log", {"backlog": LogBacklog(9, 90, 9.0), "holder": 0}, CheckVerdict.WARNING, "9 batches"),
        ("listener", {"listener": UNGUARDED}, CheckVerdict.WARNING, "reachable"),
        ("listener", {"listener": LOOPBACK}, CheckVerdict.OK, "the configuration has 0.0.0.0:8470"),
        ("listener", {"listener": STOPPED}, CheckVerdict.UNKNOWN, "stopped"),
        ("listener", {"listener": STOPPED, "configured": UNGUARDED}, CheckVerdict.WARNING, "reachable"),
        ("listener", {"listener": "not reported", "configured": UNGUARDED}, CheckVerdict.UNKNOWN, "not reported"),
        ("certificate", {"certificate": None}, CheckVerdict.NOT_APPLICABLE, "no [tls]"),
        ("certificate", {"certificate": "cannot be read"}, CheckVerdict.FAILED, "cannot be read"),
        ("certificate", {"certificate": certificate(not_after=NOW)}, CheckVerdict.FAILED, "expired"),
        (
            "certificate",
            {"certificate": certificate(not_after=NOW + dt.timedelta(days=3))},
            CheckVerdict.WARNING,
            "3 days",
        ),
        (
            "certificate",
            {"certificate": certificate(name_matches=False)},
            CheckVerdict.FAILED,
            "not valid for the name",
        ),
        ("certificate", {"certificate": certificate(key_mode=0o644)}, CheckVerdict.FAILED, "0644"),
        ("tokens", {"tokens": None}, CheckVerdict.NOT_APPLICABLE, "none"),
        ("tokens", {"tokens": ()}, CheckVerdict.FAILED, "sender"),
        ("tokens", {"tokens": (token(Role.SENDER, revoked=True),)}, CheckVerdict.FAILED, "sender"),
        ("tokens", {"tokens": (token(Role.SENDER, -1),)}, CheckVerdict.FAILED, "1 expired"),
        ("tokens", {"tokens": (token(Role.SENDER), token(Role.ADMIN, 5))}, CheckVerdict.WARNING, "admin5"),
        ("sender_clocks", {"clock_skews": {}}, CheckVerdict.UNKNOWN, "no sender"),
        (
            "sender_clocks",
            {"clock_skews": {"a": 0.0, "b": 40.0}},
            CheckVerdict.WARNING,
            "1 of 2 senders are off: b +40 s",
        ),
        ("sender_clocks", {"clock_skews": {"a": -900.0}}, CheckVerdict.WARNING, "a -900 s"),
    ],
)
def test_verdicts(name: str, changed: dict[str, object], verdict: CheckVerdict, expected: str) -> None:
    check = judge(name, **changed)
    assert check.verdict is verdict, check.found
    assert expected in check.found
    if verdict in (CheckVerdict.FAILED, CheckVerdict.WARNING):
        assert check.fix, "the check has no fix"


@pytest.mark.parametrize(
    ("machines", "verdict"),
    [
        (machine_counts({}), CheckVerdict.OK),
        (machine_counts({"a": 1, "b": 90}), CheckVerdict.WARNING),
        (machine_counts({"a": 100}), CheckVerdict.FAILED),
        (machine_counts({"a": 50, "b": 89}, a=1.0), CheckVerdict.FAILED),
        (machine_counts({}, a=0.9), CheckVerdict.WARNING),
        ("closed", CheckVerdict.UNKNOWN),
        (None, CheckVerdict.NOT_APPLICABLE),
    ],
)
def test_machines_are_judged_by_the_limit(machines: MachineCounts | str | None, verdict: CheckVerdict) -> None:
    assert judge("machines", machines=machines).verdict is verdict


@pytest.mark.parametrize(("machines", "verdict"), [({"a": 1}, CheckVerdict.FAILED), ({}, CheckVerdict.WARNING)])
def test_store_without_tables_is_a_loss_if_machines_are_known(machines: dict[str, int], verdict: CheckVerdict) -> None:
    assert judge("store", machines=machine_counts(machines), store=DatabaseState(0, 1)).verdict is verdict
