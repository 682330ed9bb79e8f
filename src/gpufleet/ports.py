"""The system on one page: who asks what of whom.

    kernel, driver, guests
        | Files, Exec, Stream      (channels carry a question)
        v
    Reader  --Round-->  agent  --Batch-->  hub  --> Store, Registry
                          |                  |
                          v                  v
                       Exporter            answers

Rooms are written against these Protocols; `wiring` decides who stands behind each.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.holding import Holding
from gpufleet.model.reading import Value
from gpufleet.model.round import Round as Round
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored import Accepted, StoredSample


class Clock(Protocol):
    """The two clocks: one names instants, one measures spans."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 UTC. It can be stepped: never subtract two of these."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; only differences mean something."""
        ...


# --- channels -----------------------------------------------------------------------------------


class FilesystemStat(msgspec.Struct, frozen=True, kw_only=True):
    """What statvfs says of a mount point; bytes and counts."""

    size_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int


class FetchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader wants to see of another machine's files, in one question.

    Attributes:
        files: absolute paths or glob patterns (`*` and `[...]` within one path segment) to read.
        links: absolute paths or glob patterns of symbolic links to resolve.
        filesystems: mount points to statvfs.
        max_file_bytes: a longer file is an error for that file.
    """

    files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    filesystems: tuple[str, ...] = ()
    max_file_bytes: int = 1 << 20


class Fetched(msgspec.Struct, kw_only=True):
    """What came back. A pattern that matches nothing leaves nothing; a named path that is missing is an error.

    Attributes:
        files: path to content.
        links: path to the link's text.
        filesystems: mount point to figures.
        errors: path to a POSIX error name (`ENOENT`, `EACCES`, `EIO`, `EFBIG`, `ETIMEDOUT`).
    """

    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    filesystems: dict[str, FilesystemStat] = {}
    errors: dict[str, str] = {}


class Files(Protocol):
    """A channel that can read files in bulk."""

    async def fetch(self, plan: FetchPlan) -> Fetched:
        """Read everything in the plan.

        Raises:
            ChannelError: if the channel as a whole failed; a single path's failure is in `Fetched.errors`.
        """
        ...


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command came to."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Exec(Protocol):
    """A channel that can run one of its fixed commands."""

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run a command to its end.

        Raises:
            ChannelError: if it could not be started, did not end in time or printed too much.
        """
        ...


class Stream(Protocol):
    """A channel that carries bytes both ways."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError when the other side is gone."""
        ...

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError when the other side ends before that."""
        ...

    async def close(self) -> None:
        """Close; a second close does nothing."""
        ...


# --- readers ------------------------------------------------------------------------------------


class Reader(Protocol):
    """Reads one kind of thing."""

    @property
    def name(self) -> str:
        """Its name in samples, status and self-metrics."""
        ...

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes it has something to read on."""
        ...

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane. Opens whatever it needs; the caller never runs two passes at once.

        Raises:
            ReaderError: if it cannot work at all; carries the reason and the source's own words.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds; a later `read` opens it again."""
        ...


class HolderSource(Protocol):
    """Tells who holds which device."""

    async def holdings(self) -> tuple[Holding, ...]:
        """Return what is held now, by identity."""
        ...


# --- out ----------------------------------------------------------------------------------------


class Exporter(Protocol):
    """Turns a completed snapshot into what someone else reads."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the whole page or document."""
        ...


# --- hub ----------------------------------------------------------------------------------------


class Store(Protocol):
    """Keeps samples. Blocking, and safe to call from one writing and several reading threads.

    Every method raises StoreError when the store refuses or cannot be reached.
    """

    def migrate(self) -> None:
        """Bring the schema to this build's version, forward only; called once before anything else."""
        ...

    def write(self, accepted: Sequence[Accepted], token: str) -> None:
        """Write all of it, durably, before returning; the same token again adds nothing."""
        ...

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        """Return the newest sample per view, reader and lane of one machine (of one view, if its key is given)."""
        ...

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        """Return how each reader of the machine was doing when last heard of."""
        ...

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
    ) -> dict[tuple[str | None, str], list[tuple[int, Value]]]:
        """Return (view key, metric) to (start of step, value) for steps in which something was measured.

        Times in nanoseconds, `end` excluded. A gauge gives the mean of its step, a counter its last
        value, a state the last. Metrics without dimensions only.
        """
        ...

    def close(self) -> None:
        """Close; whatever `write` returned from stays."""
        ...
