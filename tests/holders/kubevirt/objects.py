"""VirtualMachineInstances as the API server has them."""

from typing import Any

import msgspec

from gpufleet.holders.kubernetes.parse.fields import LabelSelection
from gpufleet.holders.kubernetes.parse.virtual_machines import VmiSelection, parse_vmi
from gpufleet.holders.kubevirt.decisions import ANNOTATION
from gpufleet.holders.kubevirt.parse import NodeVmi, complete_vmi

NODE = "gpu-1"
UID = "0d6f3c5e-8a41-4f2b-9f0e-5b1f5f6d7a01"
POD = "7a4b6c1e-33f0-4a56-8c6e-1f2e3d4c5b01"
CID = 42
A10 = "nvidia.com/GA102GL_A10"
SELECTION = VmiSelection(labels=LabelSelection.of(("team",)))


def vmi_object(
    name: str = "train-0",
    *,
    uid: str = UID,
    annotation: str | None = "dcgm-vsock",
    vsock: bool = True,
    cid: int | None = CID,
    gpus: tuple[str, ...] = (A10,),
    host_devices: tuple[str, ...] = (),
    node: str = NODE,
    phase: str = "Running",
    pods: dict[str, str] | None = None,
    address: str = "10.244.0.7",
    os: str = "",
    labels: dict[str, str] | None = None,
    namespace: str = "ml",
) -> dict[str, Any]:
    """Return an object. `annotation` is the user's consent."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "uid": uid,
            "namespace": namespace,
            "name": name,
            "labels": {"kubevirt.io/nodeName": node, **(labels or {})},
            "annotations": {} if annotation is None else {ANNOTATION: annotation},
        },
        "spec": {
            "domain": {
                "devices": {
                    "autoattachVSOCK": vsock,
                    "gpus": [{"name": f"gpu{n}", "deviceName": device} for n, device in enumerate(gpus)],
                    "hostDevices": [{"name": f"dev{n}", "deviceName": device} for n, device in enumerate(host_devices)],
                }
            }
        },
        "status": {
            "phase": phase,
            "nodeName": node,
            **({} if cid is None else {"VSOCKCID": cid}),
            "activePods": {POD: node} if pods is None else pods,
            "interfaces": [{"ipAddress": address}],
            "guestOSInfo": {"id": os},
        },
    }


def node_vmi(content: dict[str, Any]) -> NodeVmi:
    """Return the record of an object."""
    data = msgspec.json.encode(content)
    vmi = parse_vmi(data, SELECTION)
    assert vmi is not None
    return complete_vmi(data, vmi)
