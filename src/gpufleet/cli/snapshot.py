"""`gpufleet snapshot`: shows the current readings of this machine."""

import enum
import shutil
import sys
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import AgentUrl, CaOption, ConfigFile, Json, TokenFileOption, with_json
from gpufleet.cli.output import escape_controls
from gpufleet.cli.source import take_snapshot
from gpufleet.ports.exporter import Exporter


class SnapshotFormat(enum.StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PROMETHEUS = "prometheus"


def snapshot(
    format: Annotated[SnapshotFormat, typer.Option("--format", "-f", help="Output format.")] = SnapshotFormat.TABLE,  # noqa: A002
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the current readings of this machine and its GPUs, or their absence reasons."""
    chosen = with_json(format, json)
    exporter = exporter_for(chosen)
    write_page(exporter.render(take_snapshot(agent, config, Access(token_file, ca))), chosen)


def write_page(page: bytes, format: SnapshotFormat) -> None:  # noqa: A002 - the option's name
    """Write a rendered snapshot to stdout."""
    sys.stdout.buffer.write(escape_controls(page) if format is SnapshotFormat.JSON else page)
    sys.stdout.buffer.flush()


def exporter_for(format: SnapshotFormat) -> Exporter:  # noqa: A002 - the option's name
    """Return the exporter of a format."""
    # Imported on use: importing rich takes longer than reading the machine.
    if format is SnapshotFormat.JSON:
        from gpufleet.exporters.json import JsonExporter

        return JsonExporter()
    if format is SnapshotFormat.CSV:
        from gpufleet.exporters.csv import CsvExporter

        return CsvExporter()
    if format is SnapshotFormat.PROMETHEUS:
        from gpufleet.exporters.prometheus import PrometheusExporter

        return PrometheusExporter()
    from gpufleet.exporters.table import TableExporter

    terminal = sys.stdout.isatty()
    return TableExporter(width=shutil.get_terminal_size((120, 40)).columns, colour=terminal)
