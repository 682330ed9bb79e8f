"""Delivery of findings to an Alertmanager: transitions at once, and every open finding once a minute.

The open findings are sent again in parts of `POST_ALERTS`. Transitions are sent before each part.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from gpufleet.delivery.export_queue import ExportOutcome
from gpufleet.delivery.transports import HttpSender
from gpufleet.hub.notify.alerts import VALID_SECONDS, Alert, AlertBuilder, machines_of
from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.receiver import POLL_SECONDS, FindingReceiver
from gpufleet.hub.notify.responses import describe, outcome_of
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import NumberedTransition
from gpufleet.ports.clock import Clock

ALERTS_PATH = "/api/v2/alerts"
"""Path of Alertmanager's API for alerts."""

RESEND_SECONDS = 60.0
"""Time from the end of a resend of all open findings to the start of the next."""

OVERDUE_SECONDS = VALID_SECONDS / 2
"""Time by which a resend may be late. A later resend alternates with pending transitions, so that no alert expires."""

POST_ALERTS = 256
"""Maximum number of alerts in a request, and of findings in a part of a resend."""

_ENCODER = msgspec.json.Encoder()


class AlertmanagerReceiver(FindingReceiver):
    """Alertmanager. A new one first gets all open findings."""

    def __init__(
        self,
        name: str,
        feed: FindingFeed,
        sender: HttpSender,
        *,
        labels: Mapping[str, str],
        link: Callable[[str], str | None],
        dead_letters: DeadLetters,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the findings and the connection.

        Args:
            name, feed, clock, jitter, sleep: see `FindingReceiver`.
            sender: client of the Alertmanager's `ALERTS_PATH`.
            labels: additional labels of every alert.
            link: returns the URL of the page of a finding by its id, or None.
            dead_letters: folder of rejected alerts.
        """
        super().__init__(name, feed, clock=clock, jitter=jitter, sleep=sleep)
        self._sender, self._labels, self._link, self._dead_letters = sender, labels, link, dead_letters
        self._reset()

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with self._sender:
            await super().run()

    def _reset(self) -> None:
        """Start without a record of sent alerts. A resend is due."""
        self._builder = AlertBuilder(self._labels, self._link)
        self._next_resend = self._clock.monotonic()
        self._resent_to: tuple[int, str] | None = None  # last finding of the resend in progress
        self._seen: set[str] = set()  # machines with an open finding, since the start of the resend
        self._muted: set[str] = set()  # findings whose alerts the last resend ended because they are muted
        self._newly_muted: set[str] = set()  # the same, of the resend in progress

    async def _resume(self) -> None:
        self._reset()
        position = await self._feed.position(self.name)
        if position is None:
            position = await self._feed.find_newest()
            await self._feed.save(self.name, position)
        self.stats.position = position

    async def _step(self) -> float:
        while found := await self._feed.transitions(self.stats.position):
            if not await self._send_transitions(found):
                return POLL_SECONDS
            if self._clock.monotonic() - self._next_resend >= OVERDUE_SECONDS:
                break
        until_resend = self._next_resend - self._clock.monotonic()
        if until_resend > 0:
            return min(POLL_SECONDS, until_resend)
        await self._resend_part()
        return 0.0

    async def _send_transitions(self, found: Sequence[NumberedTransition]) -> bool:
        """Post the alerts of transitions; return False if they are to be posted again."""
        transitions = [one.transition for one in found]
        findings = [one.finding for one in transitions]
        await self._read_names(findings)
        alerts = self._builder.of_transitions(transitions, await self._feed.mutes(findings))
        if not await self._post(alerts, f"transitions-{found[0].number}"):
            return False
        await self._save(found[-1].number)
        return True

    async def _resend_part(self) -> None:
        """Post the next open findings. The last part ends the resend."""
        findings = await self._feed.open_page(self._resent_to, POST_ALERTS)
        mutes = await self._feed.silences(self._clock.now_ns())
        await self._read_names(findings)
        alerts, muted = self._builder.of_open(findings, mutes, self._muted)
        if not await self._post(alerts, ""):
            return
        self._newly_muted |= muted
        if len(findings) == POST_ALERTS:
            self._resent_to = (findings[-1].opened_at, findings[-1].id)
            return
        self._builder.prune(self._seen)
        self._muted, self._newly_muted, self._seen, self._resent_to = self._newly_muted, set(), set(), None
        self._next_resend = self._clock.monotonic() + RESEND_SECONDS

    async def _read_names(self, findings: Sequence[Finding]) -> None:
        self._seen |= machines_of(findings)
        unnamed = self._builder.unnamed(findings)
        self._builder.name(unnamed, await self._feed.names(unnamed))

    async def _post(self, alerts: Sequence[Alert], name: str) -> bool:
        """Post alerts; return False if they are to be posted again.

        Rejected alerts with a name become dead letters. Rejected alerts without a name are posted again with the next
        resend. Alertmanager accepts the valid alerts of a request that it rejects.
        """
        for start in range(0, len(alerts), POST_ALERTS):
            part = alerts[start : start + POST_ALERTS]
            body = _ENCODER.encode(part)
            answer = await self._sender.post(body, {"Content-Type": "application/json"})
            detail = describe(answer, self._sender.url)
            match outcome_of(answer):
                case ExportOutcome.ACCEPTED:
                    self._succeeded(len(part))
                case ExportOutcome.RETRY:
                    self._retry_later(detail, answer.retry_after)
                    return False
                case ExportOutcome.REJECTED if name:
                    where = await self._dead_letters.keep(self.name, f"{name}-{start}", body)
                    self._lose(len(part), detail, where)
                case ExportOutcome.REJECTED:
                    self._failed(detail)
        return True
