"""Answers about holders: which pods, jobs and virtual machines have which devices of the fleet."""

import datetime as dt

import msgspec

from gpufleet.model.holdings import Holder, HoldingVerdict, Share
from gpufleet.model.liveness import Liveness
from gpufleet.model.reading import Reading


class HolderAllocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Allocation that names a holder, in an answer to an operator.

    Attributes:
        id: its id.
        tenant: its tenant, or None.
    """

    id: str
    tenant: str | None = None


class HolderRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Row of `GET /v1/holders`: a holder of a device in an interval.

    Attributes:
        cluster, machine: machine of the device, by the hub's ids.
        node: name of the machine.
        liveness: of the machine; None if the hub has no record of it.
        device: id of the view, `cluster/machine/view key`, usable at `/v1/gpus/{id}`.
        uuid, index, model: of the device as reported last; `index` is not an identity.
        holder, parent, container, container_id, steps, share, replicas, total_replicas, claim, methods, verdict: as in
            `Holding`.
        since: when it began, by the machine's clock.
        until: when it ended; None while it is reported. The last report of it if no report of it followed in time.
        reported_at: when the hub received its newest report.
        age_seconds: since then.
        current: it lasts, and its machine is live or late. Otherwise the present holder is not known from it.
        readings: utilisation and used memory of the device, if `current`.
        allocations: those that name the holder or its parent at any time of the holding.
    """

    cluster: str
    machine: str
    node: str
    liveness: Liveness | None = None
    device: str
    uuid: str | None = None
    index: int | None = None
    model: str | None = None
    holder: Holder
    parent: Holder | None = None
    container: str = ""
    container_id: str = ""
    steps: tuple[str, ...] = ()
    share: Share
    replicas: int = 0
    total_replicas: int = 0
    claim: str = ""
    methods: tuple[str, ...]
    verdict: HoldingVerdict
    since: dt.datetime
    until: dt.datetime | None = None
    reported_at: dt.datetime
    age_seconds: float
    current: bool
    readings: dict[str, Reading] = {}
    allocations: tuple[HolderAllocation, ...] = ()


class HolderPage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/holders`.

    Attributes:
        items: by cluster, machine, device and holder. A page can have fewer than its limit.
        next: `cursor` of the next page; None on the last.
    """

    items: tuple[HolderRecord, ...]
    next: str | None


class NodeHolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Present holder of devices of a node.

    Attributes:
        holder, parent: as in `Holding`.
        devices: number of views that it has.
        verdict: the least certain one of them.
    """

    holder: Holder
    parent: Holder | None = None
    devices: int
    verdict: HoldingVerdict
