"""docs/install.md: named files, commands and options exist."""

import re

import pytest

from tests.support.command import gpufleet
from tests.support.uv import ROOT

TEXT = (ROOT / "docs" / "install.md").read_text()
COMMANDS = sorted(
    {
        match[1]
        for match in re.finditer(r"(?:^|sudo |/lib )gpufleet ((?:config |hub )?[a-z]+) *(?:--|#|$)", TEXT, re.MULTILINE)
    }
)


def test_named_files_exist() -> None:
    named = set(re.findall(r"deploy/[\w./-]*\w", TEXT))
    assert {str(path.relative_to(ROOT)) for folder in ("systemd", "container")
            for path in (ROOT / "deploy" / folder).iterdir()} <= named  # fmt: skip
    for path in named:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("command", ["config init", "config validate", "doctor", "hub init", "snapshot"])
def test_main_commands_are_documented(command: str) -> None:
    assert command in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_options_exist(command: str) -> None:
    page = gpufleet(*command.split(), "--help")
    assert page.returncode == 0
    for line in re.findall(rf"gpufleet {command} ([^#\n]*)", TEXT):
        for option in re.findall(r"--[a-z-]+", line):
            assert option in page.stdout
