"""Facts about a hub. A text in place of a value is the reason why it could not be collected."""

import datetime as dt

import msgspec

from gpufleet.hub.receive.listener import Listener
from gpufleet.model.access import Token
from gpufleet.model.stored.ledger import MachineCounts


class DiskUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of the state folder and its file system, in bytes.

    Attributes:
        free, size: free bytes for this user, and size of the file system.
        used: name of each entry of the state folder to its bytes.
        day_bytes: size of the newest complete UTC day in the embedded store, or None if there is none yet.
        day: date of that day.
    """

    free: int
    size: int
    used: dict[str, int] = {}
    day_bytes: int | None = None
    day: str = ""


class KernelClock(msgspec.Struct, frozen=True):
    """Result of adjtimex(2): whether the clock is synchronised, and the bound on its error in seconds."""

    synchronized: bool
    max_error_seconds: float


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status reported by the running daemon.

    Attributes:
        version: version of gpufleet.
        ready: empty, or the message of the 503 response.
        figures: metrics without labels, by name without the prefix `gpufleet_hub_` or `gpufleet_relay_`.
    """

    version: str
    ready: str
    figures: dict[str, float]


class DatabaseState(msgspec.Struct, frozen=True):
    """State of a database: its schema version, this build's version, and the damage found by its integrity check."""

    version: int
    known: int
    damage: str = ""


class LogBacklog(msgspec.Struct, frozen=True):
    """Backlog of the log: records, bytes of bodies, and age of the oldest record in seconds (None: unknown).

    `blocked` counts the records that the next hub of a relay rejects for now, although it accepts others.
    """

    records: int
    bytes: int
    oldest_seconds: float | None
    blocked: int = 0


class CertificateDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate as seen by a client.

    Attributes:
        names: DNS names and addresses of the certificate.
        not_after: end of validity.
        key_mode: permission bits of the key file.
        name_matches: whether it is valid for the name that clients use, None if that name is unknown.
    """

    names: tuple[str, ...]
    not_after: dt.datetime
    key_mode: int
    name_matches: bool | None = None


STOPPED = "the daemon is stopped"
"""Reason for an unknown listener if no process has the log open."""


class HubFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a hub or relay on this host.

    Attributes:
        at: time of collection.
        folder: folder of the hub, `hub/` in the state folder.
        folder_error: error name of creating files there, `ENOENT` if it does not exist; None if not checked.
        other_owner: owner of the folder if it is another user, else empty.
        relay_to: the next hub, for a relay.
        configured: listener of the configuration.
        listener: listener of the running process, as it reports it, or why it is unknown.
        holder: process that has the log open, 0 for none, or why it is unknown.
        daemon: status of the running daemon, or why there is none.
        foreign_daemon: whether the daemon at the address is one that does not have this log open.
        disk, clock, registry, store, backlog, certificate: state of each; None if not applicable.
        wal_max_bytes: limit of the backlog.
        machines: machines of each cluster; None for a relay.
        clock_skews: sender to seconds by which its clock is ahead of the hub's, less the transfer time of its newest
            batch.
        tokens: known tokens.
    """

    at: dt.datetime
    folder: str
    folder_error: str | None = None
    other_owner: str = ""
    relay_to: str | None = None
    configured: Listener
    listener: Listener | str = "not checked"
    holder: int | str = "not checked"
    daemon: DaemonStatus | str = "not queried"
    foreign_daemon: bool = False
    disk: DiskUsage | str = "not checked"
    clock: KernelClock | str = "not queried"
    registry: DatabaseState | str | None = "not checked"
    store: DatabaseState | str | None = "not checked"
    backlog: LogBacklog | str = "not checked"
    wal_max_bytes: int = 0
    machines: MachineCounts | str | None = "not checked"
    certificate: CertificateDetails | str | None = "not checked"
    clock_skews: dict[str, float] | str | None = "not checked"
    tokens: tuple[Token, ...] | str | None = "not checked"
