"""`gpufleet doctor`: what this node needs, and how to mend it."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import ConfigFile, Json

if TYPE_CHECKING:
    from gpufleet.doctor import Check

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "unknown": "magenta", "not_applicable": "dim"}
"""How a verdict looks in colour."""


def doctor(
    json: Json = False,
    config: ConfigFile = None,
    root: Annotated[Path, typer.Option("--root", hidden=True, help="Folder to take for / (for tests).")] = Path("/"),
) -> int:
    """Check what this node needs: each with what it proves, what was found and how to mend it.

    Ends with 1 if something failed. What could not be checked is unknown, and fails nothing.
    """
    checks = _examine(root, config)
    if json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        _print_table(checks)
    return int(any(check.verdict == "failed" for check in checks))


def _examine(root: Path, config: Path | None) -> "tuple[Check, ...]":
    # Imported here: the command line starts without what it does not run.
    from gpufleet.channels.local import LocalFiles
    from gpufleet.config.agent import ENV_PREFIX, AgentConfig
    from gpufleet.config.load import load
    from gpufleet.doctor import examine, gather
    from gpufleet.doctor.access import LocalAccess
    from gpufleet.wiring.clock import SystemClock

    settings = load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={})
    facts = asyncio.run(gather(LocalFiles(root), LocalAccess(root), SystemClock(), str(Path(settings.state, "agent"))))
    return examine(facts)


def _print_table(checks: "tuple[Check, ...]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("found, what it proves and how to mend it", overflow="fold")
    for check in checks:
        words = Text(check.found)
        if check.verdict != "ok":
            words.append(f"\nproves: {check.proves}", style="dim")
            if check.mend:
                words.append(f"\nmend: {check.mend}")
        table.add_row(check.name, Text(check.verdict.replace("_", " "), style=STYLES[check.verdict]), words)
    console = Console(highlight=False)
    console.print(table)
    counted = {verdict: sum(check.verdict == verdict for check in checks) for verdict in STYLES}
    console.print(", ".join(f"{number} {verdict.replace('_', ' ')}" for verdict, number in counted.items() if number))
