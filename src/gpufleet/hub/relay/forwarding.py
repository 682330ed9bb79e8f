"""The relay's loop: posts logged bodies unchanged to the next hub, over several connections.

Every other connection posts the newest bodies first, the others the oldest. After an outage the next hub then has the
current state at once, while the backlog is delivered in parallel. A hub accepts batches in any order.

A body may get an epoch conflict at the next hub, because another machine uses its epoch. The relay has already
acknowledged it, so the sender cannot change it. The relay forwards it under a new epoch, and rejects further batches
under the old one, so that their sender starts a new epoch. This mapping is lost with the process: the body is then
forwarded again under yet another epoch, with the same samples.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpufleet.codecs.batch import decode, renumber
from gpufleet.delivery.pacing import retry_delay
from gpufleet.delivery.post import HubAnswer, HubClient, HubVerdict, RejectedBatches
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.hub.relay.senders import HeldBatches
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.model.stored.ledger import SequenceKey


class _Epoch(msgspec.Struct):
    name: str
    given: int = 0


class Renumberer:
    """Assigns new epochs to conflicting bodies at a relay. Use it from the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        """Connect the relay's ledger."""
        self._ledger = ledger
        self._epochs: dict[SequenceKey, _Epoch] = {}
        self._numbers: dict[int, tuple[str, int]] = {}

    def body(self, record: WalRecord) -> bytes:
        """Return a body as it is to be forwarded."""
        place = self._numbers.get(record.seq)
        return record.body if place is None else renumber(record.body, *place)

    def number(self, record: WalRecord) -> bool:
        """Assign a new epoch and number to a body; return False if it cannot be decoded or already has one."""
        if record.seq in self._numbers:
            return False
        try:
            key = key_of(decode(record.body))
        except WireError:
            return False
        self._ledger.give_up(key)
        epoch = self._epochs.setdefault(key, _Epoch(secrets.token_hex(16)))
        epoch.given += 1
        self._numbers[record.seq] = (epoch.name, epoch.given)
        return True

    def drop(self, records: list[int]) -> None:
        """Drop the assignments of bodies that are no longer in the log."""
        for number in records:
            self._numbers.pop(number, None)


log = logging.getLogger(__name__)

BUNDLE_RECORDS = 256
BUNDLE_BYTES = 1 << 20
"""Limits of one post."""

HOLD_SECONDS = 30.0
"""Delay before a held body is posted again."""

CHECK_SECONDS = 1.0
"""Interval between checks that the files of the log still exist."""

STOP_SECONDS = 5.0
"""Time for delivering the backlog when stopping; the rest stays in the log."""


class RelayForwarder:
    """Forwards a log to the next hub. Use it from the event loop.

    Attributes:
        forwarded: bodies accepted by the next hub.
        refused: bodies permanently rejected by the next hub and set aside.
        renumbered: bodies with an epoch conflict, forwarded under a new epoch.
        failures: posts to be retried.
        consecutive_failures: 0 while the next hub accepts bodies.
        last_error: message of the newest failure; empty after a success.
        held: batches that the next hub rejects temporarily while it accepts others.
    """

    def __init__(
        self,
        wal: Wal,
        hub: HubClient,
        *,
        connections: int,
        refused: RejectedBatches,
        renumbering: Renumberer,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """Connect the parts of the forwarder.

        Args:
            wal: the relay's log.
            hub: client of the next hub.
            connections: number of concurrent posts.
            refused: receives permanently rejected bodies.
            renumbering: assigns new epochs to conflicting bodies.
            now_ns: nanoseconds since 1970.
            jitter: returns numbers from 0 to 1.
            hold_seconds: see `HOLD_SECONDS`.
        """
        self.held = HeldBatches()
        self._hold_seconds = hold_seconds
        self.forwarded = 0
        self.refused = 0
        self.renumbered = 0
        self.failures = 0
        self.consecutive_failures = 0
        self.last_error = ""
        self._wal = wal
        self._hub = hub
        self._connections = connections
        self._aside = refused
        self._renumbering = renumbering
        self._now_ns = now_ns
        self._jitter = jitter
        self._busy: set[int] = set()  # numbers of bodies that are being posted or held
        self._reading = asyncio.Lock()
        self._news = asyncio.Event()
        self._woken = 0
        self._through = asyncio.Event()  # set while posts succeed
        self._settled = asyncio.Event()  # set when any post is finished
        self._stop = asyncio.Event()

    def wake(self) -> None:
        """Signal that the log has a new body."""
        self._woken += 1
        self._news.set()

    def stop(self) -> None:
        """Make `run` deliver the backlog for at most `STOP_SECONDS` and return."""
        self._stop.set()

    async def run(self) -> None:
        """Post until stopped.

        Raises:
            SpoolError: if the log cannot be read; SpoolGoneError if its files were deleted.
        """
        async with self._hub:
            tasks = [asyncio.create_task(self._work(number % 2 == 0)) for number in range(self._connections)]
            tasks.append(asyncio.create_task(self._check_log()))
            stopping = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
                if self._stop.is_set():
                    await self._drain()
            finally:
                for task in (*tasks, stopping):
                    task.cancel()
                results = await asyncio.gather(*tasks, stopping, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._wal.waiting_records and not self.consecutive_failures:
                    self._settled.clear()
                    await self._settled.wait()
        if self._wal.waiting_records:
            self._wal.check_files()
            log.info("%d batches remain in the log for the next start", self._wal.waiting_records)

    async def _work(self, newest_first: bool) -> None:
        """Post groups of records until cancelled; one task runs for each connection."""
        while True:
            woken = self._woken
            records = await self._take(newest_first)
            if records:
                await self._post(records)
            elif woken == self._woken:  # no new body arrived during `_take`
                self._news.clear()
                await self._news.wait()

    async def _check_log(self) -> None:
        while True:
            self._wal.check_files()
            await asyncio.sleep(CHECK_SECONDS)

    async def _take(self, newest_first: bool) -> list[WalRecord]:
        """Read records that no other connection is posting."""
        async with self._reading:
            if self._wal.waiting_records <= len(self._busy):
                return []
            records = await asyncio.to_thread(
                self._wal.read_some,
                newest_first=newest_first,
                max_records=BUNDLE_RECORDS,
                max_bytes=BUNDLE_BYTES,
                skip=self._busy,
            )
            self._busy.update(record.seq for record in records)
            return records

    async def _post(self, records: Sequence[WalRecord]) -> None:
        held_for: dict[int, float] = {}
        try:
            now = self._now_ns()
            waited = [max(0, now - record.received_at) for record in records]
            answers = await self._hub.post_bundle([self._renumbering.body(record) for record in records], waited)
            done = [
                record.seq
                for record, answer in zip(records, answers, strict=True)
                if await self._is_done(record, answer, held_for)
            ]
            if done:
                await asyncio.to_thread(self._wal.acknowledge, done)
                self._renumbering.drop(done)
        finally:
            for seconds in set(held_for.values()):
                held = [seq for seq, until in held_for.items() if until == seconds]
                asyncio.get_running_loop().call_later(seconds, self._let_go, held)
            self._busy.difference_update(record.seq for record in records if record.seq not in held_for)
        if done:
            self._recovered()
        elif not answers[0].is_about_body:
            self._failed(answers[0])
        self._settled.set()
        if self.consecutive_failures:
            # All connections fail together, so the failures of each connection determine the delay.
            failures = -(-self.consecutive_failures // self._connections)
            await self._wait(retry_delay(failures, answers[0].retry_after, self._jitter()), answers[0])

    async def _is_done(self, record: WalRecord, answer: HubAnswer, held_for: dict[int, float]) -> bool:
        """Process the answer to a body; return whether the body may be removed from the log."""
        if answer.verdict is not HubVerdict.RETRY:
            self.held.release(record.seq)
        match answer.verdict:
            case HubVerdict.ACCEPTED:
                self.forwarded += 1
            case HubVerdict.REJECTED:
                await self._set_aside(record, answer)
            case HubVerdict.CONFLICT if self._renumbering.number(record):
                self.renumbered += 1
                self._log_failure(answer)
                return False
            case HubVerdict.CONFLICT:
                await self._set_aside(record, answer)
            case HubVerdict.RETRY:
                self.failures += 1
                if answer.is_about_body:
                    self._log_failure(answer)
                    if self.held.note(record, answer) and await self._carry(record):
                        return True
                    held_for[record.seq] = self._hold_seconds
                return False
        return True

    async def _carry(self, record: WalRecord) -> bool:
        """Rewrite a body at the end of the log, so that its old file can go; return False if there is no room."""
        try:
            seq = await self._wal.append(record.came_at, self._renumbering.body(record), record.waited_ns)
        except SpoolError as error:
            log.warning("cannot rewrite a held batch, its log file is kept: %s", error)
            return False
        self.held.move(record.seq, seq)
        return True

    async def _set_aside(self, record: WalRecord, answer: HubAnswer) -> None:
        where = await self._aside.keep(self._wal.epoch, record.seq, record.body)
        self.refused += 1
        log.error("%s rejected a batch: %s; set aside in %s", self._hub.url, answer, where)

    async def _wait(self, seconds: float, answer: HubAnswer) -> None:
        """Wait; without a Retry-After of the hub, only until another connection succeeds."""
        if answer.retry_after is not None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._through.wait()

    def _failed(self, answer: HubAnswer) -> None:
        self._through.clear()
        self.consecutive_failures += 1
        self._log_failure(answer)

    def _log_failure(self, answer: HubAnswer) -> None:
        detail = f"{self._hub.url}: {answer}"
        if detail != self.last_error:
            log.warning("forwarding failed, will retry: %s", detail)
        self.last_error = detail

    def _recovered(self) -> None:
        if self.consecutive_failures:
            log.info("the next hub accepts batches again; %d in the backlog", self._wal.waiting_records)
            self.last_error = ""
        self.consecutive_failures = 0
        self._through.set()

    def _let_go(self, seqs: Iterable[int]) -> None:
        self._busy.difference_update(seqs)
        self.wake()
