"""SSH login with a check of the host key. Every failure is mapped to a channel problem.

The only module that imports asyncssh, which takes about 40 MB. It is imported when a guest is first dialled.
"""

import asyncio

import asyncssh

from gpufleet.channels.ssh.target import HostKeyPin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.model.text import clean

KEEPALIVE_SECONDS = 15
KEEPALIVES_MISSED = 2
_MAX_ERROR_LENGTH = 200

_HOST_KEYS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""Accepted host key algorithms; those with SHA-1 are not accepted."""

_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Preferred ciphers, followed by the library's defaults.

The library's first choice, ChaCha20, is initialised in Python for each packet. It costs a third more local processor
time in a pass over a guest.
"""


async def log_in(target: SshTarget, pin: HostKeyPin) -> asyncssh.SSHClientConnection:
    """Log in. If no host key is pinned, the key that the guest sends is pinned after a successful login.

    Raises:
        ChannelError: with its problem; a host key that differs from the pinned one is `IDENTITY_MISMATCH`.
    """
    asyncssh.set_log_level("ERROR")  # its default level logs every step; errors are raised here
    client_key = _client_key(target)
    pinned = pin.key()
    client = _Client(accepts_any=pinned is None)
    try:
        trusted = [] if pinned is None else [asyncssh.import_public_key(pinned)]
        # The pinned key's algorithms come first. The others let a guest without that key send a different key.
        pinned_algorithms = [name.decode("ascii") for key in trusted for name in key.sig_algorithms]
    except asyncssh.KeyImportError as error:
        raise ChannelError(f"{target.name}: pinned host key: {error}", ChannelProblem.IDENTITY_MISMATCH) from error
    try:
        async with asyncio.timeout(target.login_seconds):
            connection = await asyncssh.connect(
                target.host,
                target.port,
                username=target.user,
                client_keys=[client_key],
                client_factory=lambda: client,
                known_hosts=(trusted, [], []),
                server_host_key_algs=list(dict.fromkeys((*pinned_algorithms, *_HOST_KEYS))),
                preferred_auth="publickey",
                agent_path=None,
                gss_host=None,
                config=None,
                encryption_algs=_CIPHERS,
                compression_algs=None,
                client_version="gpufleet",
                connect_timeout=target.connect_seconds,
                login_timeout=target.login_seconds,
                keepalive_interval=KEEPALIVE_SECONDS,
                keepalive_count_max=KEEPALIVES_MISSED,
            )
    except (OSError, asyncssh.Error, ValueError) as error:
        raise ChannelError(f"{target.name}: {_error_text(error)}", _problem(error)) from error
    if pinned is None:
        try:
            pin.keep(client.host_key)
        except ChannelError:
            connection.abort()
            raise
    return connection


class _Client(asyncssh.SSHClient):
    """Decides on host keys that are not the pinned one."""

    def __init__(self, *, accepts_any: bool) -> None:
        self._accepts_any = accepts_any
        self.host_key = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.host_key = " ".join(key.export_public_key().decode("ascii").split()[:2])
        return self._accepts_any


def _client_key(target: SshTarget) -> asyncssh.SSHKey:
    try:
        return asyncssh.read_private_key(target.key_file)
    except (OSError, asyncssh.KeyImportError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ChannelError(f"{target.key_file}: not a usable private key: {reason}", _NO_KEY) from error


_NO_KEY = ChannelProblem.NOT_PERMITTED

_PROBLEMS: tuple[tuple[type[Exception], ChannelProblem], ...] = (
    (asyncssh.HostKeyNotVerifiable, ChannelProblem.IDENTITY_MISMATCH),
    (asyncssh.PermissionDenied, ChannelProblem.AUTHENTICATION),
    (asyncssh.IllegalUserName, ChannelProblem.AUTHENTICATION),
    (asyncssh.ConnectionLost, ChannelProblem.ENDED),
    (ConnectionRefusedError, ChannelProblem.NO_LISTENER),
    (TimeoutError, ChannelProblem.TIMEOUT),
    (ConnectionError, ChannelProblem.ENDED),
    (OSError, ChannelProblem.UNREACHABLE),
)


def _problem(error: Exception) -> ChannelProblem:
    return next((problem for kind, problem in _PROBLEMS if isinstance(error, kind)), ChannelProblem.PROTOCOL)


def _error_text(error: Exception) -> str:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return "the host key differs from the pinned key: this may be another virtual machine"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return clean(reason)[:_MAX_ERROR_LENGTH]
