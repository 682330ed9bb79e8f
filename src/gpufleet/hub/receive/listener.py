"""Listener of a running hub or relay, as it reports it in its state folder.

`gpufleet doctor hub` reads from this file where the process listens and how it is protected, whatever options and
environment it was started with. The file belongs to the process that has the log open, and is removed before the next
one listens.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

MAX_BYTES = 4096


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Address and protection of a listener.

    Attributes:
        address: `HOST:PORT` or `[IPV6]:PORT`.
        tls: whether it uses TLS.
        tokens: whether requests need a token.
    """

    address: str
    tls: bool
    tokens: bool


def clear_listener(folder: Path) -> None:
    """Remove the file of an earlier process; call this with the log open and before listening."""
    with contextlib.suppress(OSError):
        _file(folder).unlink(missing_ok=True)


@contextlib.contextmanager
def reported_listener(folder: Path, listener: Listener) -> Iterator[None]:
    """Report the listener while the context is open. A file that cannot be written is logged, and nothing else."""
    file = _file(folder)
    fresh = file.with_suffix(".new")
    try:
        fresh.write_bytes(msgspec.json.encode(listener))
        fresh.replace(file)
    except OSError as error:
        log.warning("cannot write %s, which `gpufleet doctor hub` reads: %s", file, error.strerror)
    try:
        yield
    finally:
        clear_listener(folder)


def read_listener(folder: Path) -> Listener | None:
    """Return the listener of the process that has the log of this folder open, or None if it reports none.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        with _file(folder).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Listener)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _file(folder: Path) -> Path:
    return folder / "listener.json"
