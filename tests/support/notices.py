"""Delivery of findings in tests: a registry in memory, transitions, and receivers that advance with a clock."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.delivery.transports import HttpSender
from gpufleet.hub.notify.alertmanager import ALERTS_PATH, AlertmanagerReceiver
from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.notices import NoticeFilter
from gpufleet.hub.notify.receiver import FindingReceiver
from gpufleet.hub.notify.webhook import CONNECTIONS, WebhookReceiver
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingsState,
    FindingTransition,
    Silence,
    TransitionKind,
    TransitionReason,
)
from gpufleet.model.time import NANOS
from tests.fakes.clock import FakeClock
from tests.support.findings import MemoryFindings, make_finding

SECRET = "0123456789abcdef-secret"
SOURCE = "urn:gpufleet:hub:test"
NODES = {"m1": "node-1", "m2": "node-2"}


def link(finding: str) -> str:
    """Return the address of a finding's page."""
    return f"https://hub.example/ui/#/findings/{finding}"


class DirectExecutor(Executor):
    """Executor that runs a call at once, in the thread of the caller."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


class Board:
    """Registry of findings with a clock, and what the evaluator and operators do to it.

    Attributes:
        clock: wall and monotonic time.
        registry: the registry.
        name_reads: reads of names of machines.
    """

    def __init__(self, at_ns: int = 1_767_225_600 * NANOS) -> None:
        self.name_reads = 0
        self.clock = FakeClock(at_ns)
        self.registry = MemoryFindings()

    @property
    def now(self) -> int:
        """Nanoseconds since 1970."""
        return self.clock.now_ns()

    def open(
        self,
        rule: str = "gpu.lost",
        scope: str = "east/m1/gpu/GPU-1",
        severity: Severity = Severity.WARNING,
        at: int | None = None,
    ) -> Finding:
        """Open a finding, now or at an earlier time."""
        opened_at = self.now if at is None else at
        finding = make_finding(rule, scope, opened_at, severity=severity, evidence={"lost": "1"})
        return self._save(TransitionKind.OPENED, finding, opened_at)

    def escalate(self, finding: Finding) -> Finding:
        """Make a finding critical."""
        return self._save(TransitionKind.ESCALATED, msgspec.structs.replace(finding, severity=Severity.CRITICAL))

    def close(self, finding: Finding) -> Finding:
        """Close a finding."""
        closed = msgspec.structs.replace(finding, closed_at=self.now, state=FindingState.CLOSED)
        return self._save(TransitionKind.CLOSED, closed)

    def acknowledge(self, finding: Finding, seconds: float) -> None:
        """Acknowledge a finding for a time from now on."""
        until = self.now + int(seconds * NANOS)
        self.registry.acknowledge_finding(
            FindingAcknowledgement(finding=finding.id, at=self.now, until=until, actor="local")
        )

    def silence(self, seconds: float, *, rule: str = "", scope: str = "") -> Silence:
        """Silence findings for a time from now on."""
        until = self.now + int(seconds * NANOS)
        silence = Silence(id=f"s{self.now}", rule=rule, scope=scope, at=self.now, until=until, actor="local")
        self.registry.add_silence(silence)
        return silence

    def feed(self, names: Mapping[str, str] = NODES) -> FindingFeed:
        """Return access for receivers of one hub process."""

        def names_of(machines: Collection[str]) -> dict[str, str]:
            self.name_reads += 1
            return {one: names[one] for one in machines if one in names}

        return FindingFeed(self.registry, names_of, threads=DirectExecutor(), clock=self.clock)

    def webhook(
        self,
        url: str,
        folder: Path,
        *,
        accepts: NoticeFilter | None = None,
        secret: Callable[[], str] = lambda: SECRET,
        timeout_seconds: float = 20.0,
    ) -> tuple[WebhookReceiver, HttpSender]:
        """Return a webhook of a hub process, and its client, which the test opens."""
        sender = HttpSender(url, timeout_seconds=timeout_seconds, headers=dict, connections=CONNECTIONS)
        receiver = WebhookReceiver(
            "webhook/w",
            self.feed(),
            sender,
            secret=secret,
            accepts=accepts or NoticeFilter(),
            source=SOURCE,
            link=link,
            dead_letters=DeadLetters(folder / "dead"),
            clock=self.clock,
            jitter=lambda: 1.0,
        )
        return receiver, sender

    def alertmanager(
        self, url: str, folder: Path, labels: Mapping[str, str] | None = None
    ) -> tuple[AlertmanagerReceiver, HttpSender]:
        """Return an Alertmanager of a hub process, and its client, which the test opens."""
        sender = HttpSender(f"{url}{ALERTS_PATH}", timeout_seconds=20.0, headers=dict)
        receiver = AlertmanagerReceiver(
            "alertmanager/a",
            self.feed(),
            sender,
            labels=labels or {},
            link=link,
            dead_letters=DeadLetters(folder / "dead"),
            clock=self.clock,
            jitter=lambda: 1.0,
        )
        return receiver, sender

    async def deliver(self, *receivers: FindingReceiver, seconds: float = 6.0) -> None:
        """Advance receivers and the clock together for a time."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            delay = min([await one.advance() for one in receivers])
            self.clock.advance(min(max(delay, 0.001), max(0.001, end - self.clock.monotonic())))

    def _save(self, kind: TransitionKind, finding: Finding, at: int | None = None) -> Finding:
        reason = TransitionReason.HEALTHY if kind is TransitionKind.CLOSED else TransitionReason.FIRING
        transition = FindingTransition(kind=kind, at=at or self.now, reason=reason, finding=finding)
        self.registry.save_findings(FindingsState(), [transition])
        return finding
