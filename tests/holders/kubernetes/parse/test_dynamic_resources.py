"""ResourceSlices and ResourceClaims to records."""

from typing import Any

import msgspec

from gpufleet.holders.kubernetes.parse.dynamic_resources import parse_claim, parse_slice
from gpufleet.model.kubernetes import AllocatedDevice, ClaimUser

GPU = "GPU-5a61abb5-0000-4000-8000-000000000001"


def resource_slice(driver: str = "gpu.nvidia.com", **spec: Any) -> bytes:
    attributes = {
        "uuid": {"string": GPU},
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H200"},
        "driverVersion": {"version": "580.65.6"},
        "index": {"int": 3},
        "resource.kubernetes.io/pciBusID": {"string": "00000000:1B:00.0"},
        "internal": {"string": "x"},
        "addressingMode": {"unknown": 1},
    }
    content = {
        "metadata": {"uid": "u", "name": "gpu-1-gpu.nvidia.com-x"},
        "spec": {
            "driver": driver,
            "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": 2, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-3", "attributes": attributes}, {"name": "bare"}],
            **spec,
        },
    }
    return msgspec.json.encode(content)


def test_devices_of_a_slice() -> None:
    found = parse_slice(resource_slice())
    assert found is not None
    assert (found.driver, found.pool, found.generation, found.slices) == ("gpu.nvidia.com", "gpu-1", 2, 1)
    device, bare = found.devices
    assert (device.uuid, device.pci_address, device.kind, device.node) == (GPU, "0000:1b:00.0", "gpu", "gpu-1")
    assert device.attributes == {"productName": "NVIDIA H200", "driverVersion": "580.65.6", "index": "3"}
    assert (bare.name, bare.uuid, bare.pci_address, bare.generation) == ("bare", "", "", 2)


def test_device_can_have_a_node_of_its_own() -> None:
    found = parse_slice(resource_slice(nodeName=None, devices=[{"name": "d", "nodeName": "other"}]))
    assert found is not None
    assert (found.node, found.devices[0].node) == ("", "other")


def test_slices_of_other_drivers_are_left_out() -> None:
    assert parse_slice(resource_slice("compute-domain.nvidia.com")) is None
    assert parse_slice(resource_slice("dra.net")) is None


def test_invalid_pci_address_is_left_out() -> None:
    attributes = {"pciBusID": {"string": "../../etc"}}
    found = parse_slice(resource_slice(devices=[{"name": "d", "attributes": attributes}]))
    assert found is not None
    assert found.devices[0].pci_address == ""


def claim(results: list[dict[str, Any]] | None) -> bytes:
    allocation = None if results is None else {"devices": {"results": results}}
    users = [{"resource": "pods", "name": "p", "uid": "pod-uid"}]
    return msgspec.json.encode(
        {
            "metadata": {"uid": "u", "namespace": "ml", "name": "c"},
            "status": {"allocation": allocation, "reservedFor": users},
        }
    )


def test_allocated_claim() -> None:
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "gpu-1", "device": "gpu-3", "adminAccess": True}
    network = {"request": "n", "driver": "dra.net", "pool": "gpu-1", "device": "eth1"}
    found = parse_claim(claim([result, network]))
    assert found is not None
    assert found.devices == (
        AllocatedDevice(driver="gpu.nvidia.com", pool="gpu-1", name="gpu-3", request="r", admin_access=True),
    )
    assert found.reserved_for == (ClaimUser(resource="pods", name="p", uid="pod-uid"),)


def test_claim_without_gpus_is_left_out() -> None:
    assert parse_claim(claim(None)) is None
    assert parse_claim(claim([])) is None
