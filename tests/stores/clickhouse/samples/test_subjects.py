"""Numbers of subjects: each has one meaning, over failed inserts, restarts and restored tables."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import msgspec
import numpy as np
import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreError, UnstorableError
from gpufleet.model.reading import DimValue, Sample
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse import store as store_module
from gpufleet.stores.clickhouse.connection.lease import LEASE_SECONDS
from gpufleet.stores.clickhouse.samples import cache, series, subjects
from gpufleet.stores.clickhouse.samples.subjects import CHUNK, SubjectNumbers
from gpufleet.stores.clickhouse.schema.columns import NO_NUMBER, Columns, IndexedColumn
from gpufleet.stores.clickhouse.schema.tables import SUBJECT_KEY
from tests.support.accepted import accept
from tests.support.clickhouse.process import ClickHouse
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS
SUBJECTS = "SELECT number, cluster, machine, view, reader, lane FROM {}.subjects WHERE cluster != '' ORDER BY number"

Subject = tuple[str, str, str, str, str]


def columns_of(subjects: Sequence[Subject]) -> Columns:
    rows = np.arange(len(subjects))
    return {name: IndexedColumn([one[at] for one in subjects], rows) for at, name in enumerate(SUBJECT_KEY)}


def subjects_of(*places: str) -> list[Subject]:
    """Return subjects, given as `machine view`."""
    return [("c", *place.split(" "), "nvml", "fast") for place in places]  # type: ignore[misc]


def test_new_subjects_of_a_machine_have_consecutive_numbers() -> None:
    numbers = SubjectNumbers(100)
    some = subjects_of("b y", "a z", "a x", "b y", "b x")
    assert numbers.assign(columns_of(some)).tolist() == [103, 101, 100, 103, 102]
    assert numbers.new_rows["number"] == [100, 101, 102, 103]
    assert numbers.new_rows["machine"] == ["a", "a", "b", "b"]
    numbers.confirm_new()
    assert numbers.assign(columns_of(subjects_of("c x", "b x"))).tolist() == [104, 102]
    assert numbers.new_rows["number"] == [104]


def test_lookup_assigns_no_numbers() -> None:
    numbers = SubjectNumbers(100)
    assert numbers.find(columns_of(subjects_of("a x"))).tolist() == [NO_NUMBER]
    numbers.assign(columns_of(subjects_of("a x", "b y")))
    assert numbers.find(columns_of(subjects_of("b y", "c z", "a x", "b y"))).tolist() == [101, NO_NUMBER, 100, 101]
    assert numbers.new_rows["number"] == [100, 101]


def test_every_part_of_a_subject_counts() -> None:
    """Texts in other places, and of other lengths, are other subjects."""
    subjects: list[Subject] = [
        ("a", "b", "c", "d", "e"),
        ("b", "a", "c", "d", "e"),
        ("e", "d", "c", "b", "a"),
        ("ab", "", "c", "d", "e"),
        ("a", "b", "c", "d", ""),
        ("", "", "", "", ""),
    ]
    assert sorted(SubjectNumbers(1).assign(columns_of(subjects)).tolist()) == [1, 2, 3, 4, 5, 6]


def test_known_subjects_keep_their_numbers() -> None:
    numbers = SubjectNumbers(100)
    numbers.add_known(columns_of(subjects_of("b y", "a z")), np.array([7, 3], np.uint32))
    assert numbers.assign(columns_of(subjects_of("a z", "a x", "b y"))).tolist() == [3, 100, 7]
    assert numbers.new_rows["number"] == [100]


def test_last_number_is_used_and_none_after_it() -> None:
    numbers = SubjectNumbers(2**32 - 1)
    assert numbers.assign(columns_of(subjects_of("a x"))).tolist() == [2**32 - 1]
    with pytest.raises(StoreError):
        numbers.assign(columns_of(subjects_of("a y")))


@contextmanager
def opened(dsn: str) -> Iterator[ClickHouseStore]:
    with closing(ClickHouseStore.open(dsn)) as store:
        yield store


@pytest.fixture
def database(shared_server: ClickHouse, cluster: str) -> str:
    name = cluster.replace("-", "_")
    with opened(shared_server.make(name)) as store:
        store.migrate()
    return name


def watts(cluster: str, machine: str, at: int, value: float) -> AcceptedBatch:
    sample = Sample(
        view=gpu(0),
        reader="nvml",
        lane=Lane.FAST,
        measured_at=T0 + at,
        values={"gpu_power_watts": value},
        dims=(DimValue("gpu_fan_speed_ratio", ("0",), 0.5),),
    )
    return accept(cluster, machine, [sample], reported_at=T0 + at, seq=at + 1)


def power(store: ClickHouseStore, cluster: str, machine: str) -> list[float]:
    found = store.series(cluster, machine, ["gpu_power_watts"], T0, T0 + 100, 1)
    return [float(value) for points in found.points.values() for _, value in points]


def test_restarted_writer_keeps_numbers_and_leaves_some_out(
    shared_server: ClickHouse, database: str, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "ROWS_PER_PAGE", 1)  # so that each is loaded with a query of its own
    dsn = shared_server.dsn(database)
    for at in range(3):
        with opened(dsn) as store:
            store.write([watts(cluster, f"m{at}", at, 1.0), watts(cluster, "m0", 10 + at, 2.0)], f"t{at}")
            assert power(store, cluster, "m0") == [1.0, *[2.0] * (at + 1)]
    rows = shared_server.query(SUBJECTS.format(database))
    assert [row[2] for row in rows] == ["m0", "m1", "m2"]
    assert np.diff([row[0] for row in rows]).min() > CHUNK


def test_insert_that_appears_after_another_number_was_given_changes_nothing(
    shared_server: ClickHouse, database: str, cluster: str
) -> None:
    dsn = shared_server.dsn(database)
    shared_server.break_inserts("subjects", "before", times=2)  # the second is that of the subject
    with opened(dsn) as store:
        for _ in range(2):
            with pytest.raises(StoreError):
                store.write([watts(cluster, "m", 0, 1.0)], "t")
        store.write([watts(cluster, "m", 0, 1.0)], "t")
    ((number, *subject),) = shared_server.query(SUBJECTS.format(database))
    late = ", ".join(map(repr, [number - CHUNK, *subject]))
    shared_server.query(f"INSERT INTO {database}.subjects VALUES ({late})")
    with opened(dsn) as store:
        store.write([watts(cluster, "m", 1, 2.0)], "u")
        assert power(store, cluster, "m") == [1.0, 2.0]
    assert shared_server.query(f"SELECT DISTINCT subject FROM {database}.samples") == [(number,)]


def test_hub_that_lost_its_lease_in_a_write_gives_no_number_of_the_other(
    shared_server: ClickHouse, database: str, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hub pauses before the second chunk of its subjects, while another hub writes."""
    monkeypatch.setattr(subjects, "CHUNK", 4)
    monkeypatch.setattr(store_module, "CHUNK", 4)
    dsn, mine, foreign = shared_server.dsn(database), [f"a{number}" for number in range(6)], ["b0", "b1", "a1"]
    clock = [0.0]
    with closing(ClickHouseStore.open(dsn, monotonic=lambda: clock[0])) as first:
        first.migrate(None, "hub-a")
        insert, inserted = first._handles.writer.insert_arrow, []

        def pause_before_the_second_chunk(table: str, *arguments: object, **options: object) -> None:
            insert(table, *arguments, **options)
            inserted.append(table)
            if inserted[-2:] == ["subjects", "subjects"]:  # the marker and the first chunk
                clock[0] += LEASE_SECONDS
                expired = "hub, host, renewed_at + toIntervalNanosecond(1), renewed_at"
                shared_server.query(f"INSERT INTO {database}.writers SELECT {expired} FROM {database}.writers FINAL")
                with closing(ClickHouseStore.open(dsn)) as second:
                    second.migrate(None, "hub-b")
                    second.write([watts(cluster, machine, 50, 2.0) for machine in foreign], "u")

        monkeypatch.setattr(first._handles.writer, "insert_arrow", pause_before_the_second_chunk)
        with pytest.raises(StoreError):
            first.write([watts(cluster, machine, 1, 1.0) for machine in mine], "t")
        monkeypatch.undo()
        first.write([watts(cluster, machine, 1, 1.0) for machine in mine], "t", is_retry=True)
        assert {machine: power(first, cluster, machine) for machine in {*mine, *foreign}} == {
            **{machine: [1.0] for machine in mine},
            **{machine: [2.0] for machine in foreign},
            "a1": [1.0, 2.0],
        }
    numbers = [row[0] for row in shared_server.query(SUBJECTS.format(database))]
    assert len(numbers) == len(set(numbers))


def test_lists_of_subjects_are_divided(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SUBJECTS_PER_QUERY", 1)
    machines = ["m0", "m1", "m2"]
    embedded.write([watts(cluster, machine, at, float(at)) for at, machine in enumerate(machines, 1)], f"{cluster}-t")
    assert [power(embedded, cluster, machine) for machine in machines] == [[1.0], [2.0], [3.0]]
    found = embedded.latest_of(cluster, machines)
    assert {machine: len(stored[0].sample.dims) for machine, stored in found.items()} == dict.fromkeys(machines, 1)


def test_lanes_without_the_metric_do_not_count_as_rows(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Sample(view=gpu(0), reader="nvml", lane=Lane.SLOW, measured_at=T0, values={"gpu_temperature_celsius": 1.0})
    steps = [accept(cluster, "m", [msgspec.structs.replace(slow, measured_at=T0 + at)], seq=at + 1) for at in range(3)]
    embedded.write([*steps, *(watts(cluster, "m", at, 1.0) for at in range(3))], f"{cluster}-t")
    monkeypatch.setattr(series, "MAX_ROWS", 3)
    assert power(embedded, cluster, "m") == [1.0, 1.0, 1.0]


def test_read_within_a_write_does_not_hide_dimensions(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Sample(view=gpu(0), reader="dcgm", lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": 1.0})
    embedded.write([accept(cluster, "m", [plain])], f"{cluster}-a")
    embedded.latest(cluster, "m")
    add = embedded._subjects.add

    def read_and_add(written: Columns) -> None:
        embedded.latest(cluster, "m")
        add(written)

    monkeypatch.setattr(embedded._subjects, "add", read_and_add)
    embedded.write([watts(cluster, "m", 1, 1.0)], f"{cluster}-b")
    assert sum(len(stored.sample.dims) for stored in embedded.latest(cluster, "m")) == 1


def test_failed_insert_of_samples_costs_no_numbers(shared_server: ClickHouse, database: str, cluster: str) -> None:
    with opened(shared_server.dsn(database)) as store:
        shared_server.break_inserts("samples", "before", times=3)
        for _ in range(3):
            with pytest.raises(StoreError):
                store.write([watts(cluster, "m", 0, 1.0)], "t")
        store.write([watts(cluster, "m", 0, 1.0), watts(cluster, "n", 0, 1.0)], "t")
    numbers = [row[0] for row in shared_server.query(SUBJECTS.format(database))]
    assert numbers == [numbers[0], numbers[0] + 1]


def test_subject_of_an_unstorable_write_is_stored_with_the_next(embedded: ClickHouseStore, cluster: str) -> None:
    unstorable = watts(cluster, "m", 0, 1.0)
    unstorable.batch.samples[0].columns[0] = ["a text"]
    with pytest.raises(UnstorableError):
        embedded.write([unstorable], f"{cluster}-a")
    embedded.write([watts(cluster, "m", 1, 2.0)], f"{cluster}-b")
    assert power(embedded, cluster, "m") == [2.0]


def test_restored_table_of_subjects_gives_no_number_a_second_meaning(
    shared_server: ClickHouse, database: str, cluster: str
) -> None:
    """The table is that of an older backup than the samples: it lacks a subject."""
    dsn = shared_server.dsn(database)
    with opened(dsn) as store:
        store.write([watts(cluster, "lost", 0, 1.0)], "t")
    shared_server.query(f"TRUNCATE TABLE {database}.subjects")
    with opened(dsn) as store:
        store.write([watts(cluster, "new", 1, 2.0)], "u")
        assert power(store, cluster, "new") == [2.0]
        assert power(store, cluster, "lost") == []
        assert len(store.select(f"SELECT * FROM fleet_samples WHERE cluster = '{cluster}'").rows) == 1
