"""One SSH login: who answers is checked against the pin, and every failure gets its channel problem.

The only module that imports asyncssh, which takes about 40 MB: it is imported when a guest is first dialled.
"""

import asyncio

import asyncssh

from gpufleet.channels.ssh.target import Pin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.model.text import clean

KEEPALIVE_SECONDS = 15
KEEPALIVES_MISSED = 2
_WORDS = 200

_HOST_KEYS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""Kinds of host keys that are taken; old ones with SHA-1 are not."""

_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Asked for first, the library's own choice after them: of a pass over a guest its first one (ChaCha20, which it makes
anew for each packet in Python) costs a third more of this side's processor time."""


async def log_in(target: SshTarget, pin: Pin) -> asyncssh.SSHClientConnection:
    """Log in; a key that was shown where none was known is pinned once the login succeeded.

    Raises:
        ChannelError: with its problem; a host key that is not the pinned one is `IDENTITY_MISMATCH`.
    """
    asyncssh.set_log_level("ERROR")  # it tells every step; what fails is raised here
    own = _own_key(target)
    pinned = pin.key()
    client = _Client(takes_any=pinned is None)
    try:
        trusted = [] if pinned is None else [asyncssh.import_public_key(pinned)]
        # The pinned key's kind first; the others too, so that a guest without it shows another key, and is known by it.
        own_kind = [name.decode("ascii") for key in trusted for name in key.sig_algorithms]
    except asyncssh.KeyImportError as error:
        raise ChannelError(f"{target.name}: its host key: {error}", ChannelProblem.IDENTITY_MISMATCH) from error
    try:
        async with asyncio.timeout(target.login_seconds):
            connection = await asyncssh.connect(
                target.host,
                target.port,
                username=target.user,
                client_keys=[own],
                client_factory=lambda: client,
                known_hosts=(trusted, [], []),
                server_host_key_algs=list(dict.fromkeys((*own_kind, *_HOST_KEYS))),
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
        raise ChannelError(f"{target.name}: {_words(error)}", _problem(error)) from error
    if pinned is None:
        try:
            pin.keep(client.shown)
        except ChannelError:
            connection.abort()
            raise
    return connection


class _Client(asyncssh.SSHClient):
    """Asked only about keys that are not the pinned one."""

    def __init__(self, *, takes_any: bool) -> None:
        self._takes_any = takes_any
        self.shown = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.shown = " ".join(key.export_public_key().decode("ascii").split()[:2])
        return self._takes_any


def _own_key(target: SshTarget) -> asyncssh.SSHKey:
    try:
        return asyncssh.read_private_key(target.key_file)
    except (OSError, asyncssh.KeyImportError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise ChannelError(f"{target.key_file}: not a private key to log in with: {words}", _NO_KEY) from error


_NO_KEY = ChannelProblem.NOT_PERMITTED

_PROBLEMS: tuple[tuple[type[Exception], ChannelProblem], ...] = (
    (asyncssh.HostKeyNotVerifiable, ChannelProblem.IDENTITY_MISMATCH),
    (asyncssh.PermissionDenied, ChannelProblem.AUTHENTICATION),
    (asyncssh.IllegalUserName, ChannelProblem.AUTHENTICATION),
    (asyncssh.ConnectionLost, ChannelProblem.ENDED),
    (ConnectionRefusedError, ChannelProblem.NOBODY_LISTENS),
    (TimeoutError, ChannelProblem.TIMEOUT),
    (ConnectionError, ChannelProblem.ENDED),
    (OSError, ChannelProblem.UNREACHABLE),
)


def _problem(error: Exception) -> ChannelProblem:
    return next((problem for kind, problem in _PROBLEMS if isinstance(error, kind)), ChannelProblem.PROTOCOL)


def _words(error: Exception) -> str:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return "another host key than the pinned one: this is not the virtual machine that was here before"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    words = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return clean(words)[:_WORDS]
