from pathlib import Path

import pytest

from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import load
from gpufleet.model.errors import ConfigError


def loaded(text: str, folder: Path, **flags: object) -> HubConfig:
    file = folder / "hub.toml"
    file.write_text(text)
    return load(HubConfig, file=file, env_prefix=ENV_PREFIX, env={}, flags=flags)


def test_state_folder_contains_store_and_registry(tmp_path: Path) -> None:
    config = loaded('state = "/var/lib/gpufleet"', tmp_path)
    assert config.store_dsn == "chdb:///var/lib/gpufleet/hub/store"
    assert config.registry_dsn == "sqlite:////var/lib/gpufleet/hub/registry.sqlite"


def test_configured_store_is_used(tmp_path: Path) -> None:
    assert loaded('store = "clickhouse://db:8123/fleet"', tmp_path).store_dsn == "clickhouse://db:8123/fleet"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('listen = "0.0.0.0:8470"', "reachable from other machines"),
        ('listen = "0.0.0.0:8470"\nauth = "tokens"', r"without \[tls\]: "),
        ('listen = "hub.example.org:8470"\n[tls]\ncertificate = "c"\nkey = "k"', 'without auth = "tokens": '),
        ('listen = "[::]:8470"', r'without auth = "tokens" and \[tls\]: '),
        ('auth = "password"', "auth"),
        ('[tls]\ncertificate = "c"', "tls.certificate: .*key"),
        ('[tls]\nkey = "k"', "tls.key: .*certificate"),
        ('listen = "8470"', "HOST:PORT"),
        ("clusters = []", "clusters"),
        ('clusters = ["a/b"]', "clusters"),
        ('surprise = "x"', "surprise"),
        ("stale_after_seconds = 0", "stale_after_seconds"),
        ("[ingest]\nmax_pending_bytes = 2048", "max_pending_bytes"),
        ("[ingest]\nwal_max_bytes = 1048576", "wal_max_bytes"),
        ("[flush]\ninterval_seconds = -1", "interval_seconds"),
        ("[findings]\ninterval_seconds = 5", "findings.interval_seconds"),
        ('[findings."node.missing"]\nintervals = 4', "findings.node.missing: unknown key"),
        ('[[discovery]]\nfiles = ["/etc/targets.txt"]', "discovery: files: '/etc/targets.txt'"),
        ('[[discovery]]\nfiles = ["/etc/*/targets.yml"]', r"discovery: files: '/etc/\*/targets.yml'"),
        ("[[discovery]]\nfiles = []", "files"),
        ('[[discovery]]\nfiles = ["a.yml"]\ncluster = "a/b"', "cluster"),
        ('[[discovery]]\nfiles = ["a.yml"]\nreads = "netdata"\ntoken_file = "t"', "without credentials"),
        ('[[federation]]\ncluster = "a"\nurl = "prometheus:9090"', "federation: url: 'prometheus:9090'"),
        ('[[federation]]\ncluster = "a"\nurl = "http://p:9090/?x=1"', r"federation: url: .*\bmatch\b"),
        (
            '[[federation]]\ncluster = "a"\nurl = "http://p:9090"\ntoken_file = "t"',
            "federation: url: .*insecure = true",
        ),
        ('[[federation]]\ncluster = "a"\nurl = "http://u:p@p:9090"', "password"),
        (2 * '[[federation]]\ncluster = "a"\nurl = "http://p:9090"\n', "federation: .*`name`"),
        ('[[kube_state_metrics]]\ncluster = "a"\nurl = "kube:8080"', "kube_state_metrics: url: 'kube:8080'"),
        (
            '[[kube_state_metrics]]\ncluster = "a"\nurl = "http://k:8080/metrics"\ntoken_file = "t"',
            "kube_state_metrics: url: .*insecure = true",
        ),
        (
            2 * '[[kube_state_metrics]]\ncluster = "a"\nurl = "http://k:8080/metrics"\n',
            "kube_state_metrics: .*`name`",
        ),
        (
            '[relay]\nto = "http://h:1"\n[[kube_state_metrics]]\ncluster = "a"\nurl = "http://k:8080/metrics"',
            r"kube_state_metrics: .*relay\.to",
        ),
        (
            '[relay]\nto = "http://h:1"\n[[federation]]\ncluster = "a"\nurl = "http://p:9090"',
            r"federation: .*relay\.to",
        ),
        ('[relay]\nto = "http://h:1"\n[[discovery]]\nfiles = ["a.yml"]', r"discovery: .*relay\.to"),
        ('[forward]\nurl = "http://v:8428/write"\ntoken_file = "t"', "forward.url: .*insecure = true"),
        ('[forward]\nlabels = ["no"]', "forward.labels: 'no'"),
        ("[forward]\nqueue_bytes = 1", "queue_bytes"),
    ],
)
def test_invalid_hub_configuration_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        loaded(text, tmp_path)


def test_insecure_listen_allows_other_addresses_on_a_hub(tmp_path: Path) -> None:
    assert loaded('listen = "0.0.0.0:8470"', tmp_path, insecure_listen=True).listen == "0.0.0.0:8470"


def test_listening_beyond_loopback_requires_tokens_and_tls(tmp_path: Path) -> None:
    safe = 'listen = "0.0.0.0:8470"\nauth = "tokens"\n[tls]\ncertificate = "c"\nkey = "k"'
    assert loaded(safe, tmp_path).tls.is_on


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "[::1]", "localhost"])
def test_loopback_requires_no_tokens_or_tls(tmp_path: Path, host: str) -> None:
    config = loaded(f'listen = "{host}:8470"', tmp_path)
    assert (config.auth, config.tls.is_on) == ("none", False)
