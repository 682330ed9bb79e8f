"""Ports of the Kubernetes API: copies of resources, owner chains, leader election and the cluster's identity."""

from collections.abc import Collection, Mapping
from typing import NoReturn, Protocol, TypeVar

import msgspec

from gpufleet.model.kubernetes import ClusterPod, CopyStatus

T_co = TypeVar("T_co", covariant=True)


class ResourceCopy(Protocol[T_co]):
    """Local copy of the objects of a resource."""

    @property
    def records(self) -> Mapping[str, T_co]:
        """Return the records by UID. An unchanged record stays the same object."""
        ...

    @property
    def rejected(self) -> Collection[str]:
        """Return the UIDs of present objects that could not be decoded."""
        ...

    @property
    def status(self) -> CopyStatus:
        """Return the present status."""
        ...

    async def run(self) -> NoReturn:
        """Keep the copy current until cancelled."""
        ...


class OwnerLookup(Protocol):
    """Lookup of owner chains."""

    async def resolve(self, pod: ClusterPod) -> ClusterPod:
        """Return the pod with its owner chain and queue."""
        ...


class OwnerChains(Protocol):
    """Owner chains of pods, resolved in the background."""

    @property
    def queued(self) -> int:
        """Return the number of pods whose chain is being resolved."""
        ...

    def merge(self, pods: Mapping[str, ClusterPod]) -> dict[str, ClusterPod]:
        """Return the pods with their chains; a pod is left out for a short time before its first chain is known.

        Args:
            pods: all pods whose chains are needed, by UID. The chains of others are dropped.
        """
        ...

    async def run(self) -> NoReturn:
        """Resolve chains until cancelled."""
        ...


class Election(Protocol):
    """Leader election among the replicas of a collector."""

    @property
    def is_leader(self) -> bool:
        """Return whether this replica leads now."""
        ...

    @property
    def identity(self) -> str:
        """Return the unique name of this replica in the election."""
        ...

    @property
    def holder(self) -> str:
        """Return the identity of the last known leader, or an empty text."""
        ...

    @property
    def error(self) -> str:
        """Return the error of the last attempt, or an empty text."""
        ...

    async def run(self) -> NoReturn:
        """Take and renew the lease until cancelled."""
        ...

    async def release(self) -> None:
        """Give the lease back."""
        ...


class ClusterIdentity(msgspec.Struct, frozen=True):
    """Identity of a cluster as its API server reports it. Texts are empty if unknown.

    Attributes:
        system_uid: UID of the namespace `kube-system`.
        server_version: version of the API server, such as `v1.36.2`.
        error: why `system_uid` is unknown.
    """

    system_uid: str = ""
    server_version: str = ""
    error: str = ""


class IdentitySource(Protocol):
    """Source of the cluster's identity."""

    async def read(self) -> ClusterIdentity:
        """Return the identity as far as the API server reports it."""
        ...
