"""Virtual machines of launcher pods."""

from gpufleet.holders.kubevirt.launcher_pods import LauncherPodHolders
from gpufleet.model.holdings import Holder, HolderKind, Method
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderReport, Naming
from tests.holders.kubevirt.objects import POD, UID, vmi_object
from tests.holders.kubevirt.test_source import FakeCopy

GROUP = DeviceName(Naming.IOMMU_GROUP, "42", "42")


class FakePods:
    """Source of one launcher pod."""

    name = "kubelet"

    def __init__(self, id_: str = POD, namespace: str = "ml") -> None:
        self.pod = Holder(kind=HolderKind.POD, id=id_, name="virt-launcher-train-0-abcde", namespace=namespace)

    async def report(self) -> HolderReport:
        return HolderReport(claims=(HolderClaim(holder=self.pod, devices=(GROUP,), method=Method.KUBELET),))

    async def close(self) -> None:
        pass


async def parent_of(pods: FakePods) -> Holder | None:
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u2", "controller": True}
    content = vmi_object()
    content["metadata"]["ownerReferences"] = [owner]
    (claim,) = (await LauncherPodHolders(pods, FakeCopy(content)).report()).claims
    assert claim.devices == (GROUP,)  # a device id of the kubelet stays what it is
    return claim.parent


async def test_pod_of_a_machine_has_it_as_parent() -> None:
    parent = await parent_of(FakePods())
    assert parent is not None
    assert (parent.kind, parent.id, parent.namespace, parent.name) == (HolderKind.VM, UID, "ml", "train-0")
    assert [owner.kind for owner in parent.owners] == ["VirtualMachine"]


async def test_pod_of_two_machines_has_no_parent() -> None:
    copy = FakeCopy(vmi_object(), vmi_object("eval-0", uid=UID[:-1] + "2"))
    (claim,) = (await LauncherPodHolders(FakePods(), copy).report()).claims
    assert claim.parent is None


async def test_names_and_other_namespaces_prove_nothing() -> None:
    assert await parent_of(FakePods("ml/virt-launcher-train-0-abcde")) is None
    assert await parent_of(FakePods(POD[:-1] + "2")) is None
    assert await parent_of(FakePods(namespace="other")) is None
