"""Input of the kubelet source: the PodResources API, and names and small files of the node. All calls block."""

import os
import stat
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpufleet.codecs import mig_minors
from gpufleet.holders.kubelet.cdi import CdiDevice, identify, parse_specification
from gpufleet.holders.kubelet.device_ids import Identity
from gpufleet.holders.kubelet.folders import NodeFolders
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError, WireError
from gpufleet.model.text import bounded
from gpufleet.ports.holder import Naming

if TYPE_CHECKING:
    import grpc

LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
MAX_ANSWER_BYTES = 16 << 20
MAX_NAMES = 65_536
"""Maximum number of names that are read from a folder."""

MAX_SPECIFICATIONS = 1_024
"""Maximum number of CDI specifications; DRA drivers write one for each prepared claim."""

MAX_FILE_BYTES = 1 << 20
_MAX_DETAIL = 200

POD_LOGS, CONTAINER_LOGS = "/var/log/pods", "/var/log/containers"
CDI_FOLDERS = ("etc/cdi", "run/cdi", "var/run/cdi")
"""Folders of CDI specifications. A device in a later folder replaces one of the same name in an earlier folder."""

_PCI_DEVICES, _IOMMU_GROUPS = "sys/bus/pci/devices", "sys/kernel/iommu_groups"
_GPU_CLASSES = ("0x03", "0x12")
"""PCI classes of display controllers and processing accelerators."""


class KubeletAnswer(NamedTuple):
    """Answer of the kubelet to `List`.

    Attributes:
        data: the message.
        session: identity of the kubelet's socket.
        started_at: creation of the socket, nanoseconds since 1970.
    """

    data: bytes
    session: str
    started_at: int


class PodResources:
    """Client of the kubelet's PodResources API.

    Args:
        socket: the kubelet's socket.
        timeout_seconds: deadline of a call.
    """

    def __init__(self, socket: Path, timeout_seconds: float) -> None:
        self._socket = socket
        self._timeout = timeout_seconds
        self._channel: grpc.Channel | None = None
        self._list: Callable[..., bytes] | None = None
        self._session = ""

    def list_pods(self) -> KubeletAnswer:
        """Call `List`.

        Raises:
            HolderError: if there is no kubelet, it does not permit the call, or it gives no answer.
        """
        session, started_at = self._identity()
        if session != self._session:  # the kubelet was restarted
            self.close()
        call = self._list or self._open()
        self._session = session
        import grpc

        try:
            answer = call(b"", timeout=self._timeout)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.close()  # a new connection is not delayed by the backoff of the failed one
            raise self._failure(error) from None
        if self._identity() != (session, started_at):
            self.close()
            raise HolderError(Reason.READER_FAILED, f"{self._socket}: the kubelet was restarted during the request")
        return KubeletAnswer(answer, session, started_at)

    def allocatable(self) -> bytes:
        """Call `GetAllocatableResources` on the connection of the newest `list_pods`; empty without an answer.

        Kubelets before 1.23 do not serve it by default.
        """
        import grpc

        if self._channel is None:
            return b""
        try:
            answer: bytes = self._channel.unary_unary(ALLOCATABLE)(b"", timeout=self._timeout)
        except grpc.RpcError:
            return b""
        return answer

    def close(self) -> None:
        """Close the connection."""
        channel, self._channel, self._list = self._channel, None, None
        if channel is not None:
            channel.close()

    def _open(self) -> Callable[..., bytes]:
        # The library would write lost connections to standard error; they are reported by HolderError.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc
        except ImportError as error:
            message = f"{self._socket} exists, but grpcio cannot be imported ({error}): install gpufleet[kubernetes]"
            raise HolderError(Reason.READER_FAILED, message) from None
        self._channel = grpc.insecure_channel(
            f"unix:{urllib.parse.quote(str(self._socket))}",
            options=[
                ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
                ("grpc.default_authority", "localhost"),
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        # Without serializers, request and answer are bytes, and protobuf is not imported.
        self._list = self._channel.unary_unary(LIST)
        return self._list

    def _identity(self) -> tuple[str, int]:
        """Return identity and creation time of the socket: a kubelet that starts makes a new one."""
        path = self._socket
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if path.parent.is_dir():
                message = f"{path} does not exist, but its folder does: start the kubelet"
                raise HolderError(Reason.READER_FAILED, message) from None
            raise HolderError(Reason.NOT_ENABLED, f"no kubelet on this machine: {path} does not exist") from None
        except PermissionError:
            raise self._not_permitted() from None
        except OSError as error:
            raise HolderError(Reason.READER_FAILED, f"{path}: {error.strerror}") from None
        if not stat.S_ISSOCK(status.st_mode):
            raise HolderError(Reason.READER_FAILED, f"{path} is not a socket")
        if not os.access(path, os.R_OK | os.W_OK):
            raise self._not_permitted()
        return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_ctime_ns:x}", status.st_mtime_ns

    def _not_permitted(self) -> HolderError:
        message = f"{self._socket}: no permission to connect: run as root, or permit the agent's group on the socket"
        return HolderError(Reason.NOT_PERMITTED, message)

    def _failure(self, error: "grpc.RpcError") -> HolderError:
        import grpc

        codes = grpc.StatusCode
        code, detail = error.code(), bounded(error.details() or "", _MAX_DETAIL)
        if code is codes.DEADLINE_EXCEEDED:
            return HolderError(Reason.TIMEOUT, f"{self._socket}: no answer within {self._timeout:g} s")
        if code in (codes.PERMISSION_DENIED, codes.UNAUTHENTICATED):
            return HolderError(Reason.NOT_PERMITTED, f"{self._socket}: the kubelet rejects the call: {detail}")
        if code is codes.UNIMPLEMENTED:
            message = f"{self._socket}: no PodResources v1: use kubelet 1.20 or newer ({detail})"
            return HolderError(Reason.INCOMPATIBLE_VERSION, message)
        if code is codes.RESOURCE_EXHAUSTED:
            message = f"{self._socket}: the kubelet limits requests, or its answer is too large: {detail}"
            return HolderError(Reason.READER_FAILED, message)
        if code is codes.UNAVAILABLE:
            return HolderError(Reason.READER_FAILED, f"{self._socket}: the kubelet does not answer: {detail}")
        return HolderError(Reason.READER_FAILED, f"{self._socket}: {code.name}: {detail}")


class KubeletFolders(NamedTuple):
    """Folders of the kubelet: its own, and those of the logs of pods and containers."""

    own: Path
    pod_logs: Path
    container_logs: Path


def read_folders(kubelet: KubeletFolders, holders: Collection[tuple[str, str]]) -> NodeFolders:
    """Return the names in the kubelet's folders.

    Args:
        kubelet: the folders.
        holders: namespaces and names of the pods whose containers are needed.
    """
    problems: list[str] = []
    pod_logs = _names(kubelet.pod_logs, problems)
    pods = _names(kubelet.own / "pods", problems)
    folder = str(kubelet.container_logs)
    container_logs: list[tuple[str, str]] = []
    for link in _names(kubelet.container_logs, problems) or ():
        name, _, rest = link.partition("_")
        if (rest.partition("_")[0], name) in holders:
            try:
                container_logs.append((link, os.readlink(f"{folder}/{link}")))  # noqa: PTH115 - hundreds of calls
            except OSError:
                continue  # removed meanwhile
    return NodeFolders(
        pod_logs=tuple(pod_logs or ()),
        pods=None if pods is None else frozenset(pods),
        container_logs=tuple(container_logs),
        problems=tuple(problems),
    )


class _Specification(NamedTuple):
    """A file that was read: its state then, its devices, and why they are unknown."""

    state: tuple[int, int, int]
    devices: dict[str, CdiDevice]
    problem: str


class CdiFolders:
    """CDI specifications of a node. A file is read again only if it has changed.

    Args:
        root: folder that stands for `/`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, _Specification] = {}

    def identities(self, names: Collection[str]) -> tuple[dict[str, Identity], tuple[str, ...]]:
        """Return the identities of CDI names, and what could not be read."""
        devices: dict[str, CdiDevice] = {}
        problems: list[str] = []
        self._read = {path: self._load(path, state) for path, state in self._files(problems)}
        for specification in self._read.values():
            devices.update(specification.devices)
            if specification.problem:
                problems.append(specification.problem)
        own = {name: devices[name] for name in names if name in devices}
        minors: dict[int, mig_minors.MigCapability] = {}
        if any(device.capabilities for device in own.values()):
            try:
                minors = mig_minors.parse_mig_minors(_read(self._root / mig_minors.PATH.lstrip("/")))
            except OSError as error:
                problems.append(f"MIG devices of claims are unknown: {self._root}{mig_minors.PATH}: {error.strerror}")
        found = {name: identify(device, minors) for name, device in own.items()}
        return {name: identity for name, identity in found.items() if identity is not None}, tuple(problems)

    def _files(self, problems: list[str]) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """Yield path and state of each specification, in the order of precedence."""
        folders: set[tuple[int, int]] = set()
        count = 0
        for folder in (self._root / name for name in CDI_FOLDERS):
            try:
                status = folder.stat()
                names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                problems.append(f"{folder}: {error.strerror}")
                continue
            if (status.st_dev, status.st_ino) in folders:
                continue  # /var/run is a link to /run
            folders.add((status.st_dev, status.st_ino))
            for name in names:
                if not name.endswith((".json", ".yaml")):
                    continue
                count += 1
                if count > MAX_SPECIFICATIONS:
                    problems.append(f"{folder}: more than {MAX_SPECIFICATIONS} CDI specifications")
                    return
                try:
                    file = (folder / name).stat()
                except OSError:
                    continue  # removed meanwhile
                yield str(folder / name), (file.st_ino, file.st_mtime_ns, file.st_size)

    def _load(self, path: str, state: tuple[int, int, int]) -> _Specification:
        known = self._read.get(path)
        if known is not None and known.state == state:
            return known
        try:
            return _Specification(state, parse_specification(_read(Path(path)), path), "")
        except OSError as error:
            return _Specification(state, {}, f"{path}: {error.strerror}")
        except WireError as error:
            return _Specification(state, {}, str(error))
        except ImportError as error:
            message = f"{path}: PyYAML cannot be imported ({error}): install gpufleet[kubernetes]"
            return _Specification((0, 0, 0), {}, message)


def other_devices(root: Path, identities: Collection[Identity]) -> frozenset[Identity]:
    """Return the PCI functions and IOMMU groups that exist and are not GPUs by their PCI class."""
    return frozenset(identity for identity in identities if _gpus(root, *identity) == [])


def gpus_of_groups(root: Path, identities: Collection[Identity]) -> dict[Identity, Identity]:
    """Return the PCI function of each IOMMU group that has exactly one GPU."""
    groups = {one: _gpus(root, *one) for one in identities if one[0] is Naming.IOMMU_GROUP}
    return {group: (Naming.PCI, gpus[0]) for group, gpus in groups.items() if gpus is not None and len(gpus) == 1}


def _gpus(root: Path, naming: Naming, text: str) -> list[str] | None:
    """Return the PCI addresses of the GPUs that an identity includes, or None if it cannot be read."""
    try:
        addresses = [text]
        if naming is Naming.IOMMU_GROUP:
            addresses = sorted(os.listdir(root / _IOMMU_GROUPS / text / "devices"))  # noqa: PTH208 - names, not paths
        gpus = [address for address in addresses if _is_gpu(root, address)]
    except OSError:
        return None
    return gpus if addresses else None


def _is_gpu(root: Path, address: str) -> bool:
    return _read(root / _PCI_DEVICES / address / "class").decode("ascii", "replace").startswith(_GPU_CLASSES)


def _names(folder: Path, problems: list[str]) -> list[str] | None:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names, not paths
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
        return None
    if len(names) > MAX_NAMES:
        problems.append(f"{folder}: more than {MAX_NAMES} names")
        return None
    return names


def _read(path: Path) -> bytes:
    """Read a small regular file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file")
        pieces: list[bytes] = []
        left = MAX_FILE_BYTES + 1
        while left > 0 and (piece := file.read(min(left, 1 << 16))):
            pieces.append(piece)
            left -= len(piece)
        if left <= 0:
            raise OSError(0, f"larger than {MAX_FILE_BYTES} bytes")
        return b"".join(pieces)
