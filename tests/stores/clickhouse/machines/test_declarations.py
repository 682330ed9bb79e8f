"""GPU counts declared by Kubernetes: the newest report of each source, compared with the machine's own reports."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
CAPACITY, ALLOCATABLE = "kubernetes_capacity_devices", "kubernetes_allocatable_devices"
LABELLED, ALLOCATED = "kubernetes_labelled_devices", "kubernetes_allocated_devices"
GPU, PUBLISHED = "nvidia_com_gpu", "gpu_nvidia_com"
REMOTE_WRITE, FEDERATED = "remote_write/kube_state_metrics", "federate/kube_state_metrics"
COLLECTOR = "kubernetes"


class DeclaredWriter:
    """Write declared resources and PCI functions of one cluster's machines to a store."""

    def __init__(self, store: ClickHouseStore, cluster: str) -> None:
        self.store, self.cluster, self.count = store, cluster, 0

    def declare(
        self,
        machine: str,
        at: int,
        *resources: tuple[str, str, Value | Absent],
        reader: str = REMOTE_WRITE,
        received_at: int | None = None,
    ) -> None:
        dims = tuple(DimValue(metric, (resource,), value) for metric, resource, value in resources)
        sample = Sample(view=None, reader=reader, lane=Lane.SLOW, measured_at=at, values={}, dims=dims)
        accepted = accept(self.cluster, machine, [sample], received_at=received_at or at + NANOS)
        accepted.batch.samples.clear()  # as on the wire: no row without values
        self._write(accepted)

    def add_pci_gpus(self, machine: str, gpus: int) -> None:
        functions = [
            PciFunction(address=f"0000:{n:02x}:00.0", vendor=0x10DE, device=1, class_code=0x030200) for n in range(gpus)
        ]
        accepted = accept(self.cluster, machine, [], received_at=T0)
        accepted.batch.parts.append(MachinePart(machine=0, inventory=functions))
        self._write(accepted)

    def _write(self, accepted: AcceptedBatch) -> None:
        self.count += 1
        self.store.write([accepted], f"{self.cluster}-{self.count}")


def gpus(
    reader: str,
    machines: int,
    count: int,
    *,
    allocatable: int | None,
    counted: int,
    at: int,
    shares: int = 0,
    published: int | None = None,
) -> DeclaredGpus:
    return DeclaredGpus(
        reader=reader, machines=machines, gpus=count, allocatable=allocatable, published=published, counted=counted,
        shares=shares, measured_at=to_datetime(at), received_at=to_datetime(at + NANOS),
    )  # fmt: skip


def test_last_declaration_counts_until_it_ends_or_expires(store: ClickHouseStore, cluster: str) -> None:
    writer, since = DeclaredWriter(store, cluster), T0
    assert cluster not in store.declared_gpus(since)
    writer.declare("m1", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 8), (CAPACITY, "nvidia_com_mig_1g_10gb", 14))
    writer.declare("m2", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 8))
    writer.declare("m3", T0, (CAPACITY, "nvidia_com_mig_1g_10gb", 7))  # declares no whole GPUs
    (declared,) = store.declared_gpus(since)[cluster]
    assert declared == gpus(REMOTE_WRITE, 2, 16, allocatable=16, counted=16, at=T0)
    writer.declare("m1", T0 + 60 * NANOS, (ALLOCATABLE, GPU, 7))
    writer.declare("m1", T0 + 30 * NANOS, (ALLOCATABLE, GPU, 5))  # late and older
    (declared,) = store.declared_gpus(since)[cluster]
    assert declared == gpus(REMOTE_WRITE, 2, 16, allocatable=15, counted=16, at=T0 + 60 * NANOS)
    ended = Absent(Reason.NO_DATA, "ended")
    writer.declare("m2", T0 + 90 * NANOS, (CAPACITY, GPU, ended), (ALLOCATABLE, GPU, ended))
    (declared,) = store.declared_gpus(since)[cluster]
    assert (declared.machines, declared.gpus, declared.allocatable) == (1, 8, 7)
    writer.declare("m2", T0 + 120 * NANOS, (CAPACITY, GPU, 0))  # zero is a count
    (declared,) = store.declared_gpus(since)[cluster]
    assert (declared.machines, declared.gpus, declared.allocatable) == (2, 8, 7)
    assert store.declared_gpus(since, ["m1"])[cluster][0].gpus == 0
    assert cluster not in store.declared_gpus(T0 + 122 * NANOS)
    assert store.latest(cluster, "m1") == ()  # the machine itself has not reported


def test_newest_source_of_a_machine_counts(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.declare("m1", T0, (CAPACITY, GPU, 8))
    writer.declare("m2", T0, (CAPACITY, GPU, 8))
    writer.declare("m1", T0 + 10 * NANOS, (CAPACITY, GPU, 6), reader=FEDERATED)
    assert store.declared_gpus(T0)[cluster] == (
        gpus(FEDERATED, 1, 6, allocatable=None, counted=6, at=T0 + 10 * NANOS),
        gpus(REMOTE_WRITE, 2, 16, allocatable=None, counted=8, at=T0),
    )


def test_shares_of_gpus_are_not_counted_as_gpus(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.add_pci_gpus("sliced", 8)
    writer.declare("sliced", T0, (CAPACITY, GPU, 32))  # four shares of each
    writer.add_pci_gpus("lost-one", 7)
    writer.declare("lost-one", T0, (CAPACITY, GPU, 8))  # one is gone from the bus: Kubernetes is right
    writer.declare("labelled", T0, (CAPACITY, GPU, 16), (LABELLED, "nvidia.com/gpu.count", 4))
    writer.declare("alone", T0, (CAPACITY, GPU, 16))  # unknown: no bus and no label
    writer.add_pci_gpus("none", 0)
    writer.declare("none", T0, (CAPACITY, GPU, 0))
    (declared,) = store.declared_gpus(T0)[cluster]
    assert (declared.machines, declared.counted, declared.shares) == (5, 32 + 8 + 16 + 16, 24 + 12)
    assert store.pci_gpu_counts(cluster, ["sliced", "lost-one", "alone", "none"]) == {
        "sliced": 8,
        "lost-one": 7,
        "none": 0,
    }


def test_published_gpus_are_expected_beside_allocatable_ones(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.declare("driver", T0, (CAPACITY, PUBLISHED, 8), reader=COLLECTOR)
    writer.declare("both", T0, (CAPACITY, GPU, 2), (ALLOCATABLE, GPU, 2), (CAPACITY, PUBLISHED, 6), reader=COLLECTOR)
    writer.declare("plugin", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 7), reader=COLLECTOR)
    assert store.declared_gpus(T0)[cluster] == (gpus(COLLECTOR, 3, 22, allocatable=9, published=14, counted=22, at=T0),)
    writer.declare("driver", T0 + NANOS, (CAPACITY, GPU, 0))  # kube-state-metrics does not know ResourceSlices
    assert store.declared_gpus(T0)[cluster] == (
        gpus(COLLECTOR, 3, 22, allocatable=9, published=14, counted=22, at=T0),
        gpus(REMOTE_WRITE, 1, 0, allocatable=None, counted=0, at=T0 + NANOS),
    )
    ended = Absent(Reason.NO_DATA, "ended")
    writer.declare("driver", T0 + 2 * NANOS, (CAPACITY, PUBLISHED, ended), reader=COLLECTOR)
    assert [one.counted for one in store.declared_gpus(T0)[cluster]] == [14, 0]


def test_declaration_is_as_old_as_its_oldest_part(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.declare("m1", T0, (CAPACITY, PUBLISHED, 8), reader=COLLECTOR)
    writer.declare("m1", T0 + 60 * NANOS, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 8), reader=COLLECTOR)
    (declared,) = store.declared_gpus(T0)[cluster]
    assert declared.measured_at == to_datetime(T0)
    assert declared.received_at == to_datetime(T0 + 61 * NANOS)


def test_allocated_devices_of_plugin_and_driver_are_added(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.declare("m1", T0, (CAPACITY, GPU, 8), (ALLOCATED, GPU, 3), (ALLOCATED, "nvidia_com_mig_1g_10gb", 7))
    assert [one.allocated for one in store.declared_gpus(T0)[cluster]] == [3]
    writer.declare("m2", T0, (CAPACITY, PUBLISHED, 8), (ALLOCATED, PUBLISHED, 0))
    writer.declare("m3", T0, (CAPACITY, GPU, 8))
    assert [one.allocated for one in store.declared_gpus(T0)[cluster]] == [3]
    writer.declare("m2", T0 + NANOS, (ALLOCATED, PUBLISHED, 5))
    assert [one.allocated for one in store.declared_gpus(T0)[cluster]] == [8]


def test_number_repeated_with_its_time_stays_valid(store: ClickHouseStore, cluster: str) -> None:
    """In an outage of its API server, a collector repeats numbers of a stale copy with the time of the copy."""
    writer = DeclaredWriter(store, cluster)
    later = T0 + 3600 * NANOS
    for received_at in (T0, later):
        writer.declare("m1", T0, (CAPACITY, GPU, 8), reader=COLLECTOR, received_at=received_at)
    (declared,) = store.declared_gpus(later - NANOS)[cluster]
    assert (declared.gpus, declared.measured_at, declared.received_at) == (8, to_datetime(T0), to_datetime(later))
    writer.declare("m1", T0 + NANOS, (CAPACITY, GPU, 4), reader=COLLECTOR, received_at=later)  # another leader
    writer.declare("m1", T0, (CAPACITY, GPU, 8), reader=COLLECTOR, received_at=later + NANOS)
    assert [one.gpus for one in store.declared_gpus(later)[cluster]] == [4]


def test_published_gpus_are_no_shares(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.add_pci_gpus("sliced", 8)
    writer.declare("sliced", T0, (CAPACITY, GPU, 32), (CAPACITY, PUBLISHED, 8))
    writer.declare("labelled", T0, (CAPACITY, PUBLISHED, 8), (LABELLED, "nvidia.com/gpu.count", 4))
    (declared,) = store.declared_gpus(T0)[cluster]
    assert (declared.counted, declared.shares) == (32 + 8, 24)


def test_device_plugin_and_driver_with_gpus_of_their_own_are_added(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    numbers = {"labelled": (2, 6), "on-buses": (4, 4), "same": (8, 8), "one-gone": (4, 4), "replicas": (8, 6)}
    for machine, (devices, published) in numbers.items():
        writer.declare(machine, T0, (CAPACITY, GPU, devices), (CAPACITY, PUBLISHED, published))
    for machine, gpus in {"labelled": 8, "replicas": 7}.items():
        writer.declare(machine, T0, (LABELLED, "nvidia.com/gpu.count", gpus))
    for machine, gpus in {"on-buses": 8, "same": 8, "one-gone": 7}.items():
        writer.add_pci_gpus(machine, gpus)
    (declared,) = store.declared_gpus(T0)[cluster]
    assert (declared.counted, declared.shares) == (8 + 8 + 8 + 7 + 8, 1)
    assert declared.counted - declared.shares == 8 + 8 + 8 + 7 + 7


def test_declared_resources_by_machine_resource_and_source(store: ClickHouseStore, cluster: str) -> None:
    writer = DeclaredWriter(store, cluster)
    writer.declare("m1", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 7), (LABELLED, "nvidia.com/gpu.count", 8))
    writer.declare("m1", T0 + NANOS, (CAPACITY, GPU, 8), reader=FEDERATED)
    writer.declare("m2", T0, (CAPACITY, GPU, 8))

    def expected(resource: str, capacity: int, allocatable: int | None, reader: str, at: int) -> DeclaredResource:
        return DeclaredResource(
            resource=resource, capacity=capacity, allocatable=allocatable, reader=reader,
            measured_at=to_datetime(at), received_at=to_datetime(at + NANOS),
        )  # fmt: skip

    assert store.declared_resources(cluster, ["m1", "m9"], T0) == {
        "m1": (
            expected(GPU, 8, None, FEDERATED, T0 + NANOS),
            expected("nvidia.com/gpu.count", 8, None, REMOTE_WRITE, T0),
            expected(GPU, 8, 7, REMOTE_WRITE, T0),
        )
    }
    assert store.declared_resources(cluster, ["m2"], T0 + 2 * NANOS) == {}
