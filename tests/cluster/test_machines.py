"""Machine reports of nodes: evidence and numbers."""

import pytest

from gpufleet.cluster.machines import CountedNode, ended_report, has_numbers, machine_report, node_machine
from gpufleet.model.absence import Absent
from gpufleet.model.kubernetes import ClusterNode, GpuResourceKind, NodeGpuResource
from gpufleet.model.wire.batch import MachineReport


def gpus(name: str = "nvidia.com/gpu", capacity: int | None = 8, allocatable: int | None = 7) -> NodeGpuResource:
    return NodeGpuResource(name=name, kind=GpuResourceKind.GPU, capacity=capacity, allocatable=allocatable)


def node(*resources: NodeGpuResource, **fields: object) -> ClusterNode:
    return ClusterNode(uid="u1", name="gpu-1", resources=resources, **fields)  # type: ignore[arg-type]


def numbers(report: MachineReport | None) -> dict[tuple[str, str], object]:
    assert report is not None
    (sample,) = report.samples
    return {
        (one.metric.removeprefix("kubernetes_"), one.labels[0]): None if isinstance(one.value, Absent) else one.value
        for one in sample.dims
    }


def counted(*resources: NodeGpuResource, published: int | None = None, **fields: object) -> CountedNode:
    return CountedNode(node(*resources, **fields), published)


def test_numbers_are_those_of_nvidia_resources_and_the_label() -> None:
    found = counted(
        gpus(), gpus("nvidia.com/mig-1g.10gb", 4, None), gpus("amd.com/gpu"), labels={"nvidia.com/gpu.count": "8"}
    )
    assert numbers(machine_report(found, 5)) == {
        ("capacity_devices", "nvidia_com_gpu"): 8,
        ("allocatable_devices", "nvidia_com_gpu"): 7,
        ("capacity_devices", "nvidia_com_mig_1g_10gb"): 4,
        ("labelled_devices", "nvidia.com/gpu.count"): 8,
    }


def test_node_without_numbers_has_no_report() -> None:
    assert not has_numbers(counted(gpus("amd.com/gpu")))
    assert machine_report(counted(), 5) is None
    assert not has_numbers(counted(labels={"nvidia.com/gpu.count": "many"}))


def test_numbers_that_a_node_had_before_end() -> None:
    report = machine_report(counted(gpus("nvidia.com/gpu.shared", 4, 4)), 5, counted(gpus()))
    assert numbers(report) == {
        ("capacity_devices", "nvidia_com_gpu_shared"): 4,
        ("allocatable_devices", "nvidia_com_gpu_shared"): 4,
        ("capacity_devices", "nvidia_com_gpu"): None,
        ("allocatable_devices", "nvidia_com_gpu"): None,
    }
    assert set(numbers(ended_report(counted(gpus()), 5)).values()) == {None}


def test_published_gpus_have_their_own_time() -> None:
    report = machine_report(counted(gpus(), published=4), 5, published_at=3)
    assert report is not None
    assert {(sample.measured_at, dim.labels[0], dim.value) for sample in report.samples for dim in sample.dims} == {
        (5, "nvidia_com_gpu", 8),
        (5, "nvidia_com_gpu", 7),
        (3, "gpu_nvidia_com", 4),
    }
    assert numbers(machine_report(counted(), 5, counted(published=4))) == {("capacity_devices", "gpu_nvidia_com"): None}
    assert numbers(machine_report(counted(published=0), 5)) == {("capacity_devices", "gpu_nvidia_com"): 0}


def test_allocated_devices_have_their_own_time_and_those_of_known_resources_count() -> None:
    allocated = {"nvidia.com/gpu": 3, "amd.com/gpu": 2, "gpu.nvidia.com": 1}
    report = machine_report(CountedNode(node(gpus()), published=4, allocated=allocated), 5, allocated_at=4)
    assert report is not None
    found = {
        (sample.measured_at, dim.labels[0], dim.value)
        for sample in report.samples
        for dim in sample.dims
        if dim.metric == "kubernetes_allocated_devices"
    }
    assert found == {(4, "nvidia_com_gpu", 3), (4, "gpu_nvidia_com", 1)}
    assert machine_report(CountedNode(node(), allocated=allocated), 5) is None


def test_evidence_is_that_of_the_node() -> None:
    machine = node_machine(
        node(
            machine_id="0123456789abcdef0123456789abcdef",
            system_uuid="4C4C4544-0042-3510-8051-B7C04F4E3533",
            boot_id="8e5d8b5a-0f2c-4b8e-9a55-0d4b8a1e2f30",
            provider_id="aws:///us-east-1a/i-0123456789abcdef0",
            zone="us-east-1a",
        )
    )
    assert (machine.name, machine.k8s_node_name, machine.k8s_node_uid) == ("gpu-1", "gpu-1", "u1")
    assert machine.machine_id == "0123456789abcdef0123456789abcdef"
    assert machine.system_uuid == "4c4c4544-0042-3510-8051-b7c04f4e3533"
    assert (machine.cloud_provider, machine.instance_id, machine.zone) == ("aws", "i-0123456789abcdef0", "us-east-1a")
    assert machine.boot_id is None


@pytest.mark.parametrize(
    ("provider_id", "provider", "instance_id"),
    [
        ("gce://project/zone/gke-pool-1", "gcp", None),
        ("azure:///subscriptions/s/resourceGroups/g/virtualMachines/vm-1", "azure", None),
        ("openstack:///8e5d8b5a-0f2c-4b8e-9a55-0d4b8a1e2f30", "openstack", "8e5d8b5a-0f2c-4b8e-9a55-0d4b8a1e2f30"),
        ("ocid1.instance.oc1.iad.abc", "oracle_cloud", "ocid1.instance.oc1.iad.abc"),
        ("kind://docker/kind/node", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_instance_id_has_the_form_of_the_machine_itself(
    provider_id: str, provider: str | None, instance_id: str | None
) -> None:
    machine = node_machine(node(provider_id=provider_id))
    assert (machine.cloud_provider, machine.instance_id) == (provider, instance_id)


@pytest.mark.parametrize(
    "system_uuid", ["03000200-0400-0500-0006-000700080009", "00000000-0000-0000-0000-000000000000", "not a uuid"]
)
def test_firmware_defaults_are_no_evidence(system_uuid: str) -> None:
    machine = node_machine(node(system_uuid=system_uuid, machine_id="0" * 32))
    assert (machine.system_uuid, machine.machine_id) == (None, None)
