"""Agent configuration: refused values, defaults and the documented example."""

from pathlib import Path

import pytest

from gpufleet.config.agent import ENV_PREFIX, AgentConfig, DcgmConfig, ReadersConfig, default_state, parse_listen
from gpufleet.config.load import InvalidValueError, leaves, load, resolve
from gpufleet.config.scrape import ExporterTarget
from gpufleet.config.template import render_toml
from gpufleet.model.errors import ConfigError


def from_env(**env: str) -> AgentConfig:
    return load(
        AgentConfig, file=None, env_prefix=ENV_PREFIX, env={f"{ENV_PREFIX}{k}": v for k, v in env.items()}, flags={}
    )


@pytest.mark.parametrize(
    ("name", "value", "key", "reason"),
    [
        ("LISTEN", "0.0.0.0:9470", "listen", "insecure_listen"),
        ("LISTEN", "[::]:9470", "listen", "insecure_listen"),
        ("LISTEN", "node17:9470", "listen", "insecure_listen"),
        ("LISTEN", "127.0.0.1", "listen", "HOST:PORT"),
        ("LISTEN", "127.0.0.1:70000", "listen", "HOST:PORT"),
        ("LISTEN", "::1:9470", "listen", "brackets"),
        ("LANES__FAST", "0", "lanes.fast", ">= 1.0"),
        ("LANES__SLOW", "1e9", "lanes.slow", "<= 86400.0"),
        ("LANES__FAST", "nan", "lanes.fast", "1.0"),
        ("HUB__URL", "hub:8470", "hub.url", "http://HOST:PORT"),
        ("HUB__URL", "http://", "hub.url", "http://HOST:PORT"),
        ("HUB__URL", "http://h/?a=b", "hub.url", "query"),
        ("TLS__KEY", "k", "tls.key", "certificate"),
        ("LOG_LEVEL", "loud", "log_level", "Invalid enum value"),
        ("CLUSTER", "x" * 254, "cluster", "length <= 253"),
        ("SPOOL__MAX_BYTES", "10", "spool.max_bytes", ">= 1048576"),
        ("READERS__DCGM__ENABLED", "true", "readers.dcgm.enabled", "unknown key"),
    ],
)
def test_invalid_values_are_reported_with_source_and_key(name: str, value: str, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(**{name: value})
    assert caught.value.source == f"{ENV_PREFIX}{name}"
    assert caught.value.key == key
    assert reason in caught.value.reason


def test_insecure_listen_allows_other_addresses() -> None:
    assert from_env(LISTEN="0.0.0.0:9470", INSECURE_LISTEN="true").listen == "0.0.0.0:9470"


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:9470", ("localhost", 9470)),
        ("[::1]:9470", ("::1", 9470)),
    ],
)
def test_listen_is_host_and_port(listen: str, parts: tuple[str, int]) -> None:
    assert parse_listen(listen) == parts
    assert AgentConfig(listen=listen).listen == listen


@pytest.mark.parametrize("port", ["٤٢", "1" * 5000, "-1", "65536", ""])
def test_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_listen(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://hub:99999", "http://hub:x", "http://h h", "http://h\n", "hub:80"]
)
def test_invalid_hub_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(AgentConfig, file=None, env_prefix=ENV_PREFIX, env={"GPUFLEET_AGENT_HUB__URL": url}, flags={})
    assert caught.value.key == "hub.url"
    assert caught.value.key == "hub.url"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "without token_file and [tls]"),
        ({"TOKEN_FILE": "t"}, "without [tls]"),
        ({"TLS__CERTIFICATE": "c", "TLS__KEY": "k"}, "without token_file"),
    ],
)
def test_listening_beyond_loopback_requires_token_and_tls(more: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(LISTEN="0.0.0.0:9470", **more)
    assert expected in caught.value.reason
    both = {"TOKEN_FILE": "t", "TLS__CERTIFICATE": "c", "TLS__KEY": "k"}
    assert from_env(LISTEN="0.0.0.0:9470", **both).tls.is_on
    assert from_env(LISTEN="0.0.0.0:9470", INSECURE_LISTEN="true", **more).insecure_listen


def test_token_requires_https_or_insecure() -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(HUB__URL="http://hub:8470", HUB__TOKEN_FILE="t")
    assert caught.value.key == "hub.url"
    for url, more in (
        ("https://hub:8470", {}),
        ("http://127.0.0.1:8470", {}),
        ("http://hub:8470", {"HUB__INSECURE": "true"}),
    ):
        assert from_env(HUB__URL=url, HUB__TOKEN_FILE="t", **more).hub.token_file == "t"


def test_state_folder_depends_on_root() -> None:
    assert default_state({"HOME": "/root"}, 0) == "/var/lib/gpufleet"
    assert default_state({"HOME": "/home/a"}, 1000) == "/home/a/.local/state/gpufleet"
    assert default_state({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, 1000) == str(Path("/s/gpufleet"))
    assert default_state({}, 1000) == "/var/lib/gpufleet"


def test_printed_defaults_can_be_loaded(tmp_path: Path) -> None:
    resolved = resolve(AgentConfig, file=None, env_prefix=ENV_PREFIX, env={}, flags={"readers.nvml.enabled": False})
    file = tmp_path / "agent.toml"
    file.write_text(render_toml(resolved))

    assert load(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={}) == resolved.config


def test_documented_example_is_valid_and_has_every_key(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "agent.toml"
    file.write_text(example)
    resolved = resolve(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    assert set(resolved.origins) == {key for key, _ in leaves(AgentConfig)}


OWN = ("unix:///run/dcgm.sock", "tcp://127.0.0.1:5555", "tcp://[::1]:5555", "tcp://localhost:5555", "vsock://1:5555")
FOREIGN = (
    *("tcp://10.0.0.7:5555", "tcp://gpu-17:5555", "vsock://42:5555", "hybrid-vsock:///run/vm.sock:5555"),
    *("tcp://127.evil:1", ""),
)


@pytest.mark.parametrize("address", OWN)
def test_stream_address_of_this_host_is_accepted(address: str) -> None:
    assert DcgmConfig(address=address).address == address
    target = ExporterTarget(name="dcgm", address=address)
    assert ReadersConfig(exporter=(target,)).exporter == (target,)


@pytest.mark.parametrize("address", FOREIGN)
def test_stream_address_of_another_machine_is_refused(address: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        DcgmConfig(address=address)
    assert caught.value.key == "address"
    with pytest.raises(InvalidValueError) as caught:
        ReadersConfig(exporter=(ExporterTarget(name="dcgm", address=address),))
    assert caught.value.key == "exporter"


TARGET: dict[str, object] = {"name": "dcgm", "url": "http://127.0.0.1:9400/metrics"}


def test_exporter_targets_have_defaults(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[[readers.exporter]]\nname = "dcgm"\nurl = "https://node-17:9400/metrics"\ntoken_file = "t"\n')
    config = load(AgentConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags={})
    (target,) = config.readers.exporter
    assert (target.dialect, target.timeout_seconds, target.path) == ("auto", 5.0, "/metrics")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"url": "http://h:9400"}, "no path"),
        ({"url": "ftp://h/metrics"}, "url: 'ftp://h/metrics'"),
        ({"url": "http://u:p@h/metrics"}, "url: .* user"),
        ({"url": "http://h:99999/metrics"}, "url: .*0-65535"),
        ({"url": "http://h/metrics", "token_file": "t"}, "url: .*insecure = true"),
        ({"address": "unix:///run/x"}, "either url or address"),
        ({"url": None}, "either url or address"),
        ({"dialect": "both"}, "enum"),
        ({"name": "../x"}, "regex"),
        ({"timeout_seconds": 0}, ">= 0.1"),
        ({"surprise": 1}, "unknown field"),
    ],
)
def test_invalid_exporter_target_is_refused(change: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        targets([{**TARGET, **change}])


def test_duplicate_exporter_name_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        targets([TARGET, TARGET])
    assert caught.value.key == "readers.exporter"
    assert len(targets([TARGET, {**TARGET, "name": "smi"}]).readers.exporter) == 2


def targets(tables: list[dict[str, object]]) -> AgentConfig:
    known = [{name: value for name, value in table.items() if value is not None} for table in tables]
    flags = {"readers.exporter": known}
    return load(AgentConfig, file=None, env_prefix=ENV_PREFIX, env={}, flags=flags)


def test_labels_of_holders_are_off_by_default() -> None:
    metrics = from_env().metrics
    assert (metrics.holder_labels, metrics.dcgm_pod_labels) == (False, False)
    metrics = from_env(METRICS__HOLDER_LABELS="true", METRICS__DCGM_POD_LABELS="true").metrics
    assert (metrics.holder_labels, metrics.dcgm_pod_labels) == (True, True)
