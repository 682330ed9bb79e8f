"""`gpufleet why`: explains the readings of a device, virtual machine or allocation."""

import datetime as dt
import shutil
import sys
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.devices import find_device, find_guest, find_guest_device
from gpufleet.cli.explain import (
    Explanation,
    explain_answer,
    explain_device,
    explain_guest,
    explain_guest_device,
    explain_host,
)
from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import HUB_URL, AgentUrl, CaOption, CommandError, ConfigFile, Json, TokenFileOption
from gpufleet.cli.source import take_snapshot
from gpufleet.model.api.answer import AllocationAnswer
from gpufleet.model.snapshot import Snapshot


def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="UUID or its prefix, PCI address, index, `host`, name of a virtual machine, or allocation id.",
        ),
    ],
    json: Json = False,
    agent: AgentUrl = None,
    hub: Annotated[str | None, typer.Option(metavar="URL", help=f"Hub of the allocation [default: {HUB_URL}].")] = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show each reading of a device, virtual machine or allocation: value or absence reason, reader, side and age.

    Virtual machines need --agent. A name that matches nothing here is looked up as an allocation of the hub on this
    host.
    """
    access = Access(token_file, ca)
    explanation = _of_allocation(hub, what, access) if hub is not None else _of_device(what, agent, config, access)
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(explanation) + b"\n")
        return
    from gpufleet.cli.explain import render_explanation

    page = render_explanation(
        explanation, width=shutil.get_terminal_size((140, 40)).columns, colour=sys.stdout.isatty()
    )
    sys.stdout.write(page)


def _of_device(what: str, agent: str | None, config: ConfigFile, access: Access) -> Explanation:
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
            return _of_allocation(HUB_URL, what, access)
        except CommandError as error:
            raise CommandError(
                f"{snapshot.node.name} has no device {what}; its devices: {known}. Use `host` for the machine itself\n"
                f"it is not an allocation of the hub on this host either: {error}\n"
                f"use --hub URL for an allocation of another hub\n{_guests_known(snapshot, agent)}"
            ) from error
    return explain_device(snapshot, *found, now)


def _guests_known(snapshot: Snapshot, agent: str | None) -> str:
    if agent is None:
        return "use --agent URL for a virtual machine"
    names = ", ".join(guest.machine.name for guest in snapshot.guests) or "none"
    return f"virtual machines of the agent: {names}"


def _of_allocation(hub: str, what: str, access: Access) -> Explanation:
    body = get(hub, f"/v1/allocations/{quote(what, safe='')}/metrics", access)
    try:
        return explain_answer(msgspec.json.decode(body, type=AllocationAnswer))
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a hub of this version: {error}") from error
