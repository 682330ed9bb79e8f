"""What was gathered about a hub. A text where something else was wanted says why it could not be had."""

import datetime as dt

import msgspec

from gpufleet.model.access import Token


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of the state folder; bytes.

    Attributes:
        free, size: for this user, and of the whole.
        used: by the hub: name of what is in its folder to bytes.
        day_bytes: what the newest whole UTC day takes in the embedded store, or None when there is none yet.
        day: that day.
    """

    free: int
    size: int
    used: dict[str, int] = {}
    day_bytes: int | None = None
    day: str = ""


class KernelClock(msgspec.Struct, frozen=True):
    """What adjtimex(2) says: whether something steers the clock, and the kernel's bound on its error, seconds."""

    synchronized: bool
    max_error_seconds: float


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """What the running daemon says of itself.

    Attributes:
        version: of gpufleet.
        ready: empty, or the words of its 503.
        figures: its metrics without labels, without their `gpufleet_hub_` or `gpufleet_relay_`.
    """

    version: str
    ready: str
    figures: dict[str, float]


class Kept(msgspec.Struct, frozen=True):
    """A database: its schema's version and this build's, and what its own check of itself found (empty: nothing)."""

    version: int
    known: int
    damage: str = ""


class Waiting(msgspec.Struct, frozen=True):
    """What waits in the log: records, bytes of bodies, and the age of the oldest in seconds (None: unknown).

    `held` of them the next hub of a relay does not take though it takes others.
    """

    records: int
    bytes: int
    oldest_seconds: float | None
    held: int = 0


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What a client would be shown.

    Attributes:
        names: DNS names and addresses it is for.
        not_after: until when.
        key_mode: permission bits of the key's file.
        right_name: whether it is for the name the hub is asked by, None when that is not known.
    """

    names: tuple[str, ...]
    not_after: dt.datetime
    key_mode: int
    right_name: bool | None = None


class HubFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a hub or relay on this host.

    Attributes:
        at: when they were gathered.
        folder: its own, `hub/` in the state folder.
        folder_error: error name of making files there, `ENOENT` where there is none yet; None: not asked.
        stranger: empty where this user owns the folder's files; else the owner.
        relay_to: the next hub, for a relay.
        listen, auth, tls, insecure: of the configuration.
        holder: process that has the log open, 0 for none, or why that is not known.
        daemon: what the running one says, or why it says nothing.
        another_answers: at the address there is one that has not opened this log.
        disk, clock, registry, store, waiting, certificate: see there; None where there is nothing of the kind.
        wal_max_bytes: what may wait.
        skews: sender to how many seconds its clock is ahead of the hub's (less what its newest batch travelled).
        tokens: those that are known.
    """

    at: dt.datetime
    folder: str
    folder_error: str | None = None
    stranger: str = ""
    relay_to: str | None = None
    listen: str = ""
    auth: str = ""
    tls: bool = False
    insecure: bool = False
    holder: int | str = "not looked for"
    daemon: Daemon | str = "not asked"
    another_answers: bool = False
    disk: Disk | str = "not looked at"
    clock: KernelClock | str = "not asked"
    registry: Kept | str | None = "not looked at"
    store: Kept | str | None = "not looked at"
    waiting: Waiting | str = "not looked at"
    wal_max_bytes: int = 0
    certificate: Certificate | str | None = "not looked at"
    skews: dict[str, float] | str | None = "not looked at"
    tokens: tuple[Token, ...] | str | None = "not looked at"
