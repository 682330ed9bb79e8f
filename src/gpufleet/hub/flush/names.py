"""Removal of what was measured under a host name when the name's present bearer had another one. Pure.

Imported series identify their machine by its host name only. A backlog that arrives after a rename would go to the new
bearer of the name, and to its tenant of that time.
"""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TypeVar

import msgspec

from gpufleet.dialects.sample_builder import SERIES_ENDED
from gpufleet.hub.flush.normalise import filter_rows
from gpufleet.model.absence import Absent
from gpufleet.model.stored.ledger import NameInterval
from gpufleet.model.wire.batch import DimBlock, MachinePart, SampleBlock, WireBatch

_Block = TypeVar("_Block", SampleBlock, DimBlock)

Span = tuple[int, int]
"""Start and end in nanoseconds since 1970, end excluded."""


def times_of_name(names: Sequence[NameInterval], name: str) -> list[Span] | None:
    """Return the times in which a machine had a host name; None if it has always had one name.

    Args:
        names: all its names over time, as of `ports.Registry.past_names`.
        name: a host name.
    """
    return [(one.start, one.end) for one in names if one.name == name] if len(names) > 1 else None


def is_within(at: int, spans: Sequence[Span] | None) -> bool:
    """Return whether an instant is in any of the intervals; None has every instant."""
    return spans is None or any(start <= at < end for start, end in spans)


def ended_machines(batch: WireBatch) -> set[int]:
    """Return the positions of machines about which a batch reports the end of series only.

    Prometheus ends the series of an earlier name when labels change.
    """
    ended = [len(own) if all(Absent(one.reason, one.detail) == SERIES_ENDED for one in own) else 0
             for own in batch.absences]  # fmt: skip
    if not any(ended):
        return set()
    reported = {part.machine for part in batch.parts}
    blocks: list[SampleBlock | DimBlock] = [*batch.samples, *batch.dims]
    for block in blocks:
        width = len(block.metrics) if isinstance(block, SampleBlock) else 1
        pairs = zip(block.machine, block.absence, strict=True)
        reported |= {machine for machine, absence in pairs if absence < 0 or ended[absence] < width}
    return {machine for block in blocks for machine in block.machine} - reported


def without_other_names(batch: WireBatch, named: Mapping[int, Sequence[Span]]) -> tuple[WireBatch, int]:
    """Return a batch without the rows, events and holdings from other times, and their number.

    A holding counts by its start: its holder was first seen then.

    Args:
        batch: as decoded.
        named: position of a machine in the batch to the times in which it had the name; others are not changed.
    """
    removed = 0

    def was_named(machine: int, at: int) -> bool:
        return is_within(at, named.get(machine))

    def of_block(block: _Block) -> _Block:
        nonlocal removed
        keep = [was_named(machine, at) for machine, at in zip(block.machine, block.measured_at, strict=True)]
        if all(keep):
            return block
        removed += keep.count(False)
        return filter_rows(block, keep)

    def of_part(part: MachinePart) -> MachinePart:
        nonlocal removed
        events = [was_named(part.machine, event.at) for event in part.events]
        holdings = [was_named(part.machine, holding.since) for holding in part.holdings]
        if all(events) and all(holdings):
            return part
        removed += events.count(False) + holdings.count(False)
        return msgspec.structs.replace(
            part, events=list(compress(part.events, events)), holdings=list(compress(part.holdings, holdings))
        )

    samples, dims = [of_block(block) for block in batch.samples], [of_block(block) for block in batch.dims]
    parts = [of_part(part) for part in batch.parts]
    return (msgspec.structs.replace(batch, samples=samples, dims=dims, parts=parts), removed) if removed else (batch, 0)
