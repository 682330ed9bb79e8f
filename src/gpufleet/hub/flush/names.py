"""Removal of what was measured under a host name before its present bearer had the name. Pure.

Imported series identify their machine by its host name only. A backlog that arrives after a rename would go to the new
bearer of the name, and to its tenant of that time.
"""

from collections.abc import Mapping
from itertools import compress
from typing import TypeVar

import msgspec

from gpufleet.hub.flush.normalise import filter_rows
from gpufleet.model.wire.batch import DimBlock, MachinePart, SampleBlock, WireBatch

_Block = TypeVar("_Block", SampleBlock, DimBlock)


def without_earlier_rows(batch: WireBatch, since: Mapping[int, int]) -> tuple[WireBatch, int]:
    """Return a batch without the rows and events of before an instant, and their number.

    Args:
        batch: as decoded.
        since: position of a machine in the batch to that instant, nanoseconds since 1970.
    """
    removed = 0

    def of_block(block: _Block) -> _Block:
        nonlocal removed
        rows = zip(block.machine, block.measured_at, strict=True)
        keep = [at >= since.get(machine, 0) for machine, at in rows]
        if all(keep):
            return block
        removed += keep.count(False)
        return filter_rows(block, keep)

    def of_part(part: MachinePart) -> MachinePart:
        nonlocal removed
        keep = [event.at >= since.get(part.machine, 0) for event in part.events]
        if all(keep):
            return part
        removed += keep.count(False)
        return msgspec.structs.replace(part, events=list(compress(part.events, keep)))

    samples, dims = [of_block(block) for block in batch.samples], [of_block(block) for block in batch.dims]
    parts = [of_part(part) for part in batch.parts]
    return (msgspec.structs.replace(batch, samples=samples, dims=dims, parts=parts), removed) if removed else (batch, 0)
