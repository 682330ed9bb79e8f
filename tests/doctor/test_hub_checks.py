"""What the checks of a hub make of its facts."""

import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.doctor import Check, Verdict
from gpufleet.doctor.hub import HubFacts, examine_hub
from gpufleet.doctor.hub.facts import Certificate, Daemon, Disk, Kept, KernelClock, Waiting
from gpufleet.model.access import Role, Token

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
GIB = 1 << 30
DISK = Disk(free=100 * GIB, size=200 * GIB, used={"store": 10 * GIB}, day_bytes=GIB, day="2026-05-31")
DAEMON = Daemon(version="0.1.0", ready="", figures={"wal_records": 3})


def token(role: Role, days: float | None = None, *, revoked: bool = False) -> Token:
    expires_at = None if days is None else NOW + dt.timedelta(days=days)
    return Token(
        id=f"{role.value}{days or ''}",
        role=role,
        created_at=NOW,
        expires_at=expires_at,
        revoked_at=NOW if revoked else None,
    )


def certificate(**changed: object) -> Certificate:
    known = Certificate(names=("hub",), not_after=NOW + dt.timedelta(days=90), key_mode=0o640, right_name=True)
    return msgspec.structs.replace(known, **changed)


HEALTHY = HubFacts(
    at=NOW,
    folder="/var/lib/gpufleet/hub",
    folder_error="",
    listen="0.0.0.0:8470",
    auth="tokens",
    tls=True,
    holder=4711,
    daemon=DAEMON,
    disk=DISK,
    clock=KernelClock(True, 0.01),
    registry=Kept(2, 2),
    store=Kept(1, 1),
    waiting=Waiting(3, 4000, 0.5),
    wal_max_bytes=4 * GIB,
    certificate=certificate(),
    skews={"node-a": -0.2, "node-b": 0.0},
    tokens=(token(Role.SENDER), token(Role.ADMIN, 90)),
)


def judge(name: str, **changed: object) -> Check:
    facts = msgspec.structs.replace(HEALTHY, **changed)
    return next(check for check in examine_hub(facts) if check.name == name)


def test_a_healthy_hub_is_ok_throughout() -> None:
    assert {check.name: check.found for check in examine_hub(HEALTHY) if check.verdict is not Verdict.OK} == {}


def test_without_facts_everything_that_is_not_configured_is_unknown() -> None:
    checks = examine_hub(HubFacts(at=NOW, folder="/x", listen="127.0.0.1:8470"))
    wrong = {check.name for check in checks if check.verdict is not Verdict.UNKNOWN}
    assert wrong == {"listener", "certificate"}, "one is of the configuration, the other's words are an error"


@given(
    st.sets(st.sampled_from(["holder", "daemon", "disk", "clock", "registry", "store", "waiting", "skews", "tokens"]))
)
def test_a_missing_fact_never_makes_anything_better(missing: set[str]) -> None:
    poorer = msgspec.structs.replace(HEALTHY, **dict.fromkeys(missing, "could not be had"))
    for before, after in zip(examine_hub(HEALTHY), examine_hub(poorer), strict=True):
        assert after.verdict in (before.verdict, Verdict.UNKNOWN)
    sick = msgspec.structs.replace(poorer, registry=Kept(2, 2, "page 3 is never used"))
    assert any(check.verdict is Verdict.FAILED for check in examine_hub(sick))


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "word"),
    [
        ("daemon", {"daemon": "nobody answers", "holder": 0}, Verdict.WARNING, "stopped"),
        ("daemon", {"daemon": "answers 401"}, Verdict.UNKNOWN, "4711"),
        (
            "daemon",
            {"daemon": Daemon(version="1", ready="3 flushes in a row failed", figures={})},
            Verdict.FAILED,
            "3 flushes",
        ),
        ("state_folder", {"folder_error": "ENOENT"}, Verdict.WARNING, "no /var/lib"),
        ("state_folder", {"folder_error": "EROFS"}, Verdict.FAILED, "EROFS"),
        ("state_folder", {"stranger": "gpufleet-hub"}, Verdict.UNKNOWN, "gpufleet-hub's"),
        ("disk", {"disk": msgspec.structs.replace(DISK, free=GIB // 2)}, Verdict.FAILED, "512.0 MiB free"),
        ("disk", {"disk": msgspec.structs.replace(DISK, free=5 * GIB)}, Verdict.WARNING, "full in 5 days"),
        (
            "disk",
            {"disk": msgspec.structs.replace(DISK, free=3 * GIB, day_bytes=None)},
            Verdict.WARNING,
            "may take 4.0 GiB",
        ),
        ("disk", {"disk": msgspec.structs.replace(DISK, day_bytes=None)}, Verdict.OK, "no whole day"),
        ("clock", {"clock": KernelClock(False, 16.0)}, Verdict.WARNING, "nothing steers"),
        ("registry", {"registry": Kept(3, 2)}, Verdict.FAILED, "this build knows 2"),
        ("registry", {"registry": Kept(1, 2)}, Verdict.WARNING, "makes it 2"),
        ("registry", {"registry": Kept(2, 2, "wrong # of entries")}, Verdict.FAILED, "wrong # of entries"),
        ("registry", {"registry": None}, Verdict.NOT_APPLICABLE, "relay"),
        ("store", {"store": Kept(9, 1)}, Verdict.FAILED, "version 9"),
        ("store", {"store": Kept(1, 1, "store: insert failed")}, Verdict.FAILED, "insert failed"),
        ("store", {"store": None}, Verdict.NOT_APPLICABLE, "relay"),
        ("log", {"waiting": Waiting(0, 0, None)}, Verdict.OK, "nothing"),
        ("log", {"waiting": Waiting(9, 100, 900.0, 4)}, Verdict.WARNING, "4 of them the next hub does not take"),
        ("log", {"waiting": Waiting(9, GIB, 900.0)}, Verdict.WARNING, "for 900 s"),
        ("log", {"waiting": Waiting(9, 3 * GIB, 9.0)}, Verdict.FAILED, "4,096 MiB may"),
        ("log", {"waiting": Waiting(9, 90, 9.0), "holder": 0}, Verdict.WARNING, "9 batches"),
        ("listener", {"auth": "none"}, Verdict.WARNING, "reachable"),
        ("listener", {"auth": "none", "tls": False, "listen": "127.0.0.1:1"}, Verdict.OK, "without TLS and tokens"),
        ("certificate", {"certificate": None}, Verdict.NOT_APPLICABLE, "no [tls]"),
        ("certificate", {"certificate": "cannot be read"}, Verdict.FAILED, "cannot be read"),
        ("certificate", {"certificate": certificate(not_after=NOW)}, Verdict.FAILED, "expired"),
        (
            "certificate",
            {"certificate": certificate(not_after=NOW + dt.timedelta(days=3))},
            Verdict.WARNING,
            "3 days",
        ),
        ("certificate", {"certificate": certificate(right_name=False)}, Verdict.FAILED, "not for the name"),
        ("certificate", {"certificate": certificate(key_mode=0o644)}, Verdict.FAILED, "0644"),
        ("tokens", {"tokens": None}, Verdict.NOT_APPLICABLE, "none"),
        ("tokens", {"tokens": ()}, Verdict.FAILED, "sender"),
        ("tokens", {"tokens": (token(Role.SENDER, revoked=True),)}, Verdict.FAILED, "sender"),
        ("tokens", {"tokens": (token(Role.SENDER, -1),)}, Verdict.FAILED, "1 ran out"),
        ("tokens", {"tokens": (token(Role.SENDER), token(Role.ADMIN, 5))}, Verdict.WARNING, "admin5"),
        ("sender_clocks", {"skews": {}}, Verdict.UNKNOWN, "no sender"),
        ("sender_clocks", {"skews": {"a": 0.0, "b": 40.0}}, Verdict.WARNING, "1 of 2 senders are off: b +40 s"),
        ("sender_clocks", {"skews": {"a": -900.0}}, Verdict.WARNING, "a -900 s"),
    ],
)
def test_verdicts(name: str, changed: dict[str, object], verdict: Verdict, word: str) -> None:
    check = judge(name, **changed)
    assert check.verdict is verdict, check.found
    assert word in check.found
    if verdict in (Verdict.FAILED, Verdict.WARNING):
        assert check.mend, "what is wrong has a way to mend it"
