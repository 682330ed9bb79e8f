"""Who is where: nodes, their GPUs, what those are cut into, and the work that holds each. A function of the seed."""

import enum

import msgspec

from gpufleet.model.holding import Holder, HolderKind, Share
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.simulate.fleet.chance import between, digits, number, uuid_of
from gpufleet.simulate.fleet.cycles import DAY_NS, Cycle, Shape
from gpufleet.simulate.fleet.hardware import MODELS, Model, Slot

VARIANTS = 4
"""Different curves of each kind of work."""

BOOT_NS = 90 * DAY_NS
"""Every node starts anew so often, each on a day of its own: so a boot is a function of the instant, too."""


class Role(enum.StrEnum):
    """What a node is for."""

    TRAINING = "training"  # a SLURM job over neighbouring nodes holds all of its GPUs
    INFERENCE = "inference"  # a pod holds each GPU
    BATCH = "batch"  # SLURM jobs of two GPUs
    MIG = "mig"  # GPUs are cut, a pod holds each part
    VM = "vm"  # GPUs are handed to two virtual machines, which are read from inside
    VGPU = "vgpu"  # GPUs are shared out as vGPUs, two to a GPU
    IDLE = "idle"  # nobody


PATTERN = (
    *(Role.TRAINING, Role.TRAINING, Role.INFERENCE, Role.MIG, Role.VM, Role.VGPU, Role.BATCH, Role.IDLE),
    *(Role.INFERENCE, Role.TRAINING, Role.TRAINING, Role.TRAINING, Role.TRAINING, Role.BATCH, Role.INFERENCE),
    *(Role.MIG, Role.TRAINING, Role.TRAINING, Role.INFERENCE, Role.TRAINING),
)
"""Roles of a cluster's nodes, over and over: the first eight are of every kind."""

PCI_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""Where an eight-GPU board puts them; further ones follow from here on."""

_FURTHER = 0x20


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What runs on a device, one job after the other.

    Attributes:
        cycle: how much it asks.
        phase: nanoseconds by which its day is moved.
        kind: of the holder.
        namespace: of the holder, if it lives in one.
        name: of the holder, before the number of the job.
        lasts: whether it is one holder for ever (a virtual machine), and not one a job.
        memory: share of its device's memory that it takes.
    """

    cycle: Cycle
    phase: int
    kind: HolderKind
    name: str
    namespace: str = ""
    lasts: bool = False
    memory: float

    def day(self, at: int) -> tuple[int, float]:
        """Return its day's number and the second of it."""
        days, left = divmod(at + self.phase, DAY_NS)
        return days, left / 1e9

    def done_by(self, at: int) -> float:
        """Return load-seconds since 1970."""
        days, second = self.day(at)
        return days * self.cycle.done[-1] + self.cycle.done_by(second)

    def job(self, at: int) -> tuple[int, int]:
        """Return what tells its jobs apart: the day and the number in it, which is -1 where there is none."""
        if self.lasts:
            return (at + self.phase) // BOOT_NS, 0
        days, second = self.day(at)
        return days, self.cycle.span_at(second)

    def holder(self, at: int) -> tuple[Holder, int] | None:
        """Return who holds the device and since when, or None where nobody does."""
        days, span = self.job(at)
        if self.lasts:
            since = days * BOOT_NS - self.phase
            return Holder(kind=self.kind, id=uuid_of(self.name), name=self.name, namespace=self.namespace), since
        if span < 0:
            return None
        words = (self.name, days, span)
        since = days * DAY_NS + self.cycle.spans[span][0] * 10**9 - self.phase
        if self.kind is HolderKind.JOB:
            return Holder(kind=self.kind, id=str(100_000 + number(900_000, *words)), name=self.name), since
        title = f"{self.name}-{digits(5, *words)}"
        return Holder(kind=self.kind, id=uuid_of(*words), name=title, namespace=self.namespace), since


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device, or a vGPU instance as its host sees it.

    Attributes:
        view: which.
        share: of its GPU's multiprocessors, or of its time.
        memory_bytes: what it has.
        work: what runs on it.
        slot: of a MIG device: where it is.
        vm: of a vGPU: UUID of the virtual machine that has it.
    """

    view: View
    share: float
    memory_bytes: int
    work: Work
    slot: Slot | None = None
    vm: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A physical GPU.

    Attributes:
        number: in its node.
        model: the product.
        view: as its machine's driver shows it.
        serial: of the board.
        loads: works on it, each with the share of it that is theirs.
        parts: what it is cut into.
        peak_watts: what it draws at full load.
        ambient: temperature at which it would be without power, celsius.
        rise: celsius at full load.
        worn: ECC errors that it has corrected in its life before it was watched.
    """

    number: int
    model: Model
    view: View
    serial: str
    loads: tuple[tuple[float, Work], ...]
    parts: tuple[Part, ...] = ()
    peak_watts: float
    ambient: float
    rise: float
    worn: int


class Guest(msgspec.Struct, frozen=True):
    """A virtual machine that has some of a node's GPUs."""

    machine: Machine
    gpus: tuple[Gpu, ...]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Attributes:
        cluster, number: which; both count from 1.
        cluster_id: of its cluster.
        name: its own.
        role: what it is for.
        identity: evidence, but for the boot id.
        gpus: that its driver shows; none where they are handed to guests.
        guests: virtual machines.
        boot_phase: nanoseconds by which its boots are moved.
    """

    cluster: int
    number: int
    cluster_id: str
    name: str
    role: Role
    identity: Machine
    gpus: tuple[Gpu, ...]
    guests: tuple[Guest, ...] = ()
    boot_phase: int

    @property
    def all_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are plugged in, whoever has them."""
        return self.gpus or tuple(gpu for guest in self.guests for gpu in guest.gpus)

    def booted_at(self, at: int) -> int:
        """Return when it booted before that instant, in nanoseconds since 1970."""
        return (at + self.boot_phase) // BOOT_NS * BOOT_NS - self.boot_phase


class Layout:
    """Makes nodes."""

    def __init__(self, seed: int, prefix: str, gpus: int, cycles: dict[tuple[Shape, int], Cycle]) -> None:
        """Take the seed, what clusters' ids begin with, GPUs of a node, and the curves by kind and variant."""
        self._seed = seed
        self._prefix = prefix
        self._gpus = gpus
        self._cycles = cycles

    def cluster_id(self, cluster: int) -> str:
        """Return a cluster's id; clusters count from 1."""
        return f"{self._prefix}-{cluster}"

    def model(self, cluster: int) -> Model:
        """Return what a cluster is made of."""
        return MODELS[(cluster - 1 + self._seed) % len(MODELS)]

    def node(self, cluster: int, number_: int) -> Node:
        """Make a node; nodes count from 1."""
        name = f"{self.cluster_id(cluster)}-n{number_:04d}"
        words = (self._seed, name)
        model = self.model(cluster)
        role = PATTERN[(number_ - 1) % len(PATTERN)]
        if role is Role.MIG and not model.geometries:
            role = Role.INFERENCE
        every = tuple(self._gpu(cluster, number_, name, role, at) for at in range(self._gpus))
        identity = Machine(
            name=name,
            machine_id=digits(32, *words, "machine-id"),
            system_uuid=uuid_of(*words, "system"),
            k8s_node_uid=uuid_of(*words, "k8s") if role in (Role.INFERENCE, Role.MIG, Role.VM) else None,
        )
        in_guests = role is Role.VM
        return Node(
            cluster=cluster,
            number=number_,
            cluster_id=self.cluster_id(cluster),
            name=name,
            role=role,
            identity=identity,
            gpus=() if in_guests else every,
            guests=_guests(name, every) if in_guests else (),
            boot_phase=number(BOOT_NS, *words, "boot"),
        )

    def _gpu(self, cluster: int, node: int, name: str, role: Role, at: int) -> Gpu:
        words = (self._seed, name, at)
        model = self.model(cluster)
        side = Side.GUEST if role is Role.VM else Side.HOST
        view = View(
            kind=ViewKind.GPU,
            side=side,
            uuid=f"GPU-{uuid_of(*words)}",
            pci_address=f"0000:{9 + at % -(-self._gpus // 2):02x}:00.0" if side is Side.GUEST else pci_address(at),
            index=at % -(-self._gpus // 2) if side is Side.GUEST else at,
        )
        parts: tuple[Part, ...] = ()
        loads: tuple[tuple[float, Work], ...] = ()
        if role is Role.MIG:
            parts = tuple(self._mig(words, name, view, slot) for slot in _geometry(model, words))
        elif role is Role.VGPU:
            parts = tuple(self._vgpu(words, name, view, model, half) for half in range(2))
        elif role is not Role.IDLE:
            loads = ((1.0, self._work(role, cluster, node, name, at)),)
        return Gpu(
            number=at,
            model=model,
            view=view,
            serial=f"165{number(10**10, *words, 'serial'):010d}",
            loads=loads or tuple((part.share, part.work) for part in parts),
            parts=parts,
            peak_watts=model.limit_watts * between(0.93, 0.99, *words, "peak"),
            ambient=between(24.0, 30.0, *words, "ambient"),
            rise=between(36.0, 44.0, *words, "rise"),
            worn=number(40, *words, "worn"),
        )

    def _work(self, role: Role, cluster: int, node: int, name: str, at: int) -> Work:
        if role is Role.TRAINING:
            return self._new(Shape.TRAINING, HolderKind.JOB, f"train-{self._group(cluster, node)}", memory=0.86)
        if role is Role.BATCH:
            return self._new(Shape.BATCH, HolderKind.JOB, f"batch-{name}-{at // 2}", memory=0.55)
        if role is Role.VM:
            guest = guest_name(name, at // -(-self._gpus // 2))
            return self._new(Shape.TRAINING, HolderKind.VM, guest, namespace="vms", lasts=True, memory=0.7)
        return self._new(Shape.INFERENCE, HolderKind.POD, f"serve-{name}-{at}", namespace="inference", memory=0.78)

    def _group(self, cluster: int, node: int) -> str:
        """Return the name of the job of a training node: neighbours work together."""
        first = node
        while first > 1 and PATTERN[(first - 2) % len(PATTERN)] is Role.TRAINING:
            first -= 1
        return f"{self.cluster_id(cluster)}-{first:04d}"

    def _mig(self, words: tuple[int | str, ...], name: str, gpu: View, slot: Slot) -> Part:
        pod = f"notebook-{name}-{gpu.index}-{slot.instance}"
        return Part(
            view=View(
                kind=ViewKind.MIG,
                side=Side.HOST,
                uuid=f"MIG-{uuid_of(*words, slot.instance)}",
                instance=f"{slot.instance}/0",
                parent=gpu.key,
            ),
            share=slot.profile.slices / 7,
            memory_bytes=slot.profile.memory_bytes,
            work=self._new(Shape.BATCH, HolderKind.POD, pod, namespace="notebooks", memory=0.6),
            slot=slot,
        )

    def _vgpu(self, words: tuple[int | str, ...], name: str, gpu: View, model: Model, half: int) -> Part:
        vm = f"{name}-desk-{gpu.index}-{half}"
        instance = 3_251_634_000 + 10 * number(1000, *words, "instance") + half
        return Part(
            view=View(
                kind=ViewKind.VGPU,
                side=Side.VGPU_HOST,
                uuid=uuid_of(*words, "vgpu", half),
                instance=str(instance),
                parent=gpu.key,
            ),
            share=0.5,
            memory_bytes=model.vgpu_bytes,
            work=self._new(Shape.INFERENCE, HolderKind.VM, vm, namespace="desks", lasts=True, memory=0.5),
            vm=uuid_of(vm),
        )

    def _new(
        self, shape: Shape, kind: HolderKind, name: str, *, namespace: str = "", lasts: bool = False, memory: float
    ) -> Work:
        words = (self._seed, shape.value, name)
        return Work(
            cycle=self._cycles[shape, number(VARIANTS, *words)],
            phase=number(DAY_NS, *words, "phase"),
            kind=kind,
            name=name,
            namespace=namespace,
            lasts=lasts,
            memory=memory * between(0.9, 1.1, *words, "memory"),
        )


def pci_address(at: int) -> str:
    """Return the address of a GPU on its host's bus."""
    return f"0000:{PCI_BUSES[at] if at < len(PCI_BUSES) else (_FURTHER + at):02x}:00.0"


def guest_name(node: str, number_: int) -> str:
    """Return the name of a virtual machine."""
    return f"{node}-vm{number_}"


def _geometry(model: Model, words: tuple[int | str, ...]) -> tuple[Slot, ...]:
    return model.geometries[number(len(model.geometries), *words, "geometry")]


def _guests(node: str, every: tuple[Gpu, ...]) -> tuple[Guest, ...]:
    half = -(-len(every) // 2)
    found = [every[at : at + half] for at in range(0, len(every), half)]
    return tuple(
        Guest(Machine(name=name, kind=MachineKind.GUEST, system_uuid=uuid_of(name), hypervisor=node), gpus)
        for name, gpus in ((guest_name(node, at), gpus) for at, gpus in enumerate(found))
    )


def share_of(kind: ViewKind) -> Share:
    """Return how whoever holds a view of this kind shares the GPU."""
    return {ViewKind.MIG: Share.MIG, ViewKind.VGPU: Share.TIMESLICE}.get(kind, Share.EXCLUSIVE)
