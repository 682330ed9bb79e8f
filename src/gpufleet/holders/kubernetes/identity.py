"""Identity of a cluster: the UID of its namespace kube-system, and the version of its API server."""

import msgspec

from gpufleet.holders.kubernetes.connection import METADATA, ApiConnection
from gpufleet.holders.kubernetes.parse.fields import ObjectMetadata
from gpufleet.holders.kubernetes.resources import NAMESPACES
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.text import bounded
from gpufleet.ports.cluster import ClusterIdentity

SYSTEM_NAMESPACE = "kube-system"
VERSION_PATH = "/version"

MAX_BYTES = 1 << 20
MAX_UID = 200
MAX_VERSION = 64


class _Namespace(msgspec.Struct):
    metadata: ObjectMetadata


class _Version(msgspec.Struct):
    text: str = msgspec.field(name="gitVersion")


class ApiIdentity:
    """Source of the identity of the cluster behind a connection."""

    def __init__(self, connection: ApiConnection) -> None:
        """Take the connection."""
        self._connection = connection

    async def read(self) -> ClusterIdentity:
        """Return the identity as far as the API server reports it."""
        uid = error = ""
        path = NAMESPACES.path(name=SYSTEM_NAMESPACE)
        try:
            data = await self._connection.get(path, accept=METADATA, max_bytes=MAX_BYTES)
            uid = bounded(msgspec.json.decode(data, type=_Namespace).metadata.uid, MAX_UID)
        except KubernetesApiError as raised:
            error = str(raised)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as raised:
            error = f"{path}: the response is not a namespace: {bounded(str(raised), MAX_UID)}"
        return ClusterIdentity(system_uid=uid, server_version=await self._version(), error=error)

    async def _version(self) -> str:
        try:
            data = await self._connection.get(VERSION_PATH, max_bytes=MAX_BYTES)
            return bounded(msgspec.json.decode(data, type=_Version).text, MAX_VERSION)
        except (KubernetesApiError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""  # only for display
