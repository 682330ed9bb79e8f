"""`gpufleet machine`: shows and retires machines of a hub."""

from typing import Annotated
from urllib.parse import quote

import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.options import HUB_URL, CaOption, HubUrl, TokenFileOption
from gpufleet.cli.output import print_json

machine_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and retire machines.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id or name of the machine; see `gpufleet query machines`.")]


@machine_app.command("get")
def show(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Show a machine: its identity evidence, sender and freshness."""
    print_json(get(hub, _path(id), Access(token_file, ca)))


@machine_app.command()
def retire(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Retire a machine: it is no longer expected. A later report of the machine reactivates it."""
    print_json(send(hub, _path(id), Access(token_file, ca), method="DELETE"))


def _path(id: str) -> str:  # noqa: A002
    return f"/v1/machines/{quote(id, safe='')}"
