"""One run of sequence numbers: which are held, and whether a body can be of the same sender as those. Pure.

Two machines can count under one epoch: a copied disk image has the spool in it, a machine that was set back to a
snapshot has an older one. A number that is held says nothing then of the body that comes under it. So a number is only
taken for a repetition if the body is known to be the same, and a process whose numbers lie among those of another
process of the sender is another machine's: a sender's processes follow one another, and so do their numbers.
"""

from typing import Self

import msgspec

from gpufleet.hub.digests import Digests
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.order import Order
from gpufleet.model.ledger import Held, ProcessSpan
from gpufleet.model.wire import WireBatch

PROCESSES_KEPT = 16
"""Spans of a sender's processes that are remembered, of the highest numbers."""


class Run:
    """The run of one sender and epoch."""

    def __init__(self, held: Held | None = None) -> None:
        """Take what an earlier run's `held` was."""
        held = held or Held(ranges=())
        self.numbers = Intervals(held.ranges)
        self._digests = Digests(held.digests)
        self._processes = held.processes
        self.order = Order(held.gap_ends, held.top)

    @property
    def held(self) -> Held:
        """Everything that is remembered."""
        return Held(
            ranges=self.numbers.ranges,
            digests=self._digests.content,
            processes=self._processes,
            gap_ends=self.order.gaps,
            top=self.order.top,
        )

    def copy(self) -> Self:
        """Return another run that remembers the same."""
        return type(self)(self.held)

    def hold(self, batch: WireBatch, digest: int, received_at: int) -> None:
        """Remember a batch; `received_at` by the hub's clock, nanoseconds since 1970."""
        self.numbers.add(batch.seq)
        self._digests.add(batch.seq, digest, received_at, self.numbers)
        self._processes = _with(self._processes, batch)

    def has(self, seq: int, digest: int) -> bool:
        """Tell whether this very body is held under the number."""
        return seq in self.numbers and self._digests.get(seq) == digest

    def contradiction(self, batch: WireBatch) -> str:
        """Say why a body that is not held cannot follow what is; empty where it can."""
        if batch.seq in self.numbers:
            if self._digests.get(batch.seq) is None:
                return f"number {batch.seq} came long ago, and nothing shows that this is the same batch"
            return f"number {batch.seq} came with another content"
        other = _overlapped(self._processes, batch)
        if other is None:
            return ""
        return f"number {batch.seq} is among the numbers {other.first} to {other.last} of another process"


def _overlapped(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> ProcessSpan | None:
    """Return another process that spoke between this process's numbers, or in the middle of whose this one speaks."""
    if batch.heartbeat is None:
        return None
    started = batch.heartbeat.started_at
    own = next((one for one in processes if one.started_at == started), None)
    first, last = (min(own.first, batch.seq), max(own.last, batch.seq)) if own else (batch.seq, batch.seq)
    others = (one for one in processes if one.started_at != started)
    return next((one for one in others if one.first <= last and first <= one.last), None)


def _with(processes: tuple[ProcessSpan, ...], batch: WireBatch) -> tuple[ProcessSpan, ...]:
    if batch.heartbeat is None:
        return processes
    started, seq = batch.heartbeat.started_at, batch.seq
    for place, one in enumerate(processes):
        if one.started_at == started:
            if one.first <= seq <= one.last:
                return processes
            wider = msgspec.structs.replace(one, first=min(one.first, seq), last=max(one.last, seq))
            return (*processes[:place], wider, *processes[place + 1 :])
    return tuple(sorted((*processes, ProcessSpan(started, seq, seq)), key=lambda one: one.first))[-PROCESSES_KEPT:]
