"""The relay's loop: what the log holds goes to the next hub, each body as it came, many connections at once.

Every other connection takes the newest bodies first and the rest the oldest: after an outage the next hub knows at
once how things stand, and what waited goes on beside it. Order does not matter to a hub.

Bodies that a relay has acknowledged, and that the next hub cannot take under their epoch.

Another machine counts under it, and its sender cannot be asked any more: it was told that the batch is safe. So it is
passed on under an epoch that is made for it here. Whoever posts under the old one next is turned away, and takes a new
one itself. What is decided here is forgotten with the process: a body is then passed on under yet another epoch, and is
the same samples.
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
from gpufleet.delivery.post import Answer, HubClient, Refused, Verdict
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.hub.relay.senders import Held
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.model.stored.ledger import SequenceKey


class _Epoch(msgspec.Struct):
    name: str
    given: int = 0


class Renumbering:
    """Epochs made by one relay. Lives on the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        """Take the ledger of what this relay has taken."""
        self._ledger = ledger
        self._epochs: dict[SequenceKey, _Epoch] = {}
        self._numbers: dict[int, tuple[str, int]] = {}

    def body(self, record: WalRecord) -> bytes:
        """Return a body as it is to be passed on."""
        place = self._numbers.get(record.seq)
        return record.body if place is None else renumber(record.body, *place)

    def number(self, record: WalRecord) -> bool:
        """Give a body another epoch and number; returns False if it cannot be read or has another one already."""
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

    def forget(self, records: list[int]) -> None:
        """Forget bodies that the log has forgotten."""
        for number in records:
            self._numbers.pop(number, None)


log = logging.getLogger(__name__)

BUNDLE_RECORDS = 256
BUNDLE_BYTES = 1 << 20
"""One post carries at most these."""

HOLD_SECONDS = 30.0
"""How long a body waits that the next hub will not take yet though it takes others."""

STOP_SECONDS = 5.0
"""How long stopping waits for the next hub to take what is left; the rest stays in the log."""


class Forwarder:
    """Empties a log into the next hub. Lives on the event loop.

    Attributes:
        forwarded: bodies that the next hub has taken.
        refused: bodies that it will never take, set aside.
        renumbered: bodies under whose epoch another machine counts, passed on under one that is made for them.
        failures: posts that are made again.
        failures_in_a_row: 0 while the next hub takes bodies.
        last_error: words of the newest failure; empty after a success.
        held: what the next hub will not take yet though it takes others.
    """

    def __init__(
        self,
        wal: Wal,
        hub: HubClient,
        *,
        connections: int,
        refused: Refused,
        renumbering: Renumbering,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """Take the log, the next hub, what is done with bodies that it does not take as they are, and a clock.

        `jitter` gives numbers from 0 to 1.
        """
        self.held = Held()
        self._hold_seconds = hold_seconds
        self.forwarded = 0
        self.refused = 0
        self.renumbered = 0
        self.failures = 0
        self.failures_in_a_row = 0
        self.last_error = ""
        self._wal = wal
        self._hub = hub
        self._connections = connections
        self._aside = refused
        self._renumbering = renumbering
        self._now_ns = now_ns
        self._jitter = jitter
        self._busy: set[int] = set()  # numbers that are being posted, or held back
        self._reading = asyncio.Lock()
        self._news = asyncio.Event()
        self._woken = 0
        self._through = asyncio.Event()  # the last post got through
        self._settled = asyncio.Event()  # a post has come to something
        self._stop = asyncio.Event()

    def wake(self) -> None:
        """Say that there is a new body."""
        self._woken += 1
        self._news.set()

    def stop(self) -> None:
        """Post what there is for a little longer, then let `run` return."""
        self._stop.set()

    async def run(self) -> None:
        """Post until stopped."""
        async with self._hub:
            tasks = [asyncio.create_task(self._work(number % 2 == 0)) for number in range(self._connections)]
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
                while self._wal.waiting_records and not self.failures_in_a_row:
                    self._settled.clear()
                    await self._settled.wait()
        if self._wal.waiting_records:
            log.info("%d batches stay in the log for the next start", self._wal.waiting_records)

    async def _work(self, newest_first: bool) -> None:
        """One connection's worth of posting."""
        while True:
            woken = self._woken
            records = await self._take(newest_first)
            if records:
                await self._post(records)
            elif woken == self._woken:  # nothing came while this looked
                self._news.clear()
                await self._news.wait()

    async def _take(self, newest_first: bool) -> list[WalRecord]:
        """Read some that nobody else is posting."""
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
                self._renumbering.forget(done)
        finally:
            for seconds in set(held_for.values()):
                held = [seq for seq, until in held_for.items() if until == seconds]
                asyncio.get_running_loop().call_later(seconds, self._let_go, held)
            self._busy.difference_update(record.seq for record in records if record.seq not in held_for)
        if done:
            self._recovered()
        elif not answers[0].is_of_this_body:
            self._failed(answers[0])
        self._settled.set()
        if self.failures_in_a_row:
            # All connections fail together: what counts in a row is how often each of them has.
            often = -(-self.failures_in_a_row // self._connections)
            await self._wait(retry_delay(often, answers[0].retry_after, self._jitter()), answers[0])

    async def _is_done(self, record: WalRecord, answer: Answer, held_for: dict[int, float]) -> bool:
        """Count what became of a body; True if the log may forget it."""
        if answer.verdict is not Verdict.LATER:
            self.held.release(record.seq)
        match answer.verdict:
            case Verdict.TAKEN:
                self.forwarded += 1
            case Verdict.REFUSED:
                await self._set_aside(record, answer)
            case Verdict.CONFLICT if self._renumbering.number(record):
                self.renumbered += 1
                self._say(answer)
                return False
            case Verdict.CONFLICT:
                await self._set_aside(record, answer)
            case Verdict.LATER:
                self.failures += 1
                if answer.is_of_this_body:
                    self._say(answer)
                    if self.held.note(record, answer) and await self._carry(record):
                        return True
                    held_for[record.seq] = self._hold_seconds
                return False
        return True

    async def _carry(self, record: WalRecord) -> bool:
        """Write a body to the log's end, so that its old file may go; False where there is no room."""
        try:
            seq = await self._wal.append(record.came_at, self._renumbering.body(record), record.waited_ns)
        except SpoolError as error:
            log.warning("a batch that the next hub does not take keeps its file of the log: %s", error)
            return False
        self.held.move(record.seq, seq)
        return True

    async def _set_aside(self, record: WalRecord, answer: Answer) -> None:
        where = await self._aside.keep(self._wal.epoch, record.seq, record.body)
        self.refused += 1
        log.error("%s refuses a batch: %s; set aside in %s", self._hub.url, answer, where)

    async def _wait(self, seconds: float, answer: Answer) -> None:
        """Wait; if the hub did not itself ask for that, no longer than until another connection gets through."""
        if answer.retry_after is not None:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._through.wait()

    def _failed(self, answer: Answer) -> None:
        self._through.clear()
        self.failures_in_a_row += 1
        self._say(answer)

    def _say(self, answer: Answer) -> None:
        words = f"{self._hub.url}: {answer}"
        if words != self.last_error:
            log.warning("not passed on, will be tried again: %s", words)
        self.last_error = words

    def _recovered(self) -> None:
        if self.failures_in_a_row:
            log.info("the next hub takes batches again; %d waiting", self._wal.waiting_records)
            self.last_error = ""
        self.failures_in_a_row = 0
        self._through.set()

    def _let_go(self, seqs: Iterable[int]) -> None:
        self._busy.difference_update(seqs)
        self.wake()
