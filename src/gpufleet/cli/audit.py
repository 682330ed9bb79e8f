"""`gpufleet audit`: who wrote what to a hub."""

from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import HUB_URL, CaOption, HubUrl, Json, TokenFileOption
from gpufleet.cli.query import ask
from gpufleet.model.access import AuditRecord


def audit(
    hub: HubUrl = HUB_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many entries.")] = 100,
    before: Annotated[int | None, typer.Option(metavar="NUMBER", help="Only entries before this one.")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the audit log, newest first: every write, and every change of a token. Takes an admin's token."""
    wanted = {"limit": str(limit), "before": None if before is None else str(before)}
    ask(hub, "/v1/audit", wanted, tuple[AuditRecord, ...], "audit", json, Access(token_file, ca))
