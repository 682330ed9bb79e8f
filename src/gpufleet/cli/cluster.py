"""`gpufleet cluster`: registers, shows and closes clusters of a hub."""

from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.options import HUB_URL, CaOption, HubUrl, TokenFileOption
from gpufleet.cli.output import print_json
from gpufleet.model.cluster import ClusterSpec

cluster_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Register, show and close clusters.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the cluster.")]


@cluster_app.command()
def put(
    id: Id,  # noqa: A002 - the argument's name
    environment: Annotated[str | None, typer.Option(help="Environment, for example production.")] = None,
    team: Annotated[str | None, typer.Option(help="Team that runs it.")] = None,
    contact: Annotated[str | None, typer.Option(help="Contact of the team.")] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=GPUS", help="Expected number of GPUs of a class; may be repeated."),
    ] = None,
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Register or replace a cluster; omitted options are cleared."""
    spec = ClusterSpec(
        environment=environment, team=team, contact=contact, expected=dict(_expected(one) for one in expect or ())
    )
    print_json(send(hub, _path(id), Access(token_file, ca), method="PUT", body=msgspec.json.encode(spec)))


@cluster_app.command("get")
def show(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Show a cluster."""
    print_json(get(hub, _path(id), Access(token_file, ca)))


@cluster_app.command("list")
def list_all(hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:
    """Show all clusters, including closed ones."""
    print_json(get(hub, "/v1/clusters", Access(token_file, ca)))


@cluster_app.command()
def close(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Close a cluster: its batches are rejected; nothing is deleted."""
    print_json(send(hub, _path(id), Access(token_file, ca), method="DELETE"))


def _path(id: str) -> str:  # noqa: A002
    return f"/v1/clusters/{quote(id, safe='')}"


def _expected(text: str) -> tuple[str, int]:
    name, equals, count = text.rpartition("=")
    if not name or not equals or not count.isascii() or not count.isdigit():
        raise typer.BadParameter(f"{text!r} is not CLASS=GPUS, for example H200=64", param_hint="--expect")
    return name, int(count)
