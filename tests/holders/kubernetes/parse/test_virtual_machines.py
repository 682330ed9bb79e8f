"""VirtualMachineInstances to records."""

from typing import Any

import msgspec
import pytest

from gpufleet.holders.kubernetes.parse.virtual_machines import VmiSelection, parse_vmi
from gpufleet.model.kubernetes import ClusterVmi, VmiDevice


def parse(
    devices: dict[str, Any], status: dict[str, Any] | None = None, selection: VmiSelection | None = None
) -> ClusterVmi | None:
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u2", "controller": True}
    content = {
        "metadata": {
            "uid": "u",
            "namespace": "ml",
            "name": "vm",
            "ownerReferences": [owner],
            "annotations": {"kubevirt.io/gpu-metrics-collector": "dcgm-vsock", "other": "x"},
        },
        "spec": {"domain": {"devices": devices}},
        "status": status,
    }
    return parse_vmi(msgspec.json.encode(content), selection or VmiSelection())


def test_every_field_of_a_machine() -> None:
    status = {
        "phase": "Running",
        "nodeName": "gpu-1",
        "VSOCKCID": 42,
        "activePods": {"pod-1": "gpu-1", "pod-2": "gpu-2"},
        "guestOSInfo": {"id": "mswindows", "name": "Microsoft Windows"},
        "migrationState": {
            "sourceNode": "gpu-1",
            "targetNode": "gpu-2",
            "completed": True,
            "startTimestamp": "2026-01-01T00:00:00Z",
        },
    }
    devices = {
        "autoattachVSOCK": True,
        "gpus": [{"name": "gpu1", "deviceName": "nvidia.com/GA102GL_A10"}, {"name": "g2", "claimName": "c"}],
        "hostDevices": [{"name": "nvme", "deviceName": "vendor/nvme"}],
    }
    vmi = parse(devices, status)
    assert vmi is not None
    assert (vmi.node, vmi.phase, vmi.vsock_cid, vmi.autoattach_vsock) == ("gpu-1", "Running", 42, True)
    assert vmi.pods == {"pod-1": "gpu-1", "pod-2": "gpu-2"}
    assert vmi.devices == (
        VmiDevice(name="gpu1", device_name="nvidia.com/GA102GL_A10"),
        VmiDevice(name="g2", claim="c"),
        VmiDevice(name="nvme", device_name="vendor/nvme", host_device=True),
    )
    assert vmi.annotations == {"kubevirt.io/gpu-metrics-collector": "dcgm-vsock"}
    assert vmi.machine is not None
    assert vmi.machine.kind == "VirtualMachine"
    assert vmi.migration is not None
    assert (vmi.migration.target_node, vmi.migration.completed, vmi.migration.failed) == ("gpu-2", True, False)
    assert vmi.guest_os == "mswindows"


@pytest.mark.parametrize("cid", [0, 1, 2, 2**32 - 1, 2**40, -1])
def test_reserved_cids_do_not_count(cid: int) -> None:
    vmi = parse({"gpus": [{"name": "g"}]}, {"VSOCKCID": cid})
    assert vmi is not None
    assert vmi.vsock_cid is None


def test_machine_without_devices_is_left_out() -> None:
    assert parse({"autoattachVSOCK": True}) is None
    assert parse({}, selection=VmiSelection(all_machines=True)) is not None
