"""Queries about many machines: they equal one query per machine, and their summaries equal the counts."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.hub.liveness.senders import Senders
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.fleet import FleetPages
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.catalogue import CATALOGUE, Lane, ValueType
from gpufleet.model.machine import Machine, PciFunction
from gpufleet.model.reading import Reading, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachinePart
from gpufleet.registry.sql import SqlRegistry
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.clock import FakeClock
from tests.support.accepted import accept
from tests.support.profiles import examples

T0 = 1_700_000_000_000_000_000
LATER = T0 + 10**9
VIEWS = (
    None,
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:1b:00.0", index=0),
    View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1b:00.0"),
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2", pci_address="0000:1c:00.0", index=1),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent="gpu/GPU-1"),
    View(kind=ViewKind.GPU, side=Side.HOST, instance="netdata/gpu0", index=0),
    View(kind=ViewKind.GPU, side=Side.HOST, instance="netdata/gpu1", index=1),
)


def number_of(name: str) -> int | float:
    return 1 if CATALOGUE[name].type is ValueType.INT else 0.5


@st.composite
def fleets(draw: st.DrawFn) -> list[tuple[str, list[Sample], int]]:
    """Draw machines, each with some samples and their time of receipt."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        samples = {}
        for _ in range(draw(st.integers(0, 7))):
            view, reader = draw(st.sampled_from(VIEWS)), draw(st.sampled_from(("nvml", "host")))
            name = draw(st.sampled_from([*AGGREGATED, "gpu_sm_clock_hertz"]))
            value = draw(st.sampled_from([number_of(name), Absent(Reason.TIMEOUT), Absent(Reason.NO_DRIVER)]))
            lane = draw(st.sampled_from((Lane.FAST, Lane.STATIC)))
            samples[view, reader, lane] = Sample(
                view=view, reader=reader, lane=lane, measured_at=T0, values={name: value}
            )
        received_at = T0 - draw(st.sampled_from([0, 100, 10_000])) * NANOS
        found.append((f"m{number}", list(samples.values()), received_at))
    return found


ABSENT: dict[str, Value | Absent] = {"gpu_memory_used_bytes": Absent(Reason.NO_DRIVER)}
TWO_KEYS = [
    Sample(view=VIEWS[1], reader="host", lane=Lane.FAST, measured_at=T0, values=ABSENT),
    Sample(view=VIEWS[2], reader="host", lane=Lane.STATIC, measured_at=T0, values={"gpu_memory_reserved_bytes": 1}),
]
"""A GPU under two keys of one reader, at one instant."""

numbers = iter(range(10**9))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlRegistry]:
    registry = SqlRegistry.open(f"sqlite:///{tmp_path_factory.mktemp('registry')}/registry.sqlite")
    registry.migrate()
    yield registry
    registry.close()


@pytest.mark.costly
@settings(
    max_examples=examples(8, 100),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(fleets())
@example([("m0", TWO_KEYS, T0)])
def test_summaries_equal_a_count_over_all_values(
    store: ClickHouseStore, registry: SqlRegistry, fleet: list[tuple[str, list[Sample], int]]
) -> None:
    cluster = f"fleet-{next(numbers)}"
    registry.register_clusters([cluster], T0)
    ids = [registry.match(cluster, name, Machine(name=name), T0).id for name, _, _ in fleet]
    batches = [
        accept(cluster, id_, samples, received_at=at)
        for id_, (_, samples, at) in zip(ids, fleet, strict=True)
        if samples
    ]
    if batches:
        store.write(batches, cluster)
    latest = store.latest_of(cluster, ids)
    assert all(latest.get(id_, ()) == store.latest(cluster, id_) for id_ in ids)
    clock = FakeClock(T0)
    lookup = MachineLookup(registry=registry, store=store, claims=Claims(()), clock=clock)
    joins = ClusterJoins(store=store, lookup=lookup, clock=clock)
    claimed = ClaimHolders(store=store, lookup=lookup, joins=joins, clock=clock)
    lists = FleetPages(
        registry=registry, store=store, joins=joins, claimed=claimed, clock=clock, stale_after_seconds=90.0
    )
    instant = LivenessSnapshot(Senders(IngestClock(clock)), now=T0, unflushed_since=None)
    readings_of: dict[str, list[Mapping[str, Reading]]] = {id_: [] for id_ in ids}
    for one in lists.gpus(cluster, None, PageRequest(), instant).items:
        if one.device.kind is ViewKind.GPU:
            readings_of[one.device.machine].append(one.device.readings)
    totals = {id_: aggregate(readings) for id_, readings in readings_of.items()}
    nodes = lists.nodes(cluster, PageRequest(), instant).items
    assert {one.machine.id: (one.gpus, one.gpus_reporting) for one in nodes} == {
        id_: (total.devices, total.reporting) for id_, total in totals.items()
    }
    assert {one.id: one.gpus for one in lists.machines(cluster, PageRequest(), instant).items} == {
        id_: total.devices for id_, total in totals.items()
    }


def test_readers_of_many_machines_equal_those_of_each(store: ClickHouseStore, cluster: str) -> None:
    for id_, lanes in (("a", (Lane.FAST, Lane.SLOW)), ("b", (Lane.FAST,))):
        statuses = [
            ReaderStatus(reader="nvml", lane=lane, state=ReaderState.OK, interval_seconds=10.0) for lane in lanes
        ]
        store.write([accept(cluster, id_, part=MachinePart(machine=0, readers=statuses))], f"{cluster}-{id_}")
    found = store.readers_of(cluster, ["a", "b", "c"])
    assert {id_: [one.lane for one in some] for id_, some in found.items()} == {
        "a": [Lane.FAST, Lane.SLOW],
        "b": [Lane.FAST],
    }
    assert store.readers_of(cluster, []) == {} == store.sample_summaries(cluster, [])
    assert store.latest_of(cluster, []) == {}


def test_gpus_with_a_recent_number_are_reporting(store: ClickHouseStore, cluster: str) -> None:
    samples = [gpu("1", 100.0), gpu("2", 0.0), gpu("3", Absent(Reason.TIMEOUT))]
    store.write(
        [accept(cluster, "a", samples, received_at=T0), accept(cluster, "b", samples, received_at=T0 - 9)], cluster
    )
    assert store.reporting_gpus(T0, LATER)[cluster] == 2
    assert store.reporting_gpus(T0 - 9, LATER)[cluster] == 4
    assert cluster not in store.reporting_gpus(T0 + 1, LATER)
    assert store.reporting_gpus(T0 - 9, T0 - 1)[cluster] == 2


def test_unnamed_gpus_do_not_add_to_named_gpus(store: ClickHouseStore, cluster: str) -> None:
    listed = [gpu(None, 100.0, number) for number in range(3)]
    for machine, samples, count in (
        ("both", [*listed, gpu("1", 100.0), gpu("2", 100.0)], 2),
        ("alone", listed, 3),
        ("named-without-value", [*listed, gpu("1", Absent(Reason.NO_LIBRARY))], 3),
    ):
        before = store.reporting_gpus(T0, LATER).get(cluster, 0)
        store.write([accept(cluster, machine, samples, received_at=T0)], f"{cluster}-{machine}")
        assert store.reporting_gpus(T0, LATER)[cluster] - before == count, machine


def gpu(uuid: str | None, value: float | Absent, place: int = 0) -> Sample:
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, instance=None if uuid else f"netdata/gpu{place}")
    reader = "nvml" if uuid else "netdata"
    return Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=T0, values={"gpu_power_watts": value})


def test_known_gpus_come_from_drivers_and_pci(store: ClickHouseStore) -> None:
    cluster = f"known-{next(numbers)}"
    gpus = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{n}", index=n) for n in range(4)]
    bare = [View(kind=ViewKind.GPU, side=Side.HOST, instance=f"netdata/gpu{n}", index=n) for n in range(2)]
    only = View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1b:00.0")
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent="gpu/GPU-1")

    def report(machine: str, views: list[View], at: int, reader: str = "nvml") -> None:
        samples = [
            Sample(view=view, reader=reader, lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": 1.0})
            for view in views
        ]
        store.write(
            [accept(cluster, machine, samples, received_at=at, reported_at=at)], f"{cluster}-{machine}-{at}-{reader}"
        )

    def report_pci(machine: str, *functions: tuple[str, int, str | None]) -> None:
        inventory = [
            PciFunction(address=address, vendor=vendor, device=1, class_code=0x030200, physical_function=of)
            for address, vendor, of in functions
        ]
        accepted = accept(cluster, machine, [], received_at=T0)
        accepted.batch.parts.append(MachinePart(machine=0, inventory=inventory))
        store.write([accepted], f"{cluster}-{machine}-bus")

    assert cluster not in store.known_gpus()
    report("m1", gpus[:2], T0 - 3600 * NANOS)  # one of them was replaced since
    report("m1", [gpus[0], gpus[2], mig], T0)
    report("m1", [only], T0, reader="pci")
    report("m2", bare, T0)  # known by their index only
    report("m3", [gpus[3], *bare], T0 - 7200 * NANOS)  # no heartbeat; the named GPU replaces the unnamed
    assert store.known_gpus()[cluster] == KnownGpus(pci=None, nvml=2 + 2 + 1)
    report_pci(
        "m1", ("0000:1b:00.0", 0x10DE, None), ("0000:1b:00.4", 0x10DE, "0000:1b:00.0"), ("0000:02:00.0", 0x1A03, None)
    )
    report_pci("m4", ("0000:1b:00.0", 0x10DE, None), ("0000:1c:00.0", 0x10DE, None))
    assert store.known_gpus()[cluster] == KnownGpus(pci=3, nvml=5)
    assert store.known_gpus(["m1", "m2"])[cluster] == KnownGpus(pci=2, nvml=1)
