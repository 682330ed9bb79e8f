"""Checks of a daemon's configuration: the same by `config validate` and at the start, with exit code 2."""

from pathlib import Path

import pytest

from gpufleet.config.hub import ENV_PREFIX, HubConfig
from gpufleet.config.load import ConfigProblemsError, resolve
from gpufleet.wiring.validation import check_hub
from tests.support.authority import Authority
from tests.support.command import gpufleet

WRONG = {
    "store = 'mysql://h/d'": "store",
    "store = 'clickhouse://h'": "store",
    "store = 'chdb:///'": "store",
    "store = 'chdb://{0}/file/store'": "store",
    "store = 'clickhouse://h/d?secure=1&ca={0}/none'": "store",
    "registry = 'mysql://u:secret@h/d'": "registry",
    "registry = 'postgresql+psycopg://u:secret@h:x/d'": "registry",
    "registry = 'postgresql+nothing://u:secret@h/d'": "registry",
    "registry = '/var/lib/registry.sqlite'": "registry",
    "state = '{0}/file'": "state",
    "[findings.rules.'node.missing']\nseconds = 4": 'findings.rules."node.missing".seconds',
    "[[findings.webhook]]\nname = 'w'\nurl = 'http://127.0.0.1:1'\nsecret_file = '{0}/token'\nrules = ['gpu.none']": (
        "findings.webhook[0].rules"
    ),
    "[tls]\ncertificate = '{0}/a.crt'\nkey = '{0}/b.key'": "tls.certificate",
    "[tls]\ncertificate = '{0}/none'\nkey = '{0}/a.key'": "tls.certificate",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o600)
    for name in ("a", "b"):
        Authority(tmp_path, name).issue(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
    return tmp_path


@pytest.mark.parametrize("text", WRONG)
def test_wrong_hub_configuration_exits_2_in_validate_and_at_start(folder: Path, text: str) -> None:
    file = folder / "hub.toml"
    state = "" if text.startswith("state") else f"state = '{folder}/state'\n"
    file.write_text(state + text.format(folder) + "\n")
    for command in (("config", "validate", "--for", "hub"), ("hub", "--listen", "127.0.0.1:0")):
        done = gpufleet(*command, "--config", str(file))
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"gpufleet: {file}: {WRONG[text]}: ")
        assert "secret" not in done.stderr
    assert not (folder / "state").exists(), "nothing is created"


@pytest.mark.parametrize(
    ("text", "key"), [("state = '{0}/file'", "state"), ("[tls]\ncertificate='{0}/a.crt'\nkey='{0}/b.key'", "tls")]
)
def test_wrong_agent_configuration_exits_2_at_start(folder: Path, text: str, key: str) -> None:
    file = folder / "agent.toml"
    file.write_text(text.format(folder))
    done = gpufleet("agent", "--config", str(file), "--listen", "127.0.0.1:0")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"gpufleet: {file}: {key}")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("state = '{0}/file'", "state"),
        ("[api]\nkubeconfig = '{0}/none'", "api.kubeconfig"),
        ("[hub]\nurl = 'http://127.0.0.1:1'", "cluster"),
    ],
)
def test_wrong_collector_configuration_exits_2_at_start(folder: Path, text: str, key: str) -> None:
    file = folder / "cluster-agent.toml"
    file.write_text(text.format(folder))
    done = gpufleet("cluster-agent", "--config", str(file), "--listen", "127.0.0.1:0")
    assert done.returncode == 2, done.stderr
    assert key in done.stderr.splitlines()[0]
    assert gpufleet("config", "validate", "--for", "cluster-agent", "--config", str(file)).returncode == 2


def test_collector_without_credentials_exits_2(tmp_path: Path) -> None:
    done = gpufleet("cluster-agent", "--listen", "127.0.0.1:0", "--state", str(tmp_path))
    assert done.returncode == 2
    assert "kubeconfig" in done.stderr


def test_relay_does_not_need_its_store(tmp_path: Path) -> None:
    flags = {"store": "clickhouse://h", "relay.to": "http://127.0.0.1:1", "state": str(tmp_path)}
    resolved = resolve(HubConfig, file=None, env_prefix=ENV_PREFIX, env={}, flags=flags)
    assert check_hub(resolved, daemon=True) == ()
    with pytest.raises(ConfigProblemsError):
        resolve(HubConfig, file=None, env_prefix=ENV_PREFIX, env={}, flags={"store": "x"})


def test_wrong_prices_are_named_by_validate(tmp_path: Path) -> None:
    prices, file = tmp_path / "prices.csv", tmp_path / "hub.toml"
    prices.write_text("model,per_gpu_hour,valid_from\nNVIDIA H200,free,2026-01-01T00:00:00Z\n")
    file.write_text(f"state = '{tmp_path}/state'\n[usage]\ncurrency = 'EUR'\nprice_file = '{prices}'\n")
    done = gpufleet("config", "validate", "--for", "hub", "--config", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpufleet: {prices}:2: column 2 (per_gpu_hour): ")
