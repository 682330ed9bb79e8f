"""Nodes to records."""

import msgspec
import pytest

from gpufleet.holders.kubernetes.parse.nodes import parse_node
from gpufleet.model.errors import WireError
from gpufleet.model.kubernetes import GpuResourceKind, NodeTaint

NODE = {
    "metadata": {
        "uid": "u-1",
        "name": "gpu-1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "topology.kubernetes.io/zone": "eu-1a",
            "topology.kubernetes.io/region": "eu-1",
            "node.kubernetes.io/instance-type": "h200.8x",
            "nvidia.com/gpu.product": "NVIDIA-H200",
            "team-secret": "s",
        },
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {
        "providerID": "aws:///eu-1a/i-1",
        "unschedulable": True,
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
    },
    "status": {
        "capacity": {"cpu": "96", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.18gb": "7", "rdma/hca": "1k"},
        "allocatable": {"nvidia.com/gpu": "7", "nvidia.com/mig-1g.18gb": "x", "nvidia.com/gpu.shared": "40"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "no time"}],
        "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kubeletVersion": "v1.36.2"},
    },
}


def test_every_field_of_a_node() -> None:
    node = parse_node(msgspec.json.encode(NODE))
    assert (node.uid, node.name, node.provider_id) == ("u-1", "gpu-1", "aws:///eu-1a/i-1")
    assert (node.zone, node.region, node.instance_type) == ("eu-1a", "eu-1", "h200.8x")
    assert (node.machine_id, node.system_uuid, node.boot_id) == ("m", "s", "b")
    assert node.unschedulable
    assert node.taints == (NodeTaint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),)
    assert [(one.kind, one.status, one.since) for one in node.conditions] == [("Ready", "True", None)]
    assert "team-secret" not in node.labels
    assert node.labels["nvidia.com/gpu.product"] == "NVIDIA-H200"


def test_gpu_resources_with_capacity_and_allocatable() -> None:
    node = parse_node(msgspec.json.encode(NODE))
    assert [(one.name, one.kind, one.capacity, one.allocatable) for one in node.resources] == [
        ("nvidia.com/gpu", GpuResourceKind.GPU, 8, 7),
        ("nvidia.com/gpu.shared", GpuResourceKind.SHARED, None, 40),
        ("nvidia.com/mig-1g.18gb", GpuResourceKind.MIG, 7, None),
    ]


def test_node_without_status_has_empty_fields() -> None:
    node = parse_node(b'{"metadata":{"uid":"u","name":"n"},"spec":null,"status":null}')
    assert (node.resources, node.conditions, node.zone) == ((), (), "")


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b'{"metadata":{"uid":1,"name":"n"}}', b'{"metadata":{"uid":"","name":"n"}}']
)
def test_malformed_node_is_an_error(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, WireError)):
        parse_node(data)
