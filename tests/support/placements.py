"""A simulated node with random placements of pods, jobs and virtual machines, and the truth at each instant.

The node has whole, time-sliced and MIG GPUs. Holders start, end and are recreated under their names. The kubelet fails,
hangs and restarts with short answers; permissions to see processes and cgroups come and go. `Score` compares what the
tracker reports with the truth, and beside it what a guess by order would report.
"""

import random
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice
from gpufleet.fleet.attribution.holdings import Answer, HoldingsRound, HoldingTracker
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import Holder, HolderKind, HolderState, HoldingVerdict, Method, Share
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderId, HolderReport, Naming

ROUND_SECONDS = 10
GPUS = 8
REPLICAS = 3


class Slot(NamedTuple):
    """A unit that the scheduler can place: a whole GPU, a MIG device or a replica of a time-sliced GPU."""

    view: str
    name: DeviceName
    share: Share
    ordinal: int  # of the GPU, in the driver's order


class Placed(msgspec.Struct):
    """A running holder and its slots."""

    holder: Holder
    slots: list[Slot]
    static: bool
    works: bool  # has processes on its devices

    @property
    def id(self) -> HolderId:
        """Kind and id."""
        return self.holder.kind, self.holder.id


class Score(msgspec.Struct):
    """Number of device states by outcome, over all rounds."""

    right: int = 0
    unknown: int = 0
    wrong: int = 0
    guessed_right: int = 0
    guessed: int = 0
    placements: int = 0


class Node:
    """A node whose holders, sources and permissions change at random."""

    def __init__(self, seed: int, *, permitted: bool = False) -> None:
        """Take the seed that decides everything, and whether the agent has every permission all the time."""
        self.random = random.Random(seed)
        self.kind = self.random.choice((HolderKind.POD, HolderKind.POD, HolderKind.JOB, HolderKind.VM))
        self.now = 1_700_000_000 * NANOS
        self.placed: list[Placed] = []
        self.placements = 0
        self.views: list[IndexedDevice] = []
        self.slots: list[Slot] = []
        self.gpus: list[str] = []
        for number, minor in enumerate(self.random.sample(range(GPUS), GPUS)):
            self._add_gpu(number, minor)
        self.index = DeviceIndex(self.views)
        self.session, self.started_at = 1, self.now - 86_400 * NANOS
        self.outage = 0  # rounds without answer
        self.short = 0  # rounds with static pods only
        self.permitted = permitted
        self.sees_cgroups = permitted or self.random.random() < 0.7
        self.sees_processes = permitted or self.random.random() < 0.7
        self.resolves_uids = permitted or self.random.random() < 0.8

    def step(self) -> None:
        """Let time pass, and change the node."""
        self.now += ROUND_SECONDS * NANOS
        self.outage, self.short = max(0, self.outage - 1), max(0, self.short - 1)
        for _ in range(self.random.choice((0, 0, 1, 1, 2, 4))):
            self.random.choice((self._start, self._start, self._end, self._recreate, self._toggle_work))()
        if self.random.random() < 0.03:
            self.outage = self.random.randint(1, 8)
        if self.random.random() < 0.03:
            self.session, self.started_at = self.session + 1, self.now
            self.short = self.random.choice((0, 1, 1, 5, 20))
        if not self.permitted and self.random.random() < 0.02:
            self.sees_processes = not self.sees_processes

    def answers(self) -> dict[str, Answer]:
        """Return what each source reports now."""
        source = {HolderKind.POD: "kubelet", HolderKind.JOB: "slurm", HolderKind.VM: "libvirt"}[self.kind]
        return {source: self._declared(), "processes": self._observed()}

    def truth(self) -> dict[str, set[HolderId]]:
        """Return the holders of each view."""
        truth: dict[str, set[HolderId]] = {view: set() for view in self.index.leaves}
        for one in self.placed:
            for slot in one.slots:
                truth[slot.view].add(one.id)
        return truth

    def guess(self) -> dict[str, HolderId]:
        """Return the holders by order: pods sorted by name take the next GPUs in the driver's order."""
        guess: dict[str, HolderId] = {}
        ordinal = 0
        for one in sorted(self.placed, key=lambda one: (one.holder.namespace, one.holder.name)):
            for _ in one.slots:
                if ordinal < len(self.gpus):
                    guess[self.gpus[ordinal]] = one.id
                ordinal += 1
        return guess

    def _add_gpu(self, number: int, minor: int) -> None:
        gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}", pci_address=f"0000:{number + 16:02x}:00.0")
        self.views.append(IndexedDevice(gpu, minor=minor))
        self.gpus.append(gpu.key)
        layout = self.random.choice(("whole", "whole", "whole", "mig", "timeslice"))
        if self.kind is HolderKind.VM:
            self.slots.append(Slot(gpu.key, DeviceName(Naming.PCI, str(gpu.pci_address)), Share.EXCLUSIVE, number))
        elif layout == "mig":
            for instance in range(3):
                part = View(
                    kind=ViewKind.MIG,
                    side=Side.HOST,
                    uuid=f"MIG-{number}-{instance}",
                    parent=gpu.key,
                    instance=f"{instance}/0",
                )
                self.views.append(IndexedDevice(part))
                name = self.random.choice(
                    (
                        DeviceName(Naming.UUID, f"MIG-{number}-{instance}"),
                        DeviceName(Naming.MIG_OF_GPU, f"GPU-{number}/{instance}/0"),
                        DeviceName(Naming.MIG_OF_MINOR, f"{minor}/{instance}"),
                    )
                )
                self.slots.append(Slot(part.key, name, Share.MIG, number))
        else:
            name = self.random.choice((DeviceName(Naming.UUID, f"GPU-{number}"), DeviceName(Naming.MINOR, str(minor))))
            if layout == "timeslice":
                self.slots += [Slot(gpu.key, name, Share.TIMESLICE, number)] * REPLICAS
            else:
                self.slots.append(Slot(gpu.key, name, Share.EXCLUSIVE, number))

    def _free(self) -> list[Slot]:
        free = list(self.slots)
        for one in self.placed:
            for slot in one.slots:
                free.remove(slot)
        return free

    def _start(self, name: str | None = None) -> None:
        free = self._free()
        if not free:
            return
        self.placements += 1
        slots = self.random.sample(free, min(len(free), self.random.choice((1, 1, 1, 2, 4))))
        uid = f"{self.kind}-{self.placements}"
        holder = Holder(
            kind=self.kind,
            id=uid,
            name=name or f"{self.random.choice('abcdefgh')}-{self.placements}",
            namespace=self.random.choice(("dev", "ml", "prod")) if self.kind is HolderKind.POD else "",
        )
        self.placed.append(Placed(holder, slots, static=self.random.random() < 0.1, works=self.random.random() < 0.6))

    def _end(self) -> Placed | None:
        if not self.placed:
            return None
        return self.placed.pop(self.random.randrange(len(self.placed)))

    def _recreate(self) -> None:
        """End a holder and start another under its name, on other devices."""
        ended = self._end()
        if ended is not None:
            self._start(ended.holder.name)

    def _toggle_work(self) -> None:
        if self.placed:
            one = self.random.choice(self.placed)
            one.works = not one.works

    def _declared(self) -> Answer:
        if self.outage:
            return HolderError(self.random.choice((Reason.TIMEOUT, Reason.READER_FAILED)), "no answer")
        listed = [one for one in self.placed if one.static or not self.short or self.kind is not HolderKind.POD]
        method = {
            HolderKind.POD: Method.KUBELET,
            HolderKind.JOB: Method.SCHEDULER,
            HolderKind.VM: Method.HYPERVISOR,
        }[self.kind]
        claims = [
            HolderClaim(
                holder=self._as_declared(one.holder),
                devices=tuple(dict.fromkeys(slot.name for slot in one.slots if slot.share is share)),
                method=method,
                container="main" if self.kind is HolderKind.POD else "",
                share=share,
            )
            for one in listed
            for share in {slot.share for slot in one.slots}
        ]
        self.random.shuffle(claims)
        return HolderReport(
            claims=tuple(claims),
            session=str(self.session),
            started_at=self.started_at if self.kind is HolderKind.POD else None,
            lists=self.kind,
            listed=frozenset((self.kind, self._as_declared(one.holder).id) for one in listed),
        )

    def _as_declared(self, holder: Holder) -> Holder:
        """Return a holder as its scheduler reports it: the kubelet reports no UID."""
        if self.kind is HolderKind.POD and not self.resolves_uids:
            return msgspec.structs.replace(holder, id=f"{holder.namespace}/{holder.name}")
        return holder

    def _observed(self) -> Answer:
        if not self.sees_processes:
            return HolderError(Reason.NOT_PERMITTED, "needs the host's process namespace")
        claims = [
            HolderClaim(
                holder=Holder(kind=one.holder.kind, id=one.holder.id),
                devices=tuple(DeviceName(Naming.VIEW, view) for view in {slot.view for slot in one.slots}),
                method=Method.PROCESS,
            )
            for one in self.placed
            if one.works
        ]
        living = frozenset(one.id for one in self.placed) if self.sees_cgroups else None
        return HolderReport(claims=tuple(claims), observes=True, living=living)


def run(seed: int, rounds: int, *, permitted: bool = False) -> Score:
    """Simulate a node and score each device in each round. The agent restarts now and then, with its saved holdings."""
    node, score, tracker = Node(seed, permitted=permitted), Score(), HoldingTracker()
    for _ in range(rounds):
        node.step()
        if node.random.random() < 0.01:
            tracker = HoldingTracker(tracker.current, saved_at=node.now, sources=["kubelet", "slurm", "libvirt"])
        result = tracker.update(node.answers(), node.index, node.now)
        _add(score, node, result)
    score.placements = node.placements
    return score


def _add(score: Score, node: Node, result: HoldingsRound) -> None:
    names = {(one.holder.kind, f"{one.holder.namespace}/{one.holder.name}"): one.id for one in node.placed}
    guess = node.guess()
    for view, holders in node.truth().items():
        reported = result.devices[view]
        known = {
            names.get((one.holder.kind, one.holder.id), (one.holder.kind, one.holder.id))
            for one in reported.holdings
            if one.verdict is not HoldingVerdict.UNKNOWN
        }
        if reported.state is HolderState.UNKNOWN:
            score.unknown += 1
        elif known == holders:
            score.right += 1
        elif known <= holders and len(known) < len(reported.holdings):
            score.unknown += 1  # some of the sharers are listed as unknown
        else:
            score.wrong += 1
        if holders and view in node.gpus and node.kind is HolderKind.POD:
            score.guessed += 1
            score.guessed_right += guess.get(view) in holders
