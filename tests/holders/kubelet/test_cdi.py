"""CDI specifications."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.mig_minors import parse_mig_minors
from gpufleet.holders.kubelet.cdi import CdiDevice, identify, identify_claimed, parse_specification
from gpufleet.holders.kubelet.device_ids import Identity
from gpufleet.holders.kubelet.parse import ClaimedDevice
from gpufleet.model.errors import WireError
from gpufleet.ports.holder import Naming

UUID = "7f5e7c15-0000-4000-8000-000000000001"
CLAIM = "7c8537cb-56d1-485d-bef3-d080e78b3d7a"
MINORS = parse_mig_minors(
    b"config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n"
    b"gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\ngpu1/gi1/access 147\nbroken\n"
)

SPECIFICATION = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
    - path: /dev/dri/card1
- name: "0:0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /run/nvidia/driver/dev/nvidia0
    - path: /dev/nvidia-caps/nvidia-cap12
    - path: /dev/nvidia-caps/nvidia-cap13
- name: GPU-7f5e7c15-0000-4000-8000-000000000001
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia3
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
  - path: /dev/nvidia7
"""


def identities(specification: dict[str, CdiDevice]) -> dict[str, Identity | None]:
    return {name: identify(device, MINORS) for name, device in specification.items()}


def test_devices_of_a_specification_are_identified() -> None:
    expected = {
        "nvidia.com/gpu=0": (Naming.MINOR, "3"),
        "nvidia.com/gpu=0:0": (Naming.MIG_OF_MINOR, "0/1/0"),
        f"nvidia.com/gpu=GPU-{UUID}": (Naming.UUID, f"GPU-{UUID}"),
        "nvidia.com/gpu=all": None,
    }
    assert identities(parse_specification(SPECIFICATION.encode(), "nvidia.yaml")) == expected


def edits(*nodes: str, env: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"deviceNodes": [{"path": node} for node in nodes], "env": list(env)}


CAP = "/dev/nvidia-caps/nvidia-cap"


@pytest.mark.parametrize(
    ("device", "identity"),
    [
        (edits("/dev/nvidia2"), (Naming.MINOR, "2")),
        (edits("/dev/nvidia2", env=(f"NVIDIA_VISIBLE_DEVICES=GPU-{UUID}",)), (Naming.UUID, f"GPU-{UUID}")),
        (edits("/dev/nvidia2", env=("NVIDIA_VISIBLE_DEVICES=0",)), (Naming.MINOR, "2")),
        (edits(env=(f"NVIDIA_VISIBLE_DEVICES=GPU-{UUID},MIG-{UUID}",)), None),
        (edits("/dev/nvidia0", f"{CAP}21", f"{CAP}22"), (Naming.MIG_OF_MINOR, "0/2/0")),
        (edits("/dev/nvidia0", f"{CAP}21"), (Naming.MIG_OF_MINOR, "0/2")),
        (edits("/dev/nvidia0", f"{CAP}12", f"{CAP}13", f"{CAP}14"), None),
        (edits("/dev/nvidia0", f"{CAP}12", f"{CAP}21"), None),
        (edits("/dev/nvidia1", f"{CAP}21", f"{CAP}22"), None),
        (edits("/dev/nvidia0", f"{CAP}999"), None),
        (edits("/dev/nvidia0", f"{CAP}21", env=(f"NVIDIA_VISIBLE_DEVICES=GPU-{UUID}",)), (Naming.MIG_OF_MINOR, "0/2")),
        (edits("/dev/nvidia0", f"{CAP}21", env=(f"NVIDIA_VISIBLE_DEVICES=MIG-{UUID}",)), (Naming.UUID, f"MIG-{UUID}")),
        (edits("/dev/vfio/vfio", "/dev/vfio/42"), (Naming.IOMMU_GROUP, "42")),
        (edits("/dev/vfio/42", "/dev/vfio/43"), None),
        (edits("/dev/nvidiactl", "/dev/nvidia-uvm"), None),
        (None, None),
    ],
)
def test_device_is_identified_by_its_nodes(device: dict[str, Any] | None, identity: Identity | None) -> None:
    document = json.dumps({"kind": "x/y", "devices": [{"name": "d", "containerEdits": device}]}).encode()
    assert identities(parse_specification(document, "x.json")) == {"x/y=d": identity}
    assert identities(parse_specification(document, "x.yaml")) == {"x/y=d": identity}  # JSON is YAML


@pytest.mark.parametrize("path", ["x.json", "x.yaml"])
@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"kind: [", b"\xff\xfe\x00", b"{}", b"[" * 100_000, b"a: &a [*a]"])
def test_malformed_specification_is_rejected(data: bytes, path: str) -> None:
    with pytest.raises(WireError):
        parse_specification(data, path)


def test_odd_parts_of_a_specification_are_skipped() -> None:
    document = {
        "kind": "x/y",
        "devices": [
            1,
            {"name": 2},
            {"name": "a", "containerEdits": {"deviceNodes": [{}, 1], "env": [1]}},
            {"name": "b"},
        ],
    }
    assert set(parse_specification(json.dumps(document).encode(), "x.json")) == {"x/y=a", "x/y=b"}


@given(st.binary(max_size=200))
def test_arbitrary_files_are_read_or_rejected(data: bytes) -> None:
    for path in ("x.json", "x.yaml"):
        with contextlib.suppress(WireError):
            parse_specification(data, path)
    parse_mig_minors(data)


def claimed(name: str, *cdi: str) -> ClaimedDevice:
    return ClaimedDevice("gpu.nvidia.com", "node", name, cdi)


KIND = "k8s.gpu.nvidia.com/claim"
KNOWN = {
    f"{KIND}={CLAIM}-gpu-1": (Naming.MINOR, "1"),
    f"{KIND}={CLAIM}-gpu-11": (Naming.MINOR, "11"),
    f"{KIND}={CLAIM}-1": (Naming.MINOR, "5"),
    "k8s.gpu.nvidia.com/device=gpu-1": (Naming.MINOR, "1"),
    "k8s.gpu.nvidia.com/device=gpu-2": (Naming.MINOR, "2"),
}


@pytest.mark.parametrize(
    ("device", "identity"),
    [
        (claimed("gpu-1", f"{KIND}={CLAIM}-gpu-1"), (Naming.MINOR, "1")),
        (claimed("gpu-1", f"{KIND}={CLAIM}-gpu-11", f"{KIND}={CLAIM}-gpu-1"), (Naming.MINOR, "1")),
        (claimed("gpu-1", f"{KIND}={CLAIM}-gpu-1", "k8s.gpu.nvidia.com/device=gpu-1"), (Naming.MINOR, "1")),
        (claimed("gpu-2", f"{KIND}={CLAIM}-gpu-1", "k8s.gpu.nvidia.com/device=gpu-2"), (Naming.MINOR, "2")),
        (claimed("1", f"{KIND}={CLAIM}-gpu-1", f"{KIND}={CLAIM}-gpu-11"), None),
        (claimed("gpu-1", f"{KIND}={CLAIM}-gpu-11"), None),
        (claimed("gpu-3", f"{KIND}={CLAIM}-gpu-3"), None),
        (claimed("gpu-1"), None),
        (claimed(f"GPU-{UUID}"), (Naming.UUID, f"GPU-{UUID}")),
    ],
)
def test_claimed_device_is_the_cdi_device_of_its_name(device: ClaimedDevice, identity: Identity | None) -> None:
    assert identify_claimed(device, KNOWN) == identity


def test_two_identities_of_one_claimed_device_are_unresolved() -> None:
    device = claimed("gpu-1", "a/b=gpu-1", "c/d=gpu-1")
    assert identify_claimed(device, {"a/b=gpu-1": (Naming.MINOR, "1"), "c/d=gpu-1": (Naming.MINOR, "2")}) is None
    uuid = (Naming.UUID, f"GPU-{UUID}")
    assert identify_claimed(device, {"a/b=gpu-1": (Naming.MINOR, "1"), "c/d=gpu-1": uuid}) == uuid
