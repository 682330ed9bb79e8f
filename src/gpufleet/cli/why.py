"""`gpufleet why`: explains the readings of a device, virtual machine or allocation."""

import datetime as dt
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.devices import find_device, find_guest, find_guest_device
from gpufleet.cli.explain import (
    Explanation,
    explain_answer,
    explain_device,
    explain_gpu,
    explain_guest,
    explain_guest_device,
    explain_host,
    explanation_tables,
    select_readings,
)
from gpufleet.cli.fetch import Access, HttpError, get
from gpufleet.cli.lookup import FORBIDDEN, NOT_FOUND, fetch_gpu
from gpufleet.cli.options import HUB_URL, AgentUrl, CaOption, CommandError, ConfigFile, Json, TokenFileOption, Wide
from gpufleet.cli.output import print_tables, write_json
from gpufleet.cli.source import take_snapshot
from gpufleet.cli.table import Layout
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.snapshot import Snapshot


def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="UUID or its prefix, PCI address, index, `host`, name of a virtual machine, or allocation id. With "
            "--hub: allocation id, UUID or its prefix, MACHINE/PCI_ADDRESS, or MACHINE/INDEX.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="Only metrics with this in their name; may be repeated."),
    ] = None,
    absent: Annotated[bool, typer.Option("--absent", help="Only absent readings.")] = False,
    wide: Wide = False,
    json: Json = False,
    agent: AgentUrl = None,
    hub: Annotated[
        str | None, typer.Option(metavar="URL", help=f"Hub of the allocation or GPU [default: {HUB_URL}].")
    ] = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show each reading of a device, virtual machine or allocation: value or absence reason, reader, side and age.

    Virtual machines need --agent. A name that matches nothing here is looked up as an allocation or GPU of the hub on
    this host.
    """
    access = Access(token_file, ca)
    explanation = _of_hub(hub, what, access) if hub is not None else _of_device(what, agent, config, access)
    explanation = select_readings(explanation, metric or (), absent=absent)
    if json:
        write_json(msgspec.json.encode(explanation))
        return
    print_tables([explanation.subject, *explanation.facts])
    print_tables(explanation_tables(explanation), Layout(wide=wide))


def _of_device(what: str, agent: str | None, config: ConfigFile, access: Access) -> Explanation:
    began = dt.datetime.now(dt.UTC) if agent is None else None
    snapshot = take_snapshot(agent, config, access)
    now = dt.datetime.now(dt.UTC)
    if what == "host":
        return explain_host(snapshot, now)
    found = find_device(snapshot, what)
    if found is None:
        guest = find_guest(snapshot, what)
        if guest is not None:
            return explain_guest(guest, now)
        inside = find_guest_device(snapshot, what)
        if inside is not None:
            return explain_guest_device(snapshot, *inside, now)
        known = ", ".join(device.uuid or device.pci_address or device.key for device in snapshot.devices) or "none"
        try:
            return _of_hub(HUB_URL, what, access)
        except CommandError as error:
            raise CommandError(
                f"{snapshot.node.name} has no device {what}; its devices: {known}. Use `host` for the machine itself\n"
                f"{what} was not found as an allocation or GPU of the hub on this host: {error}\n"
                f"use --hub URL for an allocation or GPU of another hub\n{_guests_known(snapshot, agent)}"
            ) from error
    return explain_device(snapshot, *found, now, began)


def _guests_known(snapshot: Snapshot, agent: str | None) -> str:
    if agent is None:
        return "use --agent URL for a virtual machine"
    names = ", ".join(guest.machine.name for guest in snapshot.guests) or "none"
    return f"virtual machines of the agent: {names}"


def _of_hub(hub: str, what: str, access: Access) -> Explanation:
    """Explain the allocation with this id, otherwise the GPU."""
    try:
        return _of_allocation(hub, what, access)
    except HttpError as error:
        if error.status != NOT_FOUND:
            raise
        try:
            return explain_gpu(fetch_gpu(hub, what, access), dt.datetime.now(dt.UTC))
        except HttpError as other:
            if other.status == NOT_FOUND or other.status in FORBIDDEN:
                raise CommandError(f"{error}\n{other}") from other
            raise


def _of_allocation(hub: str, what: str, access: Access) -> Explanation:
    body = get(hub, f"/v1/allocations/{quote(what, safe='')}/metrics", access)
    try:
        return explain_answer(msgspec.json.decode(body, type=AllocationAnswer))
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error
