"""`gpufleet events`: what happened on this machine of late."""

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
        str | None, typer.Argument(metavar="[WHAT]", help="Only of a device: start of a UUID, PCI address or index.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only of this kind, such as xid.")] = None,
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show what happened: XIDs, resets, throttles, drivers; the newest first.

    An agent (--agent) remembers the newest 200. Without one, only what the kernel's log still has is seen.
    """
    snapshot = take_snapshot(agent, config, Access(token_file, ca))
    found = snapshot.events
    if what is not None:
        device = find_device(snapshot, what)
        if device is None:
            known = ", ".join(one.uuid or one.pci_address or one.key for one in snapshot.devices) or "none"
            raise CommandError(f"no device of {snapshot.node.name} is {what}; its devices: {known}")
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
