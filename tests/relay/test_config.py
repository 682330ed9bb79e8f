"""Configuration of a relay."""

import re
from pathlib import Path

import pytest

from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import load
from gpufleet.model.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "relay.md"


def loaded(text: str, folder: Path) -> HubConfig:
    file = folder / "hub.toml"
    file.write_text(text)
    return load(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})


def test_documented_example_is_valid_and_has_every_key(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    config = loaded(example, tmp_path)
    assert (config.relay.to, config.relay.connections) == ("https://hub:8470", 8)
    for field in config.relay.__struct_fields__:
        assert re.search(rf"^{field} = ", example, re.MULTILINE), field


def test_hub_without_relay_table_is_no_relay(tmp_path: Path) -> None:
    assert loaded("", tmp_path).relay.to is None


@pytest.mark.parametrize(
    ("relay", "key"),
    [
        ('to = "hub:8470"', "relay.to"),
        ('to = "http://hub:8470/?a=b"', "relay.to"),
        ('to = "https://hub:8470"\nconnections = 0', "relay.connections"),
        ('to = "http://hub:8470"\ntoken_file = "/t"', "relay.to"),
    ],
)
def test_invalid_relay_setting_is_named(tmp_path: Path, relay: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(f"[relay]\n{relay}\n", tmp_path)
    assert caught.value.key == key


def test_hosts_are_rejected_on_a_relay(tmp_path: Path) -> None:
    text = '[relay]\nto = "https://hub:8470"\n[[netdata]]\ncluster = "local"\nnode = "a"\nurl = "http://a:19999"'
    with pytest.raises(ConfigError) as caught:
        loaded(text, tmp_path)
    assert caught.value.key == "netdata"
