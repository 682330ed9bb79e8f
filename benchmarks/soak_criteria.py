"""Criteria of a soak run: flat memory, and a complete store."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from benchmarks.soak_load import GPUS_PER_NODE
from gpufleet.stores.clickhouse.connection.client import open_connector
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn

FLAT_RATIO = 0.10
"""Memory is flat if its growth along the slope of the judged part is less than this ratio of its mean ..."""

FLAT_MIB = 16.0
"""... or less than this number of MiB."""

WARM_UP = 0.25
"""First part of a run, which is not judged because caches are filling."""

SHORTEST_MINUTES = 20.0
"""Memory is not judged in shorter runs, as they end before the caches are full."""

_ACTIVE = "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = currentDatabase() AND active"

_EPOCHS = "SELECT epoch, count(), uniqExact(seq, subject), max(seq) FROM samples GROUP BY epoch"


class Growth(msgspec.Struct, frozen=True):
    """Memory of one process over the judged part of a run: mean and growth in MiB, and least-squares slope in MiB/h."""

    mean: float
    grown: float
    per_hour: float

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within the limit."""
        return self.grown < max(FLAT_RATIO * self.mean, FLAT_MIB)


def growth(readings: Sequence[tuple[float, float]]) -> Growth:
    """Return the growth of a run's (seconds, MiB) readings, at least two, in order."""
    begin, end = readings[0][0], readings[-1][0]
    late = [one for one in readings if one[0] >= begin + WARM_UP * (end - begin)]
    mean_at = sum(at for at, _ in late) / len(late)
    mean = sum(size for _, size in late) / len(late)
    spread = sum((at - mean_at) ** 2 for at, _ in late)
    slope = sum((at - mean_at) * (size - mean) for at, size in late) / spread if spread else 0.0
    return Growth(mean=mean, grown=slope * (late[-1][0] - late[0][0]), per_hour=slope * 3600)


class Stored(msgspec.Struct, frozen=True):
    """Stored rows of one epoch: physical rows, distinct rows, and the highest number."""

    rows: int
    distinct: int
    highest: int


def read_store(dsn: str) -> tuple[dict[str, Stored], int]:
    """Return the rows by epoch and the bytes of active parts of a closed embedded store.

    Merged parts stay in the folder for another eight minutes and are not counted.
    """
    handle = open_connector(parse_dsn(dsn))()
    try:
        found = {epoch: Stored(*counts) for epoch, *counts in handle.query(_EPOCHS).result_rows}
        return found, int(handle.query(_ACTIVE).result_rows[0][0])
    finally:
        handle.close()


def audit(acknowledged: Mapping[str, int], stored: Mapping[str, Stored]) -> Iterable[str]:
    """Yield errors: each epoch must have every row of its acknowledged batches once, and no other row.

    `acknowledged` is the number of acknowledged batches by epoch, numbered from 1 without a gap.
    """
    for epoch in stored.keys() - acknowledged.keys():
        yield f"epoch {epoch} is in the store but was never posted"
    for epoch, batches in acknowledged.items():
        wanted = batches * GPUS_PER_NODE
        found = stored.get(epoch, Stored(0, 0, 0))
        if found.distinct != wanted or found.highest != batches:
            yield f"epoch {epoch}: {found.distinct} rows up to number {found.highest} of {wanted} up to {batches}"
        elif found.rows != found.distinct:
            yield f"epoch {epoch}: {found.rows - found.distinct} rows are in the store more than once"
