"""Random placements of pods: claims over the kubelet's gRPC protocol, processes and cgroups as trees on disk."""

import asyncio
import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from gpufleet.fleet.attribution.holdings import Answer
from gpufleet.holders.kubelet import KubeletHolders
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import HolderKind, Share
from gpufleet.ports.holder import Naming
from tests.fakes.kubelet import (
    KUBELET,
    FakeClaimedDevice,
    FakeContainer,
    FakeKubelet,
    FakePod,
    FakeResourceClaim,
    node_folder,
)
from tests.support.placements import REPLICAS, Node, Placed, Score, Slot, run_node
from tests.support.tree_placements import TreeNode

LOGS = "var/log/pods"


class KubeletNode(TreeNode):
    """A node of pods. A fake kubelet serves them, with the device ids of the device plugins.

    Args:
        seed: decides everything; `is_of_pods` is true of it.
        kubelet: a running kubelet.
        permitted: as of `Node`.
    """

    def __init__(self, seed: int, kubelet: FakeKubelet, *, permitted: bool = False) -> None:
        super().__init__(seed, kubelet.root, permitted=permitted)
        self._kubelet = kubelet
        self._source = KubeletHolders(kubelet.root, timeout_seconds=2.0)
        self._served = 0  # session of the running server
        self._plugin = random.Random(f"plugin {seed}")
        self._plugin_outage = 0  # rounds without the device plugin
        self._replicas = REPLICAS  # replicas of a shared device, by the configuration of the plugin

    def close(self) -> None:
        """Close the connection to the kubelet."""
        asyncio.run(self._source.close())

    def _declared(self) -> Answer:
        if self._served != self.session:
            self._kubelet.restart(first=())
            self._served = self.session
            at = self.started_at
            os.utime(self._kubelet.socket, ns=(at, at))
        self._kubelet.fault = (grpc.StatusCode.UNAVAILABLE, "stopped") if self.outage else None
        self._kubelet.pods = [self._pod(one) for one in self._listed()]
        self._kubelet.allocatable = self._allocatable()
        self._make_folders()
        try:
            return asyncio.run(self._source.report())
        except HolderError as error:
            return error

    def _allocatable(self) -> dict[str, list[str]]:
        """Return the devices of the plugin. It restarts now and then, some of the times with another configuration.

        While it is down, the kubelet lists no devices, and still the pods that have some.
        """
        self._plugin_outage = max(0, self._plugin_outage - 1)
        if self._plugin.random() < 0.05:
            self._plugin_outage, self._replicas = self._plugin.randint(1, 4), self._plugin.choice((2, REPLICAS, 8))
        found: dict[str, list[str]] = {}
        for slot in dict.fromkeys(self.slots if self._plugin_outage == 0 else ()):
            if slot.share is not Share.DRA:
                count = self._replicas if slot.share is Share.TIMESLICE else 1
                found.setdefault(_resource(slot), []).extend(_device_id(slot, number) for number in range(count))
        return found

    def _pod(self, one: Placed) -> FakePod:
        ids: dict[str, list[str]] = {}
        for number, slot in enumerate(one.slots):
            if slot.share is not Share.DRA:
                ids.setdefault(_resource(slot), []).append(_device_id(slot, number))
        claimed = dict.fromkeys(slot.name.text for slot in one.slots if slot.share is Share.DRA)
        claims = [FakeResourceClaim("shared", tuple(map(FakeClaimedDevice, claimed)))] if claimed else []
        container = FakeContainer("main", devices=ids, claims=claims)
        return FakePod(one.holder.namespace, one.holder.name, one.holder.id, (container,))

    def _make_folders(self) -> None:
        """Make the log and data folders of the placed pods, also of those that the kubelet does not list."""
        root = self._kubelet.root
        for folder in (LOGS, f"{KUBELET}/pods"):
            shutil.rmtree(root / folder, ignore_errors=True)
            (root / folder).mkdir(parents=True)
        (root / "var/log/containers").mkdir(parents=True, exist_ok=True)
        for one in self.placed:
            declared = self._as_declared(one)
            if declared.id != f"{declared.namespace}/{declared.name}":
                (root / LOGS / f"{declared.namespace}_{declared.name}_{declared.id}").mkdir()
                (root / KUBELET / "pods" / declared.id).mkdir(exist_ok=True)


def is_of_pods(seed: int) -> bool:
    """Return whether the node with this seed has pods."""
    return Node(seed).kind is HolderKind.POD


@contextmanager
def kubelet_node(seed: int, *, permitted: bool = False) -> Iterator[KubeletNode]:
    """Return a node with a running kubelet."""
    with node_folder() as root, FakeKubelet(root, seed=seed) as kubelet:
        node = KubeletNode(seed, kubelet, permitted=permitted)
        yield node
        node.close()


def run_over_grpc(seed: int, rounds: int, *, permitted: bool = False) -> Score:
    """Simulate a node of pods and score each device in each round. `is_of_pods` is true of the seed."""
    with kubelet_node(seed, permitted=permitted) as node:
        return run_node(node, rounds)


def _resource(slot: Slot) -> str:
    return "nvidia.com/mig-1g.10gb" if slot.share is Share.MIG else "nvidia.com/gpu"


def _device_id(slot: Slot, number: int) -> str:
    """Return the id that a device plugin gives to a slot."""
    text = slot.name.text
    match slot.name.naming:
        case Naming.MINOR:
            text = f"nvidia{text}"
        case Naming.MIG_OF_MINOR:
            text = re.sub(r"(.*)/(.*)", r"nvidia\1/gi\2", text)
        case Naming.MIG_OF_GPU:
            text = f"MIG-{text}"
        case _:
            pass
    return f"{text}::{number}" if slot.share is Share.TIMESLICE else text
