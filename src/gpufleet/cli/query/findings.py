"""`gpufleet query findings`, and texts about findings that `gpufleet findings` also uses."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.lookup import SHORT_FINDING_DIGITS, device_id, short_id
from gpufleet.cli.options import (
    HUB_URL,
    TIME,
    CaOption,
    Columns,
    HubUrl,
    Json,
    Limit,
    Sort,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import Parts, since_cell
from gpufleet.cli.query.request import ClusterFilter, Parameters, make_layout, query_pages
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import seconds_text
from gpufleet.model.api.findings import EvaluationRecord, FindingPage, FindingRecord, FindingStatus
from gpufleet.model.finding import FindingState, Severity

NOT_CLOSED = (FindingStatus.OPEN, FindingStatus.UNKNOWN)
"""States of findings that are not closed."""

RuleFilter = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="ID", help="Only findings of this rule, for example gpu.lost; may be repeated."),
]
SeverityFilter = Annotated[
    list[Severity] | None,
    typer.Option("--severity", metavar="SEVERITY", help="Only critical, warning or info; may be repeated."),
]


def findings(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    severity: SeverityFilter = None,
    rule: RuleFilter = None,
    state: Annotated[
        list[FindingStatus] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only open, unknown, acknowledged or closed; may be repeated [default: open, unknown].",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Only findings that were open after this time. {TIME}.")
    ] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show findings with severity, subject, state, age and evidence, newest opening first."""

    def query() -> Parameters:
        return {
            "cluster": cluster,
            "severity": [one.value for one in severity or ()],
            "rule": rule or (),
            "state": [one.value for one in state or NOT_CLOSED],
            "since": time_parameter("--since", since),
        }

    layout, access = make_layout(wide, columns, sort, limit, as_json=json), Access(token_file, ca)
    query_pages(hub, "/v1/findings", query, FindingPage, findings_tables, access, layout, json, watch)


COLUMNS = (
    TextColumn("severity"),
    TextColumn("rule"),
    TextColumn("cluster", rank=3),
    TextColumn("subject"),
    TextColumn("state", rank=2),
    TextColumn("since", rank=1, right=True),
    TextColumn("evidence", rank=1, cut=True),
    TextColumn("id", rank=1),
    TextColumn("acknowledged", wide=True),
    TextColumn("silenced", wide=True),
    TextColumn("scope", wide=True),
    TextColumn("key", wide=True),
)

_RANKS = {one: rank for rank, one in enumerate(Severity)}


def findings_tables(page: FindingPage) -> Parts:
    """Return a table with a row per finding, and a line about the evaluation of the rules."""
    rows = [
        (
            Cell(one.severity.value, key=_RANKS[one.severity]),
            one.rule,
            one.cluster or "",
            subject_cell(one),
            state_text(one),
            since_cell(one.opened_at, page.at),
            evidence_text(one.evidence),
            Cell(one.id[:SHORT_FINDING_DIGITS], full=one.id),
            _until(one.acknowledgement.until if one.acknowledged and one.acknowledgement else None),
            _until(one.silenced_until),
            one.scope,
            one.subject,
        )
        for one in page.items
    ]
    return [TextTable(COLUMNS, rows, "findings"), evaluation_text(page.evaluation)]


def subject_cell(one: FindingRecord) -> Cell:
    """Return the subject of a finding by name. The full text has whole ids."""
    machine = one.node or one.machine or ""
    if one.device is not None:
        name = device_id(one.device.split("/", 2)[2], machine)
        place = "" if name.startswith(f"{machine}/") else f"{machine}/"
        return Cell(f"{place}{short_id(name)}", full=f"{place}{name}")
    return Cell(machine or one.sender or one.allocation or one.cluster or one.scope)


def state_text(one: FindingRecord) -> str:
    """Return the state of a finding, with the rule that hides it or its acknowledgement."""
    if one.state is not FindingState.CLOSED and one.acknowledged:
        return f"{one.state.value}, acknowledged"
    return f"{one.state.value}, hidden by {one.hidden_by}" if one.hidden_by else one.state.value


def evidence_text(evidence: Mapping[str, str]) -> str:
    """Return the values of the evidence in a line."""
    return ", ".join(f"{name}={value}" for name, value in evidence.items())


def evaluation_text(found: EvaluationRecord) -> str:
    """Return the time of the newest evaluation of the rules, and what it lacks."""
    if found.age_seconds is None:
        text = f"The rules are not evaluated: {found.failure}. States are unknown."
    elif not found.is_current:
        text = f"The rules were last evaluated {seconds_text(found.age_seconds)} ago: newer findings are unknown."
    else:
        text = f"Rules evaluated {seconds_text(found.age_seconds)} ago."
    if found.failure and found.age_seconds is not None:
        text += f" Incomplete: {found.failure}."
    if found.untracked:
        text += f" {found.untracked} more subjects exceed the limit on tracked findings."
    return text


def _until(at: dt.datetime | None) -> str:
    return "" if at is None else f"until {at:%Y-%m-%dT%H:%M:%SZ}"
