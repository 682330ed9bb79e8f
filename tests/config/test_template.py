"""Configuration template: every key with its description, and valid with any lines uncommented."""

import re
import tomllib
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.config import agent, hub
from gpufleet.config.load import leaves, resolve
from gpufleet.config.template import NOT_SET, render_template

RECORDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "agent": (agent.AgentConfig, agent.ENV_PREFIX),
    "hub": (hub.HubConfig, hub.ENV_PREFIX),
}
COMMENTED = re.compile(rf"#(\w+ = .*)(?<!{NOT_SET})")


def template(daemon: str) -> str:
    record, prefix = RECORDS[daemon]
    return render_template(record, daemon=daemon, env_prefix=prefix)


@pytest.mark.parametrize("daemon", RECORDS)
class TestDaemons:
    def test_template_sets_no_value(self, daemon: str, tmp_path: Path) -> None:
        file = tmp_path / "config.toml"
        file.write_text(template(daemon))
        record, prefix = RECORDS[daemon]
        assert resolve(record, file=file, env_prefix=prefix, env={}, flags={}).origins == {}

    def test_template_has_every_key(self, daemon: str) -> None:
        text = re.sub(r"^# ?(\w+) = (.*)$", r"\1 = 0", template(daemon), flags=re.MULTILINE)
        for key, _ in leaves(RECORDS[daemon][0]):
            found: object = tomllib.loads(text)
            for part in key.split("."):
                assert isinstance(found, dict)
                found = found[part]

    def test_every_key_has_a_description(self, daemon: str) -> None:
        for block in template(daemon).split("\n\n"):
            assert re.match(r"# [A-Z`]", block), block

    @given(data=st.data())
    def test_uncommenting_defaults_changes_nothing(
        self, daemon: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        lines = template(daemon).splitlines()
        lines_with_default = [number for number, line in enumerate(lines) if COMMENTED.fullmatch(line)]
        for number in data.draw(st.sets(st.sampled_from(lines_with_default))):
            lines[number] = lines[number].removeprefix("#")
        file = tmp_path_factory.getbasetemp() / f"{daemon}.toml"
        file.write_text("\n".join(lines))
        record, prefix = RECORDS[daemon]
        resolved = resolve(record, file=file, env_prefix=prefix, env={}, flags={})
        assert resolved.config == resolve(record, file=None, env_prefix=prefix, env={}, flags={}).config

    def test_every_commented_line_is_valid(self, daemon: str, tmp_path: Path) -> None:
        text = template(daemon)
        assert '"..."' not in text, "a key without an example"
        file = tmp_path / "config.toml"
        file.write_text(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
        record, prefix = RECORDS[daemon]
        resolved = resolve(record, file=file, env_prefix=prefix, env={}, flags={})
        assert resolved.origins.keys() == {key for key, _ in leaves(record)}


class Inner(msgspec.Struct):
    """A table.

    Attributes:
        one, two: described together,
            over two lines, such as `b`.
        three: `code` first.

    Not an attribute: this.
    """

    one: int = 1
    two: str | None = None
    three: Literal["b", "a"] = "b"


class Outer(msgspec.Struct):
    """All settings.

    Attributes:
        needed: without a default. None means trouble.
    """

    needed: int
    inner: Inner = msgspec.field(default_factory=Inner)
    listed: tuple[str, ...] = ("é", 'quo"te')


def test_template_format() -> None:
    assert render_template(Outer, daemon="toy", env_prefix="TOY_").partition("\n\n")[2] == (
        "# Without a default. not set means trouble.\n"
        "# needed = (required)\n"
        '#listed = ["é", "quo\\"te"]\n'
        "\n"
        "# A table.\n"
        "[inner]\n"
        "# Described together, over two lines, such as `b`.\n"
        "#one = 1\n"
        "\n"
        "# Described together, over two lines, such as `b`.\n"
        '#two = "b"  # an example: not set by default\n'
        "\n"
        "# `code` first. One of b, a.\n"
        '#three = "b"\n'
    )
