"""Criteria of a soak run. Pure, except for reading the store at the end."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from benchmarks.soak_load import GPUS_A_NODE
from gpufleet.stores.clickhouse.connection.client import open_connector
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn

FLAT_RATIO = 0.10
"""Memory is flat if, along its slope over the judged part, it grows by less than this part of its mean ..."""

FLAT_MIB = 16.0
"""... or by less than this."""

WARM_UP = 0.25
"""The first part of a run, in which caches fill: it is not judged."""

SHORTEST_MINUTES = 20.0
"""A run that is shorter ends before the caches are full, so memory is not judged."""

_ACTIVE = "SELECT sum(bytes_on_disk) FROM system.parts WHERE database = currentDatabase() AND active"

_EPOCHS = "SELECT epoch, count(), uniqExact(seq, view), max(seq) FROM samples GROUP BY epoch"


class Growth(msgspec.Struct, frozen=True):
    """Memory of one process over the judged part of a run: MiB, and MiB an hour along the least-squares slope."""

    mean: float
    grown: float
    an_hour: float

    @property
    def is_flat(self) -> bool:
        """Whether it stayed within the bound."""
        return self.grown < max(FLAT_RATIO * self.mean, FLAT_MIB)


def growth(readings: Sequence[tuple[float, float]]) -> Growth:
    """Judge (seconds, MiB) readings of a whole run, in order; at least two of them."""
    begin, end = readings[0][0], readings[-1][0]
    late = [one for one in readings if one[0] >= begin + WARM_UP * (end - begin)]
    mean_at = sum(at for at, _ in late) / len(late)
    mean = sum(size for _, size in late) / len(late)
    spread = sum((at - mean_at) ** 2 for at, _ in late)
    slope = sum((at - mean_at) * (size - mean) for at, size in late) / spread if spread else 0.0
    return Growth(mean=mean, grown=slope * (late[-1][0] - late[0][0]), an_hour=slope * 3600)


class Stored(msgspec.Struct, frozen=True):
    """Stored rows of one epoch: rows as they lie there, different ones, and the highest number."""

    rows: int
    different: int
    highest: int


def read_store(dsn: str) -> tuple[dict[str, Stored], int]:
    """Return epoch to what an embedded store that no process has open holds of it, and the bytes of its living parts.

    Parts that were merged into others stay in the folder for eight minutes more.
    """
    handle = open_connector(parse_dsn(dsn))()
    try:
        found = {epoch: Stored(*counts) for epoch, *counts in handle.query(_EPOCHS).result_rows}
        return found, int(handle.query(_ACTIVE).result_rows[0][0])
    finally:
        handle.close()


def audit(acknowledged: Mapping[str, int], stored: Mapping[str, Stored]) -> Iterable[str]:
    """Yield errors: each epoch must have every row of its acknowledged batches once, and no other.

    `acknowledged` is epoch to how many batches of it were acknowledged, numbered from 1 without a gap.
    """
    for epoch in stored.keys() - acknowledged.keys():
        yield f"epoch {epoch} is in the store but was never posted"
    for epoch, batches in acknowledged.items():
        wanted = batches * GPUS_A_NODE
        found = stored.get(epoch, Stored(0, 0, 0))
        if found.different != wanted or found.highest != batches:
            yield f"epoch {epoch}: {found.different} rows up to number {found.highest} of {wanted} up to {batches}"
        elif found.rows != found.different:
            yield f"epoch {epoch}: {found.rows - found.different} rows are in the store more than once"
