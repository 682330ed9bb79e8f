"""Owners, labels and queues of the pods that have this node's devices, from the Kubernetes API."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn

from gpufleet.fleet.attribution.cluster_pods import VMI_KIND, pod_uid, with_known_chain, with_pod
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ConfigError
from gpufleet.model.holdings import Holder, Holding
from gpufleet.model.kubernetes import ChainEnd, ClusterPod, CopyState, CopyStatus
from gpufleet.ports.cluster import OwnerChains, ResourceCopy

log = logging.getLogger(__name__)

CAPABILITY = "holders_kubernetes"
"""Name of the state among those of the holder sources."""

NAME_SECONDS = 1.0
"""Interval at which the node's name is looked up until it is known."""

RETRY_SECONDS = 60.0
"""Delay before the credentials are read again if they cannot be used."""

SETTLE_SECONDS = 5.0
"""Time limit of `settle`."""

_POLL_SECONDS = 0.05

NO_NODE = f"{Reason.NO_DATA}: the name of this node in Kubernetes is not known"
NOT_READ = f"{Reason.NOT_COLLECTED}: the pods of this node are not read yet"
_STATES = {
    CopyState.STARTING: Reason.READER_FAILED,
    CopyState.STALE: Reason.STALE,
    CopyState.FORBIDDEN: Reason.NOT_PERMITTED,
    CopyState.NOT_SERVED: Reason.READER_FAILED,
}
_UNREAD = (ChainEnd.FORBIDDEN, ChainEnd.UNREACHABLE)
_STARTING = (Reason.NO_DATA, Reason.NOT_COLLECTED)


class PodAccess(NamedTuple):
    """Access to the API server for the pods of one node.

    Attributes:
        copy: the pods of the node.
        owners: their owner chains.
        close: closes the connections.
    """

    copy: ResourceCopy[ClusterPod]
    owners: OwnerChains
    close: Callable[[], Awaitable[None]]


class PodEnrichment:
    """Completes holdings of pods by the pod's UID.

    What is known about a pod is kept while it has a device, also if the API server does not answer: the owners of a UID
    do not change. A pod that the API server did not report has no owners.

    Args:
        connect: opens the access to the pods of the node with a name. It blocks, and raises ConfigError for credentials
            that cannot be used.
    """

    def __init__(self, connect: Callable[[str], PodAccess]) -> None:
        self._connect = connect
        self._access: PodAccess | None = None
        self._problem = NO_NODE
        self._held: dict[str, ClusterPod] = {}  # pods with devices, as last read
        self._known: dict[str, ClusterPod] = {}  # the same with their chains, and those of an earlier run
        self._unread: frozenset[str] = frozenset()  # kinds of owners that cannot be read, with the reason
        self._logged = ""

    @property
    def capability(self) -> str:
        """State as of a holder source: `available`, or a reason and a message."""
        if self._access is None:
            return self._problem
        status = self._access.copy.status
        if status.state is CopyState.STARTING and not status.detail:
            return NOT_READ
        if status.state is not CopyState.SYNCED:
            return f"{_STATES[status.state]}: {status.detail}"
        problems = _copy_problems(status)
        if self._unread:
            problems.append(f"owners that cannot be read: {', '.join(sorted(self._unread))}")
        return f"partial: {'; '.join(problems)}" if problems else "available"

    def remember(self, holdings: Iterable[Holding]) -> None:
        """Take the holdings of an earlier run: their owners are used until the API server reports the pods."""
        for holding in holdings:
            holder = holding.holder
            if pod_uid(holder) is not None and (holder.owners or holder.labels or holder.annotations or holder.queue):
                self._known[holder.id] = _remembered(holder)

    def update(self, holdings: Iterable[Holding]) -> None:
        """Take the present holdings: look up their pods, and drop all others."""
        uids = {uid for one in holdings if (uid := pod_uid(one.holder)) is not None}
        self._known = {uid: pod for uid, pod in self._known.items() if uid in uids}
        self._held = {uid: pod for uid, pod in self._held.items() if uid in uids}
        if self._access is not None:
            records = self._access.copy.records
            self._held |= {uid: records[uid] for uid in uids if uid in records}
            self._take(self._access.owners.merge(self._held))
        self._log_change()

    def complete(self, holding: Holding) -> Holding:
        """Return a holding with what is known about its pod."""
        pod = self._known.get(holding.holder.id) if pod_uid(holding.holder) is not None else None
        return holding if pod is None else with_pod(holding, pod)

    async def run(self, node: Callable[[], str]) -> NoReturn:
        """Keep the pods of this node current until cancelled.

        Args:
            node: returns the name of this node in Kubernetes, or an empty text while it is not known.
        """
        while True:
            name = node()
            if name:
                await self._follow(name)
            await asyncio.sleep(RETRY_SECONDS if name else NAME_SECONDS)

    async def settle(self, node: str, holdings: Iterable[Holding]) -> None:
        """Read what is needed to complete some holdings once, within `SETTLE_SECONDS`."""
        if not node:
            return
        needed = tuple(holdings)
        task = asyncio.create_task(self.run(lambda: node))
        try:
            with contextlib.suppress(TimeoutError):  # `capability` has the state
                async with asyncio.timeout(SETTLE_SECONDS):
                    while not self._is_settled(needed):  # noqa: ASYNC110 - a copy reports no changes
                        await asyncio.sleep(_POLL_SECONDS)
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("owners of pods: %s", self.capability, exc_info=error)

    async def _follow(self, node: str) -> None:
        try:
            access = await asyncio.to_thread(self._connect, node)
        except ConfigError as error:
            self._problem = f"{Reason.READER_FAILED}: {error}"
            return
        self._access = access
        problem = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(access.copy.run(), name="copy of pods")
                tasks.create_task(access.owners.run(), name="owner chains")
        except Exception as error:  # only noted as the state: the supervisor of `run` catches it
            problem = f"{Reason.READER_FAILED}: {type(error).__name__}"
            raise
        finally:
            self._problem, self._access = problem or self.capability, None
            await access.close()

    def _take(self, pods: Mapping[str, ClusterPod]) -> None:
        """Take pods; a known chain stays if no more than its beginning was read now."""
        for uid, pod in pods.items():
            known = self._known.get(uid)
            self._known[uid] = pod if known is None else with_known_chain(pod, known)
        self._unread = frozenset(
            f"{pod.owners[-1].kind} ({pod.chain_end})"
            for pod in pods.values()
            if pod.owners and pod.chain_end in _UNREAD
        )

    def _is_settled(self, holdings: Iterable[Holding]) -> bool:
        if self._access is None:
            return self._problem != NO_NODE
        status = self._access.copy.status
        if status.state is not CopyState.SYNCED:
            return bool(status.detail)
        self.update(holdings)
        return not self._access.owners.queued

    def _log_change(self) -> None:
        """Log each change of the state, but not of its text alone."""
        text = self.capability
        state = text.partition(":")[0]
        if state in (*_STARTING, self._logged):
            return
        self._logged = state
        if state == "available":
            log.info("owners of pods: the API server reports the pods of this node")
        else:
            log.warning("owners of pods: %s", text)


def _copy_problems(status: CopyStatus) -> list[str]:
    problems = []
    if not status.is_complete:
        problems.append(f"only the first {status.objects} pods of this node are kept")
    if status.rejected:
        problems.append(f"{status.rejected} pods are invalid, the first: {status.example}")
    return problems


def _remembered(holder: Holder) -> ClusterPod:
    """Return the pod of a holder that was completed in an earlier run."""
    return ClusterPod(
        uid=holder.id,
        namespace=holder.namespace,
        name=holder.name,
        labels=holder.labels,
        annotations=holder.annotations,
        owners=holder.owners,
        chain_end=ChainEnd.NOT_READ,
        queue=holder.queue,
        vmi=next((owner.uid for owner in holder.owners if owner.kind == VMI_KIND), ""),
    )
