"""Hub and agent processes with tokens, plain and over TLS, and the resources that an attack may use."""

import contextlib
import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import HubConfig
from gpufleet.model.access import Role
from gpufleet.registry.database import Database
from gpufleet.registry.tokens import SqlTokens
from tests.security.guarded import Reply, exchange
from tests.support.authority import Authority
from tests.support.hub_state import prepare_state
from tests.support.process_memory import memory_kib
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

AGENT_TOKEN = "a-token-of-any-shape"

BOUND: Mapping[Role, dict[str, Any]] = {
    Role.SENDER: {"cluster": "local"},
    Role.TENANT: {"tenant": "acme"},
    Role.OPERATOR: {},
    Role.ADMIN: {},
}
"""The cluster or tenant that a token of each role is bound to."""

GOOD_SECONDS = 10.0
"""Longest time in which a good client gets three answers during an attack; generous, for a busy machine."""

GOOD_PAUSE_SECONDS = 0.2
"""Pause of the good client between its rounds."""

GROWTH_MIB = {"hub": 160, "agent": 32}
"""Maximum growth of peak resident memory during an attack."""

WARM_UP = 20
"""Rounds of a good client before the first attack: the first requests raise peak memory too."""

SPARE_FDS = 16
"""Descriptors that a daemon may open for its own work during an attack."""


class Daemon(msgspec.Struct, frozen=True):
    """Running daemon with a read token, a path that requires it, and, for a hub, a token of each role."""

    kind: str
    process: Gpufleet
    port: int
    tls: ssl.SSLContext | None
    token: str
    guarded: str
    tokens: Mapping[Role, str] = {}

    @property
    def sender(self) -> str:
        """Sender token of the hub for the cluster `local`."""
        return self.tokens[Role.SENDER]

    @property
    def name(self) -> str:
        """Name for assertion messages."""
        return f"{self.kind}, {'TLS' if self.tls else 'plain'}"

    def connect(self, seconds: float = 20) -> socket.socket:
        """Connect, including the TLS handshake if the daemon uses TLS."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        return self.tls.wrap_socket(plain, server_hostname="127.0.0.1") if self.tls else plain

    def request(
        self,
        path: str,
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request over its own connection."""
        headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        return exchange(self.port, method, path, headers, body, self.tls)

    def post(self, content: bytes, content_type: str = CONTENT_TYPE, **headers: str) -> Reply:
        """Post a batch or a bundle as the sender."""
        headers["Content-Type"] = content_type
        return self.request("/v1/batches", self.sender, "POST", content, headers=headers)

    def send_raw(self, request: bytes) -> bytes:
        """Send raw bytes and return everything received until the daemon closes the connection."""
        content = b""
        with self.connect() as connection, contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(request)
            while some := connection.recv(65_536):
                content += some
        return content

    def answers_well(self) -> None:
        """Act as a good client, with and without the token."""
        started = time.monotonic()
        assert self.request("/healthz").status == 200
        assert self.request(self.guarded, self.token).status == 200
        assert self.request(self.guarded).status == 401
        took = time.monotonic() - started
        assert took < GOOD_SECONDS, f"a good client waited {took:.1f} s for three answers"

    @property
    def peak_mib(self) -> int:
        """Peak resident memory in MiB."""
        return memory_kib("VmHWM", self.process.process.pid) >> 10

    @property
    def fds(self) -> int:
        """Count of open descriptors, except the three under /proc per thread of the embedded engine."""
        return sum(not name.startswith("/proc/") for name in _open_files(self.process.process.pid))

    @property
    def log(self) -> str:
        """Complete log of the process."""
        return self.process.log.read_text("utf-8", "replace")


def create_tokens(state: Path, roles: Mapping[Role, dict[str, Any]] = BOUND) -> dict[Role, str]:
    """Create a token of each role in the registry of a stopped hub, and return the secrets."""
    database = Database.open(HubConfig(state=str(state)).registry_dsn)
    try:
        tokens = SqlTokens(database)
        return {role: tokens.create(role, dt.datetime.now(dt.UTC), **bound)[1] for role, bound in roles.items()}
    finally:
        database.close()


def _open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed after it was listed
            yield str(descriptor.readlink())


@contextlib.contextmanager
def running(kind: str, folder: Path, *, secure: bool) -> Iterator[Daemon]:
    """Run a daemon, warmed up."""
    folder.mkdir(parents=True)
    port, config, authority = free_port(), folder / f"{kind}.toml", None
    lines = [f'listen = "127.0.0.1:{port}"', f'state = "{folder}"']
    tokens: dict[Role, str] = {}
    if kind == "hub":
        tokens = create_tokens(prepare_state(folder))
        token, guarded = tokens[Role.ADMIN], "/v1/nodes"
        lines.append('auth = "tokens"')
    else:
        token, guarded = AGENT_TOKEN, "/v1/snapshot"
        (folder / "own.token").write_text(token)
        lines += ['node = "n1"', f'token_file = "{folder}/own.token"']
    if secure:
        authority = Authority(folder)
        authority.issue(folder / "server.crt", folder / "server.key")
        lines += ["[tls]", f'certificate = "{folder}/server.crt"', f'key = "{folder}/server.key"']
    if kind == "agent":
        lines += ["[readers.nvml]", "enabled = false"]
    config.write_text("\n".join(lines))
    tls = authority.trusting if authority else None
    with Gpufleet([kind, "--config", str(config)], folder / "log") as process:
        daemon = Daemon(kind, process, port, tls, token, guarded, tokens)
        wait_until(lambda: _is_up(daemon), seconds=100, what=f"the {daemon.name} to be up")
        for _ in range(WARM_UP):
            daemon.answers_well()
        yield daemon
        assert process.process.poll() is None, daemon.log
        code = process.stop()
        assert code == 0, f"the {daemon.name} ended with {code}:\n{daemon.log[-5000:]}"
    assert "Traceback" not in daemon.log, daemon.log[-5000:]
    assert token not in daemon.log, "the token is in the log"


def _is_up(daemon: Daemon) -> bool:
    assert daemon.process.process.poll() is None, daemon.log
    with contextlib.suppress(OSError):
        return daemon.request(daemon.guarded, daemon.token).status == 200
    return False


@contextlib.contextmanager
def under_attack(daemon: Daemon, growth_mib: int | None = None) -> Iterator[None]:
    """Assert that a good client is served during the block, and that memory and descriptors are bounded after it."""
    daemon.answers_well()
    fds, peak = daemon.fds, daemon.peak_mib
    client = _GoodClient(daemon)
    client.start()
    try:
        yield
        daemon.answers_well()
    finally:
        client.stop()
    assert client.failure is None, client.failure  # first: a failure can be why nothing was served
    assert client.served > 0
    grown = daemon.peak_mib - peak
    bound = GROWTH_MIB[daemon.kind] if growth_mib is None else growth_mib
    assert grown <= bound, f"the {daemon.name} grew by {grown} MiB, from {peak}"
    wait_until(lambda: daemon.fds <= fds + SPARE_FDS, seconds=40, what=f"{daemon.fds} descriptors to become {fds}")


class _GoodClient(threading.Thread):
    """Sends requests until stopped, and records the first failure."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._stopped = threading.Event()
        self.served = 0
        self.failure: str | None = None

    def run(self) -> None:
        while True:
            try:
                self._daemon.answers_well()
            except (OSError, AssertionError) as error:
                self.failure = f"a good client was not served: {type(error).__name__}: {error}"
                return
            self.served += 1
            if self._stopped.wait(GOOD_PAUSE_SECONDS):
                return

    def stop(self) -> None:
        """End after at most one more round."""
        self._stopped.set()
        self.join(timeout=30)
