"""Kubelet of a node: PodResources v1 over gRPC on its Unix socket, the folders of its pods, and faults."""

import random
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import grpc

from tests.support.pod_resources import encode_allocatable, encode_list

KUBELET = "var/lib/kubelet"


class FakeClaimedDevice(NamedTuple):
    """A device of a resource claim as a DRA driver reports it."""

    name: str
    cdi: tuple[str, ...] = ()
    driver: str = "gpu.nvidia.com"
    pool: str = "node"


class FakeResourceClaim(NamedTuple):
    """A resource claim with all of its devices."""

    name: str
    devices: tuple[FakeClaimedDevice, ...]


class FakeContainer(NamedTuple):
    """A container: device ids by resource name, claims, and its id in the runtime, empty before it is created."""

    name: str
    devices: Mapping[str, Sequence[str]] = {}
    claims: Sequence[FakeResourceClaim] = ()
    id: str = ""
    restarts: int = 0


class FakePod(NamedTuple):
    """A pod of the node."""

    namespace: str
    name: str
    uid: str
    containers: Sequence[FakeContainer] = ()


@contextmanager
def node_folder() -> Iterator[Path]:
    """Return an empty folder that stands for `/`. Its path is short: that of a Unix socket has at most 107 bytes."""
    with TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder)


def holders_config(root: Path) -> str:
    """Return the tables `holders` of an agent whose only source of holders is the kubelet of a node.

    Processes would report that the pods have no cgroups.
    """
    return f"""
[holders]
interval_seconds = 1.0

[holders.kubelet]
folder = "{root / KUBELET}"
pod_logs = "{root}/var/log/pods"
container_logs = "{root}/var/log/containers"

[holders.slurm]
enabled = false

[holders.libvirt]
enabled = false

[holders.processes]
enabled = false
"""


class FakeKubelet:
    """Fake kubelet.

    Attributes:
        pods: pods that `List` reports.
        answer: bytes of every answer instead of the pods, or None.
        first: next answers, before the pods are listed: a restarted kubelet lists few pods at first.
        fault: status and detail of every answer, or None.
        tokens: number of calls that are answered before the rate limit, or None for no limit.
        allocatable: device ids by resource name of `GetAllocatableResources`, or None if it is not served.
        calls: number of calls so far.
    """

    def __init__(self, root: Path, *, versions: Sequence[str] = ("v1",), seed: int = 0) -> None:
        """Take the node.

        Args:
            root: folder that stands for the node's `/`.
            versions: served versions of the API.
            seed: of the order of pods and devices, which is random.
        """
        self.root = root
        self.socket = root / KUBELET / "pod-resources" / "kubelet.sock"
        self.pods: list[FakePod] = []
        self.answer: bytes | None = None
        self.first: list[bytes] = []
        self.fault: tuple[grpc.StatusCode, str] | None = None
        self.tokens: int | None = None
        self.allocatable: Mapping[str, Sequence[str]] | None = None
        self.calls = 0
        self._versions = versions
        self._random = random.Random(seed)
        self._released = threading.Event()
        self._released.set()
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.stop()

    def start(self) -> None:
        """Start the server on a new socket."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        for version in self._versions:
            methods = {"List": self._list, "GetAllocatableResources": self._allocatable}
            handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
            service = grpc.method_handlers_generic_handler(f"{version}.PodResourcesLister", handlers)
            self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """End the server and its connections. The pods keep running."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def restart(self, first: Iterable[bytes] = (b"",)) -> None:
        """Restart; the next answers are those of `first`."""
        self.stop()
        self.first = list(first)
        self.start()

    def hang(self) -> None:
        """Stop answering, until `release`."""
        self._released.clear()

    def release(self) -> None:
        """Answer again."""
        self._released.set()

    def place(self, pod: FakePod, *, has_folders: bool = True) -> None:
        """Add a pod, with the folders and links of a pod that has started."""
        self.pods.append(pod)
        if has_folders:
            self.make_folders(pod)

    def make_folders(self, pod: FakePod) -> None:
        """Make the folders of a pod, and the links to the logs of its created containers."""
        (self.root / KUBELET / "pods" / pod.uid).mkdir(parents=True, exist_ok=True)
        logs = self.root / "var/log/pods" / f"{pod.namespace}_{pod.name}_{pod.uid}"
        logs.mkdir(parents=True, exist_ok=True)
        links = self.root / "var/log/containers"
        links.mkdir(parents=True, exist_ok=True)
        for container in pod.containers:
            if container.id:
                target = Path("/") / logs.relative_to(self.root) / container.name / f"{container.restarts}.log"
                link = links / f"{pod.name}_{pod.namespace}_{container.name}-{container.id}.log"
                link.symlink_to(target)

    def remove(self, pod: FakePod, *, keeps_logs: bool = False) -> None:
        """Remove a pod; the kubelet removes the folders of its logs some minutes later."""
        self.pods.remove(pod)
        shutil.rmtree(self.root / KUBELET / "pods" / pod.uid, ignore_errors=True)
        if not keeps_logs:
            shutil.rmtree(self.root / "var/log/pods" / f"{pod.namespace}_{pod.name}_{pod.uid}", ignore_errors=True)
            for container in pod.containers:
                name = f"{pod.name}_{pod.namespace}_{container.name}-{container.id}.log"
                (self.root / "var/log/containers" / name).unlink(missing_ok=True)

    def encode(self, pods: Iterable[FakePod]) -> bytes:
        """Encode an answer with these pods."""
        listed = [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "containers": [self._container(pod, c) for c in pod.containers],
            }
            for pod in pods
        ]
        self._random.shuffle(listed)
        return encode_list(listed)

    def _container(self, pod: FakePod, container: FakeContainer) -> dict[str, Any]:
        # One entry per device, as the kubelet lists them.
        devices = [
            {"resource_name": resource, "device_ids": [id_]}
            for resource, ids in container.devices.items()
            for id_ in ids
        ]
        self._random.shuffle(devices)
        claims = [
            {"claim_namespace": pod.namespace, "claim_name": claim.name, "claim_resources": _resources(claim)}
            for claim in container.claims
        ]
        return {"name": container.name, "devices": devices, "dynamic_resources": claims}

    def _allocatable(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        allocatable = self.allocatable
        if allocatable is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "not served")
        return encode_allocatable(allocatable or {})

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        self._released.wait()
        if self.tokens is not None:
            if self.tokens == 0:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            self.tokens -= 1
        if self.fault is not None:
            context.abort(*self.fault)
        if self.first:
            return self.first.pop(0)
        return self.encode(self.pods) if self.answer is None else self.answer


def _resources(claim: FakeResourceClaim) -> list[dict[str, Any]]:
    """Return the devices of a claim. Each also lists the CDI names of the devices before it, as the kubelet does."""
    names: list[str] = []
    resources = []
    for device in claim.devices:
        names += device.cdi
        resources.append(
            {
                "driver_name": device.driver,
                "pool_name": device.pool,
                "device_name": device.name,
                "cdi_devices": [{"name": name} for name in names],
            }
        )
    return resources
