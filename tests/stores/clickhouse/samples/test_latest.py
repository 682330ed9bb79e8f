"""`latest` returns the newest sample of each view, reader and lane, unchanged, after writes in any order."""

import itertools
from time import time_ns

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode, encode
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, MetricKind, Storage
from gpufleet.model.errors import StoreError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.samples import snapshot
from gpufleet.stores.clickhouse.samples.snapshot import recover_latest
from gpufleet.stores.clickhouse.schema.tables import LATEST
from tests.support.accepted import accept
from tests.support.latest import write_newest_rows
from tests.support.metric_values import TEXT, value_of
from tests.support.profiles import examples

pytestmark = pytest.mark.costly

T0 = 1_700_000_000_000_000_000
VIEWS = (
    None,
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0", index=0),
    View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1c:00.0"),
    View(kind=ViewKind.MIG, side=Side.HOST, instance="1/0", parent="gpu/GPU-1"),
)


def dim_values(metric: Metric) -> st.SearchStrategy[DimValue]:
    return st.builds(DimValue, st.just(metric.name), st.tuples(*[TEXT] * len(metric.dims)), value_of(metric))


PLAIN = {metric.name: value_of(metric) for metric in CATALOGUE.values() if metric.storage is not Storage.DIM}
DIMS = [dim_values(m) for m in CATALOGUE.values() if m.storage is Storage.DIM and m.kind is not MetricKind.INFO]

SAMPLES = st.builds(
    Sample,
    view=st.sampled_from(VIEWS),
    reader=st.sampled_from(("nvml", "host")),
    lane=st.sampled_from(Lane),
    measured_at=st.integers(T0, T0 + 5),
    values=st.fixed_dictionaries({}, optional=PLAIN),
    dims=st.lists(st.one_of(DIMS), max_size=4, unique_by=lambda d: (d.metric, d.labels)).map(tuple),
    provenance=st.sampled_from(Provenance),
    driver_session=st.integers(0, 2**63 - 1),
).filter(lambda sample: sample.values or sample.dims)


def key(sample: Sample) -> tuple[str, str, str]:
    return sample.view.key if sample.view else "", sample.reader, sample.lane.value


numbers = itertools.count(1)


@settings(
    max_examples=examples(6, 50),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    st.lists(
        st.lists(SAMPLES, min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ).filter(lambda writes: _unique([sample for write in writes for sample in write])),
    st.integers(0, 4),
    st.data(),
)
def test_latest_is_the_newest_sample_unchanged(
    store: ClickHouseStore, writes: list[list[Sample]], first_answer: int, data: st.DataObject
) -> None:
    """Reports arrive in any order, some twice, and each contains only some of the views.

    From the first answer on, the newest samples are in memory. Rows of `latest` that a crash lost are recovered.
    """
    number = next(numbers)
    cluster, received_at = f"property-{number}", T0 + number * NANOS
    expected: dict[tuple[str, str, str], Sample] = {}
    arrived = data.draw(st.permutations(range(len(writes))))
    for time, number in enumerate([*arrived, data.draw(st.sampled_from(arrived))]):
        if time == first_answer:
            store.latest(cluster, "m")
        samples, seq = writes[number], number + 1
        batch = Batch(
            cluster=cluster,
            sender="s",
            epoch="0" * 32,
            seq=seq,
            sent_at=T0,
            reports=(MachineReport(machine=Machine(name="n"), samples=tuple(samples)),),
        )
        wire = decode(encode(batch))
        accepted = AcceptedBatch(received_at=received_at, reported_at=T0 + seq * 1000, machine_ids=("m",), batch=wire)
        store.write([accepted], f"{cluster}-{time}")
    for samples in writes:
        for sample in sorted(samples, key=lambda sample: sample.measured_at):
            expected[key(sample)] = sample
    found = {key(stored.sample): stored.sample for stored in store.latest(cluster, "m")}
    assert found.keys() == expected.keys()
    assert {key(one.sample): one.sample for one in store.latest_of(cluster, ["m", "other"])["m"]} == found
    for place, sample in expected.items():
        assert _ordered(found[place]) == _ordered(sample)
    written = rows_of_latest(store, cluster)
    delete = "ALTER TABLE latest DELETE WHERE cluster = {cluster:String} SETTINGS mutations_sync = 1"
    store._handles.writer.command(delete, parameters={"cluster": cluster})
    recover_latest(store._handles.writer, received_at)
    assert rows_of_latest(store, cluster) == written


def test_failed_recovery_is_an_error_of_the_store(
    embedded: ClickHouseStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are recovered later."""
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
    sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": 1.0})
    at = time_ns()  # rows of other tests are older
    embedded.write([accept(cluster, "m", [sample], received_at=at, reported_at=at)], cluster)
    embedded._drop_memory()
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "RECOVERY", "INSERT INTO no_table SELECT 1")
        with pytest.raises(StoreError):
            embedded.known_gpus()
    assert len(rows_of_latest(embedded, cluster)) == 1


def rows_of_latest(store: ClickHouseStore, cluster: str) -> dict[tuple[object, ...], list[tuple[int, object]]]:
    """Return the rows of `latest`: other columns to ids and values."""
    write_newest_rows(store)
    names = [column.name for column in LATEST.columns if not column.type.startswith("Array")]
    lists = ", ".join(f"arrayZip({kind}_ids, {kind}_values)" for kind in ("int", "float"))
    query = f"SELECT {', '.join(names)}, {lists} FROM latest FINAL WHERE cluster = {{cluster:String}}"
    rows = store._handles.writer.query(query, parameters={"cluster": cluster}).result_rows
    return {tuple(head): sorted([*ints, *floats]) for *head, ints, floats in rows}


def _unique(samples: list[Sample]) -> bool:
    places = [(*key(sample), sample.measured_at) for sample in samples]
    return len(set(places)) == len(places)


def _ordered(sample: Sample) -> tuple[object, ...]:
    dims = sorted(sample.dims, key=lambda value: (value.metric, value.labels))
    return sample.view, sample.values, dims, sample.provenance, sample.driver_session, sample.measured_at
