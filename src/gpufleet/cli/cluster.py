"""`gpufleet cluster`: registers, shows and closes clusters of a hub."""

import datetime as dt
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.options import HUB_URL, CaOption, HubUrl, TokenFileOption
from gpufleet.cli.output import print_json
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import ContractWaiver, Tier

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
    tier: Annotated[
        int | None,
        typer.Option(min=0, max=4, help="Tier of the adoption contract [default: the tier of most of its machines]."),
    ] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ITEM:DATE:REASON", help="Waiver of an item of the contract until a date; may be repeated."
        ),
    ] = None,
    netdata_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of a node's Netdata, such as http://{node}:19999/, for a link on the node's page for operators.",
        ),
    ] = None,
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Register or replace a cluster; omitted options are cleared."""
    spec = ClusterSpec(
        environment=environment,
        team=team,
        contact=contact,
        expected=dict(_expected(one) for one in expect or ()),
        tier=None if tier is None else Tier(tier),
        waivers=tuple([_waiver(one) for one in waive or ()]),
        netdata_url=netdata_url,
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


def _waiver(text: str) -> ContractWaiver:
    """Return the waiver; it ends at 00:00 UTC of its date."""
    item, _, rest = text.partition(":")
    until, _, reason = rest.partition(":")
    try:
        at = dt.datetime.strptime(until, "%Y-%m-%d").replace(tzinfo=dt.UTC)
        return msgspec.convert({"item": item, "until": at, "reason": reason.strip()}, ContractWaiver)
    except (ValueError, msgspec.ValidationError):
        form = "ITEM:DATE:REASON, such as freshness.heartbeat:2027-01-31:ticket 4711"
        raise typer.BadParameter(f"{text!r} is not {form}", param_hint="--waive") from None
