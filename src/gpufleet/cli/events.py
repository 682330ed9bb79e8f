"""`gpufleet events`: shows recent events of this machine."""

import shutil
import sys
from typing import Annotated

import msgspec
import typer

from gpufleet.cli.devices import find_device
from gpufleet.cli.fetch import Access
from gpufleet.cli.options import AgentUrl, CaOption, CommandError, ConfigFile, Json, TokenFileOption
from gpufleet.cli.source import take_snapshot


def events(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[WHAT]", help="Only events of this device: UUID or its prefix, PCI address or index."),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only events of this kind, for example xid.")] = None,
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show events, newest first: XIDs, resets, throttling, driver changes.

    A running agent (--agent) keeps the newest 200. Without --agent, only events still in the kernel log are shown.
    """
    snapshot = take_snapshot(agent, config, Access(token_file, ca))
    found = snapshot.events
    if what is not None:
        device = find_device(snapshot, what)
        if device is None:
            known = ", ".join(one.uuid or one.pci_address or one.key for one in snapshot.devices) or "none"
            raise CommandError(f"{snapshot.node.name} has no device {what}; its devices: {known}")
        names = {device[0].key, f"gpu/pci/{device[0].pci_address}"}
        found = tuple(event for event in found if event.device in names)
    if kind is not None:
        found = tuple(event for event in found if event.kind == kind)
    if json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        return
    from gpufleet.cli.query_tables import event_reports, render

    width = shutil.get_terminal_size((140, 40)).columns
    sys.stdout.write(render(event_reports(found), width=width, colour=sys.stdout.isatty()))
