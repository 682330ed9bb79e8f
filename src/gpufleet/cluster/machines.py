"""Nodes with GPU resources as machine reports: evidence of identity, and the number of GPUs by Kubernetes. Pure."""

import re
import uuid
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from gpufleet.fleet.machine_ids import (
    AWS,
    AZURE,
    GCP,
    OPENSTACK,
    ORACLE,
    is_instance_id,
    is_machine_id,
    is_placeholder_uuid,
    is_uuid,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    ALLOCATED,
    CAPACITY,
    DRA_DRIVER,
    LABELLED,
    PUBLISHED_GPUS,
)
from gpufleet.model.kubernetes import ClusterNode
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance, Sample
from gpufleet.model.wire.batch import MachineReport

READER = "kubernetes"
"""Name of the collector as a reader."""

NVIDIA = "nvidia.com/"
COUNT_LABEL = "nvidia.com/gpu.count"

ENDED = Absent(Reason.NO_DATA, "the node has no such resource any more, or its number is not known")

MAX_RESOURCE = 128
MAX_LABEL_VALUE = 63

_PUBLISHED = CAPACITY, PUBLISHED_GPUS

_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")

_PROVIDERS = {"aws": AWS, "azure": AZURE, "gce": GCP, "openstack": OPENSTACK, "oci": ORACLE}
"""Scheme of a provider id to the provider."""


class CountedNode(msgspec.Struct, frozen=True):
    """Node with its numbers that other objects have.

    Attributes:
        node: the node.
        published: GPUs that NVIDIA's DRA driver publishes for it; None if unknown.
        allocated: resource to the number of devices that pods have, as `AllocatedDevices.on`; None if unknown.
    """

    node: ClusterNode
    published: int | None = None
    allocated: Mapping[str, int] | None = None


def machine_report(
    counted: CountedNode,
    measured_at: int,
    before: CountedNode | None = None,
    *,
    published_at: int | None = None,
    allocated_at: int | None = None,
) -> MachineReport | None:
    """Return the report of a node, or None if it neither has nor had NVIDIA resources.

    Args:
        counted: the node.
        measured_at: time of its state, nanoseconds since 1970.
        before: the node as last reported: numbers that it does not have any more end.
        published_at: time of the number of published GPUs; None means `measured_at`.
        allocated_at: time of the numbers of allocated devices; None means `measured_at`.
    """
    dims = _dims(counted)
    ended = [key for key in (_dims(before) if before is not None else {}) if key not in dims]
    times = _NumberTimes(
        measured_at,
        measured_at if published_at is None else published_at,
        measured_at if allocated_at is None else allocated_at,
    )
    return _report(counted.node, times, {**dims, **dict.fromkeys(ended, ENDED)})


def ended_report(counted: CountedNode, measured_at: int) -> MachineReport | None:
    """Return the report of a node that was removed: all its numbers end."""
    times = _NumberTimes(measured_at, measured_at, measured_at)
    return _report(counted.node, times, dict.fromkeys(_dims(counted), ENDED))


def has_numbers(counted: CountedNode) -> bool:
    """Return whether a node has NVIDIA resources, a label with their number, or GPUs of a DRA driver."""
    return bool(_dims(counted))


def node_machine(node: ClusterNode) -> Machine:
    """Return the evidence of a node's identity.

    The boot id is left out: the kubelet reports it late, and after a restart an earlier one would look like a clone.
    The provider's instance id is left out if it has another form than on the machine itself.
    """
    system_uuid, machine_id = node.system_uuid.lower(), node.machine_id.lower()
    is_known_uuid = is_uuid(system_uuid) and not is_placeholder_uuid(uuid.UUID(system_uuid))
    provider = _PROVIDERS.get(node.provider_id.partition("://")[0], "")
    if not provider and is_instance_id(ORACLE, node.provider_id):
        provider = ORACLE
    instance_id = node.provider_id.rpartition("/")[2]
    return Machine(
        name=node.name,
        machine_id=machine_id if is_machine_id(machine_id) else None,
        system_uuid=system_uuid if is_known_uuid else None,
        k8s_node_uid=node.uid,
        k8s_node_name=node.name,
        instance_id=instance_id if is_instance_id(provider, instance_id) else None,
        cloud_provider=provider or None,
        instance_type=_attribute(node.instance_type),
        region=_attribute(node.region),
        zone=_attribute(node.zone),
    )


def _attribute(text: str) -> str | None:
    """Return a label's value; None if it is empty, or longer than Kubernetes permits."""
    return text if 0 < len(text) <= MAX_LABEL_VALUE else None


def _dims(counted: CountedNode) -> dict[tuple[str, str], int | Absent]:
    """Return metric and resource, in the notation of labels, to the number."""
    found: dict[tuple[str, str], int | Absent] = {}
    for one in counted.node.resources:
        if not one.name.startswith(NVIDIA) or len(one.name) > MAX_RESOURCE:
            continue
        resource = _NO_LABEL.sub("_", one.name)
        for metric, count in ((CAPACITY, one.capacity), (ALLOCATABLE, one.allocatable)):
            if count is not None and count < 2**31:
                found[metric, resource] = count
        if counted.allocated is not None and one.capacity:
            found[ALLOCATED, resource] = min(counted.allocated.get(one.name, 0), 2**31 - 1)
    label = counted.node.labels.get(COUNT_LABEL, "")
    if label.isascii() and label.isdigit() and len(label) < 6:
        found[LABELLED, COUNT_LABEL] = int(label)
    if counted.published is not None:
        found[_PUBLISHED] = counted.published
        if counted.allocated is not None and DRA_DRIVER in counted.allocated:
            found[ALLOCATED, PUBLISHED_GPUS] = counted.allocated[DRA_DRIVER]
    return found


class _NumberTimes(NamedTuple):
    """Times of the numbers of nodes, published GPUs and allocated devices: each has its own copy."""

    of_node: int
    of_driver: int
    of_pods: int


def _report(node: ClusterNode, times: _NumberTimes, dims: dict[tuple[str, str], int | Absent]) -> MachineReport | None:
    if not dims:
        return None
    by_time: dict[int, dict[tuple[str, str], int | Absent]] = {}
    for key, value in dims.items():
        at = times.of_driver if key == _PUBLISHED else times.of_pods if key[0] == ALLOCATED else times.of_node
        by_time.setdefault(at, {})[key] = value
    samples = [_sample(at, own) for at, own in by_time.items()]
    return MachineReport(machine=node_machine(node), samples=tuple(samples))


def _sample(measured_at: int, dims: dict[tuple[str, str], int | Absent]) -> Sample:
    return Sample(
        view=None,
        reader=READER,
        lane=Lane.SLOW,
        measured_at=measured_at,
        values={},
        dims=tuple(DimValue(metric, (resource,), value) for (metric, resource), value in dims.items()),
        provenance=Provenance.IMPORTED,
    )
