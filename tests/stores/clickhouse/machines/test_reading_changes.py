"""Changes of a machine's texts and counts: order, pages, absences, and repeated samples."""

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.readings import ReadingChangeQuery, StoredReadingChange
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept

T0 = 1_700_000_000_123_456_789
DAY = 86_400 * NANOS
PAGES, DRIVER, DOCKER = "probe_hugepages", "probe_nvidia_driver_version", "probe_docker_version"
GONE = Absent(Reason.NOT_ENABLED)


def probe(at: int, **values: Value | Absent) -> Sample:
    timing = {"probe_boot_kernel_seconds": 2.5 + at % 3}  # durations are no changes
    return Sample(view=None, reader="probe", lane=Lane.STATIC, measured_at=at, values={**values, **timing})


HISTORY = (
    probe(T0, probe_hugepages="0", probe_docker_version="26.1", probe_rdma_devices=2),
    probe(T0 + DAY, probe_hugepages="512", probe_docker_version="26.1", probe_rdma_devices=2),
    probe(T0 + 2 * DAY, probe_hugepages="0", probe_docker_version=GONE, probe_rdma_devices=GONE),
    probe(T0 + 3 * DAY, probe_hugepages="0", probe_docker_version=GONE, probe_rdma_devices=0),
)
EXPECTED = (
    (T0 + 3 * DAY, "probe_rdma_devices", None, 0),
    (T0 + 2 * DAY, "probe_rdma_devices", 2, None),
    (T0 + 2 * DAY, PAGES, "512", "0"),
    (T0 + 2 * DAY, DOCKER, "26.1", None),
    (T0 + DAY, PAGES, "0", "512"),
)


def write(store: ClickHouseStore | MemoryStore, cluster: str) -> None:
    """Write each sample twice, as an agent repeats it between two probes; an older one arrives late."""
    other = Sample(view=None, reader="host", lane=Lane.STATIC, measured_at=T0, values={"host_kernel_release": "6.1"})
    order = (HISTORY[0], HISTORY[2], HISTORY[2], HISTORY[1], HISTORY[3], HISTORY[3])
    for number, sample in enumerate(order):
        batch = accept(cluster, "m", [sample, other], seq=number + 1, received_at=T0 + 5 * DAY + number * 60 * NANOS)
        store.write([batch], f"{cluster}-{number}")
    store.write([accept(cluster, "other", [probe(T0, probe_hugepages="9")], seq=99)], f"{cluster}-other")


def rows(found: tuple[StoredReadingChange, ...]) -> tuple[tuple[int, str, Value | None, Value | None], ...]:
    return tuple((one.at, one.metric, one.before, one.value) for one in found)


def query(cluster: str, **fields: object) -> ReadingChangeQuery:
    known: dict[str, object] = {"machine": "m", "reader": "probe", "start": 0, "end": 2**62, "limit": 100}
    return ReadingChangeQuery(cluster=cluster, **{**known, **fields})  # type: ignore[arg-type]


@pytest.fixture
def filled(store: ClickHouseStore, cluster: str) -> ClickHouseStore:
    write(store, cluster)
    return store


def test_changes_are_listed_with_their_times(filled: ClickHouseStore, cluster: str) -> None:
    assert rows(filled.reading_changes(query(cluster))) == EXPECTED
    within = query(cluster, start=T0 + DAY, end=T0 + 2 * DAY)
    assert rows(filled.reading_changes(within)) == EXPECTED[-1:]
    assert filled.reading_changes(query(cluster, machine="none")) == ()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_join_to_the_whole(filled: ClickHouseStore, cluster: str, limit: int) -> None:
    found: list[StoredReadingChange] = []
    for _ in range(10):
        place = (found[-1].at, found[-1].metric) if found else None
        found += filled.reading_changes(query(cluster, before=place, limit=limit))
    assert rows(tuple(found)) == EXPECTED


def test_store_of_tests_gives_the_same_changes() -> None:
    store = MemoryStore()
    write(store, "c")
    assert rows(store.reading_changes(query("c"))) == EXPECTED
