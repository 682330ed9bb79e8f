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

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gpufleet.model.access import AuditEntry, AuditRecord, KnownToken
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.answer import MachineRecord
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.holding import Holding
from gpufleet.model.inventory import ChangeQuestion, GpuPool, StoredChange, StoredSlot
from gpufleet.model.ledger import FlushIntent, Held, MachineMark, MachineMatch, MachinesHeard, SenderState, SequenceKey
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.provenance import Provenance
from gpufleet.model.retention import Retention
from gpufleet.model.round import Round as Round
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.sql import Selected, SqlViewRecord
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored import (
    Accepted,
    EventQuestion,
    KnownGpus,
    ProcessQuestion,
    RolledHour,
    Standing,
    StoredEvent,
    StoredProcesses,
    StoredSample,
    StoredSeries,
)
from gpufleet.model.usage import Stretch, Worked


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
        """Run a command to its end, without a shell.

        A command that is not there ends with code 127, one that may not be run with 126, as a shell has it.

        Raises:
            ChannelTimeoutError: if it did not end in time, or an earlier run of it still has not.
            ChannelError: if it could not be started, or printed more than `max_output_bytes` on either stream.
        """
        ...


class Stream(Protocol):
    """A channel that carries bytes both ways."""

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError when the other side is gone."""
        ...

    async def receive(self, most: int) -> bytes:
        """Receive at least a byte and at most `most`; nothing once the other side has ended. Raises ChannelError."""
        ...

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError when the other side ends before that."""
        ...

    async def close(self) -> None:
        """Close; a second close does nothing."""
        ...


class Dialer(Protocol):
    """A channel that opens streams to one address."""

    async def dial(self) -> Stream:
        """Open a stream.

        Raises:
            ChannelError: if nobody answers in the channel's own time; its `problem` says why.
        """
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
        """Give back what it holds; a later `read` opens it again.

        Raises:
            ReaderError: if something is held all the same, because the driver does not let go of it.
        """
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

    def migrate(self, retention: Retention | None = None, hub: str = "") -> None:
        """Bring the schema to this build's version, forward only; called once before anything else.

        Rows go by `retention`; None leaves that as it is. `hub` names who is going to write, the same after a restart;
        an empty text will not.

        Raises:
            StoreError: if a newer build has been here, or another hub writes to it.
        """
        ...

    def write(self, accepted: Sequence[Accepted], token: str, *, begun: bool = False) -> None:
        """Write all of it, durably, before returning.

        Args:
            accepted: the batches.
            token: names the write; it goes with the same batches for ever.
            begun: whether they may be there already, all or some, however the process that wrote them ended: then
                what is there stays as it is, and the rest is added.

        Raises:
            UnstorableError: if a batch does not fit as it is; nothing was written.
            StoreError: if the store fails otherwise; any part may have been written.
        """
        ...

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        """Return the newest sample per view, reader and lane of one machine (of one view, if its key is given)."""
        ...

    def latest_of(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[StoredSample, ...]]:
        """Return the newest samples of many machines by id, as `latest` of each; one without any may be left out."""
        ...

    def standings(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[Standing, ...]]:
        """Return the newest samples of many machines by id, without what was measured: enough to count by."""
        ...

    def reporting_gpus(self, since: int, until: int) -> Mapping[str, int]:
        """Return cluster to GPUs of which a number of a metric that totals are made of was received between the two.

        Those of a machine that are known by their place in a list only count where none with a name told one.
        """
        ...

    def known_gpus(self, without: Sequence[str] = ()) -> Mapping[str, KnownGpus]:
        """Return cluster to how many GPUs its machines have, but for some machines by id."""
        ...

    def declared_gpus(self, since: int, without: Sequence[str] = ()) -> Mapping[str, tuple[DeclaredGpus, ...]]:
        """Return cluster to how many GPUs Kubernetes counts in it, by each who says so, but for some machines by id.

        What was received before `since` (nanoseconds since 1970), or has ended, nobody says any more.
        """
        ...

    def declared_of(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> Mapping[str, tuple[DeclaredResource, ...]]:
        """Return what Kubernetes says of machines by id, received since then; one without any is left out."""
        ...

    def gpus_on_buses(self, cluster: str, machines: Sequence[str]) -> Mapping[str, int]:
        """Return how many GPUs machines by id have on their buses; one that never told of those is left out."""
        ...

    def tellers_of_view(self, cluster: str, view: str) -> tuple[str, ...]:
        """Return the ids of the machines that ever told of the view of this key, in order."""
        ...

    def tellers_of_text(self, cluster: str, metric: str, text: str) -> tuple[str, ...]:
        """Return the ids of the machines of which a newest sample has this text of an info metric, in order."""
        ...

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        """Return how each reader of the machine was doing when last heard of."""
        ...

    def readers_of(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[ReaderStatus, ...]]:
        """Return the same of many machines by id; one without any may be left out."""
        ...

    def holdings_of(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[Holding, ...]]:
        """Return the holdings of many machines by id that have not ended, as they were told last, by view."""
        ...

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
    ) -> StoredSeries:
        """Return (view key, metric) to (start of step, value) for steps in which something was measured that way.

        Times in nanoseconds, `end` excluded. A gauge gives the mean of its step, a counter its last
        value, a state the last. Metrics without dimensions only. Long spans may be answered from minutes and hours.
        """
        ...

    def worked(self, stretches: Sequence[Stretch]) -> Sequence[Worked]:
        """Return what is known of a device within each stretch, as `docs/usage.md` says.

        Of several who tell of one device at once, one is taken for each hour: who knows most of it.
        """
        ...

    def roll_up(self, now: int, stopped: Callable[[], bool] = ...) -> RolledHour | None:
        """Make the minutes and hours of the oldest hour that should be: one that is over, and quiet.

        An hour that something is written to after it was made is made again. Again and again is what it takes; what was
        begun and did not come to its end counts for nothing.

        Args:
            now: nanoseconds since 1970.
            stopped: asked now and then; once it is true the hour is left as it was.

        Returns:
            None where no hour should be made.
        """
        ...

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        """Return which GPUs were ever told of in which slots of machines: of one view, or in one slot, where given."""
        ...

    def changes(self, question: ChangeQuestion) -> tuple[StoredChange, ...]:
        """Return which GPUs moved and which were replaced, as hosts tell, the newest first."""
        ...

    def pools(self, cluster: str | None = None) -> tuple[GpuPool, ...]:
        """Return which GPUs (of one cluster) are alike in name, driver and VBIOS, in that order."""
        ...

    def events(self, question: EventQuestion) -> tuple[StoredEvent, ...]:
        """Return the events that are asked for, the newest first; one that was written twice comes once."""
        ...

    def processes(self, question: ProcessQuestion) -> tuple[StoredProcesses, ...]:
        """Return the newest list of processes per view and reader of those that are asked for, by view and reader."""
        ...

    def select(self, statement: str) -> Selected:
        """Answer a statement of a person's: one SELECT over the views, within bounds. It can only read.

        Raises:
            SqlError: if it is refused or wrong, or came to more than it may; the text says which.
        """
        ...

    def sql_views(self) -> tuple[SqlViewRecord, ...]:
        """Return what a statement may read."""
        ...

    def hang_up(self) -> None:
        """Have every method that waits for a server's answer fail now, and every later call: `close` comes next.

        From any thread. It does nothing where no server is asked.
        """
        ...

    def close(self) -> None:
        """Close; whatever `write` returned from stays."""
        ...


class Registry(Protocol):
    """Keeps what must never be lost or doubled: clusters, machines, allocations, sequence numbers.

    Blocking, safe to call from several threads, and durable when a method returns. Every method raises
    RegistryError when the registry refuses or cannot be reached.
    """

    def migrate(self) -> None:
        """Bring the schema to this build's version, forward only; called once before anything else.

        Raises:
            RegistryError: if a newer build has been here.
        """
        ...

    def register_clusters(self, ids: Sequence[str], at: int) -> None:
        """Make the clusters known; those that are known already stay as they are."""
        ...

    def put_cluster(self, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
        """Keep what belongs to a cluster and return it, and whether it had nothing before; opens a closed one again."""
        ...

    def cluster(self, id: str) -> Cluster:  # noqa: A002
        """Return one cluster. Raises NotFoundError."""
        ...

    def clusters(self) -> tuple[Cluster, ...]:
        """Return every cluster that is known, closed ones too, by id."""
        ...

    def close_cluster(self, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
        """Close it; one that is closed stays as it was. Raises NotFoundError."""
        ...

    def match(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that the evidence belongs to, a new one if to none that is known.

        `at` is the hub's clock on receipt; for late word, which newer of its run overtook, the time it was sent.
        `now` is that clock now, `at` unless given: what was heard or retired long after it was so before it was set
        back. Two machines that share evidence and cannot be one become two ids with a conflict on both; nothing known
        is overwritten by a stranger. What is learned here is durable from the next `begin_flush`: no id is written to
        the store before that.

        Raises:
            CrowdedError: if it would be one more than the cluster may have; those that are known are matched.
        """
        ...

    def name(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that somebody else than itself names, as Kubernetes does: a new one if none is known so.

        Nothing that is known of a machine changes by it, and it was not heard of. `at`, `now` and raises as `match`.
        """
        ...

    def machines(
        self,
        cluster: str | None = None,
        *,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return every machine (of one cluster, of one kind), by cluster, name and id.

        Only those that come after a cluster, name and id, and at most so many, where that is given. `gpus` and
        `age_seconds` are the caller's to fill.
        """
        ...

    def machines_called(self, cluster: str, word: str) -> tuple[MachineRecord, ...]:
        """Return the machine of this id, or those of this host name, as `machines` does."""
        ...

    def machines_with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return every machine of this system UUID, nodes and guests, as `machines` does."""
        ...

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the word of the domain
        """Return one machine. Raises NotFoundError."""
        ...

    def machine_marks(self, cluster: str | None = None, *, beside_retired: bool = False) -> tuple[MachineMark, ...]:
        """Return how recently each machine (of one cluster) was heard of, in any order.

        With `beside_retired` only the machines of senders that speak for one that was retired, which are few.
        """
        ...

    def machines_heard(self, cluster: str) -> MachinesHeard:
        """Return the same of all machines of a cluster, in columns."""
        ...

    def retire_machine(self, id: str, at: int) -> MachineRecord:  # noqa: A002
        """Keep that a machine is gone since `at`, nanoseconds since 1970; what is heard of it later brings it back.

        It is kept as gone since it was heard of last, if that is later: the clock was set back in between.

        Raises:
            NotFoundError: if there is none.
        """
        ...

    def put_allocation(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep the allocation and return it, and whether it is new.

        The same spec again changes nothing; another one is the next generation. A spec without
        `valid_from` keeps the one it has, or starts `at`.

        Raises:
            ConflictError: if it is closed, or is of a tenant and the spec is not of the same.
        """
        ...

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return the newest generation.

        Raises:
            NotFoundError: if there is none; in the same words if a tenant is given and it is not this tenant's.
        """
        ...

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return the newest generation of every allocation (of one tenant), closed ones too, by id."""
        ...

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close it; one that is closed stays as it was. Raises NotFoundError."""
        ...

    def sequences(self) -> dict[SequenceKey, Held]:
        """Return the numbers of every batch that has been flushed, and what is remembered of the newest."""
        ...

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest word of every sender."""
        ...

    def begin_flush(self, intent: FlushIntent) -> None:
        """Remember what is about to be written; replaces an earlier intent of the same log."""
        ...

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of a flush that was begun and not finished."""
        ...

    def finish_flush(
        self,
        intent: FlushIntent,
        sequences: Mapping[SequenceKey, Held],
        senders: Sequence[SenderState],
        *,
        has_rest: bool = False,
    ) -> None:
        """Forget the intent, unless some of it is still to be written, and keep what is held (whole runs) and words
        of senders, all or nothing.
        """
        ...

    def close(self) -> None:
        """Close; what was kept stays."""
        ...


class Tokens(Protocol):
    """The tokens that a hub takes; they can change under it. Blocking; raises RegistryError as the registry does."""

    def changes(self) -> int:
        """Return a number that is another one whenever a token has changed."""
        ...

    def known(self) -> tuple[KnownToken, ...]:
        """Return every token, those that are refused too, with their secrets."""
        ...


class Audit(Protocol):
    """The log of writes; nothing leaves it. Blocking; raises RegistryError as the registry does."""

    def append(self, entry: AuditEntry) -> None:
        """Add an entry, durably."""
        ...

    def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return up to `limit` entries (of lower numbers than `before`), newest first."""
        ...
