"""`gpufleet snapshot`: everything known of this machine, once."""

import enum
import shutil
import sys
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import AgentUrl, CaOption, ConfigFile, Json, TokenFileOption
from gpufleet.cli.source import take_snapshot
from gpufleet.ports.exporter import Exporter


class Format(enum.StrEnum):
    """How to show it."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PROMETHEUS = "prometheus"


def snapshot(
    format: Annotated[Format, typer.Option("--format", "-f", help="How to show it.")] = Format.TABLE,  # noqa: A002
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show this machine and its GPUs as they are now: each reading, or why there is none."""
    exporter = exporter_of(Format.JSON if json else format)
    page = exporter.render(take_snapshot(agent, config, Access(token_file, ca)))
    sys.stdout.buffer.write(page)
    sys.stdout.buffer.flush()


def exporter_of(format: Format) -> Exporter:  # noqa: A002 - the option's name
    """Return what renders a snapshot so."""
    # Each is imported when it is asked for: rich costs more than reading the machine.
    if format is Format.JSON:
        from gpufleet.exporters.json import JsonExporter

        return JsonExporter()
    if format is Format.CSV:
        from gpufleet.exporters.csv import CsvExporter

        return CsvExporter()
    if format is Format.PROMETHEUS:
        from gpufleet.exporters.prometheus import PrometheusExporter

        return PrometheusExporter()
    from gpufleet.exporters.table import TableExporter

    terminal = sys.stdout.isatty()
    return TableExporter(width=shutil.get_terminal_size((120, 40)).columns, colour=terminal)
