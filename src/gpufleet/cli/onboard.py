"""`gpufleet onboard`: the plan by which a cluster reaches a tier, and its progress at a hub."""

from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.fetch import Access, HttpError, get
from gpufleet.cli.options import CaOption, CommandError, Json, OptionError, TokenFileOption
from gpufleet.cli.output import print_tables, write_json
from gpufleet.cli.table import TextColumn, TextTable
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.contract import ContractSummary, Tier

if TYPE_CHECKING:
    from gpufleet.fleet.contract.onboarding import OnboardingPlan
    from gpufleet.fleet.contract.records import ItemRemedy

NOT_FOUND = 404

_PHASES = {"announced": " (next version)", "ending": " (ends)"}
"""Remark on items that are not part of every valid version, by phase."""


def onboard(
    tier: Annotated[int, typer.Option(min=0, max=4, help="Tier to reach, as in docs/contract.md.")],
    cluster: Annotated[str | None, typer.Argument(metavar="CLUSTER", help="Id of the cluster.")] = None,
    starting_point: Annotated[
        Literal[
            "prometheus", "otel", "dcgm-exporter", "all-smi", "kubernetes", "kubevirt", "slurm", "bare-metal", "slices"
        ]
        | None,
        typer.Option("--from", help="Starting point of the cluster [default: the usual starting point of the tier]."),
    ] = None,
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="URL", help="Show which steps are done, by the data of this hub.")
    ] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Print the plan by which a cluster reaches a tier: installation, permissions, egress, steps, contract items.

    With --hub, also show which steps are done, their percentage, and the hub's verdict. A hub cannot check every step.
    """
    from gpufleet.fleet.contract.onboarding import make_plan, tiers_of, with_progress
    from gpufleet.fleet.contract.starting_points import DEFAULT_POINTS, StartingPointName
    from gpufleet.wiring.contract import load_contract

    chosen = Tier(tier)
    name = DEFAULT_POINTS[chosen] if starting_point is None else StartingPointName(starting_point)
    if chosen not in (reached := tiers_of(name)):
        tiers = " or ".join(str(int(one)) for one in reached)
        raise OptionError("--tier", f"{name} reaches tier {tiers}, not {tier}: choose another --from, or that tier")
    if hub is not None and cluster is None:
        raise OptionError("--hub", "needs the id of the cluster: add CLUSTER")
    plan = make_plan(load_contract(), name, chosen, cluster or "CLUSTER", hub or "URL")
    if hub is not None and cluster is not None:
        plan = with_progress(plan, _record(hub, cluster, Access(token_file, ca)))
    if json:
        write_json(msgspec.json.format(msgspec.json.encode(plan), indent=2))
        return
    print_tables(_parts(plan))


def _record(hub: str, cluster: str, access: Access) -> ClusterRecord | None:
    """Return the hub's record of the cluster; None if the hub does not know it.

    Raises:
        CommandError: if the hub does not answer, or not as a hub of this version.
    """
    try:
        body = get(hub, f"/v1/clusters/{quote(cluster, safe='')}", access)
        return msgspec.json.decode(body, type=ClusterRecord)
    except HttpError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} did not return a cluster of this version: {error}") from error


def _parts(plan: "OnboardingPlan") -> list[TextTable | str]:
    """Return the tables of a plan, and notes."""
    facts = [
        ("cluster", plan.cluster),
        ("starting point", plan.title),
        ("tier", f"{plan.tier:d}, {plan.tier_name}"),
        ("hub knows", plan.shows),
        ("installs", plan.installs),
        ("permissions", plan.permissions),
        ("labels", plan.labels),
        *(("egress", f"{one.source} to {one.destination}, {one.port}, {one.protocol}") for one in plan.egress),
        ("first value", plan.first_value),
        ("commands", f"docs/{plan.page}"),
    ]
    steps: list[tuple[str, ...]] = [
        (str(number), _status(one.done, is_checkable=one.check is not None), one.title, one.found, one.command)
        for number, one in enumerate(plan.steps, 1)
    ]
    items = [
        (one.id, f"{one.level}{_PHASES.get(one.phase, '')}", one.on, one.title, _remedy_text(one.remedy))
        for one in plan.items
    ]
    step_columns: tuple[TextColumn, ...] = (
        TextColumn("step", right=True),
        TextColumn("done"),
        TextColumn("title", wrap=True),
        TextColumn("found", rank=1, cut=True),
        TextColumn("command", rank=2, wrap=True),
    )
    item_columns = (
        TextColumn("item"),
        TextColumn("level"),
        TextColumn("on", rank=1),
        TextColumn("title", rank=2, wrap=True),
        TextColumn("remedy", wrap=True),
    )
    if plan.percent is None:  # no hub was queried
        step_columns = (step_columns[0], *step_columns[2::2])
        steps = [(row[0], *row[2::2]) for row in steps]
    parts: list[TextTable | str] = [
        TextTable((TextColumn("subject"), TextColumn("value", wrap=True)), facts, "facts"),
        TextTable(step_columns, steps, "steps"),
        TextTable(item_columns, items, "items"),
        f"Contract: version {' and '.join(plan.contract)}.",
    ]
    if plan.percent is not None:
        parts.append(f"Progress: {plan.percent} % of the steps that the hub shows. {_next_step(plan)}")
        parts.append(_verdict(plan.verdict))
    return parts


def _verdict(verdict: ContractSummary | None) -> str:
    """Return the hub's verdict by the contract in a line."""
    if verdict is None:
        return "Verdict: not judged yet. The hub judges once a minute."
    reached = "none" if verdict.reached_tier is None else f"{verdict.reached_tier:d}"
    percent = "no MUST item applies" if verdict.percent is None else f"{verdict.percent:g} % of MUST items met"
    reasons = f"; not met: {', '.join(verdict.not_visible)}" if verdict.not_visible else ""
    return f"Verdict: {verdict.visibility.replace('_', ' ')}, reached tier {reached}, {percent}{reasons}."


def _next_step(plan: "OnboardingPlan") -> str:
    """Return that all steps are done, or the first step that is not."""
    open_step = next((one for one in plan.steps if one.check is not None and one.done is not True), None)
    return "All are done." if open_step is None else f"Next: {open_step.title}."


def _status(done: bool | None, *, is_checkable: bool) -> str:
    if done is None:
        return "unknown" if is_checkable else ""
    return "yes" if done else "no"


def _remedy_text(remedy: "ItemRemedy") -> str:
    page = "" if remedy.page is None else f"docs/{remedy.page}"
    return ", ".join(one for one in (remedy.command, page) if one)
