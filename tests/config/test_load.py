"""Configuration loader: precedence of sources, and problems with source, key and reason."""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.config.load import ConfigProblemsError, InvalidValueError, load, resolve
from gpufleet.config.template import render_toml
from gpufleet.model.errors import ConfigError


class Table(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None
    names: tuple[str, ...] = ()
    seconds: Annotated[float, msgspec.Meta(ge=1)] = 5.0

    def __post_init__(self) -> None:
        if self.url == "nowhere":
            raise InvalidValueError("url", "is nowhere")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "x"
    count: int = 1
    on: bool = False
    hub: Table = Table()


def read(tmp_path: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> Config:
    file = tmp_path / "c.toml"
    file.write_text(text)
    return load(
        Config, file=file, env_prefix="T_", env=env or {}, flags={k.replace("__", "."): v for k, v in flags.items()}
    )


def test_defaults_without_any_source() -> None:
    assert load(Config, file=None, env_prefix="T_", env={}, flags={}) == Config()


def test_environment_overrides_file_and_flags_override_both(tmp_path: Path) -> None:
    text = 'name = "file"\ncount = 2\n[hub]\nurl = "file"\nseconds = 7\n'
    env = {"T_COUNT": "3", "T_HUB__URL": "env", "T_ON": "true", "T_HUB__NAMES": "a, b", "OTHER": "1", "T_NAME": ""}
    config = read(tmp_path, text, env, hub__url="flag", name=None)
    assert config == Config(name="file", count=3, on=True, hub=Table(url="flag", names=("a", "b"), seconds=7.0))


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("nmae = 'a'", "nmae", "did you mean name?"),
        ("zzzzzz = 'a'", "zzzzzz", "unknown key"),
        ("name = 3", "name", "Expected `str`, got `int`"),
        ("count = '3'", "count", "Expected `int`, got `str`"),
        ("count = true", "count", "Expected `int`, got `bool`"),
        ("on = 1", "on", "Expected `bool`, got `int`"),
        ("hub = 3", "hub", "is a table"),
        ("[hub]\nseconds = 0.5", "hub.seconds", ">= 1.0"),
        ("[hub]\nurl = 'nowhere'", "hub.url", "is nowhere"),
        ("[hub]\nx = 1", "hub.x", "unknown key"),
        ("[name]\nx = 1", "name", "Expected `str`, got `object`"),
        ("name = ", "", "is not TOML"),
    ],
)
def test_invalid_file_is_reported_with_file_key_and_reason(tmp_path: Path, text: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.source == str(tmp_path / "c.toml")
    assert caught.value.key == key
    assert reason in caught.value.reason


def test_problems_of_all_sources_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblemsError) as caught:
        read(tmp_path, "nmae = 1\n[hub]\nurl = 'nowhere'", {"T_COUNT": "many"}, on="perhaps")
    problems = [(problem.source, problem.key) for problem in caught.value.problems]
    file = str(tmp_path / "c.toml")
    assert problems == [(file, "nmae"), ("T_COUNT", "count"), ("--on", "on"), (file, "hub.url")]
    assert len(str(caught.value).splitlines()) == 4


def test_missing_or_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(Config, file=tmp_path / "none.toml", env_prefix="T_", env={}, flags={})
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 8"):
        load(Config, file=binary, env_prefix="T_", env={}, flags={})


def test_too_deep_nesting_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read(tmp_path, f"name = {'[' * 20_000}{']' * 20_000}")


def test_variable_or_flag_that_is_not_utf_8_is_reported() -> None:
    broken = os.fsdecode(b"a\xff")
    with pytest.raises(ConfigProblemsError) as caught:
        load(Config, file=None, env_prefix="T_", env={"T_NAME": broken}, flags={"hub.url": broken})
    problems = [(problem.source, problem.reason.partition(";")[0]) for problem in caught.value.problems]
    assert problems == [("T_NAME", "is not UTF-8"), ("--hub-url", "is not UTF-8")]


def test_missing_required_key_is_reported() -> None:
    class Needs(msgspec.Struct, frozen=True, kw_only=True):
        key: str

    with pytest.raises(ConfigError) as caught:
        load(Needs, file=None, env_prefix="T_", env={}, flags={})
    assert caught.value.key == "key"


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("count = 2\n")
    resolved = resolve(Config, file=file, env_prefix="T_", env={"T_ON": "1"}, flags={"hub.url": "u"})
    assert [resolved.origin(key) for key in ("name", "count", "on", "hub.url")] == [
        "default", str(file), "T_ON", "--hub-url",
    ]  # fmt: skip


@given(
    st.builds(
        Config,
        name=st.text(st.characters(exclude_categories=["Cs"])),
        count=st.integers(-(2**62), 2**62),
        on=st.booleans(),
        hub=st.builds(
            Table,
            url=st.none() | st.just("http://h"),
            names=st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(tuple),
            seconds=st.floats(1, 1e300),
        ),
    )
)
def test_printed_configuration_loads_unchanged(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    flags = {
        "name": config.name, "count": config.count, "on": config.on,
        "hub.url": config.hub.url, "hub.names": config.hub.names, "hub.seconds": config.hub.seconds,
    }  # fmt: skip
    printed = render_toml(resolve(Config, file=None, env_prefix="T_", env={}, flags=flags))
    file = tmp_path_factory.mktemp("printed") / "c.toml"
    file.write_text(printed, encoding="utf-8", newline="")
    assert load(Config, file=file, env_prefix="T_", env={}, flags={}) == config


@given(st.binary(max_size=200))
def test_any_file_gives_a_configuration_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "c.toml"
    file.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert isinstance(load(Config, file=file, env_prefix="T_", env={}, flags={}), Config)
