"""Delivery of findings to a webhook: signed CloudEvents, in order for each finding."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable

from gpufleet.delivery.export_queue import ExportOutcome
from gpufleet.delivery.transports import HttpAnswer, HttpSender
from gpufleet.hub.notify.alerts import machines_of
from gpufleet.hub.notify.cloudevents import CONTENT_TYPE, encode_event, sign
from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.notices import EVERYTHING, Notice, NoticeFilter, notice_of, reminders
from gpufleet.hub.notify.receiver import POLL_SECONDS, FindingReceiver
from gpufleet.hub.notify.responses import describe, outcome_of
from gpufleet.hub.notify.schedule import NoticeSchedule, Pending
from gpufleet.model.errors import ConfigError
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock

CONNECTIONS = 4
"""Maximum number of concurrent requests to a webhook."""

REMIND_SECONDS = 60.0
"""Interval between checks for ended acknowledgements and silences."""

KEPT_SECONDS = 3600.0
"""Longest time until the instant of the newest such check is stored, if no reminder resulted from the checks."""

SAVE_SECONDS = 1.0
"""Shortest time between two writes of the position while notices are pending."""

REMINDED = "/reminded"
"""Suffix of the name under which the registry has the instant up to which ends of mutes are handled.

Without that instant, the webhook is notified of every open finding.
"""


class WebhookReceiver(FindingReceiver):
    """Webhook. A new one is first notified of every open finding that is not muted."""

    def __init__(
        self,
        name: str,
        feed: FindingFeed,
        sender: HttpSender,
        *,
        secret: Callable[[], str],
        accepts: NoticeFilter,
        source: str,
        link: Callable[[str], str | None],
        dead_letters: DeadLetters,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the findings and the connection.

        Args:
            name, feed, clock, jitter, sleep: see `FindingReceiver`.
            sender: client of the webhook's URL.
            secret: returns the secret of the signatures; raises ConfigError if it is unavailable.
            accepts: findings to send.
            source: URI of the hub.
            link: returns the URL of the page of a finding by its id, or None.
            dead_letters: folder of undelivered notices.
        """
        super().__init__(name, feed, clock=clock, jitter=jitter, sleep=sleep)
        self._sender, self._secret, self._accepts = sender, secret, accepts
        self._source, self._link, self._dead_letters = source, link, dead_letters
        self._schedule = NoticeSchedule()
        self._extras: deque[Notice] = deque()  # reminders that do not fit into the schedule yet
        self._read_to = 0
        self._next_read = self._next_check = self._next_save = 0.0
        self._reminded = self._stored_reminded = EVERYTHING
        self._checked: int | None = None  # instant of the newest check, until its reminders are settled
        self._has_reminders = False

    @property
    def cursors(self) -> tuple[str, ...]:
        """Names under which the registry has the webhook's positions."""
        return (self.name, self.name + REMINDED)

    @property
    def _has_failing(self) -> bool:
        return self._schedule.has_failing

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with self._sender:
            await super().run()

    async def _resume(self) -> None:
        self._schedule = NoticeSchedule()
        self._extras.clear()
        self._checked, self._next_read, self._next_check = None, 0.0, 0.0
        position = await self._feed.position(self.name)
        if position is None:
            position = await self._feed.find_newest()
            await self._feed.save(self.name, position)
        self.stats.position = self._read_to = position
        self._reminded = self._stored_reminded = await self._feed.position(self.name + REMINDED) or EVERYTHING

    async def _step(self) -> float:
        if self._clock.monotonic() >= self._next_read:
            await self._read()
            self._next_read = self._clock.monotonic() + POLL_SECONDS
        await self._post_due()
        await self._save_progress()
        now, delay = self._clock.monotonic(), self._schedule.delay(self._clock.monotonic())
        until_read = max(0.0, self._next_read - now)
        return until_read if delay is None else min(delay, until_read)

    async def _read(self) -> None:
        """Fill the schedule: reminders first, so that the closing of a finding follows them."""
        while self._extras and self._schedule.room:
            self._schedule.add(self._extras.popleft(), None, self._clock.monotonic())
        while room := self._schedule.room:
            found = await self._feed.transitions(self._read_to, room)
            if not found:
                await self._remind()
                return
            mutes = await self._feed.mutes(one.transition.finding for one in found)
            reminded = self._reminded if self._checked is None else self._checked
            for one in found:
                if self._accepts.accepts(one.transition.finding):
                    notice = notice_of(one.transition, mutes, reminded)
                    if notice is not None:
                        self._schedule.add(notice, one.number, self._clock.monotonic())
            self._read_to = found[-1].number

    async def _remind(self) -> None:
        """Collect reminders of findings whose mutes ended since the last check.

        A check is due after `REMIND_SECONDS`, and when the reminders of the last one are settled.
        """
        if self._checked is not None or self._clock.monotonic() < self._next_check:
            return
        since = self._reminded
        open_findings = await self._feed.open_findings(self._read_to)
        mutes = await self._feed.silences(since)
        found = await self._feed.call(lambda: reminders(open_findings, mutes, since))
        self._extras.extend(one for one in found if self._accepts.accepts(one.finding))
        self._checked, self._has_reminders = mutes.now, bool(self._extras)
        self._next_check = self._clock.monotonic() + REMIND_SECONDS
        while self._extras and self._schedule.room:
            self._schedule.add(self._extras.popleft(), None, self._clock.monotonic())

    async def _post_due(self) -> None:
        # A receiver that fails gets single requests until it accepts one.
        due = self._schedule.due(self._clock.monotonic(), 1 if self._schedule.failures else CONNECTIONS)
        due = await self._drop_muted(due)
        if not due:
            return
        nodes = await self._feed.names(machines_of(one.notice.finding for one in due))
        notices = [one.notice for one in due]
        bodies = [encode_event(one, self._source, nodes, self._link(one.finding.id)) for one in notices]
        answers = await asyncio.gather(*map(self._post, bodies))
        for one, body, answer in zip(due, bodies, answers, strict=True):
            await self._settle(one, body, answer)

    async def _drop_muted(self, due: list[Pending]) -> list[Pending]:
        """Leave out notices about findings that were muted since their first attempt; reminders follow."""
        repeated = [one for one in due if one.attempts and one.notice.kind is not TransitionKind.CLOSED]
        if not repeated:
            return due
        mutes = await self._feed.mutes(one.notice.finding for one in repeated)
        muted = [one for one in repeated if mutes.is_muted(one.notice.finding)]
        for one in muted:
            self._schedule.drop(one)
        return [one for one in due if one not in muted]

    async def _post(self, body: bytes) -> HttpAnswer:
        try:
            headers = sign(self._secret(), self._clock.now_ns() // NANOS, body)
        except ConfigError as error:
            return HttpAnswer(0, cause=str(error))
        return await self._sender.post(body, {"Content-Type": CONTENT_TYPE, **headers})

    async def _settle(self, pending: Pending, body: bytes, answer: HttpAnswer) -> None:
        now = self._clock.monotonic()
        match outcome_of(answer):
            case ExportOutcome.ACCEPTED:
                self._schedule.accept(pending, now)
                self._succeeded(1)
            case ExportOutcome.REJECTED:
                self._schedule.drop(pending)
                await self._bury(pending, body, answer)
            case ExportOutcome.RETRY:
                self._failed(describe(answer, self._sender.url))
                if not self._schedule.fail(pending, now, answer.retry_after, self._jitter()):
                    await self._bury(pending, body, answer)

    async def _bury(self, pending: Pending, body: bytes, answer: HttpAnswer) -> None:
        """Keep an undelivered notice as a dead letter."""
        where = await self._dead_letters.keep(self.name, pending.notice.id, body)
        self._lose(1, describe(answer, self._sender.url), where)

    async def _save_progress(self) -> None:
        """Store the progress. Notices after it are sent again after a restart, with the same ids."""
        now = self._clock.monotonic()
        if now >= self._next_save or not len(self._schedule):
            await self._save(self._schedule.position(self._read_to))
            self._next_save = now + SAVE_SECONDS
        if self._checked is None or self._extras or self._schedule.has_unnumbered:
            return
        self._reminded, self._checked = self._checked, None
        if self._has_reminders or self._reminded - self._stored_reminded > KEPT_SECONDS * NANOS:
            await self._feed.save(self.name + REMINDED, self._reminded)
            self._stored_reminded = self._reminded
