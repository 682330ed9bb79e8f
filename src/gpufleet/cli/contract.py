"""`gpufleet contract`: shows the adoption contract; checks a file, a node, a collector, or a cluster at a hub."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import HUB_URL, CaOption, Json, OptionError, TokenFileOption

if TYPE_CHECKING:
    from gpufleet.doctor import CheckResult
    from gpufleet.fleet.contract.facts import PlaceFacts
    from gpufleet.fleet.contract.records import CheckPlace

contract_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and check the adoption contract.")


@contract_app.command()
def lint(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="YAML file [default: the contract of this version].")
    ] = None,
    json: Json = False,
) -> None:
    """Check a contract. If it has problems, prints file, line, item, field and fix of each, and exits with 2."""
    import msgspec

    from gpufleet.cli.output import write_json
    from gpufleet.wiring.contract import CONTRACT_NAME, load_contract, read_contract

    name = CONTRACT_NAME if file is None else str(file)
    if not json:
        contract = load_contract(file)
        print(f"{name}: {len(contract.items)} items, version {' and '.join(contract.versions)}, valid")
        return
    found, problems = read_contract(file)
    items = None if found is None else len(found.items)
    write_json(msgspec.json.encode({"file": name, "items": items, "problems": problems}))
    if problems:
        raise typer.Exit(2)


@contract_app.command()
def show(
    output_format: Annotated[
        Literal["table", "json", "md"],
        typer.Option("--format", help="A table, the items as JSON, or the page docs/contract.md."),
    ] = "table",
) -> None:
    """Show the contract of this version."""
    import msgspec

    from gpufleet.cli.output import print_tables, write_json
    from gpufleet.cli.table import TextColumn, TextTable
    from gpufleet.fleet.contract.reference import render_contract
    from gpufleet.wiring.contract import load_contract

    contract = load_contract()
    if output_format == "json":
        write_json(msgspec.json.format(msgspec.json.encode(contract), indent=2))
        return
    if output_format == "md":
        print(render_contract(contract), end="")
        return
    columns = (
        TextColumn("item"),
        TextColumn("level"),
        TextColumn("tiers", rank=2),
        TextColumn("on", rank=3),
        TextColumn("title", wrap=True),
        TextColumn("owner", wide=True),
        TextColumn("check", wide=True),
    )
    rows = [
        (one.id, one.level, ",".join(str(int(t)) for t in one.tiers), one.on, one.title, one.owner, one.check)
        for one in contract.items
    ]
    print_tables([TextTable(columns, rows, "items"), f"version {' and '.join(contract.versions)}"])


@contract_app.command()
def check(
    place: Annotated[
        Literal["node", "cluster", "hub"],
        typer.Option(
            "--on", help="Check this node, the permissions of a cluster collector, or a hub's verdict about CLUSTER."
        ),
    ],
    cluster: Annotated[str | None, typer.Argument(metavar="CLUSTER", help="Cluster, with --on hub.")] = None,
    tier: Annotated[
        int | None,
        typer.Option(
            min=0, max=4, help="Tier of the cluster [default: 3 on a node, 1 in a cluster]; at a hub, tier to reach."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration of the agent or collector.")
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(metavar="FILE", help="Credentials of the cluster [default: the service account].")
    ] = None,
    hub: Annotated[str | None, typer.Option(metavar="URL", help=f"URL of the hub [default: {HUB_URL}].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Check a cluster by the contract.

    On a node and in a cluster: judges the items that are checked there, by the checks of `gpufleet doctor`. Exits
    with 1 if a MUST item is not met. An item that could not be checked is unknown.

    At a hub: shows its verdict about CLUSTER. Exits with 1 unless the cluster is visible, or with --tier unless it has
    reached this tier.
    """
    if place == "hub":
        if cluster is None:
            raise OptionError("CLUSTER", "is needed with --on hub: name the cluster")
        if config is not None or kubeconfig is not None:
            raise OptionError("--on", "hub takes neither --config nor --kubeconfig: leave them out")
        _check_at_hub(cluster, hub or HUB_URL, tier, Access(token_file, ca), as_json=json)
    elif cluster is not None or hub is not None:
        raise OptionError("--on", f"{place} takes neither CLUSTER nor --hub: leave them out, or use --on hub")
    else:
        _check_at_place(place, tier, config, kubeconfig, as_json=json)


def _check_at_hub(cluster: str, hub: str, tier: int | None, access: Access, *, as_json: bool) -> None:
    """Print a hub's report about a cluster; exit with 1 as `check` states."""
    from gpufleet.cli.output import print_tables, write_json
    from gpufleet.cli.query.contract import report_path, report_tables
    from gpufleet.cli.query.request import decode_answer
    from gpufleet.fleet.contract.records import HOST_TIERS, KUBERNETES_TIERS
    from gpufleet.fleet.contract.report import ConformanceReport
    from gpufleet.model.contract import ClusterVisibility, Tier

    body = get(hub, report_path(cluster), access)
    report = decode_answer(body, ConformanceReport, hub)
    if as_json:
        write_json(body)
    else:
        print_tables(report_tables(report))
    reached = report.metadata.reached_tier
    if tier is None:
        is_met = report.metadata.visibility is ClusterVisibility.VISIBLE
    else:
        tiers = HOST_TIERS if reached is Tier.HOSTS else KUBERNETES_TIERS
        is_met = reached is not None and tier in tiers and reached >= tier
    if not is_met:
        raise typer.Exit(1)


def _check_at_place(
    place: Literal["node", "cluster"], tier: int | None, config: Path | None, kubeconfig: str | None, *, as_json: bool
) -> None:
    """Judge the items of a place by the doctor's checks there; exit with 1 if a MUST item is not met."""
    import msgspec

    from gpufleet.cli.doctor import examine_cluster, examine_node
    from gpufleet.cli.output import print_tables, write_json
    from gpufleet.cli.table import TextColumn, TextTable
    from gpufleet.fleet.contract.check import ItemStatus
    from gpufleet.fleet.contract.judge import judge_place
    from gpufleet.fleet.contract.records import CheckPlace, ItemPhase, Requirement
    from gpufleet.model.contract import Tier
    from gpufleet.wiring.contract import load_contract

    contract, on = load_contract(), CheckPlace(place)
    results = examine_node(Path("/"), config) if on is CheckPlace.NODE else examine_cluster(config, kubeconfig)
    judged_tier = Tier(tier) if tier is not None else Tier.AGENT if on is CheckPlace.NODE else Tier.COLLECTOR
    verdicts = judge_place(contract, _facts_of(on, results), judged_tier)
    items = {one.id: one for one in contract.items}
    if as_json:
        write_json(msgspec.json.encode(verdicts))
    else:
        columns = (TextColumn("level"), TextColumn("item"), TextColumn("status"), TextColumn("found", wrap=True),
                   TextColumn("remedy", rank=2))  # fmt: skip
        rows = []
        for one in verdicts:
            remedy = items[one.item].remedy
            is_open = one.status in (ItemStatus.NOT_MET, ItemStatus.UNKNOWN)
            remedy_text = remedy.command or f"docs/{remedy.page}"
            row = (items[one.item].level, one.item, one.status, one.found, remedy_text if is_open else "")
            rows.append(row)
        print_tables([TextTable(columns, rows, "items"), f"tier {judged_tier:d}, checked on {place}"])
    if any(
        one.status is ItemStatus.NOT_MET
        and one.phase is ItemPhase.IN_FORCE
        and items[one.item].level is Requirement.MUST
        for one in verdicts
    ):
        raise typer.Exit(1)


def _facts_of(place: "CheckPlace", results: "Iterable[CheckResult]") -> "PlaceFacts":
    import msgspec

    from gpufleet.fleet.contract.facts import PlaceFacts, PlaceResult

    found = {one.name: {"verdict": str(one.verdict), "found": one.found} for one in results}
    return PlaceFacts(place=place, results=msgspec.convert(found, dict[str, PlaceResult]))
