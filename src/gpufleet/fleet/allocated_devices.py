"""Devices that Kubernetes allocates to the pods of each node. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpufleet.fleet.attribution.resource_claims import allocated_counts, reserved_devices
from gpufleet.model.catalogue.kubernetes import DRA_DRIVER
from gpufleet.model.kubernetes import ClusterClaim, ClusterPod, GpuResourceKind

_ENDED = frozenset({"Succeeded", "Failed"})
_DEVICES = frozenset({GpuResourceKind.GPU, GpuResourceKind.MIG})


class AllocatedDevices:
    """Devices that the pods of a cluster have: by requests of extended resources, and by ResourceClaims.

    A pod with requests and claims makes the numbers of its node unknown: a claim can meet the request.
    """

    def __init__(self, pods: Iterable[ClusterPod], claims: Iterable[ClusterClaim] | None) -> None:
        """Count the devices.

        Args:
            pods: the present pods of the cluster.
            claims: its present claims with GPUs; None if they are not known.
        """
        scheduled = [one for one in pods if one.node and one.phase not in _ENDED]
        self._requested: dict[str, Counter[str]] = {}
        self._ambiguous: set[str] = set()
        self._not_devices: set[str] = set()
        self._with_claims: set[str] = set()
        for one in scheduled:
            node = one.node.lower()
            counts = self._requested.setdefault(node, Counter())
            for request in one.requests:
                counts[request.resource] += request.count
                if request.kind not in _DEVICES:
                    self._not_devices.add(node)
            if one.claims:
                (self._ambiguous if one.requests else self._with_claims).add(node)
        self._claimed: Mapping[str, int] | None = None
        if claims is not None:
            self._claimed = allocated_counts(reserved_devices([(one, 0) for one in claims], scheduled))

    def on(self, node: str) -> Mapping[str, int] | None:
        """Return resource to the number of devices on a node; None if unknown. Resources without a pod are left out.

        The driver of DRA stands for the devices of claims; it is left out if the claims are not known.
        """
        name = node.lower()
        if name in self._ambiguous:
            return None
        counts = dict(self._requested.get(name, {}))
        if self._claimed is not None:
            counts[DRA_DRIVER] = self._claimed.get(name, 0)
        return counts

    def total_on(self, node: str) -> int | None:
        """Return the number of GPUs and MIG devices on a node.

        None if it is unknown: pods have replicas of GPUs, or claims that are not known.
        """
        name, counts = node.lower(), self.on(node)
        if counts is None or name in self._not_devices or (self._claimed is None and name in self._with_claims):
            return None
        return sum(counts.values())
