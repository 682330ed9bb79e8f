"""The store port: samples and everything derived from them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gpufleet.model.api.inventory import ChangeQuestion, GpuPool, StoredChange, StoredSlot
from gpufleet.model.api.sql import Selected, SqlViewRecord
from gpufleet.model.api.usage import Stretch, Worked
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.holding import Holding
from gpufleet.model.reading import Provenance
from gpufleet.model.reading import Round as Round
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.retention import Retention
from gpufleet.model.stored.samples import (
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
