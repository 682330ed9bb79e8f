"""A simulated node with random placements of pods, jobs and virtual machines, and the truth at each instant.

The node has whole and MIG GPUs, and GPUs that are shared: by time slices, by resource claims (pods) or by MPS (jobs).
Virtual machines have GPUs in IOMMU groups, and vGPUs. Holders start, end, are requeued, and are
recreated under their names; the folders of the earlier pod can outlive it. MIG layouts change while they are held, the
node reboots, and local users make cgroups with the names of others. The kubelet fails, hangs and restarts with short
answers; permissions to see processes and cgroups come and go.

`run` compares what the tracker reports with the truth, and beside it what a guess by order would report. `deliver`
compares what an agent that is killed now and then sends to a hub with the true intervals.
"""

import random
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.agent.collect.holder_states import HolderStateReport
from gpufleet.agent.collect.holders import HolderCollector, SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.fleet.attribution.device_index import DeviceIndex, IndexedDevice
from gpufleet.fleet.attribution.holdings import Answer, HoldingsRound, HoldingTracker
from gpufleet.fleet.attribution.reported import current_holdings, current_states, is_certain, known_until
from gpufleet.holders.processes.mapping import claims_of, holder_of
from gpufleet.holders.processes.parse.cgroup import Placement, parse_path
from gpufleet.holders.processes.parse.process import VirtualMachine
from gpufleet.holders.processes.records import ProcessEvidence
from gpufleet.hub.query.holder_records import present_holders
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import Holder, HolderKind, HolderState, Holding, HoldingVerdict, Method, Share
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device
from gpufleet.model.stored.holdings import StoredHolderStates, StoredHolding
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.holder import DeviceName, HolderClaim, HolderId, HolderReport, Naming

UUID = "0000-0000-4000-8000-000000000000"
"""End of each UUID of a device; four digits before it identify the device."""

ROUND_SECONDS = 10
GPUS = 8
REPLICAS = 3
DELEGATED = "/user.slice/user-1000.slice/user@1000.service"
"""Cgroup that systemd gives to a local user."""


class Slot(NamedTuple):
    """A unit that the scheduler can place: a whole GPU, a MIG device, a vGPU, or a part of a shared GPU."""

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
    since: int = 0
    stale: int = 0  # rounds in which the kubelet's folders show the earlier pod of its name
    earlier: str = ""  # UID of that pod

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


class TrueInterval(msgspec.Struct):
    """Interval in which a holder has a view, nanoseconds since 1970; `end` is None while it lasts."""

    id: HolderId
    view: str
    start: int
    end: int | None = None


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
        self.groups = self._iommu_groups()
        self.changed: dict[str, list[IndexedDevice]] = {}  # GPU to its MIG devices while its layout is another one
        self.forged: dict[str, str] = {}  # view to the cgroup that a local user made for a process on it
        self.history: list[TrueInterval] = []
        self.ended: list[Placed] = []  # the newest
        self.every: list[Placed] = []
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
            changes = (self._start, self._start, self._end, self._recreate, self._requeue, self._toggle_work)
            self.random.choice(changes)()
        for one in self.placed:
            one.stale = max(0, one.stale - 1)
        if self.random.random() < 0.05:
            self._relayout()
        if self.random.random() < 0.1:
            self._forge()
        if self.random.random() < 0.03:
            self.outage = self.random.randint(1, 8)
        if self.random.random() < 0.03:
            self.session, self.started_at = self.session + 1, self.now
            self.short = self.random.choice((0, 1, 1, 5, 20))
        if not self.permitted and self.random.random() < 0.02:
            self.sees_processes = not self.sees_processes

    def reboot(self) -> None:
        """Reboot: pods keep their UIDs and jobs are requeued, after some minutes."""
        self._cut()
        self.now += self.random.randint(60, 1_200) * NANOS
        self.session, self.started_at = self.session + 1, self.now
        for one in self.placed:
            self._begin(one)

    def pass_unseen(self, rounds: int) -> None:
        """Let time pass without an agent."""
        for _ in range(rounds):
            self.step()

    def answers(self) -> dict[str, Answer]:
        """Return what each source reports now."""
        source = {HolderKind.POD: "kubelet", HolderKind.JOB: "slurm", HolderKind.VM: "libvirt"}[self.kind]
        return {source: self._declared(), "processes": self._observed()}

    def truth(self) -> dict[str, set[HolderId]]:
        """Return the holders of each view, or of a view around it or in it if the layout of its GPU has changed."""
        truth: dict[str, set[HolderId]] = {view: set() for view in self.index.leaves}
        for one in self.placed:
            for slot in one.slots:
                for view in self._present(slot.view):
                    truth[view].add(one.id)
        return truth

    def _present(self, view: str) -> list[str]:
        if view in self.index.leaves:
            return [view]
        gpu = view
        if view not in self.index.views:
            gpu = next(gpu for gpu, removed in self.changed.items() if view in {one.view.key for one in removed})
        allocated = {slot.view for one in self.placed for slot in one.slots}
        return [
            leaf for leaf in self.index.leaves if gpu in (leaf, self.index.views[leaf].parent) and leaf not in allocated
        ]

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
        uuid, address = f"GPU-{number:04}{UUID}", f"0000:{number + 16:02x}:00.0"
        gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address)
        self.views.append(IndexedDevice(gpu, minor=minor))
        self.gpus.append(gpu.key)
        layout = self.random.choice(("whole", "whole", "whole", "mig", "timeslice"))
        if self.kind is HolderKind.VM and layout == "mig":
            self._add_vgpus(gpu, number)
        elif self.kind is HolderKind.VM:
            self.slots.append(Slot(gpu.key, DeviceName(Naming.PCI, str(gpu.pci_address)), Share.EXCLUSIVE, number))
        elif layout == "mig":
            for instance in range(3):
                part = View(
                    kind=ViewKind.MIG,
                    side=Side.HOST,
                    uuid=f"MIG-{number:02}{instance:02}{UUID}",
                    parent=gpu.key,
                    instance=f"{instance}/0",
                )
                self.views.append(IndexedDevice(part))
                name = self.random.choice(
                    (
                        DeviceName(Naming.UUID, str(part.uuid)),
                        DeviceName(Naming.MIG_OF_GPU, f"{gpu.uuid}/{instance}/0"),
                        DeviceName(Naming.MIG_OF_MINOR, f"{minor}/{instance}"),
                    )
                )
                self.slots.append(Slot(part.key, name, Share.MIG, number))
        else:
            name = self.random.choice((DeviceName(Naming.UUID, str(gpu.uuid)), DeviceName(Naming.MINOR, str(minor))))
            if layout == "timeslice":
                other = Share.MPS if self.kind is HolderKind.JOB else Share.DRA
                share = self.random.choice((Share.TIMESLICE, other))
                name = DeviceName(Naming.UUID, str(gpu.uuid)) if share is Share.DRA else name
                self.slots += [Slot(gpu.key, name, share, number)] * REPLICAS
            else:
                self.slots.append(Slot(gpu.key, name, Share.EXCLUSIVE, number))

    def _add_vgpus(self, gpu: View, number: int) -> None:
        """Add the vGPUs of a GPU, each with its mediated device."""
        for instance in range(2):
            mdev = f"{number:02}{instance:02}{UUID}"
            part = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=f"vgpu-{mdev}", parent=gpu.key)
            self.views.append(IndexedDevice(part, mdev=mdev))
            self.slots.append(Slot(part.key, DeviceName(Naming.MDEV, mdev), Share.VGPU, number))

    def _free(self) -> list[Slot]:
        free = list(self.slots)
        for one in self.placed:
            for slot in one.slots:
                free.remove(slot)
        return [slot for slot in free if slot.view in self.index.leaves]

    def _start(self, name: str | None = None, namespace: str = "") -> Placed | None:
        free = self._free()
        if not free:
            return None
        self.placements += 1
        slots = self.random.sample(free, min(len(free), self.random.choice((1, 1, 1, 2, 4))))
        is_job = self.kind is HolderKind.JOB
        uid = str(self.placements) if is_job else f"{self.placements:08x}-0000-4000-8000-000000000000"
        holder = Holder(
            kind=self.kind,
            id=uid,
            name=name or f"{self.random.choice('abcdefgh')}-{self.placements}",
            namespace=namespace or (self.random.choice(("dev", "ml", "prod")) if self.kind is HolderKind.POD else ""),
        )
        placed = Placed(holder, slots, static=self.random.random() < 0.1, works=self.random.random() < 0.6)
        self.placed.append(placed)
        self.every.append(placed)
        self._begin(placed)
        return placed

    def _begin(self, one: Placed) -> None:
        one.since = self.now
        self.history += [TrueInterval(one.id, view, self.now) for view in {slot.view for slot in one.slots}]

    def _cut(self, *ids: HolderId) -> None:
        """End the intervals of holders, or of all."""
        for interval in self.history:
            if interval.end is None and (not ids or interval.id in ids):
                interval.end = self.now

    def _end(self) -> Placed | None:
        if not self.placed:
            return None
        ended = self.placed.pop(self.random.randrange(len(self.placed)))
        self._cut(ended.id)
        self.ended = [*self.ended[-8:], ended]
        return ended

    def _recreate(self) -> None:
        """End a holder and start another under its name, on other devices."""
        ended = self._end()
        if ended is None:
            return
        started = self._start(ended.holder.name, ended.holder.namespace)
        # Without cgroups, folders of the earlier pod cannot be recognised (holders/kubelet/README.md).
        is_known = self.sees_cgroups and self.sees_processes
        if started is not None and self.kind is HolderKind.POD and is_known:
            started.stale, started.earlier = self.random.choice((0, 0, 1, 2)), ended.holder.id

    def _requeue(self) -> None:
        """End a job, and start it again with its id, on devices that may be the same."""
        if self.kind is not HolderKind.JOB:
            return
        ended = self._end()
        free = self._free()
        if ended is None or not free:
            return
        if self.random.random() < 0.5:
            ended.slots = self.random.sample(free, min(len(free), len(ended.slots)))
        self.now += NANOS
        self.placed.append(ended)
        self._begin(ended)

    def _relayout(self) -> None:
        """Remove the MIG devices of a GPU, split a whole one, or undo that. Holders keep their allocations."""
        if self.kind is HolderKind.VM:
            return
        gpu = self.random.choice(self.gpus)
        own = [one for one in self.views if one.view.parent == gpu]
        if gpu in self.changed:
            before = self.changed.pop(gpu)
            self.views = [one for one in self.views if one.view.parent != gpu] + before
        else:
            self.changed[gpu] = own
            self.views = [one for one in self.views if one not in own]
            if not own or self.random.random() < 0.3:
                instance = self.random.choice(("9/0", "0/1"))
                split = View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{gpu}", parent=gpu, instance=instance)
                kept = own[:1] if instance == "0/1" else []  # a second compute instance beside the first
                self.views += [*kept, IndexedDevice(split)]
        self.index = DeviceIndex(self.views)

    def _forge(self) -> None:
        """Let a local user run a process on a device, in a cgroup with the name of a present or ended holder."""
        others = [*self.placed, *self.ended]
        self.forged = {}
        if others and self.random.random() < 0.5:
            path = DELEGATED + _cgroup(self.random.choice(others).holder)
            self.forged = {self.random.choice(self.index.leaves): path}

    def _iommu_groups(self) -> dict[str, tuple[DeviceName, ...]]:
        """Return the view of each GPU to the GPUs of its IOMMU group: its own, or its neighbour's too."""
        names = {slot.view: slot.name for slot in self.slots}
        vgpus = [slot for slot in self.slots if slot.share is Share.VGPU]
        groups: dict[str, tuple[DeviceName, ...]] = {slot.view: (slot.name,) for slot in vgpus}
        for first, second in zip(self.gpus[::2], self.gpus[1::2], strict=True):
            is_shared = self.random.random() < 0.3
            for view in (first, second):
                views = (first, second) if is_shared else (view,)
                groups[view] = tuple(names[one] for one in views if one in names)
        return groups

    def _toggle_work(self) -> None:
        if self.placed:
            one = self.random.choice(self.placed)
            one.works = not one.works

    def _declared(self) -> Answer:
        if self.outage:
            return HolderError(self.random.choice((Reason.TIMEOUT, Reason.READER_FAILED)), "no answer")
        listed = self._listed()
        method = {
            HolderKind.POD: Method.KUBELET,
            HolderKind.JOB: Method.SCHEDULER,
            HolderKind.VM: Method.HYPERVISOR,
        }[self.kind]
        claims = [
            HolderClaim(
                holder=self._as_declared(one),
                devices=tuple(dict.fromkeys(slot.name for slot in one.slots if slot.share is share)),
                method=method,
                container="main" if self.kind is HolderKind.POD else "",
                share=share,
                claim=f"{one.holder.namespace}/shared" if share is Share.DRA else "",
                since=one.since if self.kind is HolderKind.JOB else None,
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
            listed=frozenset((self.kind, self._as_declared(one).id) for one in listed),
        )

    def _listed(self) -> list[Placed]:
        """Return the holders that the declaring source lists now."""
        return [one for one in self.placed if one.static or not self.short or self.kind is not HolderKind.POD]

    def _as_declared(self, one: Placed) -> Holder:
        """Return a holder as its scheduler reports it. The kubelet reports no UID, and its folders can be old."""
        holder = one.holder
        if self.kind is HolderKind.POD and not self.resolves_uids:
            return msgspec.structs.replace(holder, id=f"{holder.namespace}/{holder.name}")
        if one.stale and self.sees_processes:
            return msgspec.structs.replace(holder, id=one.earlier)
        return holder

    def _observed(self) -> Answer:
        if not self.sees_processes:
            return HolderError(Reason.NOT_PERMITTED, "needs the host's process namespace")
        processes = [self._process(one) for one in self.placed if one.works]
        forged = {
            view: ProcessEvidence(placement=parse_path(path), views=(view,)) for view, path in self.forged.items()
        }
        processes += forged.values()
        living = frozenset(one.id for one in self.placed) if self.sees_cgroups else None
        return HolderReport(
            claims=claims_of(processes),
            observes=True,
            living=living,
            unattributed=frozenset(view for view, process in forged.items() if holder_of(process) is None),
            unattributed_devices=frozenset(name for process in processes for name in process.grouped),
        )

    def _process(self, one: Placed) -> ProcessEvidence:
        if self.kind is HolderKind.VM:
            groups = {self.groups[slot.view] for slot in one.slots}
            return ProcessEvidence(
                placement=Placement(machine=one.holder.name),
                vm=VirtualMachine(one.holder.id, one.holder.name),
                passed_through=tuple(group[0] for group in groups if len(group) == 1),
                grouped=tuple(name for group in groups if len(group) > 1 for name in group),
            )
        views = {slot.view for slot in one.slots if slot.view in self.index.leaves}
        return ProcessEvidence(placement=parse_path(_cgroup(one.holder)), views=tuple(views))


def _cgroup(holder: Holder) -> str:
    """Return the cgroup of a holder's processes."""
    match holder.kind:
        case HolderKind.POD:
            return f"/kubepods/burstable/pod{holder.id}"
        case HolderKind.JOB:
            return f"/system.slice/slurmstepd.scope/job_{holder.id}/step_0"
        case _:
            return f"/machine.slice/machine-qemu-1-{holder.name}.scope"


def run(seed: int, rounds: int, *, permitted: bool = False) -> Score:
    """Simulate a node and score each device in each round. The agent restarts now and then, with its saved holdings."""
    return run_node(Node(seed, permitted=permitted), rounds)


def run_node(node: Node, rounds: int) -> Score:
    """Score each device of a node in each round."""
    score, tracker = Score(), HoldingTracker()
    for _ in range(rounds):
        node.step()
        if node.random.random() < 0.01:
            tracker = HoldingTracker(tracker.current, saved_at=node.now, sources=["kubelet", "slurm", "libvirt"])
        elif node.random.random() < 0.005:
            saved_at = node.now
            node.reboot()
            tracker = HoldingTracker(tracker.current, saved_at=saved_at)
        result = tracker.update(node.answers(), node.index, node.now)
        add_round(score, node, result)
    score.placements = node.placements
    return score


def add_round(score: Score, node: Node, result: HoldingsRound) -> None:
    """Score each device of a node after a round."""
    names = {(one.holder.kind, f"{one.holder.namespace}/{one.holder.name}"): one.id for one in node.placed}
    guess, truth = node.guess(), node.truth()
    count_devices(score, truth, result, names)
    for view, holders in truth.items():
        if holders and view in node.gpus and node.kind is HolderKind.POD:
            score.guessed += 1
            score.guessed_right += guess.get(view) in holders


def count_devices(
    score: Score, truth: Mapping[str, set[HolderId]], result: HoldingsRound, names: Mapping[HolderId, HolderId] = {}
) -> None:
    """Count each device as right, explicitly unknown or wrong.

    Args:
        score: the counts.
        truth: holders of each device.
        result: the round.
        names: kind and id of holders without UID, to their identity.
    """
    for view, holders in truth.items():
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


class Intervals(msgspec.Struct):
    """Comparison of the holdings that a hub has with the truth.

    Attributes:
        true: number of true intervals.
        stored: number of holdings with a certain verdict.
        wrong: those that cover more than a round in which the holder did not have the device.
        overlapping: declared ones of one holder and device that overlap: their hours would count twice.
        free: devices that are free on the hub after a batch, of all batches.
        wrong_free: those that have a holder.
    """

    true: int = 0
    stored: int = 0
    wrong: int = 0
    overlapping: int = 0
    free: int = 0
    wrong_free: int = 0


class _Clock:
    """Clock of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def now_ns(self) -> int:
        return self._node.now

    def monotonic(self) -> float:
        return self._node.now / NANOS


class _Source:
    """A source of a node, by its name."""

    def __init__(self, node: Node, name: str) -> None:
        self._node, self.name = node, name

    async def report(self) -> HolderReport:
        answer = self._node.answers()[self.name]
        if isinstance(answer, HolderError):
            raise answer
        return answer

    async def close(self) -> None:
        pass


async def deliver(seed: int, rounds: int, file: SavedFile[SavedHoldings], *, permitted: bool = False) -> Intervals:
    """Simulate a node whose agent sends its holdings to a hub. It is killed now and then, and its spool fails."""
    node = Node(seed, permitted=permitted)
    boot = 0

    def start() -> HolderCollector:
        sources = [(_Source(node, name), 5.0) for name in node.answers()]
        clock = _Clock(node)
        return HolderCollector(sources, interval_seconds=10, clock=clock, file=file, boot=str(boot))

    agent, stored, states = start(), dict[tuple[object, ...], StoredHolding](), list[StoredHolderStates]()
    found = Intervals()
    for number in range(rounds):
        node.step()
        await agent.round(_devices(node))
        chance = node.random.random() if number < rounds - 2 else 1.0  # the last rounds are without a restart
        if chance < 0.03:
            agent = start()  # killed after a round, before its batch
            node.pass_unseen(node.random.choice((0, 1, 5, 30)))
        elif chance < 0.035:
            boot += 1
            node.reboot()
            agent = start()
        due, reported = agent.due(), agent.due_states()
        is_last = number >= rounds - 2
        if is_last or node.random.random() < 0.8:  # else the spool fails
            for one in due:
                key = (one.view, one.holder.kind, one.holder.id, one.container, one.since)
                stored[key] = StoredHolding(cluster="c", machine="m", holding=one, reported_at=node.now)
            if reported is not None:
                states = [_stored_states(reported, node.now)]
            _count_free(found, node, stored.values(), states)
            if not is_last and node.random.random() < 0.02:
                agent = start()  # killed after the batch, before the next round
            else:
                agent.note_delivered()
    _compare(found, node, stored.values())
    return found


def _devices(node: Node) -> list[Device]:
    at = to_datetime(node.now)
    return [
        Device(
            key=one.view.key,
            kind=one.view.kind,
            side=one.view.side,
            uuid=one.view.uuid,
            pci_address=one.view.pci_address,
            parent=one.view.parent,
            instance=one.view.instance,
            readings={
                name: Reading(value=str(value), reader="nvml", measured_at=at)
                for name, value in (("gpu_minor_number", one.minor), ("vgpu_mdev_uuid", one.mdev))
                if value is not None
            },
        )
        for one in node.views
    ]


def _stored_states(report: HolderStateReport, now: int) -> StoredHolderStates:
    return StoredHolderStates(
        sender="agent", reported_at=now, sent_at=now, devices=report.devices, unresolved=report.unresolved
    )


def _count_free(
    result: Intervals, node: Node, stored: Iterable[StoredHolding], states: Iterable[StoredHolderStates]
) -> None:
    """Count the devices that the hub shows as free."""
    live, truth = Liveness(state=State.LIVE, unseen_seconds=0.0), node.truth()
    by_view: dict[str, list[Holding]] = {}
    for holding in current_holdings(stored, node.now):
        by_view.setdefault(holding.view, []).append(holding)
    for view, reported in current_states(states, node.now).items():
        if present_holders(by_view.get(view, ()), reported, live).state is HolderState.FREE:
            result.free += 1
            result.wrong_free += bool(truth.get(view))


def _compare(result: Intervals, node: Node, stored: Iterable[StoredHolding]) -> None:
    result.true = len(node.history)
    by_holder: dict[tuple[HolderId, str], list[tuple[int, int]]] = {}
    declared: dict[tuple[HolderId, str], list[tuple[int, int]]] = {}
    for one in stored:
        holding, until = one.holding, known_until(one, node.now)
        interval = (holding.since, node.now if until is None else until)
        if is_certain(holding) and interval[0] < interval[1]:
            key = ((holding.holder.kind, holding.holder.id), holding.view)
            by_holder.setdefault(key, []).append(interval)
            if holding.verdict is not HoldingVerdict.OBSERVED_ONLY:
                declared.setdefault(key, []).append(interval)
    for (id_, view), intervals in by_holder.items():
        ids = _true_ids(node, id_)
        true = [(own.start, own.end or node.now) for own in node.history if own.id in ids and own.view == view]
        result.stored += len(intervals)
        result.wrong += sum(_longest_gap(interval, true) > ROUND_SECONDS * NANOS for interval in intervals)
    for intervals in declared.values():
        result.overlapping += sum(first[1] > second[0] for first, second in pairwise(sorted(intervals)))


def _true_ids(node: Node, id_: HolderId) -> set[HolderId]:
    """Return the holders with an id: every pod of a name, if that is the id."""
    return {id_} | {one.id for one in node.every if f"{one.holder.namespace}/{one.holder.name}" == id_[1]}


def _longest_gap(interval: tuple[int, int], true: Iterable[tuple[int, int]]) -> int:
    """Return the longest part of an interval that no true one covers."""
    at, longest = interval[0], 0
    for start, end in sorted(true):
        if end > at:
            longest = max(longest, min(start, interval[1]) - at)
            at = max(at, end)
    return max(longest, interval[1] - at)
