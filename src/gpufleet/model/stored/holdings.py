"""Holdings and holder states as machines reported them, and queries for holdings."""

import msgspec

from gpufleet.model.holdings import DeviceState, Holder, HolderKind, Holding, UnresolvedCount

HoldingPlace = tuple[str, str, str, str, str, str, int]
"""Identity of a stored holding: (cluster, machine, view, holder kind, holder id, container, start)."""


class StoredHolding(msgspec.Struct, frozen=True, kw_only=True):
    """Holding as its machine last reported it.

    Attributes:
        cluster, machine: the hub's ids.
        holding: as reported; its `until` is None while the machine reports it.
        reported_at: time of the newest report of it, nanoseconds since 1970 by the hub's clock.
    """

    cluster: str
    machine: str
    holding: Holding
    reported_at: int


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """Run of a job of a known SLURM cluster: its holdings with one start.

    SLURM starts a job again with its id, and gives an id to another job after a reset of its job ids.

    Attributes:
        holder: the job with its ids only: `id`, `array_job`, `array_task`, `owners` and `slurm_cluster`.
        first: start of its holdings, nanoseconds since 1970.
        last: latest end or report of its holdings, nanoseconds since 1970.
    """

    holder: Holder
    first: int
    last: int


class StoredHolderStates(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of the holder states of a machine's devices by a sender.

    Attributes:
        sender: name of the sender.
        reported_at: time of the report, nanoseconds since 1970 by the hub's clock.
        sent_at: creation of its batch, by the sender's clock.
        devices: state of each device in the report.
        unresolved: unresolved device names by source.
    """

    sender: str
    reported_at: int
    sent_at: int
    devices: tuple[DeviceState, ...]
    unresolved: tuple[UnresolvedCount, ...]


class HoldingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for holdings, in order of cluster, machine, view, holder and start.

    Attributes:
        cluster: only this cluster; None for all.
        machines: only these machines (the hub's ids); None for all.
        kind: only holders of this kind.
        ids: only holders with these ids; empty for all.
        groups: besides `ids`, also the tasks of these job arrays (`array_job`) and the components of these
            heterogeneous jobs (name of an owner).
        namespace, name, user, account, queue: only holders with this text; None for all. If a node reported a pod
            without namespace, name or queue, the text of a report of its cluster counts, possibly of an older one.
        start, end: only holdings that overlap this interval, nanoseconds since 1970, `end` excluded. A holding without
            an end is included until its last report is too old for it to last (`fleet.attribution.reported`).
        after: only holdings that follow this one in the order, by `holding_place`: the end of the previous page.
        limit: maximum number of holdings; None for all.
    """

    cluster: str | None = None
    machines: tuple[str, ...] | None = None
    kind: HolderKind | None = None
    ids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    namespace: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    queue: str | None = None
    start: int
    end: int
    after: HoldingPlace | None = None
    limit: int | None = None


def holding_place(stored: StoredHolding) -> HoldingPlace:
    """Return the place of a holding in the order of a query."""
    one = stored.holding
    return stored.cluster, stored.machine, one.view, one.holder.kind.value, one.holder.id, one.container, one.since
