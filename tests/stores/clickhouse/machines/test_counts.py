"""GPU counts in memory equal a count over all rows, after any history and after a restart."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreStartingError
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.samples import AcceptedBatch, KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse import store as store_module
from gpufleet.stores.clickhouse.machines.counts import GpuCounts
from gpufleet.stores.clickhouse.machines.summaries import load_gpu_counts
from tests.support.accepted import accept
from tests.support.latest import write_newest_rows
from tests.support.profiles import examples

T0 = 1_700_000_000 * NANOS
END_OF_TIME = 2**63 - 1

REPORTING = """
SELECT cluster, sum(if(named > 0, named, unnamed)) FROM (
    SELECT cluster, uniqExactIf(view, NOT startsWith(view, 'gpu/instance/')) AS named,
        uniqExactIf(view, startsWith(view, 'gpu/instance/')) AS unnamed
    FROM latest
    WHERE startsWith(view, 'gpu/') AND toUnixTimestamp64Nano(received_at) >= {since:Int64} AND has_totals
    GROUP BY cluster, machine)
GROUP BY cluster
"""

KNOWN = """
SELECT cluster, sum(if(named > 0, named, unnamed)) FROM (
    SELECT cluster, machine, groupArray(view) AS views, groupArray(toUnixTimestamp(received_at)) AS at,
        groupArray(startsWith(view, 'gpu/instance/')) AS bare, arrayMax(at) - 1200 AS since,
        arrayUniq(arrayFilter((v, t, b) -> t >= since AND NOT b, views, at, bare)) AS named,
        arrayUniq(arrayFilter((v, t, b) -> t >= since AND b, views, at, bare)) AS unnamed
    FROM latest
    WHERE startsWith(view, 'gpu/') AND reader != 'pci' AND machine NOT IN {without:Array(String)}
    GROUP BY cluster, machine)
GROUP BY cluster
"""

ON_BUSES = """
SELECT cluster, sum(gpus) FROM (
    SELECT cluster, argMax(arrayCount((v, f) -> v = 0x10DE AND isNull(f), vendors, physical_functions), reported_at)
        AS gpus
    FROM inventory WHERE machine NOT IN {without:Array(String)} GROUP BY cluster, machine)
GROUP BY cluster
"""

VIEWS = (
    None,
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0"),
    View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1b:00.0"),
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2"),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent="gpu/GPU-1"),
    View(kind=ViewKind.GPU, side=Side.HOST, instance="netdata/gpu0"),
    View(kind=ViewKind.GPU, side=Side.HOST, instance="netdata/gpu1"),
)
"""The PCI-only view is a second view of the first GPU, with a key of its own."""

FUNCTIONS = (
    PciFunction(address="0000:1b:00.0", vendor=0x10DE, device=1, class_code=0x030200),
    PciFunction(address="0000:1b:00.4", vendor=0x10DE, device=1, class_code=0x030200, physical_function="0000:1b:00.0"),
    PciFunction(address="0000:1c:00.0", vendor=0x10DE, device=1, class_code=0x030200),
    PciFunction(address="0000:02:00.0", vendor=0x1A03, device=1, class_code=0x030200),
)

Report = tuple[int, int, str, list[tuple[View | None, str, Lane]], list[PciFunction] | None]
"""Seconds since the previous batch, seconds of delay, machine, its views, and its PCI functions."""

_clusters = (f"counted-{number}" for number in count())
_tokens = (f"counted-{number}" for number in count())

batches = st.tuples(
    st.sampled_from([0, 10, 700, 1300]),
    st.sampled_from([0, 0, 600, 4000]),
    st.sampled_from(["m1", "m2"]),
    st.lists(
        st.tuples(
            st.sampled_from(VIEWS), st.sampled_from(["nvml", "netdata", "pci"]), st.sampled_from([Lane.FAST, Lane.SLOW])
        ),
        max_size=5,
        unique=True,
    ),
    st.none() | st.lists(st.sampled_from(FUNCTIONS), unique=True),
)


def sample(view: View | None, reader: str = "nvml", lane: Lane = Lane.FAST, at: int = T0, *, has_value: bool) -> Sample:
    value: float | Absent = 100.0 if has_value else Absent(Reason.TIMEOUT)
    return Sample(view=view, reader=reader, lane=lane, measured_at=at, values={"gpu_power_watts": value})


def write(store: ClickHouseStore, *accepted: AcceptedBatch) -> None:
    store.write(accepted, next(_tokens))


@pytest.mark.costly
@settings(
    max_examples=examples(8, 100),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.lists(batches, min_size=1, max_size=3), min_size=1, max_size=5))
def test_counts_equal_the_rows_after_any_history(store: ClickHouseStore, history: list[list[Report]]) -> None:
    clusters, now = [next(_clusters), next(_clusters)], T0
    instants = [T0]
    for reports in history:
        accepted = []
        for seconds, delay, machine, views, functions in reports:
            now += seconds * NANOS + 1
            at = now - delay * NANOS  # when the relay received it: later batches are newer
            instants.append(at)
            # Slow lanes have no value: no row with a value is replaced by one without, before or after a merge
            samples = [sample(view, reader, lane, at, has_value=lane is Lane.FAST) for view, reader, lane in views]
            part = MachinePart(machine=0, inventory=functions) if functions is not None else None
            cluster = clusters[machine == "m2"]
            accepted.append(accept(cluster, machine, samples, part=part, received_at=at, reported_at=at))
        write(store, *accepted)
    write_newest_rows(store)
    handle = store._handles.reader
    restarted = GpuCounts()
    load_gpu_counts(handle, restarted)
    for since in instants:
        rows = dict(handle.query(REPORTING, parameters={"since": since}).result_rows)
        for found in (store.reporting_gpus(since, END_OF_TIME), restarted.reporting(since, END_OF_TIME)):
            assert of_clusters(found, clusters) == of_clusters(rows, clusters)
    without: Sequence[str]
    for without in ((), ("m1",), ("m2", "elsewhere")):
        nvml, pci = (
            dict(handle.query(query, parameters={"without": list(without)}).result_rows) for query in (KNOWN, ON_BUSES)
        )
        known = {name: KnownGpus(pci=pci.get(name), nvml=nvml.get(name)) for name in {*nvml, *pci}}
        for answer in (store.known_gpus(without), restarted.known(without)):
            assert of_clusters(answer, clusters) == of_clusters(known, clusters)


def of_clusters(
    found: dict[str, object] | dict[str, int] | dict[str, KnownGpus], clusters: list[str]
) -> dict[str, object]:
    return {cluster: count for cluster, count in found.items() if cluster in clusters}


def test_write_during_a_load_is_counted_and_does_not_wait(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(embedded, accept(cluster, "m", [sample(VIEWS[1], has_value=True)], received_at=T0, reported_at=T0))
    embedded._drop_memory()  # as after a start
    handle = embedded._handles.reader
    query = handle.query_arrow

    def query_and_write(*arguments: object, **options: object) -> object:
        found = query(*arguments, **options)
        monkeypatch.setattr(handle, "query_arrow", query)
        write(embedded, accept(cluster, "m", [sample(VIEWS[3], has_value=True)], received_at=T0, reported_at=T0))
        return found

    monkeypatch.setattr(handle, "query_arrow", query_and_write)
    assert embedded.known_gpus()[cluster].nvml == 2
    assert handle.query_arrow == query


def test_query_during_a_load_by_another_thread_is_answered_as_starting(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes and answers of machines go on meanwhile."""
    write(embedded, accept(cluster, "m", [sample(VIEWS[1], has_value=True)], received_at=T0, reported_at=T0))
    embedded._drop_memory()  # as after a start
    monkeypatch.setattr(store_module, "LOAD_WAIT_SECONDS", 0)
    handle = embedded._handles.reader
    query = handle.query
    found: list[object] = []

    def query_from_another_thread(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(handle, "query", query)
        with ThreadPoolExecutor(1) as thread:
            write(embedded, accept(cluster, "m", [sample(VIEWS[3], has_value=True)], received_at=T0, reported_at=T0))
            found.append(thread.submit(embedded.known_gpus).exception())
            found.append(thread.submit(embedded.newest_columns, cluster, ()).exception())
            found.append(len(thread.submit(embedded.latest, cluster, "m").result()))
        return query(*arguments, **options)

    monkeypatch.setattr(handle, "query", query_from_another_thread)
    embedded.load()
    assert [type(one) for one in found] == [StoreStartingError, StoreStartingError, int]
    assert found[2] == 2
    assert embedded.known_gpus()[cluster].nvml == 2


def test_counts_are_answered_while_newest_samples_are_loaded(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(embedded, accept(cluster, "m", [sample(VIEWS[1], has_value=True)], received_at=T0, reported_at=T0))
    embedded._drop_memory()  # as after a start
    monkeypatch.setattr(store_module, "LOAD_WAIT_SECONDS", 0)
    add = embedded._newest.add
    found: list[object] = []

    def add_after_queries(*arguments: Any) -> None:
        monkeypatch.setattr(embedded._newest, "add", add)
        with ThreadPoolExecutor(1) as thread:
            found.append(thread.submit(embedded.known_gpus).result()[cluster].nvml)
            found.append(type(thread.submit(embedded.newest_columns, cluster, ()).exception()))
        add(*arguments)

    monkeypatch.setattr(embedded._newest, "add", add_after_queries)
    embedded.load()
    assert found == [1, StoreStartingError]
    assert len(embedded.newest_columns(cluster, ())) == 1


def test_gpu_with_a_recent_value_counts_as_reporting(embedded: ClickHouseStore, cluster: str) -> None:
    """A store that keeps nothing in memory loses the number as soon as a merge replaces its row."""
    store = embedded
    for at, has_value in ((T0, True), (T0 + 10 * NANOS, False)):
        samples = [sample(VIEWS[1], at=at, has_value=has_value)]
        write(store, accept(cluster, "m", samples, received_at=at, reported_at=at))
        assert store.reporting_gpus(T0, END_OF_TIME)[cluster] == 1
    assert cluster not in store.reporting_gpus(T0 + 1, END_OF_TIME)


def test_driver_without_gpus_counts_zero_and_no_driver_is_unknown(store: ClickHouseStore, cluster: str) -> None:
    """A hypervisor with its GPUs bound to `vfio-pci` has them on its bus only."""
    no_driver: dict[str, Value | Absent] = {
        "nvidia_driver_state": "no_driver", "nvidia_devices": Absent(Reason.NO_DRIVER)
    }  # fmt: skip
    no_gpus: dict[str, Value | Absent] = {"nvidia_driver_state": "ok", "nvidia_devices": 0}
    no_count: dict[str, Value | Absent] = {
        "nvidia_driver_state": "no_supported_gpu", "nvidia_devices": Absent(Reason.NO_SUPPORTED_GPU)
    }  # fmt: skip
    hostile: dict[str, Value | Absent] = {"nvidia_driver_state": "ok", "nvidia_devices": 2**63}
    bus = MachinePart(machine=0, inventory=list(FUNCTIONS))
    counted = []
    for second, values in enumerate((None, no_driver, no_gpus, None, no_driver, no_count, None, hostile)):
        at = T0 + second * NANOS
        samples = [sample(VIEWS[2], "pci", has_value=False)]
        if values is not None:
            samples.append(Sample(view=None, reader="nvml", lane=Lane.FAST, measured_at=at, values=values))
        write(store, accept(cluster, "m", samples, part=bus, received_at=at, reported_at=at))
        write_newest_rows(store)
        restarted = GpuCounts()
        load_gpu_counts(store._handles.reader, restarted)
        found = [store.known_gpus()[cluster], restarted.known(())[cluster]]
        assert [one.pci for one in found] == [2, 2]
        counted.append([one.nvml for one in found])
    assert counted == [[None, None], [None, None], [0, 0], [0, 0], [None, None], [0, 0], [0, 0], [None, None]]
    assert cluster not in store.known_gpus(["m"])


def test_counts_survive_a_clock_that_was_set_back(store: ClickHouseStore, cluster: str) -> None:
    later = T0 + 3600 * NANOS
    for at, reported_at, views in ((later, later, [VIEWS[1], VIEWS[3]]), (T0, later + 1, [VIEWS[1]])):
        samples = [sample(view, at=T0, has_value=True) for view in views]
        write(store, accept(cluster, "m", samples, received_at=at, reported_at=reported_at))
        store.known_gpus()
    assert store.reporting_gpus(T0 - 90 * NANOS, T0 + 90 * NANOS)[cluster] == 1
    assert store.known_gpus()[cluster] == KnownGpus(pci=None, nvml=1)  # the second GPU was removed


def test_backlog_lowers_no_gpu_count(store: ClickHouseStore, cluster: str) -> None:
    """A relay sends the newest batch first after an outage, and its backlog after that."""
    now, then = T0 + 3600 * NANOS, T0
    both, one = [VIEWS[1], VIEWS[3]], [VIEWS[1]]
    functions = [list(FUNCTIONS), list(FUNCTIONS[:1])]
    store.known_gpus()
    for at, views, on_buses in ((now, both, functions[0]), (then, one, functions[1])):
        samples = [sample(view, at=at, has_value=True) for view in views]
        part = MachinePart(machine=0, inventory=on_buses)
        write(store, accept(cluster, "m", samples, part=part, received_at=at, reported_at=at))
        assert store.reporting_gpus(now - 90 * NANOS, now)[cluster] == 2
        assert store.known_gpus()[cluster] == KnownGpus(pci=2, nvml=2)


def test_lost_gpu_does_not_count_as_reporting(store: ClickHouseStore, cluster: str) -> None:
    """The newest state decides, whatever other lanes and the numbers of a few seconds before are."""
    states = [("ok", Lane.FAST), ("lost", Lane.FAST), (None, Lane.SLOW), ("ok", Lane.FAST)]
    counted = []
    for second, (state, lane) in enumerate(states):
        at = T0 + second * NANOS
        values: dict[str, Value | Absent] = {"gpu_power_watts": 100.0} if state != "lost" else {}
        values |= {"gpu_state": state} if state is not None else {}
        lost, other = (View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid) for uuid in ("GPU-1", "GPU-2"))
        samples = [
            Sample(view=lost, reader="nvml", lane=lane, measured_at=at, values=values),
            Sample(view=other, reader="nvml", lane=lane, measured_at=at, values={"gpu_power_watts": 1.0}),
        ]
        write(store, accept(cluster, "m", samples, received_at=at, reported_at=at))
        write_newest_rows(store)
        restarted = GpuCounts()
        load_gpu_counts(store._handles.reader, restarted)
        found = (store.reporting_gpus(T0, END_OF_TIME), restarted.reporting(T0, END_OF_TIME))
        counted.append([one[cluster] for one in found])
        assert store.known_gpus()[cluster].nvml == 2
    assert counted == [[2, 2], [1, 1], [1, 1], [2, 2]]


def test_gpu_that_one_reader_lost_does_not_count_as_reporting(store: ClickHouseStore, cluster: str) -> None:
    """The loss ends with another state of the reader, or 180 s after its newest pass; imported states do not count."""
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    steps = [(0, "dcgm", "lost"), (1, "nvml", "ok"), (2, "dcgm", "ok"), (3, "exporter", "lost"), (4, "nvml", "ok")]
    steps += [(5, "dcgm", "lost"), (185, "nvml", "ok"), (186, "nvml", "ok"), (187, "dcgm", "lost"), (188, "nvml", "ok")]
    counted = []
    for second, reader, state in steps:
        at = T0 + second * NANOS
        source = Provenance.IMPORTED if reader == "exporter" else Provenance.HOST_LOCAL_PROBE
        values: dict[str, Value | Absent] = {"gpu_power_watts": 100.0, "gpu_state": state}
        one = Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=at, values=values, provenance=source)
        write(store, accept(cluster, "m", [one], received_at=at, reported_at=at))
        write_newest_rows(store)
        restarted = GpuCounts()
        load_gpu_counts(store._handles.reader, restarted)
        found = (store.reporting_gpus(T0, END_OF_TIME), restarted.reporting(T0, END_OF_TIME))
        counted.append([cluster in one for one in found])
    assert counted == [[one, one] for one in (False, False, True, True, True, False, False, True, False, False)]


def test_lost_gpu_reports_again_once_its_reader_has_no_state(store: ClickHouseStore, cluster: str) -> None:
    """An exporter that reports failures only has no state `ok`. A late report of the loss changes nothing."""
    steps = [(0, "exporter", "lost"), (2, "exporter", None), (1, "exporter", "lost"), (3, "other", None)]
    counted = []
    for second, reader, state in steps:
        write_state(store, cluster, T0 + second * NANOS, reader, state, Provenance.IMPORTED)
        counted.append(counts_of(store, cluster, T0))
    assert counted == [[0, 0], [1, 1], [1, 1], [1, 1]]


def test_loss_from_before_the_interval_does_not_count(store: ClickHouseStore, cluster: str) -> None:
    """Another reader may have no state, so that nothing else ends the loss of a reader that was removed."""
    write_state(store, cluster, T0, "nvml", "lost", Provenance.HOST_LOCAL_PROBE)
    write_state(store, cluster, T0 + NANOS, "exporter", None, Provenance.IMPORTED)
    assert counts_of(store, cluster, T0) == [0, 0]
    assert counts_of(store, cluster, T0 + 1) == [1, 1]


def test_imported_loss_counts_once_the_state_of_an_agent_is_old(store: ClickHouseStore, cluster: str) -> None:
    write_state(store, cluster, T0, "nvml", "ok", Provenance.HOST_LOCAL_PROBE)
    write_state(store, cluster, T0 + NANOS, "exporter", "lost", Provenance.IMPORTED)
    assert counts_of(store, cluster, T0) == [1, 1]
    assert counts_of(store, cluster, T0 + 1) == [0, 0]


def write_state(
    store: ClickHouseStore, cluster: str, at: int, reader: str, state: str | None, source: Provenance
) -> None:
    """Write a number of a GPU, with its state if there is one."""
    values: dict[str, Value | Absent] = {"gpu_power_watts": 100.0, **({} if state is None else {"gpu_state": state})}
    one = Sample(view=VIEWS[1], reader=reader, lane=Lane.FAST, measured_at=at, values=values, provenance=source)
    write(store, accept(cluster, "m", [one], received_at=at, reported_at=at))
    write_newest_rows(store)


def counts_of(store: ClickHouseStore, cluster: str, since: int) -> list[int]:
    """Return the number of reporting GPUs of a cluster, now and after a restart."""
    restarted = GpuCounts()
    load_gpu_counts(store._handles.reader, restarted)
    found = (store.reporting_gpus(since, END_OF_TIME), restarted.reporting(since, END_OF_TIME))
    return [one.get(cluster, 0) for one in found]
