"""The adoption contract of the package: it is valid, is linked from the root, and its remedies exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpufleet.cli.app import app
from gpufleet.config.load import ConfigProblemsError
from gpufleet.fleet.contract.document import MAX_BYTES
from gpufleet.fleet.contract.records import AREA_TITLES, ContractArea, Requirement
from gpufleet.model.errors import ConfigError
from gpufleet.wiring.contract import load_contract

ROOT = Path(__file__).parents[2]
CONTRACT = load_contract()
PAGES = sorted({one.remedy.page for one in CONTRACT.items if one.remedy.page})
COMMANDS = sorted({one.remedy.command for one in CONTRACT.items if one.remedy.command})


def test_contract_at_the_root_is_that_of_the_package() -> None:
    link = ROOT / "contract" / "v1.yaml"
    assert link.is_symlink()
    assert load_contract(link) == CONTRACT
    assert load_contract(ROOT / "src" / "gpufleet" / "fleet" / "contract" / "v1.yaml") == CONTRACT


def test_every_area_has_a_must_item() -> None:
    assert AREA_TITLES.keys() == set(ContractArea)
    assert {one.area for one in CONTRACT.items if one.level is Requirement.MUST} == set(ContractArea)


@pytest.mark.parametrize("page", PAGES)
def test_page_of_a_remedy_exists(page: str) -> None:
    name, _, anchor = page.partition("#")
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert not anchor or anchor in anchors


@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_a_remedy_exists(command: str) -> None:
    program, *names = shlex.split(command)
    assert program == "gpufleet"
    found: Any = typer.main.get_command(app)
    for place, name in enumerate(names):
        if name.startswith("--"):
            options = {option for one in found.params for option in one.opts}
            assert set(names[place:]) <= options
            return
        found = found.commands[name]


def test_every_problem_of_a_file_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    text = (ROOT / "contract" / "v1.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("level: MUST", "level: MOST", 2))
    with pytest.raises(ConfigProblemsError) as caught:
        load_contract(file)
    assert [one.key for one in caught.value.problems] == ["node.agent: level", "node.agent_version: level"]
    line = 1 + text[: text.index("level: MUST")].count("\n")
    assert str(caught.value.problems[0]).startswith(f"{file}:{line}: node.agent: level: ")


def test_large_or_missing_file_is_an_error(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    for file in (large, tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError) as caught:
            load_contract(file)
        assert str(file) in str(caught.value)
