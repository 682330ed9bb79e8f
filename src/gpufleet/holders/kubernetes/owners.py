"""Owner chains of pods: controller references, followed by reads of the metadata of any kind."""

from collections import OrderedDict

import msgspec

from gpufleet.holders.kubernetes.connection import METADATA, ApiConnection
from gpufleet.holders.kubernetes.parse.fields import ObjectMetadata
from gpufleet.holders.kubernetes.parse.nesting import decode_json
from gpufleet.holders.kubernetes.resources import ApiResource, version_path
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.holdings import MAX_OWNERS, Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterPod
from gpufleet.ports.clock import Clock

MAX_CACHED = 32_768
"""Maximum number of owners in memory. The least recently used is dropped."""

MAX_VERSIONS = 512
"""Maximum number of API versions in memory."""

KEEP_SECONDS = 600.0
"""Time after which an owner, and the kinds of an API version, are read again."""

RETRY_SECONDS = 60.0
"""Time after which an owner is read again that is missing, forbidden, or of an unknown kind."""

MAX_OBJECT_BYTES = 4 << 20


class OwnerChain(msgspec.Struct, frozen=True):
    """Controllers of an object.

    Attributes:
        owners: the nearest first.
        end: why the chain ends.
        queue: queue of the nearest owner that names one.
    """

    owners: tuple[Owner, ...] = ()
    end: ChainEnd = ChainEnd.TOP
    queue: str = ""


class _OwnerLink(msgspec.Struct, frozen=True):
    """Owner as read.

    Attributes:
        controller: its own controller, or None.
        queue: its queue, or empty.
        end: why the chain ends here if there is no controller.
        until: monotonic time until which this is used.
    """

    controller: Owner | None
    queue: str
    end: ChainEnd
    until: float


class _OwnerObject(msgspec.Struct):
    metadata: ObjectMetadata


class _ApiKind(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = True


class _ApiKinds(msgspec.Struct):
    resources: list[_ApiKind] | None = None


_OBJECTS = msgspec.json.Decoder(_OwnerObject)
_KINDS = msgspec.json.Decoder(_ApiKinds)
_ENDS = {403: ChainEnd.FORBIDDEN, 404: ChainEnd.NOT_FOUND}

_Key = tuple[str, str, str, str, str]
"""API version, kind, namespace, name and UID of an owner."""


class OwnerWalk:
    """Resolver of owner chains.

    Owners and the plural names of kinds are cached. An object is the owner only if it has the UID of the reference. An
    owner that cannot be read stays in the chain by its kind and name, and ends it.

    Args:
        connection: to the API server.
        clock: monotonic time for the cache.
    """

    def __init__(self, connection: ApiConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._links: OrderedDict[_Key, _OwnerLink] = OrderedDict()
        self._versions: OrderedDict[str, tuple[float, dict[str, ApiResource]]] = OrderedDict()

    async def resolve(self, pod: ClusterPod) -> ClusterPod:
        """Return the pod with its owner chain and queue."""
        if pod.controller is None:
            return pod
        chain = await self.chain(pod.namespace, pod.controller)
        queue = pod.queue or chain.queue
        return msgspec.structs.replace(pod, owners=chain.owners, chain_end=chain.end, queue=queue)

    async def chain(self, namespace: str, controller: Owner) -> OwnerChain:
        """Return the chain that begins with a controller reference of an object in `namespace`."""
        owners: list[Owner] = []
        known: set[tuple[str, str, str]] = set()
        current, queue = controller, ""
        while True:
            identity = (current.api_version.partition("/")[0], current.kind, current.uid or current.name)
            if identity in known:
                return OwnerChain(tuple(owners), ChainEnd.CYCLE, queue)
            known.add(identity)
            owners.append(current)
            if len(owners) == MAX_OWNERS:
                return OwnerChain(tuple(owners), ChainEnd.DEPTH, queue)
            link = await self._link(namespace, current)
            queue = queue or link.queue
            if link.controller is None:
                return OwnerChain(tuple(owners), link.end, queue)
            current = link.controller

    async def _link(self, namespace: str, owner: Owner) -> _OwnerLink:
        key = (owner.api_version, owner.kind, namespace, owner.name, owner.uid)
        now = self._clock.monotonic()
        cached = self._links.get(key)
        if cached is not None and now < cached.until:
            self._links.move_to_end(key)
            return cached
        link = await self._read(namespace, owner, now)
        if link.end is not ChainEnd.UNREACHABLE:
            self._links[key] = link
            self._links.move_to_end(key)
            if len(self._links) > MAX_CACHED:
                self._links.popitem(last=False)
        return link

    async def _read(self, namespace: str, owner: Owner, now: float) -> _OwnerLink:
        """Read the metadata of an owner."""

        def ended(end: ChainEnd) -> _OwnerLink:
            return _OwnerLink(None, "", end, now + RETRY_SECONDS)

        try:
            resource = (await self._kinds(owner.api_version, now)).get(owner.kind)
            if resource is None:
                return ended(ChainEnd.UNKNOWN_KIND)
            path = resource.path(namespace if resource.is_namespaced else "", owner.name)
            data = await self._connection.get(path, accept=METADATA, max_bytes=MAX_OBJECT_BYTES)
            metadata = decode_json(_OBJECTS, data).metadata
        except KubernetesApiError as error:
            return ended(_ENDS.get(error.status, ChainEnd.UNREACHABLE))
        except (ValueError, msgspec.DecodeError):  # a reference that is no name, an answer that is no object
            return ended(ChainEnd.UNKNOWN_KIND)
        if owner.uid and metadata.uid != owner.uid:
            return ended(ChainEnd.REPLACED)
        return _OwnerLink(metadata.controller, metadata.queue, ChainEnd.TOP, now + KEEP_SECONDS)

    async def _kinds(self, api_version: str, now: float) -> dict[str, ApiResource]:
        """Return the resources of an API version by kind; none if it is not served.

        Raises:
            KubernetesApiError: if the API server gives no answer.
            ValueError: if the text is not an API version.
        """
        until, kinds = self._versions.get(api_version, (0.0, {}))
        if now < until:
            self._versions.move_to_end(api_version)  # references to other versions, of any number, do not displace it
            return kinds
        path, keep = version_path(api_version), KEEP_SECONDS
        try:
            data = await self._connection.get(path, max_bytes=MAX_OBJECT_BYTES)
            listed = decode_json(_KINDS, data).resources or []
        except KubernetesApiError as error:
            if error.status != 404:
                raise
            listed, keep = [], RETRY_SECONDS
        group, slash, version = api_version.rpartition("/")
        kinds = {
            entry.kind: ApiResource(group if slash else "", version, entry.name, entry.namespaced)
            for entry in listed
            if "/" not in entry.name  # a subresource
        }
        self._versions[api_version] = now + keep, kinds
        self._versions.move_to_end(api_version)
        if len(self._versions) > MAX_VERSIONS:
            self._versions.popitem(last=False)
        return kinds
