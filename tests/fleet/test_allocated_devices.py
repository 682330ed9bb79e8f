"""Devices that Kubernetes allocates on each node: requests, claims, and numbers that are not known."""

from gpufleet.fleet.allocated_devices import AllocatedDevices
from gpufleet.model.kubernetes import AllocatedDevice, ClaimUser, ClusterClaim, GpuRequest, GpuResourceKind
from tests.support.cluster_objects import pod

GPU, MIG, DRIVER = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "gpu.nvidia.com"


def request(count: int, resource: str = GPU, kind: GpuResourceKind = GpuResourceKind.GPU) -> GpuRequest:
    return GpuRequest(resource=resource, kind=kind, count=count)


def claim(*users: str, devices: int = 1) -> ClusterClaim:
    return ClusterClaim(
        uid="c",
        namespace="ml",
        name="c",
        devices=tuple(AllocatedDevice(driver=DRIVER, pool="n", name=f"gpu-{number}") for number in range(devices)),
        reserved_for=tuple(ClaimUser(resource="pods", name=one, uid=one) for one in users),
    )


PODS = [
    pod("a", node="n1", phase="Running", requests=(request(2), request(1, MIG, GpuResourceKind.MIG))),
    pod("b", node="n1", phase="Pending", requests=(request(1),)),
    pod("c", node="n1", phase="Succeeded", requests=(request(4),)),
    pod("unscheduled", requests=(request(8),)),
    *(pod(name, node="n2", phase="Running", started=1, claims=("c",)) for name in "de"),
    pod("shared", node="N4", phase="Running", requests=(request(1, "nvidia.com/gpu.shared", GpuResourceKind.SHARED),)),
    pod("both", node="n3", phase="Running", started=1, claims=("c",), requests=(request(1),)),
]


def test_devices_of_requests_and_claims_are_counted_by_resource() -> None:
    found = AllocatedDevices(PODS, [claim("d", "e", devices=3)])
    assert found.on("n1") == {GPU: 3, MIG: 1, DRIVER: 0}
    assert found.on("n2") == {DRIVER: 3}
    assert found.on("n3") is None  # the claim can be the request
    assert found.on("n4") == {"nvidia.com/gpu.shared": 1, DRIVER: 0}
    assert found.on("n5") == {DRIVER: 0}
    assert [found.total_on(f"N{number}") for number in range(1, 6)] == [4, 3, None, None, 0]


def test_devices_of_unknown_claims_are_not_counted() -> None:
    found = AllocatedDevices(PODS, None)
    assert (found.on("n1"), found.on("n2")) == ({GPU: 3, MIG: 1}, {})
    assert [found.total_on(f"n{number}") for number in range(1, 6)] == [4, None, None, None, 0]
