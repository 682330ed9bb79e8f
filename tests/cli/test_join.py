"""A new hub and node by `hub init` and `join`, over TLS with tokens, as the documentation describes it."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.command import Done, gpufleet
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until


class NewHub(msgspec.Struct):
    """Running hub that `hub init` prepared, with a registered cluster `rack-7` and its token."""

    folder: Path
    url: str

    @property
    def access(self) -> tuple[str, ...]:
        conf = self.folder / "conf"
        return ("--hub", self.url, "--token-file", str(conf / "admin.token"), "--ca", str(conf / "ca.crt"))

    def join(self, *more: str, token: str = "rack-7.token", ca: str = "conf/ca.crt", cluster: str = "rack-7") -> Done:
        options = ("--token-file", str(self.folder / token), "--ca", str(self.folder / ca))
        folders = ("--folder", str(self.folder / "node"), "--state", str(self.folder / "node-state"))
        return gpufleet("join", self.url, "--cluster", cluster, *options, *folders, "--node", "gpu-1", *more)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[NewHub]:
    port, conf = free_port(), tmp_path / "conf"
    folders = ("--folder", str(conf), "--state", str(tmp_path / "state"))
    done = gpufleet("hub", "init", *folders, "--listen", f"127.0.0.1:{port}", "--name", "localhost")
    assert done.returncode == 0, done.stderr
    new = NewHub(tmp_path, f"https://localhost:{port}")
    with Gpufleet(["hub", "--config", str(conf / "hub.toml")], tmp_path / "log") as process:
        wait_until(lambda: f"127.0.0.1:{port}" in process.log.read_text(), seconds=100, what="the hub to listen")
        assert gpufleet("cluster", "put", "rack-7", *new.access).returncode == 0
        created = gpufleet(
            "token", "create", "--role", "sender", "--cluster", "rack-7", "--config", str(conf / "hub.toml")
        )
        (tmp_path / "rack-7.token").write_text(created.stdout)
        wait_until(lambda: new.join("--folder", str(tmp_path / "probe")).returncode == 0, what="the token to be loaded")
        yield new
        assert process.stop() == 0


def test_joined_node_appears_at_the_hub(hub: NewHub) -> None:
    done = hub.join()
    assert done.returncode == 0, done.stdout + done.stderr
    node = hub.folder / "node"
    config = str(node / "agent.toml")
    secret = (hub.folder / "rack-7.token").read_text().strip()
    assert secret not in done.stdout + done.stderr
    assert {path.name: path.stat().st_mode & 0o777 for path in node.iterdir()} == {
        "agent.toml": 0o600,
        "sender.token": 0o600,
        "ca.crt": 0o644,
    }
    assert gpufleet("config", "validate", "--config", config).returncode == 0
    listen = {"GPUFLEET_AGENT_LISTEN": f"127.0.0.1:{free_port()}"}
    with Gpufleet(["agent", "--config", config], hub.folder / "agent.log", env=listen) as agent:
        wait_until(
            lambda: "gpu-1" in gpufleet("query", "nodes", *hub.access).stdout, seconds=60, what="the node at the hub"
        )
        checks = doctor(config, listen)
        assert {name: verdict for name, verdict in checks.items() if verdict != "ok"} == {}
        assert agent.stop() == 0
        assert secret not in agent.log.read_text()
    assert doctor(config, listen)["hub_delivery"] in ("unknown", "warning"), "the agent is stopped"


def doctor(config: str, env: dict[str, str]) -> dict[str, str]:
    """Return the verdict of each check of the hub."""
    done = gpufleet("doctor", "--json", "--config", config, env=env)
    return {one["name"]: one["verdict"] for one in json.loads(done.stdout) if one["name"].startswith("hub_t")} | {
        one["name"]: one["verdict"] for one in json.loads(done.stdout) if one["name"] in ("hub_cluster", "hub_delivery")
    }


def test_failed_check_writes_nothing(hub: NewHub) -> None:
    (hub.folder / "bad.token").write_text("gpf_unknown")
    (hub.folder / "no.pem").write_text("x")
    (hub.folder / "empty.token").write_text("")
    for done, code in (
        (hub.join(cluster="rack-8"), 1),
        (hub.join(token="conf/admin.token"), 1),
        (hub.join(token="bad.token"), 1),
        (hub.join(token="none"), 1),
        (hub.join(ca="no.pem"), 2),
        (hub.join(token="empty.token"), 2),
    ):
        assert done.returncode == code, done.stdout + done.stderr
        assert "gpufleet-join-" not in done.stderr, "errors name the given files"
        assert not (hub.folder / "node").exists()


def test_existing_configuration_is_replaced_only_with_force(hub: NewHub) -> None:
    assert hub.join().returncode == 0
    config = hub.folder / "node" / "agent.toml"
    config.write_text("# mine\n")
    assert hub.join().returncode == 1
    assert config.read_text() == "# mine\n"
    assert hub.join("--force").returncode == 0
    assert "rack-7" in config.read_text()
