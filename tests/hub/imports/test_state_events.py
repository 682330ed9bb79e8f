"""Events that follow from imported states of GPUs."""

import asyncio
import contextlib
import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.codecs.batch import EncodedColumns, decode, to_rows
from gpufleet.hub.imports.receiver import ImportReceiver
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.row_cache import subject_of
from gpufleet.hub.imports.state_events import MAX_EXPIRED, ImportedStates
from gpufleet.hub.receive.counters import Counters
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import SpoolError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.holdings import HoldingQuery
from gpufleet.model.stored.ledger import NameInterval
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.clock import FakeClock

AT = 1_800_000_000_000_000_000
NODE = Machine(name="node-1")
SEEN = dt.datetime(2027, 1, 15, tzinfo=dt.UTC)
READER = "remote_write/gpufleet"


def row(state: Value | Absent, at: int, gpu: str = "GPU-1") -> Sample:
    return Sample(
        view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=gpu),
        reader=READER,
        lane=Lane.FAST,
        measured_at=AT + at,
        values={"gpu_state": state},
        provenance=Provenance.IMPORTED,
    )


def kinds(states: ImportedStates, *rows: Sample, now: int = AT + NANOS) -> list[str]:
    changes = states.changes(NODE, rows, now)
    states.keep(changes)
    return [event.kind for event in changes.events]


def test_loss_and_recovery_are_one_event_each() -> None:
    states = ImportedStates()
    assert kinds(states, row("ok", 1)) == []
    assert kinds(states, row("lost", 2), row("ok", 2, "GPU-2")) == ["gpu_lost"]
    assert kinds(states, row("lost", 3)) == []
    assert kinds(states, row(Absent(Reason.STALE), 4)) == []
    assert kinds(states, row("ok", 5)) == ["gpu_recovered"]


def test_rows_of_a_backlog_are_taken_in_their_order() -> None:
    states = ImportedStates()
    assert kinds(states, row("ok", 30), row("lost", 20), row("ok", 10)) == ["gpu_lost", "gpu_recovered"]
    assert kinds(states, row("lost", 15)) == []
    assert kinds(states, row("lost", 30)) == ["gpu_lost"]  # a later part of the newest row


@pytest.mark.parametrize("ahead", [300, 8 * 3600])
def test_clock_that_was_ahead_hides_no_change(ahead: int) -> None:
    """The real-time clock of a machine can be hours ahead until its time is synchronised."""
    states = ImportedStates()
    kinds(states, row("ok", (ahead + 10) * NANOS))
    assert kinds(states, row("lost", 20 * NANOS), now=AT + 20 * NANOS) == ["gpu_lost"]
    assert kinds(states, row("ok", 10 * NANOS), now=AT + 25 * NANOS) == []  # late
    assert kinds(states, row("ok", 30 * NANOS), now=AT + 30 * NANOS) == ["gpu_recovered"]


def test_row_too_far_ahead_to_be_stored_shows_no_change() -> None:
    states = ImportedStates()
    assert kinds(states, row("lost", 601 * NANOS), now=AT) == []
    assert kinds(states, row("lost", 10 * NANOS), now=AT + 10 * NANOS) == ["gpu_lost"]


def test_event_has_time_device_and_reader_of_its_row() -> None:
    lost = row("lost", 7)
    (event,) = ImportedStates().changes(NODE, [lost], AT + NANOS).events
    assert (event.view, event.at, event.attributes) == (lost.view, AT + 7, {"sources": READER})


def test_changes_that_are_not_kept_are_shown_again() -> None:
    states = ImportedStates()
    assert [event.kind for event in states.changes(NODE, [row("lost", 1)], AT + NANOS).events] == ["gpu_lost"]
    assert kinds(states, row("lost", 1)) == ["gpu_lost"]


def test_dropped_machine_has_no_state() -> None:
    states = ImportedStates()
    kinds(states, row("lost", 2))
    states.drop_except({subject_of(NODE, row("lost", 2))}, {NODE})
    assert kinds(states, row("lost", 1)) == []
    states.drop_except((), ())
    assert kinds(states, row("lost", 1)) == ["gpu_lost"]


def test_late_row_of_an_expired_device_shows_no_change() -> None:
    states = ImportedStates()
    kinds(states, row("lost", 20), row("ok", 20, "GPU-2"))
    states.drop_except((), {NODE})
    assert kinds(states, row("ok", 10)) == []
    assert kinds(states, row("lost", 10, "GPU-2")) == []
    assert kinds(states, row("ok", 30)) == ["gpu_recovered"]


def test_expired_devices_of_a_machine_are_bounded() -> None:
    states = ImportedStates()
    gone = [f"GPU-{number}" for number in range(MAX_EXPIRED + 10)]
    live = row("lost", 1, "GPU-live")
    kinds(states, live, *(row("ok" if at % 2 else "lost", 2 + at, gpu) for at, gpu in enumerate(gone)))
    for _ in range(2):
        states.drop_except({subject_of(NODE, live)}, {NODE})
    assert len(states) == MAX_EXPIRED + 1
    late = len(gone) + 100
    assert kinds(states, row("ok", late, "GPU-live"), row("ok", late, gone[-2])) == ["gpu_recovered"] * 2
    assert kinds(states, row("ok", late, gone[0])) == [], "its failure is not known any more"


class Disk:
    """Ingestion that fails while `failures` is positive, and keeps the bodies."""

    def __init__(self) -> None:
        self.failures = 0
        self.kinds: list[str] = []

    def reserve_machines(
        self, cluster: str, sender: str, machines: object, at: int
    ) -> contextlib.nullcontext[tuple[Machine, ...]]:
        return contextlib.nullcontext(())

    async def receive_encoded(self, batch: EncodedColumns, came_at: int) -> None:
        if self.failures:
            self.failures -= 1
            raise SpoolError("the disk is full")
        reports = to_rows(decode(batch.body)).reports
        self.kinds += [event.kind for report in reports for event in report.events]


class Registry:
    """A registry with the machine that has the name: by request, its id and sender; the last ones are repeated."""

    def __init__(self, *known: str) -> None:
        self._known = list(known)

    def bearer(self, cluster: str, machine: Machine, at: int) -> MachineRecord | None:
        known = self._known.pop(0) if len(self._known) > 1 else "".join(self._known)
        if not known:
            return None
        id_, _, sender = known.partition(" ")
        return MachineRecord(id=id_, cluster=cluster, machine=machine, sender=sender, first_seen=SEEN, last_seen=SEEN)

    def past_names(self, id: str, start: int, end: int) -> tuple[NameInterval, ...]:  # noqa: A002 - the port's name
        """Return the names of a machine; `m-renamed` has had the name since `row`'s instant 10."""
        since = AT + 10 * NANOS
        names = [NameInterval("earlier", start, since)] if id == "m-renamed" else []
        return (*names, NameInterval(NODE.name, since if names else start, end))


class Store:
    """A store with rows of the machine `m-1`."""

    def __init__(self, *rows: Sample) -> None:
        self._rows = rows

    def latest_of(self, cluster: str, machines: list[str]) -> dict[str, tuple[StoredSample, ...]]:
        stored = tuple(StoredSample(sample=row, received_at=1) for row in self._rows)
        return {one: stored for one in machines if one == "m-1"}

    def holdings(self, query: HoldingQuery) -> tuple[()]:
        return ()


def receive(disk: Disk, registry: Registry, store: Store, *rows: Sample) -> None:
    """Send each row in a request of its own; a refused request is sent once more."""
    with ThreadPoolExecutor(1) as thread:
        receiver = ImportReceiver(
            ingest=disk,  # type: ignore[arg-type]
            registry=registry,  # type: ignore[arg-type]
            store=store,  # type: ignore[arg-type]
            clusters=("c",),
            counters=Counters(),
            clock=FakeClock(AT + NANOS),
            threads=thread,
            is_caught_up=lambda: True,
        )

        async def send(one: Sample) -> None:
            written = ImportedRequest(
                machines={NODE: (one,)}, samples=1, drift={}, others={}, unattributed=0, problems={}
            )
            await receiver.receive("c", "prometheus", lambda _: written)

        async def send_all() -> None:
            for one in rows:
                try:
                    await send(one)
                except SpoolError:
                    await send(one)

        asyncio.run(send_all())


@pytest.mark.parametrize("failures", [0, 1])
def test_imported_rows_are_received_with_their_events(failures: int) -> None:
    disk = Disk()
    disk.failures = failures
    receive(disk, Registry(), Store(), row("lost", 1), row("lost", 2), row("ok", 3))
    assert disk.kinds == ["gpu_lost", "gpu_recovered"]


def test_stored_state_is_known_after_a_restart() -> None:
    disk = Disk()
    receive(disk, Registry("m-1"), Store(row("lost", 1)), row("lost", 2), row("ok", 3))
    assert disk.kinds == ["gpu_recovered"]


@pytest.mark.parametrize("bearers", [["m-1", "m-2"], ["m-1", ""], ["", "m-2 agent"]])
def test_next_machine_of_a_name_has_no_failure_of_the_former(bearers: list[str]) -> None:
    """Many sources know a GPU by its place in the machine only."""
    disk = Disk()
    receive(disk, Registry(*bearers), Store(), row("lost", 2), row("ok", 3))
    assert disk.kinds == ["gpu_lost"]


def test_backlog_of_the_former_machine_of_a_name_is_no_failure_of_the_present_one() -> None:
    disk = Disk()
    receive(disk, Registry("m-renamed"), Store(), row("lost", 2 * NANOS), row("ok", 12 * NANOS))
    assert disk.kinds == []
    receive(disk, Registry("m-renamed"), Store(), row("lost", 11 * NANOS), row("ok", 12 * NANOS))
    assert disk.kinds == ["gpu_lost", "gpu_recovered"]


def test_stored_state_of_another_machine_is_not_of_the_present_one() -> None:
    disk = Disk()
    receive(disk, Registry("m-2"), Store(row("lost", 1)), row("ok", 3))
    assert disk.kinds == []


def test_machine_that_is_stored_after_its_first_request_keeps_its_states() -> None:
    disk = Disk()
    receive(disk, Registry("", "m-2 prometheus"), Store(), row("lost", 2), row("ok", 3))
    assert disk.kinds == ["gpu_lost", "gpu_recovered"]
