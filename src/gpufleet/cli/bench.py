"""`gpufleet bench`: captures benchmark evidence of this machine or a guest, and compares captures."""

import asyncio
import enum
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from gpufleet.cli.options import ConfigFile, Json, OptionError, Wide, with_json
from gpufleet.cli.output import print_tables, write_json
from gpufleet.cli.table import Layout, TextColumn, TextTable
from gpufleet.model.errors import WireError
from gpufleet.model.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpufleet.bench.capture import CaptureRequest
    from gpufleet.bench.compare import Comparison
    from gpufleet.bench.document import BenchmarkDocument
    from gpufleet.bench.factors import FactorMatrix

FOLDER = Path("dist/benchmarks")
MAX_REPEATS, MAX_LABELS = 100, 32
"""As in `bench.document`, which is imported on use."""

POST_SECONDS = 60.0
"""Time limit of posting a capture."""

_LABEL = re.compile(r"([a-z][a-z0-9_.-]{0,62})=(.{1,128})")

bench_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Capture benchmark evidence, and compare captures."
)


class BenchFormat(enum.StrEnum):
    """Output format of a comparison."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "md"
    HTML = "html"


FormatOption = Annotated[BenchFormat, typer.Option("--format", "-f", help="Output format.")]


@bench_app.command()
def capture(
    guest: Annotated[
        str | None,
        typer.Option(
            "--guest", metavar="NAME", help="Virtual machine of the agent's configuration: name, UUID or allocation."
        ),
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="Capture this machine (default).")] = False,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Name of the capture [default: host name].")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Factor, for example hugepages=on; may be repeated."),
    ] = None,
    fio: Annotated[
        Path | None, typer.Option("--fio", metavar="PATH", help="File or block device that fio reads. Never written.")
    ] = None,
    ib_peer: Annotated[
        str | None,
        typer.Option("--ib-peer", metavar="HOST", help="Host that runs the servers of ib_write_bw and ib_write_lat."),
    ] = None,
    ib_guest: Annotated[
        str | None,
        typer.Option("--ib-guest", metavar="NAME", help="Virtual machine that is the peer; its servers are started."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, max=MAX_REPEATS, help="Repeats of each measurement.")
    ] = 5,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the captures.")] = FOLDER,
    post: Annotated[
        bool, typer.Option("--post", help="Also post the capture to the hub of the agent's configuration.")
    ] = False,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Capture facts and measurements of this machine, or of a virtual machine on it, to a file.

    The default is a probe that takes seconds. What cannot be measured is absent in the file, with its reason.
    """
    from gpufleet.bench.capture import CaptureRequest
    from gpufleet.bench.document import encode_benchmark
    from gpufleet.bench.folder import prepare_folder, write_capture

    if host and guest is not None:
        raise OptionError("--host", "cannot be used with --guest")
    if ib_peer is not None and ib_guest is not None:
        raise OptionError("--ib-guest", "cannot be used with --ib-peer")
    if ib_peer is not None and config is not None and _is_guest(ib_peer, config):
        ib_guest, ib_peer = ib_peer, None
    request = CaptureRequest(
        name=_check_name(name),
        labels=_parse_labels(label or []),
        repeats=repeat,
        fio_path=_check_fio(fio, in_guest=guest is not None),
        ib_peer=_check_peer(ib_peer),
    )
    send = _hub_sender(config) if post else None
    prepare_folder(out)
    document = asyncio.run(_run_capture(request, guest, ib_guest, config))
    path = write_capture(out, document)
    print(f"gpufleet: {clean(str(path))}", file=sys.stderr)
    content = encode_benchmark(document)
    if json:
        write_json(content)
    else:
        print_tables(_capture_tables(document))
    if send is not None:
        send(content)


def _is_guest(name: str, config: Path) -> bool:
    """Return whether the agent's configuration lists this virtual machine in `[[guests]]`. Raises ConfigError."""
    from gpufleet.cli.bench_target import load_agent

    return any(guest.is_named(name) for guest in load_agent(config).guests)


def _hub_sender(config: Path | None) -> "Callable[[bytes], None]":
    """Return a function that posts a document to the hub of the agent's configuration.

    Raises:
        OptionError: if the configuration has no hub.
        ConfigError: if the configuration is invalid.
    """
    from gpufleet.cli.bench_target import load_agent
    from gpufleet.cli.fetch import Access, send

    agent = load_agent(config)
    url, files = agent.hub.url, (agent.hub.token_file, agent.hub.ca)
    if url is None:
        raise OptionError("--post", "the agent's configuration has no hub: set `[hub] url`")
    token_file, ca = (None if one is None else Path(one) for one in files)

    def post(content: bytes) -> None:
        path = f"/v1/benchmarks?cluster={quote(agent.cluster, safe='')}"
        send(url, path, Access(token_file, ca), method="POST", body=content, timeout_seconds=POST_SECONDS)
        print(f"gpufleet: posted to {clean(url)}", file=sys.stderr)

    return post


async def _run_capture(
    request: "CaptureRequest", guest: str | None, ib_guest: str | None, config: Path | None
) -> "BenchmarkDocument":
    import msgspec

    from gpufleet.bench.capture import capture as run_capture
    from gpufleet.cli.bench_target import open_peer, open_target
    from gpufleet.runtime import SystemClock

    start = time.monotonic()

    def progress(text: str) -> None:
        print(f"gpufleet: {time.monotonic() - start:5.1f} s  {clean(text)}", file=sys.stderr)

    async with open_target(guest, config) as target, open_peer(ib_guest, config) as peer:
        if peer is not None:
            address, server = peer
            request = msgspec.structs.replace(request, ib_peer=_check_peer(address), ib_server=server)
        return await run_capture(target, request, SystemClock(), progress)


@bench_app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(metavar="A B...", help="Captures; A is the baseline.")],
    format: FormatOption = BenchFormat.TABLE,  # noqa: A002
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Compare captures with the first: medians, confidence intervals, and what else differs."""
    from gpufleet.bench.compare import compare as compare_captures
    from gpufleet.bench.folder import read_capture

    chosen = with_json(format, json)
    if len(files) < 2:
        raise OptionError("A B...", "give at least two captures")
    comparison = compare_captures([read_capture(path) for path in files])
    if chosen is BenchFormat.JSON:
        _write_record(comparison)
    elif chosen is BenchFormat.TABLE:
        print_tables((*_comparison_tables(comparison), *comparison.notes), Layout(wide=wide))
    else:
        from gpufleet.bench.html_page import comparison_html
        from gpufleet.bench.markdown import comparison_markdown

        render = comparison_html if format is BenchFormat.HTML else comparison_markdown
        sys.stdout.write(render(comparison))


@bench_app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of captures.")] = FOLDER,
    format: FormatOption = BenchFormat.TABLE,  # noqa: A002
    json: Json = False,
    wide: Wide = False,
) -> None:
    """Show the captures of a folder as a matrix over machines and labels.

    Captures of one machine with the same labels are pooled. Unusable files are named; the exit code is then 1.
    """
    from gpufleet.bench.factors import factor_matrix
    from gpufleet.bench.folder import read_folder

    chosen = with_json(format, json)
    captures, problems = read_folder(folder)
    matrix = factor_matrix(captures, problems)
    if chosen is BenchFormat.JSON:
        _write_record(matrix)
    elif chosen is BenchFormat.TABLE:
        print_tables((*_matrix_tables(matrix), *matrix.notes), Layout(wide=wide))
    else:
        from gpufleet.bench.html_page import matrix_html
        from gpufleet.bench.markdown import matrix_markdown

        sys.stdout.write((matrix_html if format is BenchFormat.HTML else matrix_markdown)(matrix))
    if problems:
        raise typer.Exit(1)


def _write_record(record: "Comparison | FactorMatrix") -> None:
    import msgspec

    write_json(msgspec.json.format(msgspec.json.encode(record), indent=2))


def _check_name(name: str) -> str:
    if len(name) > 128 or clean(name) != name:
        raise OptionError("--name", "must have at most 128 printable characters")
    return name


def _parse_labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        found = _LABEL.fullmatch(text)
        if found is None or clean(text) != text:
            raise OptionError("--label", f"{clean(text)!r} is not a label such as hugepages=on")
        if found[1] in labels:
            raise OptionError("--label", f"{found[1]} is given twice")
        labels[found[1]] = found[2]
    if len(labels) > MAX_LABELS:
        raise OptionError("--label", f"at most {MAX_LABELS} labels")
    return labels


def _check_fio(path: Path | None, *, in_guest: bool) -> str | None:
    from gpufleet.bench.fio import check_path

    if path is None:
        return None
    if in_guest and not path.is_absolute():
        raise OptionError("--fio", "must be an absolute path in the guest")
    absolute = str(path.absolute())
    try:
        check_path(absolute)
    except WireError as error:
        raise OptionError("--fio", error.reason) from error
    return absolute


def _check_peer(peer: str | None) -> str | None:
    from gpufleet.bench.perftest import check_peer

    if peer is None:
        return None
    try:
        check_peer(peer)
    except WireError as error:
        raise OptionError("--ib-peer", error.reason) from error
    return peer


def _capture_tables(document: "BenchmarkDocument") -> list[TextTable]:
    from gpufleet.bench.markdown import shown_fact, shown_statistics

    facts = [
        (one.name, one.subject, shown_fact(one), "" if one.absent is None else f"{one.absent}: {one.detail}")
        for one in document.facts
    ]
    measurements = [
        (
            one.name,
            shown_statistics(one.statistics, one.unit),
            str(one.failed or ""),
            "" if one.absent is None else f"{one.absent}: {one.detail}",
        )
        for one in document.measurements
    ]
    reason = TextColumn("absent", wrap=True)
    return [
        TextTable(
            (TextColumn("fact"), TextColumn("subject", rank=2), TextColumn("value", wrap=True), reason), facts, "facts"
        ),
        TextTable(
            (TextColumn("measurement"), TextColumn("median (range)"), TextColumn("failed", rank=1, right=True), reason),
            measurements,
            "measurements",
        ),
    ]


def _comparison_tables(comparison: "Comparison") -> list[TextTable]:
    from gpufleet.bench.markdown import labels_text, shown_difference, shown_statistics, shown_verdict

    captures = [
        (one.letter, one.name, one.machine, one.source, labels_text(one.labels), one.started_at, one.file)
        for one in comparison.captures
    ]
    rows = [
        (
            one.name,
            shown_statistics(one.baseline, one.unit),
            one.letter,
            shown_statistics(one.other, one.unit),
            shown_difference(one),
            shown_verdict(one),
        )
        for one in comparison.measurements
    ]
    letters = [one.letter for one in comparison.captures]
    facts = [(one.name, *(one.values[letter] for letter in letters)) for one in comparison.differences]
    return [
        TextTable(
            (
                TextColumn("capture"),
                TextColumn("name", cut=True),
                TextColumn("machine", cut=True),
                TextColumn("source", rank=1),
                TextColumn("labels", wrap=True),
                TextColumn("started", rank=2),
                TextColumn("file", rank=3),
            ),
            captures,
            "captures",
        ),
        TextTable(
            (
                TextColumn("measurement"),
                TextColumn("A", wrap=True),
                TextColumn("capture"),
                TextColumn("value", wrap=True),
                TextColumn("difference to A", wrap=True),
                TextColumn("verdict", wrap=True),
            ),
            rows,
            "measurements",
        ),
        TextTable(
            (TextColumn("differing fact"), *(TextColumn(letter, wrap=True) for letter in letters)),
            facts,
            "other differences",
        ),
    ]


def _matrix_tables(matrix: "FactorMatrix") -> list[TextTable]:
    from gpufleet.bench.markdown import shown_cell

    numbers = [str(number) for number in range(1, len(matrix.combinations) + 1)]
    combinations = [
        (number, *values, str(len(files)))
        for number, values, files in zip(numbers, matrix.combinations, matrix.captures, strict=True)
    ]
    rows = [
        (one.name, one.tool_version, *(shown_cell(cell, one.unit) for cell in one.cells)) for one in matrix.measurements
    ]
    return [
        TextTable(
            (
                TextColumn("column"),
                *(TextColumn(factor, wrap=True) for factor in matrix.factors),
                TextColumn("captures", right=True),
            ),
            combinations,
            "captures",
        ),
        TextTable(
            (
                TextColumn("measurement"),
                TextColumn("tool version", rank=1),
                *(TextColumn(number, wrap=True) for number in numbers),
            ),
            rows,
            "measurements",
        ),
    ]
