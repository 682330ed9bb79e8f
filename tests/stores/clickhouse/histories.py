"""Random histories of a store, and a model of its answers.

    python -m tests.stores.clickhouse.histories FOLDER EXAMPLES

The model keeps all rows and searches them for each answer. A history writes late, repeated and duplicate batches, moves
the hub's clock, interrupts inserts, and closes or abandons the store. It also reads, because a read loads the newest
samples into memory or writes the rows that `latest` lacks: so the table is a snapshot of any time before a restart. It
drops memory, and leaves the cluster to the store.

A process can open one folder, so the histories of an embedded store run in a process of their own.
"""

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.readings import StateReport, deciding_state
from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.device_state import LOST
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse import store as store_module
from gpufleet.stores.clickhouse.machines.counts import STATE_INTERVAL_SECONDS
from gpufleet.stores.clickhouse.samples.snapshot import MAX_SECONDS
from tests.support.accepted import accept
from tests.support.store_folders import copy_empty_store

T0 = 1_700_000_000 * NANOS
END_OF_TIME = 2**63 - 1
VIEWS = (None, *(View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}") for number in range(2)))
MACHINES = ("m", "n")

Report = tuple[View | None, str, Lane, int, int]
"""View, reader, lane, seconds of its measurement before the batch, and shape."""

REPORTS = st.tuples(
    st.sampled_from(VIEWS),
    st.sampled_from(("nvml", "dcgm")),
    st.sampled_from((Lane.FAST, Lane.SLOW)),
    st.integers(0, 2),
    st.integers(0, 2),
)


class WriteBatches(msgspec.Struct, frozen=True):
    """Write of new batches and of earlier ones.

    Attributes:
        batches: machine, seconds of delay, and reports of each.
        again: numbers of earlier batches, which are written again.
        fails_at: number of the insert that fails; 0 for none.
        is_inserted: whether the rows of the failed insert are stored.
        is_abandoned: whether the process ends after the failure, so that another one repeats the write.
    """

    batches: list[tuple[str, int, list[Report]]]
    again: list[int]
    fails_at: int
    is_inserted: bool
    is_abandoned: bool


class ReadAnswers(msgspec.Struct, frozen=True):
    """Query by name: of a machine, of the counts, or by SQL."""

    name: str


class LoseMemory(msgspec.Struct, frozen=True):
    """Loss of the newest samples in memory, or of space for them until the next start."""

    is_permanent: bool


class MoveClock(msgspec.Struct, frozen=True):
    """Movement of the hub's clock by seconds, while `passed` seconds pass."""

    seconds: int
    passed: float


class RestartStore(msgspec.Struct, frozen=True):
    """Restart of the store: closed, or abandoned as by a kill."""

    is_closed: bool


Step = WriteBatches | ReadAnswers | LoseMemory | MoveClock | RestartStore

_BATCHES = st.tuples(
    st.sampled_from(MACHINES),
    st.sampled_from((0, 0, 0, 30, 600, 5_000)),
    st.lists(REPORTS, min_size=1, max_size=4, unique_by=lambda one: one[:4]),
)

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        WriteBatches,
        st.lists(_BATCHES, min_size=1, max_size=3),
        st.lists(st.integers(0, 9), max_size=2),
        st.sampled_from((0, 0, 1, 2, 3, 4, 5)),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(ReadAnswers, st.sampled_from(("m", "n", "counts", "sql"))),
    st.builds(MoveClock, st.sampled_from((-3_600, -90, 30, 200, 7_200)), st.sampled_from((1.0, 2 * MAX_SECONDS))),
    st.builds(LoseMemory, st.booleans()),
    st.builds(RestartStore, st.booleans()),
)

HISTORIES = st.lists(STEPS, min_size=2, max_size=12)


class InterruptedInsertError(StoreError):
    """Failure of an insert that a history interrupts."""


class StoreHistory:
    """A store and the model of its content, in a cluster of its own.

    Args:
        open_store: opens the store as a start does.
        abandon: ends the use of a store without closing it.
        cluster: the cluster.
    """

    def __init__(
        self,
        open_store: Callable[[Callable[[], float]], ClickHouseStore],
        abandon: Callable[[ClickHouseStore], None],
        cluster: str,
    ) -> None:
        self._open, self._abandon, self._cluster = open_store, abandon, cluster
        self._seconds = 0.0
        self._now = T0
        self._written: list[AcceptedBatch] = []
        self._tokens = (f"{cluster}-{number}" for number in itertools.count())
        self._orders = itertools.count(T0, 1_000)
        self.store = open_store(self._monotonic)

    def _monotonic(self) -> float:
        return self._seconds

    def run(self, step: Step) -> None:
        """Run a step."""
        match step:
            case WriteBatches():
                self._write(step)
            case ReadAnswers("counts"):
                self.store.known_gpus()
            case ReadAnswers("sql"):
                self.store.select("SELECT 1")
            case ReadAnswers(machine):
                self.store.latest(self._cluster, machine)
            case LoseMemory(is_permanent=True):
                self.store._newest._limit = 0
            case LoseMemory():
                self.store._drop_memory()
            case MoveClock():
                self._now += step.seconds * NANOS
                self._seconds += step.passed
            case RestartStore():
                self._restart(is_closed=step.is_closed)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _restart(self, *, is_closed: bool) -> None:
        if is_closed:
            self.store.close()
        else:
            self._abandon(self.store)
        self.store = self._open(self._monotonic)
        self.check()

    def _write(self, step: WriteBatches) -> None:
        accepted = [self._batch(*one) for one in step.batches]
        known = [*self._written, *accepted]
        accepted += [self._written[number] for number in step.again if number < len(self._written)]
        token = next(self._tokens)
        if step.fails_at and self._is_interrupted(accepted, token, step):
            if step.is_abandoned:
                self._abandon(self.store)
                self.store = self._open(self._monotonic)
            self.store.write(accepted, token, is_retry=True)
        elif not step.fails_at:
            self.store.write(accepted, token)
        self._written = known

    def _is_interrupted(self, accepted: list[AcceptedBatch], token: str, step: WriteBatches) -> bool:
        """Write, and return whether the write was interrupted at the insert of the step."""
        handle, left = self.store._handles.writer, [step.fails_at]
        insert = handle.insert_arrow

        def insert_or_fail(*arguments: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] != 0 or step.is_inserted:
                insert(*arguments, **options)
            if left[0] == 0:
                raise InterruptedInsertError("interrupted")

        handle.insert_arrow = insert_or_fail
        try:
            self.store.write(accepted, token)
        except InterruptedInsertError:
            return True
        finally:
            handle.insert_arrow = insert
        return False

    def _batch(self, machine: str, delay: int, reports: list[Report]) -> AcceptedBatch:
        self._now += NANOS
        order, received_at = next(self._orders), self._now - delay * NANOS
        number = (order - T0) // 1_000
        samples = [
            Sample(
                view=view,
                reader=reader,
                lane=lane,
                measured_at=T0 + number * 10 * NANOS - before * NANOS,
                values=_values(number, before, shape, lane),
            )
            for view, reader, lane, before, shape in reports
        ]
        # A delayed batch is earlier in the order of reports than those before it.
        reported_at = order - (delay and 1_500_000)
        return accept(self._cluster, machine, samples, received_at=received_at, reported_at=reported_at, seq=number + 1)

    def check(self) -> None:
        """Compare the store's answers with the model's.

        Raises:
            AssertionError: if an answer differs.
        """
        newest = self._newest()
        for machine in MACHINES:
            expected = {
                place[1:]: (one.measured_at, received_at, one.values)
                for place, (_, received_at, one) in newest.items()
                if place[0] == machine
            }
            found = {
                _place(one.sample): (one.sample.measured_at, one.received_at, one.sample.values)
                for one in self.store.latest(self._cluster, machine)
            }
            assert found == expected, machine
            summaries = self.store.sample_summaries(self._cluster, [machine]).get(machine, ())
            assert {_place(one.stored.sample): one.stored.received_at for one in summaries} == {
                place: received_at for place, (_, received_at, _) in expected.items()
            }
        assert self._power_in_columns() == {
            place: (one.measured_at, received_at, value if isinstance(value, float) else None)
            for place, (_, received_at, one) in newest.items()
            for value in [one.values.get("gpu_power_watts")]
        }
        gpus = self._gpus()
        known = self.store.known_gpus().get(self._cluster)
        assert ((known.nvml or 0) if known is not None else 0) == sum(gpu.is_known for gpu in gpus)
        for since in {gpu.value_at for gpu in gpus}:
            expected_count = sum(gpu.value_at >= since and not gpu.is_lost(since) for gpu in gpus)
            assert self.store.reporting_gpus(since, END_OF_TIME).get(self._cluster, 0) == expected_count
        self._check_rows()

    def _power_in_columns(self) -> dict[tuple[str, ...], tuple[int, int, float | None]]:
        """Return the times and the power of each subject, read for the whole cluster."""
        found = self.store.newest_columns(self._cluster, ["gpu_power_watts"])
        numbers = (found.machine, found.view, found.reader, found.lane)
        names = (found.machines, found.views, found.readers, found.lanes)
        power = found.values.get("gpu_power_watts", np.full(len(found), np.nan))
        return {
            tuple(texts[column[row]] for texts, column in zip(names, numbers, strict=True)): (
                int(found.measured_at[row]),
                int(found.received_at[row]),
                None if np.isnan(power[row]) else float(power[row]),
            )
            for row in range(len(found))
        }

    def _check_rows(self) -> None:
        """Check that each sample is stored once."""
        columns = "machine, view, reader, lane, toUnixTimestamp64Nano(measured_at), seq"
        rows = self.store._handles.reader.query(
            f"SELECT {columns} FROM samples AS s FINAL INNER JOIN (SELECT * FROM subjects FINAL) AS n "
            "ON s.subject = n.number WHERE cluster = {cluster:String}",
            parameters={"cluster": self._cluster},
        ).result_rows
        written = [
            (machine, *_place(sample), sample.measured_at, batch.batch.seq)
            for machine, batch, sample in self._samples()
        ]
        assert sorted(rows) == sorted(written)

    def _samples(self) -> Iterator[tuple[str, AcceptedBatch, Sample]]:
        for one in self._written:
            for block in one.batch.samples:
                view = one.batch.views[block.view[0]] if block.view[0] >= 0 else None
                absent = one.batch.absences[block.absence[0]] if block.absence[0] >= 0 else ()
                values: dict[str, Value | Absent] = {
                    name: column[0]
                    for name, column in zip(block.metrics, block.columns, strict=True)
                    if column[0] is not None
                }
                values |= {why.metric: Absent(why.reason, why.detail) for why in absent}
                yield (
                    one.machine_ids[0],
                    one,
                    Sample(
                        view=view,
                        reader=block.reader,
                        lane=Lane(block.lane),
                        measured_at=block.measured_at[0],
                        values=values,
                    ),
                )

    def _newest(self) -> dict[tuple[str, str, str, str], tuple[tuple[int, int], int, Sample]]:
        found: dict[tuple[str, str, str, str], tuple[tuple[int, int], int, Sample]] = {}
        for machine, batch, sample in self._samples():
            rank, place = (batch.reported_at, sample.measured_at), (machine, *_place(sample))
            if place not in found or rank > found[place][0]:
                found[place] = rank, batch.received_at, sample
        return found

    def _gpus(self) -> "list[_Gpu]":
        """Return the GPUs of all machines by a search of every row."""
        reports: dict[tuple[str, str], list[tuple[tuple[int, int], int, Sample]]] = {}
        for machine, batch, sample in self._samples():
            if sample.view is not None:
                reports.setdefault((machine, sample.view.key), []).append(
                    ((batch.reported_at, sample.measured_at), batch.received_at, sample)
                )
        found = []
        for (machine, _), own in reports.items():
            others = [one for (other, _), some in reports.items() if other == machine for one in some]
            newest_at, seen_at = (max(some, key=lambda one: one[0])[1] for some in (others, own))
            with_value = [one for one in own if isinstance(one[2].values.get("gpu_power_watts"), float)]
            newest: dict[str, tuple[tuple[int, int], int, Sample]] = {}
            for rank, received_at, sample in own:
                if sample.lane is Lane.FAST and (sample.reader not in newest or rank >= newest[sample.reader][0]):
                    newest[sample.reader] = rank, received_at, sample
            stated = [
                (received_at, StateReport(state, rank[0], STATE_INTERVAL_SECONDS, False))
                for rank, received_at, sample in newest.values()
                if isinstance(state := sample.values.get("gpu_state"), str)
            ]
            found.append(
                _Gpu(
                    is_known=abs(seen_at - newest_at) <= REPORT_WINDOW_SECONDS * NANOS,
                    value_at=max(with_value, key=lambda one: one[0])[1] if with_value else 0,
                    states=stated,
                )
            )
        return found


class _Gpu(msgspec.Struct, frozen=True):
    is_known: bool
    value_at: int
    states: list[tuple[int, StateReport]]

    def is_lost(self, since: int) -> bool:
        """Return whether the states that were received since then show that it is lost."""
        reports = [report for received_at, report in self.states if received_at >= since]
        decides = deciding_state(reports)
        return decides is not None and reports[decides].state == LOST


def _place(sample: Sample) -> tuple[str, str, str]:
    return sample.view.key if sample.view else "", sample.reader, sample.lane.value


def _values(number: int, before: int, shape: int, lane: Lane) -> dict[str, Value | Absent]:
    """Return values that no other sample has.

    A lane always has numbers, or never: `latest` has one row per lane, so that a restart would otherwise lose the time
    of its last number.
    """
    if lane is Lane.SLOW:
        return {"gpu_power_watts": Absent(Reason.TIMEOUT, f"detail {number % 3}")}
    power = number + before / 10
    more: list[dict[str, Value | Absent]] = [
        {},
        {"gpu_memory_used_bytes": number},
        {"gpu_name": f"name {number % 3}", "gpu_fan_speed_ratio": Absent(Reason.TIMEOUT)},
    ]
    state = (LOST, None, "ok", "ok")[number % 4]
    return {"gpu_power_watts": power, **({} if state is None else {"gpu_state": state}), **more[shape]}


def run_history(history: StoreHistory, steps: list[Step]) -> None:
    """Run a history. Compare the answers before and after a restart at its end."""
    try:
        for step in steps:
            history.run(step)
        history.check()
        history.run(RestartStore(is_closed=False))
        history.run(RestartStore(is_closed=True))
    finally:
        history.close()


def options(count: int) -> settings:
    """Return the settings of a property test over histories."""
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def main() -> None:
    """Run histories of an embedded store."""
    folder, numbers = Path(sys.argv[1]), itertools.count()
    vars(store_module)["PART_ROWS"] = 2  # so that a pass of `latest` takes several writes
    copy_empty_store(folder)

    def open_store(monotonic: Callable[[], float]) -> ClickHouseStore:
        store = ClickHouseStore.open(f"chdb://{folder}", monotonic=monotonic)
        store.migrate()
        return store

    def abandon(store: ClickHouseStore) -> None:
        store._handles.close()
        assert store._lock is not None
        store._lock.release()

    @options(int(sys.argv[2]))
    @given(HISTORIES)
    def check(steps: list[Step]) -> None:
        run_history(StoreHistory(open_store, abandon, f"history-{next(numbers)}"), steps)

    check()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
