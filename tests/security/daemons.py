"""Hub and agent as processes, with tokens, plain and over TLS, and what an attack may cost them."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.model.access import Role
from tests.security.guarded import Reply, exchange
from tests.support.authority import Authority
from tests.support.command import gpufleet
from tests.support.processes import Gpufleet, free_port
from tests.support.waiting import wait_until

AGENT_TOKEN = "a-token-of-any-shape"

BOUND: Mapping[Role, tuple[str, ...]] = {
    Role.SENDER: ("--cluster", "local"),
    Role.TENANT: ("--tenant", "acme"),
    Role.OPERATOR: (),
    Role.ADMIN: (),
}
"""What a token of each role is bound to."""

GOOD_SECONDS = 10.0
"""A good client is answered within this, whatever else goes on; 2 shared cores take their time."""

GROWTH_MIB = {"hub": 160, "agent": 32}
"""By how much an attack may raise the most memory that the process ever had resident."""

SPARE_FDS = 16
"""Files that a daemon may have opened meanwhile for its own work."""


class Daemon(msgspec.Struct, frozen=True):
    """One that runs, a token that may read, a path that asks for it, and, of a hub, a token of each role."""

    kind: str
    process: Gpufleet
    port: int
    tls: ssl.SSLContext | None
    token: str
    guarded: str
    tokens: Mapping[Role, str] = {}

    @property
    def sender(self) -> str:
        """A hub's token that may post for the cluster `local`."""
        return self.tokens[Role.SENDER]

    @property
    def name(self) -> str:
        """As tests are called."""
        return f"{self.kind}, {'TLS' if self.tls else 'plain'}"

    def connect(self, seconds: float = 20) -> socket.socket:
        """Connect, with the handshake if there is one."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        return self.tls.wrap_socket(plain, server_hostname="127.0.0.1") if self.tls else plain

    def ask(
        self,
        path: str,
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Ask over a connection of its own."""
        headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        return exchange(self.port, method, path, headers, body, self.tls)

    def post(self, content: bytes, content_type: str = CONTENT_TYPE, **headers: str) -> Reply:
        """Post a batch, or a bundle, as the sender."""
        return self.ask("/v1/batches", self.sender, "POST", content, headers={"Content-Type": content_type, **headers})

    def tell(self, request: bytes) -> bytes:
        """Send bytes as they are and return everything that comes, until the other side closes."""
        content = b""
        with self.connect() as connection, contextlib.suppress(ConnectionError, ssl.SSLError):
            connection.sendall(request)
            while some := connection.recv(65_536):
                content += some
        return content

    def answers_well(self) -> None:
        """Be a good client, with and without the token."""
        started = time.monotonic()
        assert self.ask("/healthz").status == 200
        assert self.ask(self.guarded, self.token).status == 200
        assert self.ask(self.guarded).status == 401
        took = time.monotonic() - started
        assert took < GOOD_SECONDS, f"a good client waited {took:.1f} s for three answers"

    @property
    def peak_mib(self) -> int:
        """The most memory that was ever resident."""
        return _status(self.process.process.pid, "VmHWM") >> 10

    @property
    def fds(self) -> int:
        """Open file descriptors, less the three under /proc that the embedded engine keeps per thread of its own."""
        return sum(not name.startswith("/proc/") for name in _open_files(self.process.process.pid))

    @property
    def log(self) -> str:
        """Everything that it ever wrote."""
        return self.process.log.read_text("utf-8", "replace")


def new_token(folder: Path, *arguments: str) -> str:
    """Make a token on the registry of a hub, before there is one."""
    done = gpufleet("token", "create", "--state", str(folder), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _open_files(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            yield str(descriptor.readlink())


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


@contextlib.contextmanager
def running(kind: str, folder: Path, *, secure: bool) -> Iterator[Daemon]:
    """Run one."""
    folder.mkdir(parents=True)
    port, config, authority = free_port(), folder / f"{kind}.toml", None
    lines = [f'listen = "127.0.0.1:{port}"', f'state = "{folder}"']
    tokens: dict[Role, str] = {}
    if kind == "hub":
        tokens = {role: new_token(folder, "--role", role, *more) for role, more in BOUND.items()}
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
        wait_until(lambda: _is_up(daemon), seconds=60, what=f"the {daemon.name} to be up")
        yield daemon
        assert process.process.poll() is None, daemon.log
        code = process.stop()
        assert code == 0, f"the {daemon.name} ended with {code}:\n{daemon.log[-5000:]}"
    assert "Traceback" not in daemon.log, daemon.log[-5000:]
    assert token not in daemon.log, "the token is in the log"


def _is_up(daemon: Daemon) -> bool:
    assert daemon.process.process.poll() is None, daemon.log
    with contextlib.suppress(OSError):
        return daemon.ask(daemon.guarded, daemon.token).status == 200
    return False


@contextlib.contextmanager
def under_attack(daemon: Daemon, growth_mib: int | None = None) -> Iterator[None]:
    """Hold that a good client is served all the while, and that what the attack took comes back."""
    daemon.answers_well()
    fds, peak = daemon.fds, daemon.peak_mib
    client = _GoodClient(daemon)
    client.start()
    try:
        yield
        daemon.answers_well()
    finally:
        client.stop()
    assert client.served > 0
    assert client.trouble is None, client.trouble
    grown = daemon.peak_mib - peak
    bound = GROWTH_MIB[daemon.kind] if growth_mib is None else growth_mib
    assert grown <= bound, f"the {daemon.name} grew by {grown} MiB, from {peak}"
    wait_until(lambda: daemon.fds <= fds + SPARE_FDS, seconds=40, what=f"{daemon.fds} descriptors to become {fds}")


class _GoodClient(threading.Thread):
    """Asks again and again while others misbehave."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._ended = threading.Event()
        self.served = 0
        self.trouble: str | None = None

    def run(self) -> None:
        while True:
            try:
                self._daemon.answers_well()
            except (OSError, AssertionError) as error:
                self.trouble = f"a good client was not served: {type(error).__name__}: {error}"
                return
            self.served += 1
            if self._ended.wait(0.05):
                return

    def stop(self) -> None:
        """Ask once more at most."""
        self._ended.set()
        self.join(timeout=30)
