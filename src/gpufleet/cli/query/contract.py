"""`gpufleet query contract`: verdicts about clusters by the adoption contract."""

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import (
    HUB_URL,
    CaOption,
    Columns,
    HubUrl,
    Json,
    Limit,
    OptionError,
    Sort,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import Parts
from gpufleet.cli.query.request import decode_answer, make_layout, query_and_print
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.exporters.display import seconds_text
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.contract import ClusterVisibility, Tier
from gpufleet.model.text import counted

if TYPE_CHECKING:
    from gpufleet.fleet.contract.records import ItemRemedy
    from gpufleet.fleet.contract.report import ConformanceMetadata, ConformanceReport, HiddenEntry

CLUSTER_COLUMNS = (
    TextColumn("cluster"),
    TextColumn("verdict"),
    TextColumn("MUST met", right=True),
    TextColumn("tier"),
    TextColumn("reached", rank=2),
    TextColumn("GPUs not visible", right=True),
    TextColumn("not met", rank=1, wrap=True),
)
ITEM_COLUMNS = (
    TextColumn("level"),
    TextColumn("item"),
    TextColumn("status"),
    TextColumn("found", rank=1, cut=True),
    TextColumn("since", rank=3),
    TextColumn("remedy", rank=2, cut=True),
    TextColumn("notes", wide=True),
    TextColumn("title", wide=True),
)


def contract(
    cluster: Annotated[
        str | None, typer.Argument(metavar="CLUSTER", help="Cluster whose items are shown [default: all clusters].")
    ] = None,
    hub: HubUrl = HUB_URL,
    output_format: Annotated[
        Literal["table", "md"], typer.Option("--format", help="A table, or the report of CLUSTER as Markdown.")
    ] = "table",
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the verdict on each cluster by the adoption contract, or the items of a cluster, unmet items first."""
    from gpufleet.fleet.contract.report import ConformanceReport

    layout, access = make_layout(wide, columns, sort, limit, as_json=json), Access(token_file, ca)
    path = "/v1/fleet" if cluster is None else report_path(cluster)
    if output_format == "md":
        if cluster is None or json:
            raise OptionError("--format", "md is the report of a cluster: give CLUSTER, and leave out --json")
        from gpufleet.fleet.contract.report_page import render_report

        print(render_report(decode_answer(get(hub, path, access), ConformanceReport, hub)), end="")
    elif cluster is None:
        query_and_print(hub, path, {}, FleetAnswer, cluster_tables, access, layout, json, watch)
    else:
        query_and_print(hub, path, {}, ConformanceReport, report_tables, access, layout, json, watch)


def report_path(cluster: str) -> str:
    """Return the path of the report of a cluster."""
    return f"/v1/clusters/{quote(cluster, safe='')}/contract"


def cluster_tables(found: FleetAnswer) -> Parts:
    """Return the table of verdicts."""
    parts: Parts = [verdict_table(found.clusters)]
    judged = judged_text(found.clusters, found.at)
    return [*parts, judged] if judged else parts


def judged_text(records: Iterable[ClusterRecord], at: dt.datetime) -> str:
    """Return the age of the oldest verdict in a line; empty without a verdict. `at` is the time of the answer."""
    times = [one.contract.at for one in records if one.served and one.contract is not None]
    return f"Judged {seconds_text(max(0.0, (at - min(times)).total_seconds()))} ago." if times else ""


def verdict_table(records: Iterable[ClusterRecord]) -> TextTable:
    """Return a table with a row per served cluster, those that are not visible first."""
    rows: list[tuple[str | Cell, ...]] = []
    served = [one for one in records if one.served]
    for one in sorted(served, key=lambda one: len(_RANKS) if one.contract is None else _RANKS[one.contract.visibility]):
        known = one.contract
        if known is None:
            rows.append((one.cluster.id, "not judged yet", "", "", "", "", ""))
            continue
        rows.append((
            one.cluster.id,
            Cell(_visibility_text(known.visibility), key=_RANKS[known.visibility]),
            _percent(known.percent),
            _tier(known.tier),
            _tier(known.reached_tier, "none"),
            Cell(f"{known.gpus_not_visible}{_uncounted(known.machines_without_count)}", key=known.gpus_not_visible),
            ", ".join(known.not_visible),
        ))  # fmt: skip
    return TextTable(CLUSTER_COLUMNS, rows, "clusters")


def report_tables(report: "ConformanceReport") -> Parts:
    """Return a table with a row per item that applies, a summary line, the age of the verdict, and remarks."""
    from gpufleet.fleet.contract.report import STATUS_TEXTS, ConformanceStatus, ordered_items
    from gpufleet.fleet.contract.report_page import NOT_JUDGED

    items = [one for one in ordered_items(report) if one.status is not ConformanceStatus.NOT_APPLICABLE]
    rows = [
        (
            one.level.value,
            one.id,
            STATUS_TEXTS[one.status],
            "; ".join(one.evidence),
            "" if one.since is None else f"{one.since:%Y-%m-%d %H:%M}",
            _remedy(one.remedy),
            one.notes,
            one.description,
        )
        for one in items
    ]
    hidden = [f"Not visible by {one.item}: {_concerned(one)}: {one.reason}. {one.consequence}"
              for one in report.not_visible]  # fmt: skip
    age = report.metadata.age_seconds
    judged = f"{NOT_JUDGED.capitalize()}." if age is None else f"Judged {seconds_text(age)} ago."
    warnings = [f"Warning until the next version of the contract: {item}" for item in report.warnings]
    ignored = [f"Waiver that does not count: {one}" for one in report.ignored_waivers]
    table = TextTable(ITEM_COLUMNS, rows, "items")
    return [table, summary_text(report.metadata), judged, *hidden, *warnings, *ignored]


def summary_text(head: "ConformanceMetadata") -> str:
    """Return the verdict of a report in a line."""
    from gpufleet.fleet.contract.report_page import tier_text

    reporting = f", {head.gpus_reporting} of them report" if head.gpus_reporting else ""
    return (
        f"{head.cluster}: {_visibility_text(head.visibility)}; {_percent(head.percent)} of MUST items met "
        f"({head.must.met} met, {head.must.not_met} not met, {head.must.unknown} unknown, {head.must.waived} waived); "
        f"tier {tier_text(head)}, reached {_tier(head.reached_tier, 'none')}; "
        f"{counted(head.gpus_not_visible, 'GPU')} not visible{_uncounted(head.machines_without_count)}{reporting}"
    )


_RANKS = {
    ClusterVisibility.NOT_VISIBLE: 0,
    ClusterVisibility.PARTLY: 1,
    ClusterVisibility.UNKNOWN: 2,
    ClusterVisibility.VISIBLE: 3,
}


def _visibility_text(visibility: ClusterVisibility) -> str:
    return visibility.value.replace("_", " ")


def _uncounted(machines: int) -> str:
    """Return an addition to a number of GPUs about machines whose number is unknown; empty without any."""
    return f", and those of {counted(machines, 'machine')}" if machines else ""


def _percent(percent: float | None) -> str:
    return "none" if percent is None else f"{percent:g} %"


def _tier(tier: Tier | None, missing: str = "unknown") -> str:
    return missing if tier is None else str(int(tier))


def _concerned(entry: "HiddenEntry") -> str:
    if entry.is_whole:
        return f"the cluster, with {counted(entry.gpus, 'GPU')} without values" if entry.gpus else "the cluster"
    gpus = "GPUs of unknown number" if entry.gpus is None else counted(entry.gpus, "GPU")
    return f"{counted(entry.machines, 'machine')}, {gpus}" if entry.machines else gpus


def _remedy(remedy: "ItemRemedy | None") -> str:
    if remedy is None:
        return ""
    return remedy.command or f"docs/{remedy.page}"
