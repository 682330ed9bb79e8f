"""Example of a cluster part with every field in use."""

from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import (
    AllocatedDevice,
    ChainEnd,
    ClaimUser,
    ClusterClaim,
    ClusterDevice,
    ClusterNode,
    ClusterPod,
    ClusterSlice,
    ClusterVmi,
    CopyState,
    CopyStatus,
    GpuRequest,
    GpuResourceKind,
    NodeCondition,
    NodeGpuResource,
    NodeTaint,
    VmiDevice,
    VmiMigration,
)
from gpufleet.model.wire.batch import ClusterPart, RemovedObject

NOW = 1_789_000_000_000_000_000

NODE = ClusterNode(
    uid="0d2f6a53-0c5e-4d8e-9f6d-0c7f6e1b2a30",
    name="gpu-1",
    provider_id="aws:///eu-central-1a/i-0123456789abcdef0",
    zone="eu-central-1a",
    region="eu-central-1",
    instance_type="p5.48xlarge",
    machine_id="1" * 32,
    system_uuid="00000000-0000-4000-8000-000000000001",
    boot_id="5b9b3c1e-9a7e-4c2f-8f0e-3f1f2f3f4f5f",
    kernel_version="6.1.0-18-amd64",
    kubelet_version="v1.36.2",
    architecture="amd64",
    labels={"nvidia.com/gpu.product": "NVIDIA-H200"},
    resources=(NodeGpuResource(name="nvidia.com/gpu", kind=GpuResourceKind.GPU, capacity=8, allocatable=7),),
    conditions=(NodeCondition(kind="Ready", status="True", reason="KubeletReady", since=NOW),),
    taints=(NodeTaint(key="nvidia.com/gpu", effect="NoSchedule", value="present"),),
    unschedulable=True,
    created=NOW,
)

POD = ClusterPod(
    uid="11111111-0000-4000-8000-000000000000",
    namespace="ml",
    name="train-0",
    node="gpu-1",
    phase="Running",
    created=NOW,
    started=NOW + 1,
    deleting=True,
    requests=(GpuRequest(resource="nvidia.com/gpu", kind=GpuResourceKind.GPU, count=2),),
    claims=("gpus",),
    labels={"app": "train"},
    annotations={"team": "vision"},
    controller=Owner(kind="Job", name="train", uid="job-uid", api_version="batch/v1"),
    owners=(
        Owner(kind="Job", name="train", uid="job-uid", api_version="batch/v1"),
        Owner(kind="JobSet", name="trainer", uid="set-uid", api_version="jobset.x-k8s.io/v1alpha2"),
    ),
    chain_end=ChainEnd.TOP,
    queue="research",
    vmi="vmi-uid",
)

PART = ClusterPart(
    observed_at=NOW,
    system_uid="9f8a1c2e-0000-4000-8000-00000000000a",
    server_version="v1.36.2",
    copies=[
        CopyStatus(resource="pods", state=CopyState.SYNCED, since=NOW, objects=1),
        CopyStatus(resource="resourceclaims.resource.k8s.io", state=CopyState.FORBIDDEN, since=NOW, detail="403"),
    ],
    nodes=[NODE],
    pods=[POD],
    slices=[
        ClusterSlice(
            uid="slice-uid",
            name="gpu-1-gpu.nvidia.com-x",
            driver="gpu.nvidia.com",
            pool="gpu-1",
            generation=1,
            slices=1,
            node="gpu-1",
            devices=(
                ClusterDevice(
                    driver="gpu.nvidia.com",
                    pool="gpu-1",
                    name="gpu-0",
                    node="gpu-1",
                    uuid="GPU-1",
                    pci_address="0000:1b:00.0",
                    kind="gpu",
                    attributes={"productName": "NVIDIA H200"},
                ),
            ),
        )
    ],
    claims=[
        ClusterClaim(
            uid="claim-uid",
            namespace="ml",
            name="gpus",
            devices=(AllocatedDevice(driver="gpu.nvidia.com", pool="gpu-1", name="gpu-0", request="gpu"),),
            reserved_for=(ClaimUser(resource="pods", name="train-0", uid=POD.uid),),
            created=NOW,
        )
    ],
    vmis=[
        ClusterVmi(
            uid="vmi-uid",
            namespace="ml",
            name="vm-0",
            node="gpu-1",
            phase="Running",
            created=NOW,
            autoattach_vsock=True,
            vsock_cid=4711,
            devices=(VmiDevice(name="gpu1", device_name="nvidia.com/GA102GL_A10"),),
            labels={"team": "vision"},
            annotations={"kubevirt.io/gpu-metrics-collector": "dcgm-vsock"},
            pods={"launcher-uid": "gpu-1"},
            migration=VmiMigration(source_node="gpu-0", target_node="gpu-1", completed=True, started=NOW, ended=NOW),
            machine=Owner(kind="VirtualMachine", name="vm-0", uid="vm-uid", api_version="kubevirt.io/v1"),
            guest_os="Debian GNU/Linux",
        )
    ],
    removed=[RemovedObject("pods", "22222222-0000-4000-8000-000000000000", NOW)],
)
