"""`gpufleet who`: shows which pod, job or virtual machine has each GPU of this machine."""

import datetime as dt
from typing import Annotated

import msgspec
import typer

from gpufleet.cli.devices import find_device
from gpufleet.cli.fetch import Access
from gpufleet.cli.options import (
    AgentUrl,
    CaOption,
    Columns,
    CommandError,
    ConfigFile,
    Json,
    Limit,
    Sort,
    TokenFileOption,
    Wide,
)
from gpufleet.cli.output import print_tables, repeat, write_json
from gpufleet.cli.query.cells import since_cell
from gpufleet.cli.query.request import make_layout
from gpufleet.cli.source import take_snapshot
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.exporters.display import holder_text, owner_text, share_text, unresolved_text
from gpufleet.model.holdings import DeviceHolders, Holding, UnresolvedDevices
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import to_datetime
from gpufleet.model.view import ViewKind

SOURCE_PREFIX = "holders_"
"""Prefix of the capabilities of holder sources."""

MAX_NAMES = 3
"""Most unresolved device names in the note below the table; `--json` has more."""

COLUMNS = (
    TextColumn("gpu", right=True),
    TextColumn("uuid", rank=4),
    TextColumn("state"),
    TextColumn("kind", rank=5),
    TextColumn("holder", cut=True),
    TextColumn("container", rank=6, cut=True),
    TextColumn("user", rank=7),
    TextColumn("share", rank=3),
    TextColumn("verdict", rank=2),
    TextColumn("since", rank=1),
    TextColumn("methods", wide=True),
    TextColumn("owner", rank=8, cut=True),
    TextColumn("queue", wide=True),
    TextColumn("id", wide=True),
)


class HeldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device and its holders, for `--json`."""

    device: str
    index: int | None
    uuid: str | None
    pci_address: str | None
    holders: DeviceHolders


class HolderListing(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `--json`.

    Attributes:
        devices: devices with known holders.
        unresolved: device names of holder sources that identify no device here; None if holders are not collected.
    """

    devices: tuple[HeldDevice, ...]
    unresolved: UnresolvedDevices | None


def who(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHAT]", help="Only this device and its MIG devices: UUID or its prefix, PCI address or index."
        ),
    ] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Annotated[str | None, typer.Option(metavar="SPAN", help="Repeat at this interval, such as 5s.")] = None,
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show which pod, job or virtual machine has each GPU.

    `free` means that every source answers and none reports a holder. `unknown` means that a source does not answer, or
    that there is none. A running agent (--agent) also knows since when.
    """
    layout = make_layout(wide, columns, sort, limit, as_json=json)

    def once() -> None:
        began = dt.datetime.now(dt.UTC) if agent is None else None
        snapshot = take_snapshot(agent, config, Access(token_file, ca))
        devices = [device for device in _wanted(snapshot, what) if device.holders is not None]
        if json:
            records = tuple(map(_record, devices))
            write_json(msgspec.json.encode(HolderListing(devices=records, unresolved=snapshot.unresolved)))
        else:
            print_tables(who_tables(snapshot, devices, began=began), layout)

    repeat(once, watch)


def who_tables(snapshot: Snapshot, devices: list[Device], *, began: dt.datetime | None = None) -> list[TextTable | str]:
    """Return the table of holders, and a note for each source that does not answer fully.

    Args:
        snapshot: the document.
        devices: those to show.
        began: when this process began to collect the holders, or None if an agent did. A holding that begins later has
            no known start.
    """
    indices = {device.key: device.index for device in snapshot.devices}
    rows = [row for device in devices for row in _rows(device, indices, snapshot.measured_at, began)]
    details = {device.holders.detail for device in devices if device.holders is not None and device.holders.detail}
    sources = {
        name.removeprefix(SOURCE_PREFIX): text
        for name, text in snapshot.capabilities.items()
        if name.startswith(SOURCE_PREFIX)
    }
    notes = [*sorted(details), *_unresolved_notes(snapshot.unresolved)]
    notes += [f"{name}: {text}" for name, text in sources.items() if not text.startswith(("available", "not_enabled"))]
    if not sources:
        notes.append("holders are not collected: enable a source in [holders] of the agent's configuration")
    return [TextTable(COLUMNS, rows, what="devices with known holders"), *notes]


def _unresolved_notes(unresolved: UnresolvedDevices | None) -> list[str]:
    """Return a note about the device names that identify no device here, if there are any."""
    count = sum(unresolved.counts.values()) if unresolved is not None else 0
    if unresolved is None or not count:
        return []
    names = [unresolved_text(one) for one in unresolved.devices[:MAX_NAMES]]
    more = f"; and {count - len(names)} more" if count > len(names) else ""
    noun = "device name identifies" if count == 1 else "device names identify"
    return [f"{count} {noun} no device of this machine: {'; '.join(names)}{more}"]


def _wanted(snapshot: Snapshot, what: str | None) -> list[Device]:
    if what is None:
        return list(snapshot.devices)
    found = find_device(snapshot, what)
    if found is None:
        known = ", ".join(one.uuid or one.pci_address or one.key for one in snapshot.devices) or "none"
        raise CommandError(f"{snapshot.node.name} has no device {what}; its devices: {known}")
    device = found[0]
    return [device, *(one for one in snapshot.devices if one.parent == device.key)]


def _record(device: Device) -> HeldDevice:
    assert device.holders is not None
    return HeldDevice(
        device=device.key,
        index=device.index,
        uuid=device.uuid,
        pci_address=device.pci_address,
        holders=device.holders,
    )


def _rows(
    device: Device, indices: dict[str, int | None], now: dt.datetime, began: dt.datetime | None
) -> list[list[Cell | str]]:
    assert device.holders is not None
    index = device.index if device.kind is ViewKind.GPU else indices.get(device.parent or "")
    number = "-" if index is None else str(index)
    if device.kind is not ViewKind.GPU:
        number += f":{device.instance or '?'}"
    identity = device.uuid or device.pci_address or device.key
    name = Cell(identity[:12], full=identity)
    state = device.holders.state
    if not device.holders.holdings:
        return [[number, name, str(state), *[""] * (len(COLUMNS) - 3)]]
    return [[number, name, str(state), *_holding_cells(one, now, began)] for one in device.holders.holdings]


def _holding_cells(holding: Holding, now: dt.datetime, began: dt.datetime | None) -> list[Cell | str]:
    holder, since = holding.holder, to_datetime(holding.since)
    return [
        str(holder.kind),
        holder_text(holder, holding.parent),
        holding.container,
        holder.user,
        share_text(holding.share, holding.replicas, holding.total_replicas),
        str(holding.verdict),
        Cell() if began is not None and since >= began else since_cell(since, now),
        "+".join(holding.methods),
        owner_text(holder),
        holder.queue,
        holder.id,
    ]
