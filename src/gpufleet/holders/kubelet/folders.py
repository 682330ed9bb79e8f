"""UIDs of pods and ids of containers, from the names of the kubelet's folders and links. Pure.

The kubelet names a pod's log folder `NAMESPACE_NAME_UID` and its data folder `UID`. It names a container's log link
`POD_NAMESPACE_CONTAINER-ID.log`; the link leads to `.../NAMESPACE_POD_UID/CONTAINER/RESTARTS.log`.
"""

import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from gpufleet.holders.kubelet.parse import ListedPod

_POD_LOGS = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9.-]{1,253})_([0-9A-Za-z-]{1,64})")
_CONTAINER_LOG = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9.-]{1,253})_([a-z0-9.-]{1,253})-([0-9a-f]{64})\.log")
_TARGET = re.compile(r".*/([^/_]+)_([^/_]+)_([^/_]+)/([^/]+)/([0-9]{1,9})\.log")


class NodeFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Names in the kubelet's folders.

    Attributes:
        pod_logs: names in the folder of the pods' logs (`/var/log/pods`).
        pods: names in `pods` of the kubelet's own folder, or None if they cannot be read.
        container_logs: links to logs of containers (`/var/log/containers`) of pods with devices: name and target.
        problems: what could not be read.
    """

    pod_logs: tuple[str, ...] = ()
    pods: frozenset[str] | None = None
    container_logs: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


class PodIdentities:
    """UIDs of the pods of this node, and ids of their containers.

    Args:
        folders: names in the kubelet's folders.
        listed: the pods. Two pods of one name have no UID.
    """

    def __init__(self, folders: NodeFolders, listed: Iterable[ListedPod]) -> None:
        names = Counter((pod.namespace, pod.name) for pod in listed)
        self._uids = {name: uids for name, uids in _uids(folders).items() if names[name] == 1}
        self._containers = _containers(folders.container_logs)

    def uid(self, namespace: str, name: str) -> str:
        """Return the UID of a pod, or an empty text if no folder, or more than one, can be the pod's."""
        uids = self._uids.get((namespace, name), set())
        return next(iter(uids)) if len(uids) == 1 else ""

    def container_id(self, uid: str, container: str) -> str:
        """Return the id of the newest container of that name in a pod, or an empty text if it is unknown."""
        return self._containers.get((uid, container), (0, ""))[1]


def _uids(folders: NodeFolders) -> dict[tuple[str, str], set[str]]:
    """Return the possible UIDs of each namespace and name.

    The log folder of a deleted pod remains for minutes, its data folder for seconds.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for folder in folders.pod_logs:
        match = _POD_LOGS.fullmatch(folder)
        if match and (folders.pods is None or match[3] in folders.pods):
            found.setdefault((match[1], match[2]), set()).add(match[3])
    return found


def _containers(links: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, str]]:
    """Return restart count and id of the newest container by UID and name; two of one count have no id."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for link, target in links:
        name, place = _CONTAINER_LOG.fullmatch(link), _TARGET.fullmatch(target)
        if not name or not place or (name[1], name[2], name[3]) != (place[2], place[1], place[4]):
            continue
        key, restarts = (place[3], place[4]), int(place[5])
        newest = found.get(key, (-1, ""))
        if restarts > newest[0]:
            found[key] = restarts, name[4]
        elif restarts == newest[0] and name[4] != newest[1]:
            found[key] = restarts, ""
    return found
