"""Sums per user and per holder, and the tree of holders with their devices and processes. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.exporters.display import holder_text, owner_text
from gpufleet.model.holdings import DeviceHolders, HolderState
from gpufleet.top.rows import DeviceRow, ObservedRows, ProcessRow, row_key

UNKNOWN_USER = "(unknown)"
FREE, UNKNOWN, NOT_COLLECTED = "(free)", "(holder unknown)", "(holders not collected)"
"""Names of the groups of devices without a holder."""

SHARED = "(processes of shared devices)"
"""Name of the group of processes that are attributed to none of the holders of their device."""


class SumRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of a user, or of a holder.

    Attributes:
        kind: `user`, or the kind of the holder.
        name: name of the user or holder.
        owner: last owner of the holder, such as `Deployment serve`; empty if unknown.
        user: user of the holder; empty if unknown.
        devices: number of devices that it uses or has. A shared device counts for each holder.
        processes: number of its processes; None if no device lists them. Those on shared devices count for no holder.
        memory: device memory of the processes; None if no process reports it.
    """

    kind: str
    name: str
    owner: str = ""
    user: str = ""
    devices: int
    processes: int | None
    memory: float | None

    @property
    def search_text(self) -> str:
        """Return the text that filter and search look into, in lower case."""
        return f"{self.kind}\n{self.name}\n{self.owner}\n{self.user}".lower()


class HolderGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A holder with its devices; a node of the tree.

    Attributes:
        sums: sums of the holder.
        devices: rows of its devices, each with the processes on it.
    """

    sums: SumRow
    devices: tuple[tuple[DeviceRow, tuple[ProcessRow, ...]], ...]


def user_sums(processes: Iterable[ProcessRow]) -> list[SumRow]:
    """Return the sums of each user, most memory first."""
    by_user: dict[str, list[ProcessRow]] = {}
    for process in processes:
        by_user.setdefault(process.user or UNKNOWN_USER, []).append(process)
    sums = [
        SumRow(
            kind="user",
            name=user,
            devices=len({process.device for process in members}),
            processes=len({(process.node, process.pid) for process in members}),
            memory=_memory(members),
        )
        for user, members in by_user.items()
    ]
    return sorted(sums, key=lambda row: (-(row.memory or 0), row.name))


def holder_groups(listed: ObservedRows) -> list[HolderGroup]:
    """Return the tree of holders: those with the most devices first, then groups without a holder.

    A device that is split into parts has no holder of its own and is left out. A shared device is listed under each
    holder, and its processes in a group of their own: no source reports whose they are.
    """
    rows = {part.key: part for row in listed.devices for part in (row, *row.parts)}
    by_device: dict[str, list[ProcessRow]] = {}
    for process in listed.processes:
        by_device.setdefault(process.device, []).append(process)
    shared: list[DeviceRow] = []
    members: dict[tuple[str, str], list[DeviceRow]] = {}
    heads: dict[tuple[str, str], SumRow] = {}
    for node in listed.observation.nodes:
        for device in node.devices:
            row = rows.get(row_key(node, device))
            if row is None or (row.parts and device.holders is None):
                continue
            found = _holders_of(device.holders)
            if any(process.is_shared for process in by_device.get(row.key, ())):
                shared.append(row)
            for head, identity in found:
                heads.setdefault(identity, head)
                members.setdefault(identity, []).append(row)
    own = {key: [one for one in found if not one.is_shared] for key, found in by_device.items()}
    groups = [_group(heads[identity], found, own) for identity, found in members.items()]
    if shared:
        groups.append(_group(_plain_sum(SHARED), shared, by_device))
    return sorted(groups, key=lambda group: (group.sums.kind == "", -group.sums.devices, group.sums.name))


def _holders_of(holders: DeviceHolders | None) -> list[tuple[SumRow, tuple[str, str]]]:
    """Return a row without sums, and an identity, for each holder of a device; or those of a group without holder."""
    if holders is None or not holders.holdings:
        state = None if holders is None else holders.state
        name = NOT_COLLECTED if state is None else FREE if state is HolderState.FREE else UNKNOWN
        return [(_plain_sum(name), ("", name))]
    found: dict[tuple[str, str], SumRow] = {}
    for holding in holders.holdings:
        holder = holding.holder
        found[str(holder.kind), holder.id] = SumRow(
            kind=str(holder.kind),
            name=holder_text(holder, holding.parent),
            owner=owner_text(holder),
            user=holder.user,
            devices=0,
            processes=0,
            memory=None,
        )
    return [(row, identity) for identity, row in found.items()]


def _plain_sum(name: str) -> SumRow:
    return SumRow(kind="", name=name, devices=0, processes=0, memory=None)


def _group(head: SumRow, devices: Sequence[DeviceRow], by_device: dict[str, list[ProcessRow]]) -> HolderGroup:
    listed = tuple((device, tuple(by_device.get(device.key, ()))) for device in devices)
    processes = [process for _, found in listed for process in found]
    is_listed = any(device.lists_processes for device in devices)
    sums = msgspec.structs.replace(
        head,
        devices=len(devices),
        processes=len({(process.node, process.pid) for process in processes}) if is_listed else None,
        memory=_memory(processes),
    )
    return HolderGroup(sums=sums, devices=listed)


def _memory(processes: Iterable[ProcessRow]) -> float | None:
    known = [process.memory for process in processes if process.memory is not None]
    return sum(known) if known else None
