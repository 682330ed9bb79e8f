"""`gpufleet allocation`: registers, shows and closes allocations of a hub."""

import datetime as dt
import sys
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.lookup import check_names, find_allocated_device
from gpufleet.cli.options import HUB_URL, TIME, CaOption, CommandError, HubUrl, TokenFileOption
from gpufleet.cli.output import print_json
from gpufleet.cli.times import parse_time
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, AllocationKind, AllocationSpec, Target

allocation_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Register, show and close allocations.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")]


@allocation_app.command()
def put(
    id: Id,  # noqa: A002 - the argument's name
    kind: Annotated[AllocationKind, typer.Option(help="Kind of the allocation.")],
    target: Annotated[
        str,
        typer.Option(metavar="TARGET", help="Machine id or name, VM UUID, pod UID or job id, depending on the kind."),
    ],
    hub: HubUrl = HUB_URL,
    cluster: Annotated[str, typer.Option(metavar="ID", help="Cluster of the target.")] = "local",
    tenant: Annotated[str | None, typer.Option(help="Tenant that pays.")] = None,
    team: Annotated[str | None, typer.Option(help="Team that owns the workload.")] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Restrict to this device: UUID or its prefix, PCI address, or MACHINE/PCI_ADDRESS; may be repeated.",
        ),
    ] = None,
    valid_from: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: now].")] = None,
    valid_to: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: open].")] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=N", help="Expected number of GPUs of a class, such as H200=8; may be repeated."),
    ] = None,
    rebind: Annotated[
        bool, typer.Option("--rebind", help="Bind the target again to the machine that it names now.")
    ] = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Register or change an allocation. Repeating a command changes nothing."""
    now = dt.datetime.now(dt.UTC)
    begin = None if valid_from is None else parse_time("--valid-from", valid_from, now)
    end = None if valid_to is None else parse_time("--valid-to", valid_to, now)
    expected = _expected(expect or [])
    access = Access(token_file, ca)
    machine = target if REQUIRED_TARGET_FIELD[kind] == "machine" else None
    devices = tuple(find_allocated_device(hub, one, access, cluster, machine) for one in device or ())
    check_names(hub, cluster, None, access)
    fields: dict[str, Any] = {"cluster": cluster, REQUIRED_TARGET_FIELD[kind]: target}
    spec = AllocationSpec(
        kind=kind,
        target=Target(**fields),
        tenant=tenant,
        team=team,
        devices=devices or None,
        expected=expected,
        valid_from=begin,
        valid_to=end,
    )
    path = f"{_path(id)}?rebind=true" if rebind else _path(id)
    print_json(send(hub, path, access, method="PUT", body=msgspec.json.encode(spec)))
    _note_unknown_machine(hub, cluster, machine, access)


@allocation_app.command("get")
def show(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Show an allocation."""
    print_json(get(hub, _path(id), Access(token_file, ca)))


@allocation_app.command()
def close(id: Id, hub: HubUrl = HUB_URL, token_file: TokenFileOption = None, ca: CaOption = None) -> None:  # noqa: A002
    """Close an allocation; it is not deleted."""
    print_json(send(hub, _path(id), Access(token_file, ca), method="DELETE"))


def _note_unknown_machine(hub: str, cluster: str, machine: str | None, access: Access) -> None:
    """Print a note if the target is not a machine of the cluster: the allocation is valid, and waits for it."""
    try:
        check_names(hub, cluster, machine, access)
    except CommandError as error:
        print(f"gpufleet: the target is unknown so far: {error}", file=sys.stderr)


def _path(id: str) -> str:  # noqa: A002
    return f"/v1/allocations/{quote(id, safe='')}"


def _expected(items: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in items:
        name, _, count = item.partition("=")
        if not name or not (count.isascii() and count.isdigit()):
            raise typer.BadParameter(f"{item!r} is not CLASS=N, such as H200=8", param_hint="--expect")
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice: give each class once", param_hint="--expect")
        found[name] = int(count)
    return found
