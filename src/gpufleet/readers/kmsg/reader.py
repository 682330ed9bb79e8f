"""The kernel log reader: messages of the driver become events, also while the driver's library hangs."""

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
from gpufleet.readers.kmsg.mapping import address_of, map_message
from gpufleet.readers.kmsg.parse import KERNEL, KmsgRecord, MessageParser, UuidMessage, parse_line

log = logging.getLogger(__name__)

NAME = "kmsg"
PATH = Path("/dev/kmsg")

LINES_PER_STEP = 2_000
"""Lines between yields to the event loop."""

MAX_LINES = 200_000
"""Maximum lines per pass; the rest is read in the next pass. A kernel has at most some tens of thousands at a time."""

MAX_EVENTS = 1_000
"""Maximum events per pass. The rest remains in the kernel's buffer of limited size; lost messages are counted."""

MAX_UUIDS = 1_024


class KmsgReader:
    """Reads the log from its oldest record on, then new records.

    It keeps no state over restarts: each event contains its record number, by which the receiver removes duplicates.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        path: Path = PATH,
        since_boot: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Create the reader; the first `read` opens the log.

        Args:
            clock: wall clock.
            path: path of the log, or of a FIFO or file with the same lines.
            since_boot: nanoseconds by the clock of the kernel's timestamps.
        """
        self._clock, self._path, self._since_boot = clock, path, since_boot
        self._log: KernelLog | None = None
        self._parser = MessageParser()
        self._uuids: dict[str, str] = {}
        self._offset = 0
        self._newest: int | None = None  # number of the last record read
        self._passed_at: int | None = None  # wall clock at the last end of the log
        self._lost = 0
        self._error: ReaderError | None = None

    @property
    def name(self) -> str:
        """Return `kmsg`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return event, and slow for readings of the log itself."""
        return (Lane.EVENT, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass: new events on the event lane, readings of the log itself on the slow lane.

        A log that cannot be read is not a failure of this reader: the readings are absent with the reason, and the
        error is logged once.
        """
        try:
            kernel_log = self._open()
            events = await self._read_events(kernel_log) if lane is Lane.EVENT else []
        except ReaderError as error:
            self._log_error(error)
            await self.close()
            events = []
        else:
            self._error = None
        return Round(events=tuple(events), samples=(self._log_sample(),) if lane is Lane.SLOW else ())

    async def close(self) -> None:
        """Close the log; the next `read` starts again at its oldest record."""
        if self._log is not None:
            self._log.close()
        self._log, self._newest, self._passed_at = None, None, None

    def _open(self) -> KernelLog:
        if self._log is None:
            self._log = KernelLog(self._path)
            self._offset = self._clock.now_ns() - self._since_boot()
        return self._log

    async def _read_events(self, kernel_log: KernelLog) -> list[Event]:
        events: list[Event] = []
        lines = 0
        while lines < MAX_LINES and len(events) < MAX_EVENTS:
            batch = kernel_log.lines(min(LINES_PER_STEP, MAX_EVENTS - len(events)))
            if not batch:
                self._passed_at = self._clock.now_ns()
                break
            lines += len(batch)
            for line in batch:
                event = self._parse_event(line)
                if event is not None:
                    events.append(event)
            await asyncio.sleep(0)
        return events

    def _parse_event(self, line: bytes) -> Event | None:
        record = parse_line(line)
        if record is None:
            return None
        if self._newest is not None and record.seq > self._newest + 1:
            self._lost += record.seq - self._newest - 1
        self._newest = record.seq
        if record.facility != KERNEL:
            return None  # written by a process, not by the driver
        message = self._parser.parse(record.text)
        if isinstance(message, UuidMessage):
            if len(self._uuids) < MAX_UUIDS:
                self._uuids[address_of(message.pci)] = message.uuid
            return None
        if message is None:
            return None
        return map_message(message, self._instant(record), seq=record.seq, uuids=self._uuids)

    def _instant(self, record: KmsgRecord) -> int:
        """Return the wall-clock time of a record.

        The kernel's timestamp counts from boot by a clock that is never corrected and stops during suspend. The time of
        a record that arrived since a pass reached the end of the log is limited to the interval between that pass and
        now. For older records the timestamp is used unchanged: a pass that ends at its maximum leaves some of them.
        """
        at = self._offset + record.microseconds * 1000
        if self._passed_at is not None:
            at = max(at, self._passed_at)
        return max(0, min(at, self._clock.now_ns()))

    def _log_sample(self) -> Sample:
        lost: Value | Absent = self._lost
        if self._error is not None:
            lost = Absent(self._error.absence, str(self._error))
        return Sample(
            view=None,
            reader=NAME,
            lane=Lane.SLOW,
            measured_at=self._clock.now_ns(),
            values={"host_kernel_log_lost_messages_total": lost},
        )

    def _log_error(self, error: ReaderError) -> None:
        if self._error is None or str(self._error) != str(error):
            log.warning("the kernel log cannot be read, XIDs in it are not reported: %s", error)
        self._error = error
