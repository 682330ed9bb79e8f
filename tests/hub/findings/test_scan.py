"""Scan of machines: turns within a time limit, and what each query shows."""

import datetime as dt

import numpy as np
import pytest

from gpufleet.hub.findings import scan
from gpufleet.hub.findings.machine_inputs import attribution, current_holders, machine_inputs
from gpufleet.hub.findings.reports import NO_SENDER, MachineColumns
from gpufleet.hub.findings.scan import PODS_SECONDS, VALID_SECONDS, MachineScan
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.holdings import (
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Method,
    Share,
    UnresolvedCount,
)
from gpufleet.model.kubernetes import (
    AllocatedDevice,
    ClaimUser,
    ClusterClaim,
    CopyState,
    CopyStatus,
    GpuRequest,
    GpuResourceKind,
)
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, MachineKind, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import ClusterPart, MachinePart
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.cluster_objects import accept_part, pod

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GPU, MIG = "gpu/GPU-1", "mig/MIG-1"


class Counted(MemoryStore):
    """Store that counts queries by method, and takes some time for each chunk of machines."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.seconds = clock, 0.0
        self.chunks: list[tuple[str, int]] = []

    def pci_gpu_counts(self, cluster: str, machines: object) -> dict[str, int]:
        self.check()
        self.clock.advance(self.seconds)
        self.chunks.append((cluster, len(list(machines))))  # type: ignore[call-overload]
        return super().pci_gpu_counts(cluster, machines)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Counted:
    return Counted(clock)


def record(id_: str, cluster: str = "c", **evidence: object) -> MachineRecord:
    machine = Machine(name=id_, **evidence)  # type: ignore[arg-type]
    return MachineRecord(id=id_, cluster=cluster, machine=machine, sender="s", first_seen=AT, last_seen=AT)


def holding(view: str, holder: str, method: Method, since: int) -> Holding:
    kind = HolderKind.JOB if method is Method.SCHEDULER else HolderKind.POD
    return Holding(
        view=view,
        holder=Holder(kind=kind, id=holder),
        since=since,
        share=Share.EXCLUSIVE,
        methods=(method,),
        verdict=HoldingVerdict.AGREED,
    )


def report(clock: FakeClock, machine: str = "m") -> AcceptedBatch:
    """Return the report of a node: a GPU with a MIG device that a pod has, and an unresolved device of SLURM."""
    now = clock.now_ns()
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:01:00.0")
    mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1", parent=GPU)
    samples = [Sample(view=one, reader="nvml", lane=Lane.FAST, measured_at=now, values={}) for one in (gpu, mig)]
    bus = [
        PciFunction(address=f"0000:{one:02x}:00.0", vendor=NVIDIA_VENDOR, device=1, class_code=0x030200)
        for one in (1, 2)
    ]
    part = MachinePart(
        machine=0,
        inventory=bus,
        readers=[ReaderStatus(reader="nvml", lane=Lane.FAST, state=ReaderState.FAILED, interval_seconds=10,
                              last_attempt=now, last_error="GPU is lost")],
        holdings=[holding(MIG, "pod", Method.KUBELET, now - 5)],
        device_holders=[DeviceState(view="gpu/GPU-2", state=HolderState.FREE)],
        unresolved=[UnresolvedCount(source=Method.SCHEDULER, names=3), UnresolvedCount(source="kubelet", names=1)],
    )  # fmt: skip
    return accept("c", machine, samples, part=part, received_at=now, reported_at=now, sent_at=now)


def pods(clock: FakeClock, node: str, count: int) -> AcceptedBatch:
    now = clock.now_ns()
    requests = (GpuRequest(resource="nvidia.com/gpu", kind=GpuResourceKind.GPU, count=count),)
    copies = [CopyStatus(resource=one.value, state=CopyState.SYNCED, since=now) for one in ObjectKind]
    part = ClusterPart(
        observed_at=now,
        system_uid="u",
        server_version="v1",
        copies=copies,
        nodes=[],
        pods=[pod("a", node=node, phase="Running", requests=requests)],
        slices=[],
        claims=[],
        vmis=[],
        removed=[],
    )
    return accept_part("c", part, at=now)


def test_machine_has_what_its_reports_show(clock: FakeClock, store: Counted) -> None:
    store.write([report(clock), pods(clock, "m", 4)], "t")
    one = MachineScan(store, clock)
    one.take_turn({"c": [record("m"), record("n")]})
    found, other = one.find("m"), one.find("n")
    assert found is not None
    assert other is not None
    assert (found.pci_gpus, found.allocated_gpus, found.unresolved_devices, found.last_error) == (
        2,
        4,
        4,
        "GPU is lost",
    )
    assert [(gpu.view, gpu.held, gpu.conflict) for gpu in found.holders] == [(GPU, 1, False), ("gpu/GPU-2", 0, False)]
    assert (other.pci_gpus, other.allocated_gpus, other.unresolved_devices, other.holders) == (None, 0, None, ())
    assert attribution([found, other, None]) == {"allocated_devices": 7, "unattributed_devices": 6}
    assert attribution([None]) == {}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([], None), ([("kubelet", None), ("processes", 0)], None), ([("kubelet", 0), ("processes", 0)], 0)],
)
def test_unresolved_devices_need_the_answer_of_each_source(
    clock: FakeClock, store: Counted, counts: list[tuple[str, int | None]], expected: int | None
) -> None:
    now = clock.now_ns()
    unresolved = [UnresolvedCount(source=source, names=names) for source, names in counts]
    part = MachinePart(machine=0, device_holders=[], unresolved=unresolved)
    store.write([accept("c", "m", [], part=part, received_at=now, reported_at=now, sent_at=now)], "t")
    one = MachineScan(store, clock)
    one.take_turn({"c": [record("m")]})
    assert (one.find("m") or pytest.fail("not read")).unresolved_devices == expected


def test_pods_are_unknown_without_a_collector(clock: FakeClock, store: Counted) -> None:
    store.write([report(clock)], "t")
    one = MachineScan(store, clock)
    one.take_turn({"c": [record("m")]})
    assert (one.find("m") or pytest.fail("not read")).allocated_gpus is None
    store.write([pods(clock, "m", 4)], "u")
    clock.advance(PODS_SECONDS)
    one.take_turn({"c": [record("m")]})
    assert (one.find("m") or pytest.fail("not read")).allocated_gpus == 4


def test_devices_of_claims_are_allocated_while_the_claims_are_current(clock: FakeClock, store: Counted) -> None:
    now = clock.now_ns()
    user = ClaimUser(resource="pods", name="a", uid="a")
    device = AllocatedDevice(driver="gpu.nvidia.com", pool="m", name="gpu-0")
    claim = ClusterClaim(uid="k", namespace="ml", name="k", devices=(device,), reserved_for=(user,))
    for state, expected in ((CopyState.SYNCED, 1), (CopyState.FORBIDDEN, None)):
        part = ClusterPart(
            observed_at=now,
            copies=[CopyStatus(resource=one.value, state=state, since=now) for one in ObjectKind],
            pods=[pod("a", node="m", phase="Running", started=now, claims=("k",))],
            claims=[claim],
        )
        store.write([report(clock), accept_part("c", part, at=now + (state is CopyState.FORBIDDEN))], state)
        one = MachineScan(store, clock)
        one.take_turn({"c": [record("m")]})
        assert (one.find("m") or pytest.fail("not read")).allocated_gpus == expected


def test_machines_are_read_in_turns(clock: FakeClock, store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK", 2)
    machines = {"c": [record(f"m{one}") for one in range(4)], "d": [record("n", "d")]}
    one = MachineScan(store, clock, max_seconds=10)
    store.seconds = 5
    one.take_turn(machines)
    assert store.chunks == [("c", 2), ("c", 2)]
    assert one.find("n") is None
    one.take_turn(machines)
    assert store.chunks[2:] == [("d", 1), ("c", 2)]
    store.seconds = 0
    one.take_turn(machines)
    assert store.chunks[4:] == [("c", 2), ("d", 1), ("c", 2)]
    one.take_turn({"c": machines["c"][:1]})
    assert one.find("m1") is None


def test_what_was_read_expires(clock: FakeClock, store: Counted) -> None:
    one = MachineScan(store, clock)
    one.take_turn({"c": [record("m")]})
    clock.advance(VALID_SECONDS - 1)
    store.down = True
    with pytest.raises(StoreError):
        one.take_turn({"c": [record("m")]})
    assert one.find("m") is not None
    clock.advance(1)
    assert one.find("m") is None


def test_inputs_of_a_guest_have_no_time_without_report(clock: FakeClock, store: Counted) -> None:
    store.write([report(clock)], "t")
    one = MachineScan(store, clock)
    guest = record("g", kind=MachineKind.GUEST)
    one.take_turn({"c": [record("m", instance_type="p5"), guest]})
    machines = MachineColumns(
        records=[record("m", instance_type="p5"), guest],
        sender=np.array([NO_SENDER, NO_SENDER]),
        unseen=np.array([20.0, 20.0]),
        interval=np.array([30.0, 30.0]),
        retired=np.array([False, True]),
        is_current=np.array([False, False]),
        is_late=np.array([False, False]),
        ahead=np.array([0.0, 0.0]),
    )
    scanned = [one.find("m"), None]
    inputs = machine_inputs(machines, scanned, lambda *_: 2, is_queried=True)
    assert inputs.numbers("unseen_seconds")[0] == 20
    assert np.isnan(inputs.numbers("unseen_seconds")[1])
    assert inputs.numbers("pci_gpus")[0] == 2
    assert inputs.numbers("agents").tolist() == [2, 2]
    assert (inputs.hypervisors, inputs.pools, inputs.last_errors) == ([None, ""], ["p5", None], ["GPU is lost", None])
    assert inputs.is_queried
    assert not machine_inputs(machines, [None, None], lambda *_: None, is_queried=True).is_queried
    assert current_holders(machines, scanned).machine == []
