"""Answers recorded from a real kubelet, with what was truly placed; see `tests/data/kubelet/README.md`."""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).parents[1] / "data" / "kubelet" / "recorded.tar.xz"


@cache
def files() -> dict[str, bytes]:
    """Return the recorded files by name."""
    with tarfile.open(ARCHIVE) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


@cache
def scenarios() -> dict[str, dict[str, Any]]:
    """Return the scenarios of the manifest by name."""
    return {scenario["scenario"]: scenario for scenario in json.loads(files()["manifest.json"])["scenarios"]}


def answers(call: str) -> list[tuple[str, dict[str, Any]]]:
    """Return scenario and entry of each recorded answer to a call that has a message."""
    return [
        (name, answer)
        for name, scenario in scenarios().items()
        for answer in scenario["answers"]
        if answer["call"] == call and "bin" in answer
    ]
