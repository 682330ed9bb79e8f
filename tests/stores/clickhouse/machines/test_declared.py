"""What Kubernetes says of machines: the newest word of each who tells, beside what machines say of themselves."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.machine import PciFunction
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept

T0 = 1_700_000_000 * NANOS
CAPACITY, ALLOCATABLE = "kubernetes_capacity_devices", "kubernetes_allocatable_devices"
LABELLED = "kubernetes_labelled_devices"
GPU = "nvidia_com_gpu"
WRITTEN, ASKED = "remote_write/kube_state_metrics", "federate/kube_state_metrics"


class Telling:
    """Says things of machines of one cluster to a store."""

    def __init__(self, store: ClickHouseStore, cluster: str) -> None:
        self.store, self.cluster, self.count = store, cluster, 0

    def say(self, machine: str, at: int, *told: tuple[str, str, Value | Absent], reader: str = WRITTEN) -> None:
        dims = tuple(DimValue(metric, (resource,), value) for metric, resource, value in told)
        sample = Sample(view=None, reader=reader, lane=Lane.SLOW, measured_at=at, values={}, dims=dims)
        accepted = accept(self.cluster, machine, [sample], received_at=at + NANOS)
        accepted.batch.samples.clear()  # as it travels: there is no row where there are no values
        self._write(accepted)

    def on_bus(self, machine: str, gpus: int) -> None:
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
    reader: str, machines: int, count: int, *, allocatable: int | None, counted: int, at: int, shares: int = 0
) -> DeclaredGpus:
    return DeclaredGpus(
        reader=reader, machines=machines, gpus=count, allocatable=allocatable, counted=counted, shares=shares,
        measured_at=to_datetime(at), received_at=to_datetime(at + NANOS),
    )  # fmt: skip


def test_what_was_said_last_counts_until_it_ends_or_is_old(store: ClickHouseStore, cluster: str) -> None:
    tell, since = Telling(store, cluster), T0
    assert cluster not in store.declared_gpus(since)
    tell.say("m1", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 8), (CAPACITY, "nvidia_com_mig_1g_10gb", 14))
    tell.say("m2", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 8))
    tell.say("m3", T0, (CAPACITY, "nvidia_com_mig_1g_10gb", 7))  # says nothing of whole GPUs
    (told,) = store.declared_gpus(since)[cluster]
    assert told == gpus(WRITTEN, 2, 16, allocatable=16, counted=16, at=T0)
    tell.say("m1", T0 + 60 * NANOS, (ALLOCATABLE, GPU, 7))
    tell.say("m1", T0 + 30 * NANOS, (ALLOCATABLE, GPU, 5))  # late word of before
    (told,) = store.declared_gpus(since)[cluster]
    assert told == gpus(WRITTEN, 2, 16, allocatable=15, counted=16, at=T0 + 60 * NANOS)
    ended = Absent(Reason.NO_DATA, "ended")
    tell.say("m2", T0 + 90 * NANOS, (CAPACITY, GPU, ended), (ALLOCATABLE, GPU, ended))
    (told,) = store.declared_gpus(since)[cluster]
    assert (told.machines, told.gpus, told.allocatable) == (1, 8, 7)
    tell.say("m2", T0 + 120 * NANOS, (CAPACITY, GPU, 0))  # zero is a count
    (told,) = store.declared_gpus(since)[cluster]
    assert (told.machines, told.gpus, told.allocatable) == (2, 8, 7)
    assert store.declared_gpus(since, ["m1"])[cluster][0].gpus == 0
    assert cluster not in store.declared_gpus(T0 + 122 * NANOS)
    assert store.latest(cluster, "m1") == ()  # nothing that the machine itself was heard by


def test_of_several_who_tell_of_a_machine_the_last_counts(store: ClickHouseStore, cluster: str) -> None:
    tell = Telling(store, cluster)
    tell.say("m1", T0, (CAPACITY, GPU, 8))
    tell.say("m2", T0, (CAPACITY, GPU, 8))
    tell.say("m1", T0 + 10 * NANOS, (CAPACITY, GPU, 6), reader=ASKED)
    assert store.declared_gpus(T0)[cluster] == (
        gpus(ASKED, 1, 6, allocatable=None, counted=6, at=T0 + 10 * NANOS),
        gpus(WRITTEN, 2, 16, allocatable=None, counted=8, at=T0),
    )


def test_what_can_be_no_gpus_of_their_own_is_told_apart(store: ClickHouseStore, cluster: str) -> None:
    tell = Telling(store, cluster)
    tell.on_bus("sliced", 8)
    tell.say("sliced", T0, (CAPACITY, GPU, 32))  # four shares of each
    tell.on_bus("lost-one", 7)
    tell.say("lost-one", T0, (CAPACITY, GPU, 8))  # one is gone from the bus: Kubernetes is right
    tell.say("labelled", T0, (CAPACITY, GPU, 16), (LABELLED, "nvidia.com/gpu.count", 4))
    tell.say("alone", T0, (CAPACITY, GPU, 16))  # nobody can say what these are
    tell.on_bus("none", 0)
    tell.say("none", T0, (CAPACITY, GPU, 0))
    (told,) = store.declared_gpus(T0)[cluster]
    assert (told.machines, told.counted, told.shares) == (5, 32 + 8 + 16 + 16, 24 + 12)
    assert store.pci_gpu_counts(cluster, ["sliced", "lost-one", "alone", "none"]) == {
        "sliced": 8,
        "lost-one": 7,
        "none": 0,
    }


def test_each_machine_by_resource_and_teller(store: ClickHouseStore, cluster: str) -> None:
    tell = Telling(store, cluster)
    tell.say("m1", T0, (CAPACITY, GPU, 8), (ALLOCATABLE, GPU, 7), (LABELLED, "nvidia.com/gpu.count", 8))
    tell.say("m1", T0 + NANOS, (CAPACITY, GPU, 8), reader=ASKED)
    tell.say("m2", T0, (CAPACITY, GPU, 8))

    def one(resource: str, capacity: int, allocatable: int | None, reader: str, at: int) -> DeclaredResource:
        return DeclaredResource(
            resource=resource, capacity=capacity, allocatable=allocatable, reader=reader,
            measured_at=to_datetime(at), received_at=to_datetime(at + NANOS),
        )  # fmt: skip

    assert store.declared_resources(cluster, ["m1", "m9"], T0) == {
        "m1": (
            one(GPU, 8, None, ASKED, T0 + NANOS),
            one("nvidia.com/gpu.count", 8, None, WRITTEN, T0),
            one(GPU, 8, 7, WRITTEN, T0),
        )
    }
    assert store.declared_resources(cluster, ["m2"], T0 + 2 * NANOS) == {}
