"""The kernel log reader: what the driver says there becomes events, also while the driver's library hangs."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.event import Event
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.ports.clock import Clock
from gpufleet.readers.kmsg.fetch import KernelLog
from gpufleet.readers.kmsg.mapping import address_of, map_told
from gpufleet.readers.kmsg.parse import KERNEL, Named, Record, Sayings, parse_line

log = logging.getLogger(__name__)

NAME = "kmsg"
PATH = Path("/dev/kmsg")

LINES_AT_ONCE = 2_000
"""Lines between which other tasks get their turn."""

MAX_LINES = 200_000
"""Lines of one pass. A kernel has at most some tens of thousands at a time; what is beyond waits for the next pass."""

MAX_EVENTS = 1_000
"""Events of one pass. What is beyond waits in the kernel's buffer, which is of limited size: losing it is counted."""

MAX_UUIDS = 1_024


class KmsgReader:
    """Reads the log from its oldest record on, then what is new.

    It remembers nothing over restarts: each event says which record of the log it is, and whoever takes it knows
    which it has.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        path: Path = PATH,
        since_boot: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare it; nothing is opened before the first `read`.

        Args:
            clock: the clocks.
            path: the log; a FIFO or a file with the same lines will do.
            since_boot: nanoseconds by the clock that the kernel stamps its messages with.
        """
        self._clock, self._path, self._since_boot = clock, path, since_boot
        self._log: KernelLog | None = None
        self._sayings = Sayings()
        self._uuids: dict[str, str] = {}
        self._offset = 0
        self._newest: int | None = None  # number of the record that was read last
        self._passed_at: int | None = None  # wall clock at the end of the pass before
        self._lost = 0
        self._trouble: ReaderError | None = None

    @property
    def name(self) -> str:
        """Return `kmsg`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return event, and slow for what is told of the log itself."""
        return (Lane.EVENT, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass: what is new in the log, or how the log itself is.

        A machine without a log that may be read is no failure of this reader: the readings say why they are absent,
        and the agent's log says it once.
        """
        try:
            kernel_log = self._opened()
            events = await self._events(kernel_log) if lane is Lane.EVENT else []
        except ReaderError as error:
            self._complain(error)
            await self.close()
            events = []
        else:
            self._trouble = None
        return Round(events=tuple(events), samples=(self._own(),) if lane is Lane.SLOW else ())

    async def close(self) -> None:
        """Close the log; the next `read` goes through it again from its oldest record."""
        if self._log is not None:
            self._log.close()
        self._log, self._newest, self._passed_at = None, None, None

    def _opened(self) -> KernelLog:
        if self._log is None:
            self._log = KernelLog(self._path)
            self._offset = self._clock.now_ns() - self._since_boot()
        return self._log

    async def _events(self, kernel_log: KernelLog) -> list[Event]:
        events: list[Event] = []
        lines = 0
        while lines < MAX_LINES and len(events) < MAX_EVENTS:
            some = kernel_log.lines(min(LINES_AT_ONCE, MAX_EVENTS - len(events)))
            if not some:
                break
            lines += len(some)
            for line in some:
                event = self._event(line)
                if event is not None:
                    events.append(event)
            await asyncio.sleep(0)
        self._passed_at = self._clock.now_ns()
        return events

    def _event(self, line: bytes) -> Event | None:
        record = parse_line(line)
        if record is None:
            return None
        if self._newest is not None and record.seq > self._newest + 1:
            self._lost += record.seq - self._newest - 1
        self._newest = record.seq
        if record.facility != KERNEL:
            return None  # a process wrote it: whoever may write to the log is not the driver
        told = self._sayings.parse(record.text)
        if isinstance(told, Named):
            if len(self._uuids) < MAX_UUIDS:
                self._uuids[address_of(told.pci)] = told.uuid
            return None
        if told is None:
            return None
        return map_told(told, self._instant(record), seq=record.seq, uuids=self._uuids)

    def _instant(self, record: Record) -> int:
        """Return when the record was written, by the wall clock.

        The kernel's stamp counts from boot, by a clock that is never corrected and stands still while the machine
        sleeps. A record that came since the pass before lies between that pass and now, whatever the stamp says;
        for older ones the stamp is all there is.
        """
        at = self._offset + record.microseconds * 1000
        if self._passed_at is not None:
            at = max(at, self._passed_at)
        return max(0, min(at, self._clock.now_ns()))

    def _own(self) -> Sample:
        lost: Value | Absent = self._lost
        if self._trouble is not None:
            lost = Absent(self._trouble.absence, str(self._trouble))
        return Sample(
            view=None,
            reader=NAME,
            lane=Lane.SLOW,
            measured_at=self._clock.now_ns(),
            values={"host_kernel_log_lost_messages_total": lost},
        )

    def _complain(self, error: ReaderError) -> None:
        if self._trouble is None or str(self._trouble) != str(error):
            log.warning("the kernel's log cannot be read, XIDs are not seen there: %s", error)
        self._trouble = error
