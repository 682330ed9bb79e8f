"""The kubelet as a holder source."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpufleet.holders.kubelet.fetch import (
    CONTAINER_LOGS,
    POD_LOGS,
    CdiFolders,
    KubeletFolders,
    PodResources,
    gpus_of_groups,
    other_devices,
    read_folders,
)
from gpufleet.holders.kubelet.folders import PodIdentities
from gpufleet.holders.kubelet.mapping import (
    cdi_names,
    map_pods,
    pci_identities,
    pod_holder,
    with_devices,
    with_pci_functions,
    with_total_replicas,
)
from gpufleet.holders.kubelet.parse import parse_allocatable, parse_pods
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError, WireError
from gpufleet.model.holdings import HolderKind
from gpufleet.model.text import bounded
from gpufleet.ports.holder import HolderReport
from gpufleet.runtime import named_threads

KUBELET_FOLDER = "/var/lib/kubelet"
TIMEOUT_SECONDS = 5.0
MAX_DETAIL = 1_000


class KubeletHolders:
    """Pods of this node and their devices, by the kubelet's PodResources API.

    Args:
        root: folder that stands for `/`; in a container, where the node's folders are mounted.
        folder: the kubelet's own folder (`--root-dir`), below `root`.
        pod_logs: the kubelet's folder of logs (`podLogsDir`), below `root`.
        container_logs: folder of links to the logs of containers, below `root`.
        timeout_seconds: time limit of a report, and deadline of the request to the kubelet.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        folder: str = KUBELET_FOLDER,
        pod_logs: str = POD_LOGS,
        container_logs: str = CONTAINER_LOGS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._root = root
        self._kubelet = root / folder.lstrip("/")
        self._folders = KubeletFolders(self._kubelet, root / pod_logs.lstrip("/"), root / container_logs.lstrip("/"))
        self._timeout = timeout_seconds
        self._api = self._new_api()
        self._cdi = CdiFolders(root)
        self._known_allocatable: tuple[str, tuple[tuple[str, str], ...]] = ("", ())
        self._thread: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[HolderReport] | None = None

    @property
    def name(self) -> str:
        """Return `kubelet`."""
        return "kubelet"

    async def report(self) -> HolderReport:
        """Return the pods with their devices; see `HolderSource.report`."""
        if self._running is not None and not self._running.done():
            raise HolderError(Reason.TIMEOUT, "the previous request has not ended")
        if self._thread is None:
            self._thread = named_threads(1, "holder-kubelet")
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._report)
        running.add_done_callback(lambda future: future.cancelled() or future.exception())  # one may be abandoned
        self._running = running
        done, _ = await asyncio.wait({running}, timeout=2 * self._timeout)  # the request alone has its own deadline
        if not done:
            raise HolderError(Reason.TIMEOUT, f"{self._kubelet}: not read within {2 * self._timeout:g} s")
        return running.result()

    async def close(self) -> None:
        """Close the connection and end the thread; a later `report` opens them again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            api, self._api = self._api, self._new_api()
            thread.submit(api.close)
            thread.shutdown(wait=False)

    def _allocatable(self, session: str) -> tuple[tuple[str, str], ...]:
        """Return the allocatable devices; without an answer those of an earlier one of this session. Blocks."""
        if self._known_allocatable[0] != session:
            self._known_allocatable = session, ()
        with contextlib.suppress(WireError):
            if devices := parse_allocatable(self._api.allocatable()):
                self._known_allocatable = session, devices
        return self._known_allocatable[1]

    def _new_api(self) -> PodResources:
        return PodResources(self._kubelet / "pod-resources" / "kubelet.sock", self._timeout)

    def _report(self) -> HolderReport:
        """Make a report. Blocks."""
        answer = self._api.list_pods()
        try:
            pods = parse_pods(answer.data)
        except WireError as error:
            raise HolderError(Reason.READER_FAILED, f"the kubelet's answer is malformed: {error}") from None
        folders = read_folders(self._folders, with_devices(pods))
        identities = PodIdentities(folders, pods)
        problems = list(folders.problems)
        names = cdi_names(pods)
        cdi, unread = self._cdi.identities(names) if names else ({}, ())
        problems += unread
        claims = map_pods(pods, identities, cdi)
        if any(claim.replicas for claim in claims):
            claims = with_total_replicas(claims, self._allocatable(answer.session))
        by_pci = pci_identities(claims)
        claims = with_pci_functions(claims, other_devices(self._root, by_pci), gpus_of_groups(self._root, by_pci))
        return HolderReport(
            claims=claims,
            session=answer.session,
            started_at=answer.started_at,
            lists=HolderKind.POD,
            listed=frozenset((HolderKind.POD, pod_holder(pod, identities).id) for pod in pods),
            detail=bounded("; ".join(problems), MAX_DETAIL),
        )
