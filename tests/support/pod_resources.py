"""Messages of the kubelet's PodResources API, package v1, built with protobuf from their field numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _NUMBER, _MESSAGE = 9, 3, 11  # types of FieldDescriptorProto
_ONE, _MANY = 1, 3

_MESSAGES: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "ListPodResourcesResponse": (("pod_resources", 1, _MESSAGE, _MANY, "PodResources"),),
    "GetPodResourcesResponse": (("pod_resources", 1, _MESSAGE, _ONE, "PodResources"),),
    "AllocatableResourcesResponse": (
        ("devices", 1, _MESSAGE, _MANY, "ContainerDevices"),
        ("cpu_ids", 2, _NUMBER, _MANY, ""),
        ("memory", 3, _MESSAGE, _MANY, "ContainerMemory"),
    ),
    "PodResources": (
        ("name", 1, _TEXT, _ONE, ""),
        ("namespace", 2, _TEXT, _ONE, ""),
        ("containers", 3, _MESSAGE, _MANY, "ContainerResources"),
    ),
    "ContainerResources": (
        ("name", 1, _TEXT, _ONE, ""),
        ("devices", 2, _MESSAGE, _MANY, "ContainerDevices"),
        ("cpu_ids", 3, _NUMBER, _MANY, ""),
        ("memory", 4, _MESSAGE, _MANY, "ContainerMemory"),
        ("dynamic_resources", 5, _MESSAGE, _MANY, "DynamicResource"),
    ),
    "ContainerDevices": (
        ("resource_name", 1, _TEXT, _ONE, ""),
        ("device_ids", 2, _TEXT, _MANY, ""),
        ("topology", 3, _MESSAGE, _ONE, "TopologyInfo"),
    ),
    "ContainerMemory": (
        ("memory_type", 1, _TEXT, _ONE, ""),
        ("size", 2, 4, _ONE, ""),
        ("topology", 3, _MESSAGE, _ONE, "TopologyInfo"),
    ),
    "TopologyInfo": (("nodes", 1, _MESSAGE, _MANY, "NUMANode"),),
    "NUMANode": (("ID", 1, _NUMBER, _ONE, ""),),
    "DynamicResource": (
        ("claim_name", 2, _TEXT, _ONE, ""),
        ("claim_namespace", 3, _TEXT, _ONE, ""),
        ("claim_resources", 4, _MESSAGE, _MANY, "ClaimResource"),
    ),
    "ClaimResource": (
        ("cdi_devices", 1, _MESSAGE, _MANY, "CDIDevice"),
        ("driver_name", 2, _TEXT, _ONE, ""),
        ("pool_name", 3, _TEXT, _ONE, ""),
        ("device_name", 4, _TEXT, _ONE, ""),
        ("share_id", 5, _TEXT, _ONE, ""),
    ),
    "CDIDevice": (("name", 1, _TEXT, _ONE, ""),),
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="pod_resources.proto", package="v1", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if type_name:
                added.type_name = f".v1.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _MESSAGES}


MESSAGES = _classes()
"""Message name to its class."""


def encode_allocatable(devices: Mapping[str, Sequence[str]]) -> bytes:
    """Encode an `AllocatableResourcesResponse` with device ids by resource name, one entry per device."""
    entries = [{"resource_name": name, "device_ids": [id_]} for name, ids in devices.items() for id_ in ids]
    encoded: bytes = MESSAGES["AllocatableResourcesResponse"](devices=entries).SerializeToString()
    return encoded


def encode_list(pods: list[dict[str, Any]]) -> bytes:
    """Encode a `ListPodResourcesResponse`; each pod is a `PodResources` as keyword arguments."""
    encoded: bytes = MESSAGES["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
    return encoded
