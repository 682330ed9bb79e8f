"""Claims of processes: one for each holder, container and method."""

from gpufleet.holders.processes.mapping import claims_of
from gpufleet.holders.processes.parse.cgroup import Placement
from gpufleet.holders.processes.parse.process import VirtualMachine
from gpufleet.holders.processes.records import ProcessEvidence
from gpufleet.model.holdings import MAX_STEPS, Holder, HolderKind, Method
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming
from tests.fakes.machine import ID, POD

GPU0, GPU1 = "gpu/GPU-0", "gpu/GPU-1"
UID = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"
PASSED = DeviceName(Naming.PCI, "0000:3b:00.0", "0000:3b:00.0")


def view(key: str) -> DeviceName:
    return DeviceName(Naming.VIEW, key, key)


def minor(number: int) -> DeviceName:
    return DeviceName(Naming.MINOR, str(number), f"/dev/nvidia{number}")


def test_processes_of_a_container_are_one_claim() -> None:
    placement = Placement(pod=POD, container=ID)
    claims = claims_of(
        [
            ProcessEvidence(placement=placement, views=(GPU0,)),
            ProcessEvidence(placement=placement, views=(GPU0, GPU1)),
            ProcessEvidence(placement=Placement(pod=POD), views=(GPU1,)),
            ProcessEvidence(placement=placement, minors=(3,)),
        ]
    )
    pod = Holder(kind=HolderKind.POD, id=POD)
    assert claims == (
        HolderClaim(holder=pod, devices=(view(GPU0), view(GPU1)), method=Method.PROCESS, container_id=ID),
        HolderClaim(holder=pod, devices=(view(GPU1),), method=Method.PROCESS),
        HolderClaim(holder=pod, devices=(minor(3),), method=Method.DEVICE_FILE, container_id=ID),
    )


def test_steps_of_a_job_are_collected() -> None:
    steps = ["batch", "0", *map(str, range(1000, 1100))]
    (claim,) = claims_of([ProcessEvidence(placement=Placement(job="4", step=step), views=(GPU0,)) for step in steps])
    assert (claim.holder, len(claim.steps)) == (Holder(kind=HolderKind.JOB, id="4"), MAX_STEPS)


def test_job_that_only_the_process_names_confirms_at_most() -> None:
    placement = Placement(job="4", step="0")
    (claim,) = claims_of([ProcessEvidence(placement=placement, is_weak=True, views=(GPU0,), minors=(1,))])
    assert (claim.method, claim.devices) == (Method.DEVICE_FILE, (view(GPU0), minor(1)))


def test_launcher_pod_has_its_virtual_machine_as_parent() -> None:
    vm = VirtualMachine(UID, "ml_train-0")
    (claim,) = claims_of([ProcessEvidence(placement=Placement(pod=POD), vm=vm, passed_through=(PASSED,))])
    assert (claim.holder.kind, claim.method, claim.devices) == (HolderKind.POD, Method.PROCESS, (PASSED,))
    assert claim.parent is not None
    parent = claim.parent
    # The pod chose the UUID in its command line: it is no identity.
    assert (parent.kind, parent.id, parent.namespace, parent.name) == (HolderKind.VM, "ml/train-0", "ml", "train-0")


def test_gpus_of_one_group_are_weak_evidence() -> None:
    vm = VirtualMachine(UID, "my_vm")
    (claim,) = claims_of([ProcessEvidence(placement=Placement(machine="my-vm"), vm=vm, grouped=(PASSED,))])
    assert (claim.method, claim.devices) == (Method.DEVICE_FILE, (PASSED,))


def test_open_mig_device_is_weak_evidence() -> None:
    (claim,) = claims_of([ProcessEvidence(placement=Placement(job="4"), minors=(0,), instances=("0/1/0",))])
    assert claim.method is Method.DEVICE_FILE
    names = [(device.naming, device.text) for device in claim.devices]
    assert names == [(Naming.MINOR, "0"), (Naming.MIG_OF_MINOR, "0/1/0")]


def test_sandbox_of_a_pod_is_not_its_parent() -> None:
    vm = VirtualMachine(UID, f"sandbox-{ID}")
    (claim,) = claims_of([ProcessEvidence(placement=Placement(pod=POD), vm=vm, passed_through=(PASSED,))])
    assert claim.parent is None


def test_virtual_machine_of_libvirt_is_the_holder() -> None:
    placement = Placement(machine="my-vm")
    (claim,) = claims_of(
        [ProcessEvidence(placement=placement, vm=VirtualMachine(UID, "my_vm"), passed_through=(PASSED,))]
    )
    assert (claim.holder.kind, claim.holder.id, claim.holder.name) == (HolderKind.VM, UID, "my_vm")
    assert (claim.parent, claim.holder.namespace) == (None, "")


def test_container_outside_of_a_pod_is_the_holder() -> None:
    (claim,) = claims_of([ProcessEvidence(placement=Placement(container=ID), views=(GPU0,))])
    assert (claim.holder.kind, claim.holder.id, claim.container_id) == (HolderKind.CONTAINER, ID, "")


def test_process_without_holder_claims_nothing() -> None:
    placements = (Placement(), Placement(machine="a"))
    assert claims_of([ProcessEvidence(placement=one, views=(GPU0,), minors=(0,)) for one in placements]) == ()
