"""`gpufleet findings`: commands that watch, show, acknowledge and silence findings of a hub."""

import datetime as dt
import sys
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, get_pages, send
from gpufleet.cli.finding_changes import watch_findings
from gpufleet.cli.lookup import SHORT_FINDING_DIGITS, check_names, find_finding
from gpufleet.cli.options import HUB_URL, CaOption, CommandError, HubUrl, Json, OptionError, TokenFileOption
from gpufleet.cli.output import interrupts, print_json, print_tables
from gpufleet.cli.query.cells import Parts, time_cell
from gpufleet.cli.query.findings import (
    NOT_CLOSED,
    RuleFilter,
    SeverityFilter,
    evaluation_text,
    evidence_text,
    state_text,
    subject_cell,
)
from gpufleet.cli.query.request import ClusterFilter, decode_answer
from gpufleet.cli.table import Layout, TextColumn, TextTable
from gpufleet.cli.times import parse_span
from gpufleet.exporters.display import seconds_text
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.findings import (
    AcknowledgementSpec,
    FindingDetail,
    FindingPage,
    FindingRecord,
    SilenceRecord,
    SilenceSpec,
)
from gpufleet.model.finding import RuleScope
from gpufleet.model.text import printable

findings_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Watch, show, acknowledge and silence findings. `gpufleet query findings` lists them.",
)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the finding, or its prefix.")]
Span = Annotated[str, typer.Option("--for", metavar="SPAN", help="Duration, for example 30m, 4h or 7d; at most 90d.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Note; at most 1 KiB.")]

MIN_INTERVAL = dt.timedelta(seconds=1)


@findings_app.command()
def watch(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    severity: SeverityFilter = None,
    rule: RuleFilter = None,
    every: Annotated[
        str, typer.Option("--every", metavar="SPAN", help="Interval between requests; at least 1s.")
    ] = "15s",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Print each opening, escalation and closing until Ctrl-C."""
    interval = parse_span("--every", every)
    if interval < MIN_INTERVAL:
        raise OptionError("--every", "must be at least 1s")
    access = Access(token_file, ca)

    def fetch(since: dt.datetime | None) -> FindingPage:
        query = {
            "cluster": cluster,
            "severity": [one.value for one in severity or ()],
            "rule": rule or (),
            "state": [one.value for one in NOT_CLOSED] if since is None else (),
            "since": None if since is None else since.isoformat().replace("+00:00", "Z"),
        }
        page: FindingPage = decode_answer(get_pages(hub, "/v1/findings", query, access), FindingPage, hub)
        if since is None and not page.items:
            check_names(hub, cluster, None, access)
        return page

    with interrupts() as interrupted:
        watch_findings(
            fetch,
            interval.total_seconds(),
            interrupted,
            write=lambda line: print(line, flush=True),
            warn=lambda text: print(f"gpufleet: {printable(text)}", file=sys.stderr),
        )
    raise KeyboardInterrupt


@findings_app.command()
def show(
    id: Id,  # noqa: A002 - the argument's name
    hub: HubUrl = HUB_URL,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show a finding with explanation, evidence and timeline."""
    access = Access(token_file, ca)
    body = get(hub, _path(find_finding(hub, id, access)), access)
    if json:
        print_json(body)
    else:
        print_tables(detail_tables(decode_answer(body, FindingDetail, hub)), Layout(wide=True))


@findings_app.command()
def ack(
    id: Id,  # noqa: A002
    span: Span = "4h",
    note: Note = "",
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Acknowledge an open finding for a time. Receivers get no notifications of it meanwhile."""
    access, spec = Access(token_file, ca), AcknowledgementSpec(duration=_span(span), note=note)
    path = f"{_path(find_finding(hub, id, access))}/acknowledgement"
    _print_acknowledgement(hub, send(hub, path, access, method="PUT", body=msgspec.json.encode(spec)))


@findings_app.command()
def unack(
    id: Id,  # noqa: A002
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """End the acknowledgement of a finding."""
    access = Access(token_file, ca)
    path = f"{_path(find_finding(hub, id, access))}/acknowledgement"
    _print_acknowledgement(hub, send(hub, path, access, method="DELETE"))


@findings_app.command()
def silence(
    span: Span,
    rule: Annotated[str | None, typer.Option(metavar="ID", help="Only findings of this rule.")] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Only findings about this subject and its parts: column key of `gpufleet query findings --wide`.",
        ),
    ] = None,
    scope: Annotated[
        list[RuleScope] | None,
        typer.Option(
            metavar="KIND",
            help="Only findings about subjects of this kind: cluster, machine, sender, allocation or device; may be "
            "repeated. Required with a --subject within a cluster, unless --rule is set.",
        ),
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Only findings about this machine and its GPUs, by id or name.")
    ] = None,
    note: Note = "",
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Suppress the notifications of findings for a time. The findings still open, close and are listed."""
    if rule is None and subject is None and machine is None:
        raise OptionError("--rule", "is missing: set --rule, --subject or --machine")
    if machine is not None and (subject is not None or scope):
        raise OptionError("--machine", "conflicts with --subject and --scope: set --machine alone")
    if subject is not None and "/" in subject and rule is None and not scope:
        raise OptionError("--scope", f"is missing: subjects of several kinds can have the key {subject}")
    scopes = tuple(one.value for one in scope or ())
    access = Access(token_file, ca)
    if machine is not None:
        found: MachineRecord = decode_answer(
            get(hub, f"/v1/machines/{quote(machine, safe='')}", access), MachineRecord, hub
        )
        subject, scopes = f"{found.cluster}/{found.id}", (RuleScope.MACHINE.value, RuleScope.DEVICE.value)
    spec = SilenceSpec(rule=rule, subject=subject, scopes=scopes, duration=_span(span), note=note)
    body = send(hub, "/v1/silences", access, method="POST", body=msgspec.json.encode(spec))
    made: SilenceRecord = decode_answer(body, SilenceRecord, hub)
    print(f"silence {made.id} until {made.until:%Y-%m-%dT%H:%M:%SZ}")


@findings_app.command()
def silences(
    hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None
) -> None:
    """Show the silences in force."""
    body = get(hub, "/v1/silences", Access(token_file, ca))
    if json:
        print_json(body)
    else:
        print_tables(silence_tables(decode_answer(body, tuple[SilenceRecord, ...], hub)))


@findings_app.command()
def unsilence(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the silence.")],  # noqa: A002
    hub: HubUrl = HUB_URL,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """End a silence."""
    body = send(hub, f"/v1/silences/{quote(id, safe='')}", Access(token_file, ca), method="DELETE")
    ended: SilenceRecord = decode_answer(body, SilenceRecord, hub)
    print(f"silence {ended.id} ended at {ended.until:%Y-%m-%dT%H:%M:%SZ}")


def detail_tables(found: FindingDetail) -> Parts:
    """Return tables with the fields and the timeline of a finding."""
    acknowledgement = found.acknowledgement
    rows = [
        ("id", found.id),
        ("rule", f"{found.rule} ({found.family})" if found.family else found.rule),
        ("severity", found.severity.value),
        ("state", state_text(found)),
        ("subject", subject_cell(found).full or subject_cell(found).text),
        ("scope", found.scope),
        ("key", found.subject),
        ("cluster", found.cluster or ""),
        ("explanation", found.explanation),
        ("action", found.action),
        ("opened", time_cell(found.opened_at).full),
        ("closed", time_cell(found.closed_at).full),
        ("duration", seconds_text(found.duration_seconds)),
        ("openings", f"{found.openings} in the last hour"),
        *((f"evidence {name}", value) for name, value in found.evidence.items()),
        ("acknowledged", "" if acknowledgement is None else _acknowledgement_text(found)),
        ("silenced until", time_cell(found.silenced_until).full),
    ]
    timeline = [
        (time_cell(one.at), one.kind.value, one.severity.value, one.reason.value, evidence_text(one.evidence))
        for one in found.timeline
    ]
    columns = [TextColumn(name) for name in ("at", "change", "severity", "reason", "evidence")]
    return [
        TextTable((TextColumn("field"), TextColumn("value", wrap=True)), [one for one in rows if one[1]], "fields"),
        TextTable(columns, timeline, "transitions"),
        evaluation_text(found.evaluation),
    ]


def silence_tables(found: tuple[SilenceRecord, ...]) -> Parts:
    """Return a table with a row per silence."""
    columns = (
        TextColumn("id"),
        TextColumn("rule"),
        TextColumn("subject"),
        TextColumn("scope"),
        TextColumn("until"),
        TextColumn("by", rank=2),
        TextColumn("note", rank=1, cut=True),
    )
    rows = [
        (one.id, one.rule or "", one.subject or "", ", ".join(one.scopes), time_cell(one.until), one.by, one.note)
        for one in found
    ]
    return [TextTable(columns, rows, "silences")]


def _print_acknowledgement(hub: str, body: bytes) -> None:
    found: FindingRecord = decode_answer(body, FindingRecord, hub)
    text = _acknowledgement_text(found) if found.acknowledged else "not acknowledged"
    print(printable(f"{found.id[:SHORT_FINDING_DIGITS]} {found.rule} {subject_cell(found).text}: {text}"))


def _acknowledgement_text(found: FindingRecord) -> str:
    one = found.acknowledgement
    if one is None:
        raise CommandError("the hub did not return the acknowledgement")
    verb = "until" if found.acknowledged else "ended at"
    note = f": {one.note}" if one.note else ""
    return f"{verb} {one.until:%Y-%m-%dT%H:%M:%SZ} by {one.by}{note}"


def _span(text: str) -> str:
    """Return a duration for the hub. Raises OptionError."""
    return f"{int(parse_span('--for', text).total_seconds())}s"


def _path(id: str) -> str:  # noqa: A002
    return f"/v1/findings/{id}"
