"""Fake `nvidia-smi` on disk that prints captured outputs."""

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpufleet.codecs.nvidia_smi import parse_capture, parse_csv

DATA = Path(__file__).parents[2] / "data" / "nvidia_smi"


class FakeNvidiaSmi:
    """Executable in its own folder; `bin` belongs in front of PATH."""

    def __init__(self, folder: Path, **scenario: Any) -> None:
        self.bin = folder / "smi"
        self.bin.mkdir()
        self.path = self.bin / "nvidia-smi"
        program = (Path(__file__).parent / "program.py").read_text()
        self.path.write_text(f"#!{sys.executable} -IS\n{program}")
        self.path.chmod(0o755)
        self.scenario: dict[str, Any] = {"rows": [], "faults": {}, **scenario}
        self.write()

    def write(self, **changes: Any) -> None:
        """Change the scenario from the next call on."""
        self.scenario |= changes
        temporary = self.bin / "scenario.new"
        temporary.write_text(json.dumps(self.scenario))
        temporary.replace(self.bin / "scenario.json")

    def fault(self, on: str = "*", **what: Any) -> None:
        """Make calls of a kind (`help`, `log`, `list`, `table`, `apps`), or every call, fail."""
        self.write(faults={**self.scenario["faults"], on: what})

    def heal(self) -> None:
        """Remove every fault."""
        self.write(faults={})

    @property
    def calls(self) -> list[str]:
        """Arguments of every call so far, in order."""
        log = self.bin / "calls.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which `nvidia-smi` is this fake."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def remove(self) -> None:
        """Uninstall the fake."""
        shutil.rmtree(self.bin)


def scenario_of_capture(name: str, group: str) -> dict[str, Any]:
    """Return the scenario of a capture file: its table of all fields, list, help and processes."""
    sections = parse_capture((DATA / name).read_bytes())
    body = {(s.group, s.arguments.partition("=")[0]): s.body.decode() for s in sections}
    table = parse_csv(body[group, "--query-gpu"].encode())
    apps = parse_csv(body[group, "--query-compute-apps"].encode())
    rows = [dict(row) for row in table.rows]
    columns = ("gpu_uuid", "pid", "used_gpu_memory")
    return {
        "help": body["capabilities", "--help-query-gpu"],
        "list": body["capabilities", "-L"],
        "rows": rows,
        "apps": "".join(", ".join(row[column] for column in columns) + "\n" for row in apps.rows),
    }


def xml(name: str) -> str:
    """Return a captured XML document."""
    return (DATA / name).read_text()


def help_of(fields: Iterable[str]) -> str:
    """Return a help text that offers these fields."""
    return 'List of valid properties to query for the switch "--query-gpu":\n\n' + "".join(
        f'"{field}"\nSomething about it.\n\n' for field in fields
    )
