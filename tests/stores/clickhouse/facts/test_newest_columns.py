"""Newest values of a cluster in columns: they equal the newest samples, which are read machine by machine."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.facts.metrics import FABRIC_FAULTS, FABRIC_MANAGER, FACT_METRICS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Storage
from gpufleet.model.reading import DimValue, Provenance, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.readings import NewestColumns, split_labelled
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.facts.newest_columns import (
    MemoryPages,
    NewestColumnsReader,
    SamplePages,
    StoredPages,
)
from gpufleet.stores.clickhouse.facts.projections import IDS_PER_QUERY, ProjectionCache
from tests.fakes import facts
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.latest import write_newest_rows
from tests.support.metric_values import ABSENT, value_of
from tests.support.profiles import examples

T0 = 1_700_000_000 * NANOS
MACHINES = ("m-a", "m-b", "m-c")
GPUS = (
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0", index=0),
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2"),
    View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1c:00.0"),
)
MIG = (
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPUS[0].key),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-2", parent=GPUS[0].key),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-3", parent=GPUS[1].key),
)
VIEWS = (None, *GPUS, *MIG, View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="VGPU-1"))
TEXTS = st.sampled_from(("", "a", "b", "ü\0'"))

Row = dict[str, object]


NAMES = sorted({split_labelled(name)[0] for name in FACT_METRICS})
PLAIN = {name: value_of(CATALOGUE[name], TEXTS) for name in NAMES if CATALOGUE[name].storage is not Storage.DIM}
OTHERS = {name: value_of(CATALOGUE[name], TEXTS) for name in ("gpu_bar1_used_bytes", "gpu_serial")}
MIG_PROFILES = {"mig_profile": st.sampled_from(("1g.10gb", "3g.40gb")) | ABSENT}
VALUES: dict[str, st.SearchStrategy[Value | Absent]] = {**PLAIN, **OTHERS, **MIG_PROFILES}
DIMS = [
    st.builds(DimValue, st.just(metric), st.just(labels), value_of(CATALOGUE[metric], TEXTS))
    for metric, labels in [*map(split_labelled, FACT_METRICS), ("host_service_state", ("other",))]
    if labels
]


@st.composite
def samples(draw: st.DrawFn, measured_at: int) -> Sample:
    """Draw a sample with a few metrics."""
    chosen = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=5, unique=True))
    dims = draw(st.lists(st.one_of(DIMS), max_size=2, unique_by=lambda dim: (dim.metric, dim.labels)))
    return Sample(
        view=draw(st.sampled_from(VIEWS)),
        reader=draw(st.sampled_from(("nvml", "dcgm"))),
        lane=draw(st.sampled_from((Lane.FAST, Lane.STATIC))),
        measured_at=measured_at,
        values={name: draw(VALUES[name]) for name in chosen},
        dims=tuple(dims),
        provenance=draw(st.sampled_from(Provenance)),
        driver_session=draw(st.integers(0, 2**63 - 1)),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[AcceptedBatch]:
    """Draw reports of machines in any order of arrival; the cluster is set later."""
    batches = []
    for number in range(draw(st.integers(1, 6))):
        at = T0 + number * 700 * NANOS
        found = [draw(samples(at + place)) for place in range(draw(st.integers(0, 4)))]
        found = [one for one in found if one.values or one.dims]
        status = ReaderStatus(reader="nvml", lane=Lane.FAST, state=ReaderState.OK, interval_seconds=5.0 * number + 5)
        part = MachinePart(machine=0, readers=[status] if draw(st.booleans()) else [])
        machine = draw(st.sampled_from(MACHINES))
        batches.append(accept("", machine, found, part=part, reported_at=at, received_at=at + 9, seq=number + 1))
    return draw(st.permutations(batches))


def rows_of(newest: NewestColumns) -> dict[tuple[str, str, str, str], Row]:
    """Return subject to its cells in all columns."""
    found = {}
    for row in range(len(newest)):
        key = newest.views[newest.view[row]]
        subject = newest.machines[newest.machine[row]], key, newest.readers[newest.reader[row]]
        values = {name: float(column[row]) for name, column in newest.values.items() if not math.isnan(column[row])}
        assert newest.interval_seconds is not None
        assert newest.address is not None
        found[(*subject, newest.lanes[newest.lane[row]])] = {
            "imported": bool(newest.imported[row]),
            "at": (int(newest.measured_at[row]), int(newest.received_at[row])),
            "driver_session": int(newest.driver_session[row]),
            "interval": None if math.isnan(newest.interval_seconds[row]) else float(newest.interval_seconds[row]),
            "values": values,
            "absences": newest.absences[int(newest.absence_set[row])],
            "texts": newest.texts[int(newest.info_set[row])],
            "address": None if newest.address[row] < 0 else newest.addresses[newest.address[row]],
        }
    assert len(found) == len(newest)
    return found


def expected(store: ClickHouseStore | MemoryStore, cluster: str, metrics: tuple[str, ...]) -> NewestColumns:
    """Return the same from the newest samples of each machine."""
    return facts.newest_columns(
        {machine: some for machine, some in store.latest_of(cluster, MACHINES).items() if some},
        store.readers_of(cluster, MACHINES),
        metrics,
    )


_clusters = (f"columns-{number}" for number in itertools.count())


@pytest.mark.costly
@settings(
    max_examples=examples(10, 100),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories())
def test_columns_equal_the_newest_samples(store: ClickHouseStore, history: list[AcceptedBatch]) -> None:
    cluster, memory = next(_clusters), MemoryStore()
    for number, accepted in enumerate(history):
        accepted.batch.cluster = cluster
        store.write([accepted], f"{cluster}-{number}")
        memory.write([accepted], f"{cluster}-{number}")
    for metrics in (FACT_METRICS, ("gpu_power_watts",), ("gpu_name", FABRIC_MANAGER), ()):
        wanted = expected(store, cluster, metrics)
        found = store.newest_columns(cluster, metrics)
        assert rows_of(found) == rows_of(wanted)
        assert found.mig_layouts == wanted.mig_layouts
        assert found.values.keys() == {name for name, cells in wanted.values.items() if not np.isnan(cells).all()}
    found = store.newest_columns(cluster, FACT_METRICS)
    write_newest_rows(store)
    samples = store._newest.pages(cluster)
    sources: list[SamplePages] = [StoredPages(store._handles.reader, cluster, page_rows=2)]
    sources += [MemoryPages(samples, cluster, page_rows=2)] if samples is not None else []
    for pages in sources:
        parts = store._handles.reader, pages, ProjectionCache(), store._labelled
        read = NewestColumnsReader(*parts, cluster, FACT_METRICS).read()
        assert rows_of(read) == rows_of(found)
        assert read.mig_layouts == found.mig_layouts
    assert rows_of(memory.newest_columns(cluster, FACT_METRICS)) == rows_of(found)


def test_cluster_without_samples_has_no_rows(store: ClickHouseStore) -> None:
    found = store.newest_columns("nowhere", FACT_METRICS)
    assert (len(found), found.values, found.machines, found.views) == (0, {}, [], [])
    assert found.machine.dtype == np.int32


def test_position_of_a_view_identifies_the_device(store: ClickHouseStore, cluster: str) -> None:
    """Two machines report one UUID, and two readers report each of them."""
    for machine in MACHINES[:2]:
        some = [
            Sample(view=GPUS[0], reader=reader, lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": 1.0})
            for reader in ("nvml", "dcgm")
        ]
        store.write([accept(cluster, machine, some)], f"{cluster}-{machine}")
    found = store.newest_columns(cluster, ["gpu_power_watts"])
    assert found.views == [GPUS[0].key, GPUS[0].key]
    assert sorted(found.machines) == ["m-a", "m-b"]
    places = sorted(zip(found.machine.tolist(), found.view.tolist(), strict=True))
    assert places in ([(0, 0), (0, 0), (1, 1), (1, 1)], [(0, 1), (0, 1), (1, 0), (1, 0)])


def test_sets_beyond_one_query_are_read(store: ClickHouseStore, cluster: str) -> None:
    """A server refuses longer parameters. The second request has other texts and absences of the same sets."""
    count = IDS_PER_QUERY + 100
    some = [
        Sample(
            view=View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}"),
            reader="nvml",
            lane=Lane.STATIC,
            measured_at=T0,
            values={
                "gpu_serial": str(number),
                "gpu_name": f"name-{number % 2}",
                "gpu_power_watts": Absent(Reason.TIMEOUT, str(number)),
                "gpu_temperature_celsius": Absent(Reason.NOT_SUPPORTED),
            },
        )
        for number in range(count)
    ]
    store.write([accept(cluster, "m", some)], cluster)
    for text, absence, reason in (
        ("gpu_name", "gpu_power_watts", "timeout"),
        ("gpu_serial", "gpu_temperature_celsius", "not_supported"),
    ):
        found = store.newest_columns(cluster, [text, absence])
        assert [found.absences[int(one)] for one in found.absence_set] == [{absence: reason}] * count
        texts = sorted(found.texts[int(one)][text] for one in found.info_set)
        assert texts == sorted(str(one.sample.values[text]) for one in store.latest(cluster, "m"))
    assert len(store.newest_columns(cluster, ["gpu_name"]).texts) == 2


def test_known_sets_are_not_read_again(embedded: ClickHouseStore, cluster: str) -> None:
    values: dict[str, Value | Absent] = {"gpu_name": "H200", "gpu_power_watts": Absent(Reason.TIMEOUT)}
    sample = Sample(view=GPUS[0], reader="nvml", lane=Lane.FAST, measured_at=T0, values=values)
    embedded.write([accept(cluster, "m", [sample])], cluster)
    write_newest_rows(embedded)
    handle = CountingHandle(embedded._handles.reader)
    projections = ProjectionCache()
    for statements in (2, 0):
        handle.statements.clear()
        pages = StoredPages(handle, cluster)
        found = NewestColumnsReader(handle, pages, projections, embedded._labelled, cluster, tuple(values)).read()
        assert list(found.texts.values()) == [{"gpu_name": "H200"}]
        assert list(found.absences.values()) == [{"gpu_power_watts": "timeout"}]
        assert len([one for one in handle.statements if "FROM info" in one or "FROM absence_sets" in one]) == statements


class CountingHandle:
    """Handle that records its queries."""

    def __init__(self, handle: object) -> None:
        self._handle = handle
        self.statements: list[str] = []

    def query(self, statement: str, **options: object) -> object:
        self.statements.append(statement)
        return self._handle.query(statement, **options)  # type: ignore[attr-defined]

    def query_arrow(self, statement: str, **options: object) -> object:
        return self._handle.query_arrow(statement, **options)  # type: ignore[attr-defined]


def test_labelled_value_is_that_of_the_newest_sample(store: ClickHouseStore, cluster: str) -> None:
    """A late backlog changes nothing, and a newest sample without the value has none."""
    name = FABRIC_FAULTS[0]
    metric, labels = split_labelled(name)
    sample = Sample(view=GPUS[0], reader="nvml", lane=Lane.SLOW, measured_at=T0, values={"gpu_power_watts": 1.0})

    def write(second: int, value: int | None) -> dict[str, object]:
        at = T0 + second * NANOS
        dims = () if value is None else (DimValue(metric, labels, value),)
        one = msgspec.structs.replace(sample, measured_at=at, dims=dims)
        store.write([accept(cluster, "m", [one], reported_at=at, seq=second)], f"{cluster}-{second}")
        return {key: column.tolist() for key, column in store.newest_columns(cluster, [name]).values.items()}

    assert write(20, 1) == {name: [1.0]}
    assert write(10, 0) == {name: [1.0]}
    assert write(30, 0) == {name: [0.0]}
    assert write(40, None) == {}


def test_failed_write_drops_the_labelled_values(embedded: ClickHouseStore, cluster: str) -> None:
    """After a failed write the content of the store is unknown, so values are unknown until the next report."""
    metric, labels = split_labelled(FABRIC_MANAGER)
    sample = Sample(
        view=None, reader="host", lane=Lane.SLOW, measured_at=T0, values={},
        dims=(DimValue(metric, labels, "running"),),
    )  # fmt: skip
    embedded.write([accept(cluster, "m", [sample])], cluster)
    running = float(CATALOGUE[metric].states.index("running"))
    assert embedded.newest_columns(cluster, [FABRIC_MANAGER]).values[FABRIC_MANAGER].tolist() == [running]
    embedded._drop_memory()
    assert embedded.newest_columns(cluster, [FABRIC_MANAGER]).values == {}
    later = msgspec.structs.replace(sample, measured_at=T0 + 1)
    embedded.write([accept(cluster, "m", [later], seq=2, reported_at=T0 + 1)], f"{cluster}-2")
    assert embedded.newest_columns(cluster, [FABRIC_MANAGER]).values[FABRIC_MANAGER].tolist() == [running]


def test_mig_layout_has_the_profiles_of_present_devices(store: ClickHouseStore, cluster: str) -> None:
    """A device that was not reported for 20 minutes before the machine's newest report is gone."""

    def sample(view: View | None, **values: Value | Absent) -> Sample:
        return Sample(view=view, reader="nvml", lane=Lane.STATIC, measured_at=T0, values=values)

    gone = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-4", parent=GPUS[0].key)
    orphan = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-5")
    reports = [
        (0, [sample(gone, mig_profile="7g.80gb")]),
        (1201, [sample(one, mig_profile="1g.10gb") for one in MIG] + [sample(orphan, mig_profile="2g.20gb")]),
        (1201, [sample(None, nvidia_devices=2), sample(GPUS[1], gpu_name="H100")]),
    ]
    for seq, (second, some) in enumerate(reports, 1):
        at = T0 + second * NANOS
        store.write([accept(cluster, "m-a", some, reported_at=at + seq, received_at=at, seq=seq)], f"{cluster}-{seq}")
    found = store.newest_columns(cluster, ["gpu_name"])
    assert found.mig_layouts == {("m-a", GPUS[0].key): "1g.10gb, 1g.10gb", ("m-a", GPUS[1].key): "1g.10gb"}
    assert sorted(found.views) == ["", GPUS[1].key]
    assert expected(store, cluster, ("gpu_name",)).mig_layouts == found.mig_layouts


def test_address_is_the_one_that_the_reader_describes(store: ClickHouseStore, cluster: str) -> None:
    bare = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    some = [
        Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": 1.0})
        for view, reader in ((GPUS[0], "nvml"), (bare, "exporter"), (GPUS[2], "pci"))
    ]
    store.write([accept(cluster, "m-a", some)], cluster)
    found = rows_of(store.newest_columns(cluster, []))
    addresses = {reader: row["address"] for (_, _, reader, _), row in found.items()}
    assert addresses == {"nvml": "0000:1b:00.0", "exporter": None, "pci": "0000:1c:00.0"}
