"""Answers of the kubelet's PodResources API, version 1, to records. Pure.

Only the fields that name pods, devices and claims are read. `List` and `Get` answers have the same outer field.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.codecs.protobuf import BYTES, skip, span, text, varint
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.text import bounded

MAX_PODS = 4_096
MAX_CONTAINERS = 16_384
"""Maximum number of containers in an answer."""

MAX_DEVICES = 65_536
"""Maximum number of device ids, claimed devices and CDI names in an answer."""

MAX_NAME = 320
"""Maximum length of a name in characters. The longest in Kubernetes is a resource name: 253, a slash, and 63."""


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a resource claim.

    Attributes:
        driver, pool, name: as in the ResourceSlice.
        cdi: qualified CDI names. The kubelet also lists those of earlier devices of the claim.
    """

    driver: str
    pool: str
    name: str
    cdi: tuple[str, ...] = ()


class ListedClaim(msgspec.Struct, frozen=True):
    """A resource claim of a container, with all devices of the claim."""

    namespace: str
    name: str
    devices: tuple[ClaimedDevice, ...] = ()


class ListedContainer(msgspec.Struct, frozen=True):
    """A container with its devices.

    Attributes:
        name: of the container.
        devices: resource name and device id; a device near two NUMA nodes is listed twice.
        claims: resource claims.
    """

    name: str
    devices: tuple[tuple[str, str], ...] = ()
    claims: tuple[ListedClaim, ...] = ()


class ListedPod(msgspec.Struct, frozen=True):
    """A pod of this node. The API has no UID."""

    namespace: str
    name: str
    containers: tuple[ListedContainer, ...] = ()


_Field = tuple[int, int, int]
"""Number, start and end of a length-delimited field."""


def parse_pods(data: bytes) -> tuple[ListedPod, ...]:
    """Decode a `ListPodResourcesResponse` or a `GetPodResourcesResponse`.

    Raises:
        WireError: if the message is malformed.
        WireLimitError: if it has too many pods, containers or devices.
    """
    return _PodParser(data).pods()


def parse_allocatable(data: bytes) -> tuple[tuple[str, str], ...]:
    """Decode an `AllocatableResourcesResponse`; return resource name and device id of each allocatable device.

    A device near two NUMA nodes is listed twice.

    Raises:
        WireError: if the message is malformed.
        WireLimitError: if it has too many devices.
    """
    return _PodParser(data).allocatable()


class _PodParser:
    """Decoder of one answer, which counts its parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._containers = self._devices = 0

    def pods(self) -> tuple[ListedPod, ...]:
        found: list[ListedPod] = []
        for number, start, end in self._fields(0, len(self._data)):
            if number == 1:
                found.append(self._pod(start, end))
                if len(found) > MAX_PODS:
                    raise WireLimitError("pod_resources", f"more than {MAX_PODS} pods")
        return tuple(found)

    def allocatable(self) -> tuple[tuple[str, str], ...]:
        found: list[tuple[str, str]] = []
        for number, start, end in self._fields(0, len(self._data)):
            if number == 1:
                found.extend(self._container_devices(start, end))
        return tuple(found)

    def _pod(self, start: int, end: int) -> ListedPod:
        name = namespace = ""
        containers: list[ListedContainer] = []
        for number, at, stop in self._fields(start, end):
            if number == 1:
                name = self._text(at, stop)
            elif number == 2:
                namespace = self._text(at, stop)
            elif number == 3:
                self._containers += 1
                if self._containers > MAX_CONTAINERS:
                    raise WireLimitError("containers", f"more than {MAX_CONTAINERS} containers")
                containers.append(self._container(at, stop))
        if not name or not namespace:
            raise WireError("pod_resources", "a pod without name or namespace")
        return ListedPod(namespace, name, tuple(containers))

    def _container(self, start: int, end: int) -> ListedContainer:
        name = ""
        devices: list[tuple[str, str]] = []
        claims: list[ListedClaim] = []
        for number, at, stop in self._fields(start, end):
            if number == 1:
                name = self._text(at, stop)
            elif number == 2:
                devices.extend(self._container_devices(at, stop))
            elif number == 5:
                claims.append(self._claim(at, stop))
        return ListedContainer(name, tuple(devices), tuple(claims))

    def _container_devices(self, start: int, end: int) -> list[tuple[str, str]]:
        resource = ""
        ids: list[str] = []
        for number, at, stop in self._fields(start, end):
            if number == 1:
                resource = self._text(at, stop)
            elif number == 2:
                self._count_device()
                ids.append(self._text(at, stop))
        return [(resource, id_) for id_ in ids]

    def _claim(self, start: int, end: int) -> ListedClaim:
        name = namespace = ""
        devices: list[ClaimedDevice] = []
        for number, at, stop in self._fields(start, end):
            if number == 2:
                name = self._text(at, stop)
            elif number == 3:
                namespace = self._text(at, stop)
            elif number == 4:
                self._count_device()
                devices.append(self._claimed_device(at, stop))
        return ListedClaim(namespace, name, tuple(devices))

    def _claimed_device(self, start: int, end: int) -> ClaimedDevice:
        driver = pool = name = ""
        cdi: list[str] = []
        for number, at, stop in self._fields(start, end):
            if number == 1:
                self._count_device()
                cdi += [self._text(*place) for inner, *place in self._fields(at, stop) if inner == 1]
            elif number == 2:
                driver = self._text(at, stop)
            elif number == 3:
                pool = self._text(at, stop)
            elif number == 4:
                name = self._text(at, stop)
        return ClaimedDevice(driver, pool, name, tuple(cdi))

    def _fields(self, at: int, end: int) -> Iterator[_Field]:
        """Yield the length-delimited fields; all other fields of the API are numbers that are not needed."""
        data = self._data
        while at < end:
            key, at = varint(data, at)
            if key & 7 == BYTES:
                start, at = span(data, at, end)
                yield key >> 3, start, at
            else:
                at = skip(data, at, end, key)

    def _count_device(self) -> None:
        self._devices += 1
        if self._devices > MAX_DEVICES:
            raise WireLimitError("devices", f"more than {MAX_DEVICES} device ids")

    def _text(self, start: int, end: int) -> str:
        # A text that is cut is read no further than needed; four bytes are the most of a character.
        return bounded(text(self._data, start, min(end, start + 4 * (MAX_NAME + 1))), MAX_NAME)
