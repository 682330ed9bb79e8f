"""Agent and hub processes with TLS and tokens, and idle connections at their ports."""

import contextlib
import json
import socket
import ssl
from pathlib import Path

from gpufleet.model.access import Role
from tests.security.daemons import create_tokens
from tests.security.guarded import exchange
from tests.support.authority import Authority
from tests.support.command import gpufleet
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

IDLE = 500
"""Connections that send nothing."""


def test_batches_arrive_over_tls_with_tokens(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    authority.issue(certificate, key)
    secrets = create_tokens(prepare_state(tmp_path), {Role.ADMIN: {}, Role.SENDER: {"cluster": "rack-7"}})
    admin, sender = (tmp_path / f"{role}.token" for role in secrets)
    for file, secret in zip((admin, sender), secrets.values(), strict=True):
        file.write_text(f"{secret}\n")
    hub_port, agent_port = free_port(), free_port()
    tls = f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    (tmp_path / "hub.toml").write_text(f'auth = "tokens"\nlisten = "0.0.0.0:{hub_port}"\nstate = "{tmp_path}"\n{tls}')
    (tmp_path / "agent.toml").write_text(
        f'cluster = "rack-7"\nnode = "n1"\nlisten = "0.0.0.0:{agent_port}"\nstate = "{tmp_path}"\n'
        f'token_file = "{admin}"\n{tls}\n[lanes]\nfast = 1.0\n[readers.nvml]\nenabled = false\n'
        f'[hub]\nurl = "https://127.0.0.1:{hub_port}"\ntoken_file = "{sender}"\nca = "{authority.file}"\n'
    )
    credentials = ("--ca", str(authority.file), "--token-file", str(admin))
    query_options = ("--hub", f"https://127.0.0.1:{hub_port}", *credentials)

    def up(port: int) -> bool:
        with contextlib.suppress(OSError):
            return exchange(port, "GET", "/healthz", {}, None, authority.trusting).status == 200
        return False

    with (
        Gpufleet(["hub", "--config", str(tmp_path / "hub.toml")], tmp_path / "hub.log") as hub,
        Gpufleet(["agent", "--config", str(tmp_path / "agent.toml")], tmp_path / "agent.log") as agent,
    ):
        for port in (hub_port, agent_port):
            wait_until(lambda port=port: up(port), seconds=100, what=f"port {port}")  # type: ignore[misc]
        # the cluster is not registered: batches wait at the agent
        done = gpufleet("cluster", "put", "rack-7", "--expect", "H200=8", *query_options)
        assert (done.returncode, json.loads(done.stdout)["served"]) == (0, True), done.stderr

        def arrived() -> bool:
            headers = {"Authorization": f"Bearer {secrets[Role.ADMIN]}"}
            return b'"n1"' in exchange(hub_port, "GET", "/v1/nodes", headers, None, authority.trusting).body

        wait_until(arrived, seconds=60, what="the node at the hub")
        found = gpufleet("query", "nodes", "--json", *query_options)
        assert (found.returncode, "n1" in found.stdout) == (0, True), found.stderr
        assert gpufleet("why", "host", "--agent", f"https://127.0.0.1:{agent_port}", *credentials).returncode == 0
        assert gpufleet("query", "nodes", *query_options[:2]).returncode == 1
        before = ssl.get_server_certificate(("127.0.0.1", hub_port))
        with contextlib.ExitStack() as idle:
            for port in (hub_port, agent_port):
                for _ in range(IDLE if port == hub_port else IDLE // 10):
                    connection = idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert up(port)
            authority.issue(certificate, key)
            wait_until(
                lambda: ssl.get_server_certificate(("127.0.0.1", hub_port)) != before, what="the new certificate"
            )
        assert (hub.process.poll(), agent.process.poll()) == (None, None)
        assert up(hub_port)
        assert agent.stop() == 0
        assert hub.stop() == 0
    log = (tmp_path / "hub.log").read_text() + (tmp_path / "agent.log").read_text()
    assert "Traceback" not in log
    for file in (admin, sender):
        assert file.read_text().strip() not in log
