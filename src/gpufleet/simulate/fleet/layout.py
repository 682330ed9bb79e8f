"""Layout of the fleet, a function of the seed: nodes, GPUs, their partitioning, and the workloads on them."""

import enum

import msgspec

from gpufleet.model.holdings import Holder, HolderKind, Owner, Share
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.simulate.fleet.cycles import DAY_NS, LoadCycle, LoadShape
from gpufleet.simulate.fleet.hardware import MODELS, GpuModel, MigSlot
from gpufleet.simulate.fleet.random_values import between, digits, number, uuid_of

VARIANTS = 4
"""Number of load curves per shape."""

BOOT_NS = 90 * DAY_NS
"""Interval between two boots of a node, each node on a day of its own: boots are thus a function of the instant."""


USERS = ("ada", "alan", "barbara", "edsger", "grace", "katherine", "ken", "margaret")
"""Users of jobs."""

ACCOUNTS = ("language", "vision", "robotics")
"""Accounts of jobs; each user has one."""

DEPLOYMENT = "Deployment"


class NodeRole(enum.StrEnum):
    """Role of a node."""

    TRAINING = "training"  # a SLURM job over neighbouring nodes holds all of its GPUs
    INFERENCE = "inference"  # a pod holds each GPU
    BATCH = "batch"  # SLURM jobs of two GPUs
    MIG = "mig"  # GPUs are partitioned, a pod holds each MIG device
    VM = "vm"  # GPUs are passed through to two virtual machines, which are read from inside
    VGPU = "vgpu"  # GPUs are shared as vGPUs, two per GPU
    IDLE = "idle"  # no holder


PATTERN = (
    *(
        NodeRole.TRAINING,
        NodeRole.TRAINING,
        NodeRole.INFERENCE,
        NodeRole.MIG,
        NodeRole.VM,
        NodeRole.VGPU,
        NodeRole.BATCH,
        NodeRole.IDLE,
    ),
    *(
        NodeRole.INFERENCE,
        NodeRole.TRAINING,
        NodeRole.TRAINING,
        NodeRole.TRAINING,
        NodeRole.TRAINING,
        NodeRole.BATCH,
        NodeRole.INFERENCE,
    ),
    *(NodeRole.MIG, NodeRole.TRAINING, NodeRole.TRAINING, NodeRole.INFERENCE, NodeRole.TRAINING),
)
"""Roles of a cluster's nodes, repeated; the first eight cover every role."""

VGPUS = 2
"""vGPU instances per GPU in the role VGPU."""

PCI_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""PCI buses of the GPUs on an eight-GPU board; further GPUs follow from `_FURTHER` on."""

_FURTHER = 0x20


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Workload of a device: a sequence of jobs.

    Attributes:
        cycle: its load curve.
        phase: nanoseconds by which its day is shifted.
        kind: kind of the holder.
        namespace: namespace of the holder, if it has one.
        controller: kind of a pod's controller.
        queue: queue of a job.
        name: name of the holder, without the suffix of the job.
        is_permanent: whether a single holder (a virtual machine) has the device, instead of one per job.
        memory: share of the device's memory that it uses.
    """

    cycle: LoadCycle
    phase: int
    kind: HolderKind
    name: str
    namespace: str = ""
    controller: str = ""
    queue: str = ""
    is_permanent: bool = False
    memory: float

    def day(self, at: int) -> tuple[int, float]:
        """Return the number of its day and the second of that day."""
        days, left = divmod(at + self.phase, DAY_NS)
        return days, left / 1e9

    def done_by(self, at: int) -> float:
        """Return load-seconds since 1970."""
        days, second = self.day(at)
        return days * self.cycle.done[-1] + self.cycle.done_by(second)

    def job(self, at: int) -> tuple[int, int]:
        """Return the day and the index of the job in it, which identify the job; the index is -1 between jobs."""
        if self.is_permanent:
            return (at + self.phase) // BOOT_NS, 0
        days, second = self.day(at)
        return days, self.cycle.span_at(second)

    def holder(self, at: int) -> tuple[Holder, int, int] | None:
        """Return the holder of the device with the start and end of its holding, or None if there is none."""
        days, span = self.job(at)
        if self.is_permanent:
            since = days * BOOT_NS - self.phase
            one = Holder(kind=self.kind, id=uuid_of(self.name), name=self.name, namespace=self.namespace)
            return one, since, since + BOOT_NS
        if span < 0:
            return None
        since, until = (days * DAY_NS + second * 10**9 - self.phase for second in self.cycle.spans[span])
        key = (self.name, days, span)
        return (self._job(key) if self.kind is HolderKind.JOB else self._pod(key)), since, until

    def _job(self, key: tuple[str, int, int]) -> Holder:
        user = USERS[number(len(USERS), *key, "user")]
        return Holder(
            kind=self.kind,
            id=str(100_000 + number(900_000, *key)),
            name=self.name,
            user=user,
            account=ACCOUNTS[USERS.index(user) % len(ACCOUNTS)],
            queue=self.queue,
            qos="normal",
        )

    def _pod(self, key: tuple[str, int, int]) -> Holder:
        owners = [Owner(kind=self.controller, name=self.name, uid=uuid_of(self.name, self.controller))]
        if self.controller == DEPLOYMENT:
            replicas = f"{self.name}-{digits(10, self.name, key[1])}"
            owners.insert(0, Owner(kind="ReplicaSet", name=replicas, uid=uuid_of(replicas)))
        return Holder(
            kind=self.kind,
            id=uuid_of(*key),
            name=f"{self.name}-{digits(5, *key)}",
            namespace=self.namespace,
            owners=tuple([msgspec.structs.replace(owner, api_version="apps/v1") for owner in owners]),
            labels={"app.kubernetes.io/name": self.namespace},
        )


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """MIG device, or vGPU instance as its host sees it.

    Attributes:
        view: its view.
        share: of its GPU's multiprocessors, or of its time.
        memory_bytes: its memory.
        work: its workload.
        slot: placement of a MIG device.
        vm: UUID of the virtual machine that has the vGPU.
        vgpu_type: type of the vGPU.
    """

    view: View
    share: float
    memory_bytes: int
    work: Workload
    slot: MigSlot | None = None
    vm: str = ""
    vgpu_type: str = ""


class FleetGpu(msgspec.Struct, frozen=True, kw_only=True):
    """Physical GPU.

    Attributes:
        number: position in its node.
        model: its model.
        view: as its machine's driver shows it.
        serial: of the board.
        loads: (share of the GPU, workload) of each workload.
        parts: its MIG devices or vGPU instances.
        peak_watts: power at full load.
        ambient: temperature without power, celsius.
        rise: temperature rise at full load, celsius.
        worn: corrected ECC errors of its lifetime before the simulation.
    """

    number: int
    model: GpuModel
    view: View
    serial: str
    loads: tuple[tuple[float, Workload], ...]
    parts: tuple[GpuPart, ...] = ()
    peak_watts: float
    ambient: float
    rise: float
    worn: int


class FleetGuest(msgspec.Struct, frozen=True):
    """Virtual machine with some of a node's GPUs; `expected_gpus` is their number by its configuration."""

    machine: Machine
    gpus: tuple[FleetGpu, ...]
    expected_gpus: int


class FleetNode(msgspec.Struct, frozen=True, kw_only=True):
    """Node of the fleet.

    Attributes:
        cluster, number: position; both count from 1.
        cluster_id: id of its cluster.
        name: its host name.
        role: its role.
        identity: identity evidence, without boot id.
        gpus: GPUs that its driver shows; none if they are passed through to guests.
        guests: its virtual machines.
        unlisted: GPUs that its driver should show, and does not.
        boot_phase: nanoseconds by which its boots are shifted.
    """

    cluster: int
    number: int
    cluster_id: str
    name: str
    role: NodeRole
    identity: Machine
    gpus: tuple[FleetGpu, ...]
    guests: tuple[FleetGuest, ...] = ()
    unlisted: tuple[FleetGpu, ...] = ()
    boot_phase: int

    @property
    def is_passthrough(self) -> bool:
        """Whether its GPUs are bound to vfio-pci."""
        return self.role is NodeRole.VM

    @property
    def all_gpus(self) -> tuple[FleetGpu, ...]:
        """All GPUs that a driver shows, including those of its guests."""
        return self.gpus or tuple(gpu for guest in self.guests for gpu in guest.gpus)

    def booted_at(self, at: int) -> int:
        """Return its last boot before an instant, in nanoseconds since 1970."""
        return (at + self.boot_phase) // BOOT_NS * BOOT_NS - self.boot_phase


class FleetLayout:
    """Creates nodes."""

    def __init__(
        self,
        seed: int,
        prefix: str,
        gpus: int,
        cycles: dict[tuple[LoadShape, int], LoadCycle],
        roles: tuple[NodeRole, ...] = (),
        vgpus: int = 0,
    ) -> None:
        """Take the seed, the prefix of cluster ids, the GPUs per node, and the load curves by shape and variant.

        Args:
            seed, prefix, gpus, cycles: as above.
            roles: role of each GPU of every node; empty means that all GPUs have the role of their node by `PATTERN`.
            vgpus: equal vGPU instances that share a GPU's memory; 0 means two of the model's usual type.
        """
        self._seed = seed
        self._prefix = prefix
        self._gpus = gpus
        self._cycles = cycles
        self._roles = roles
        self._vgpus = vgpus

    def cluster_id(self, cluster: int) -> str:
        """Return a cluster's id; clusters count from 1."""
        return f"{self._prefix}-{cluster}"

    def model(self, cluster: int) -> GpuModel:
        """Return the GPU model of a cluster."""
        return MODELS[(cluster - 1 + self._seed) % len(MODELS)]

    def node(self, cluster: int, number_: int) -> FleetNode:
        """Create a node; nodes count from 1."""
        name = f"{self.cluster_id(cluster)}-n{number_:04d}"
        key = (self._seed, name)
        model = self.model(cluster)
        roles = self._roles or (PATTERN[(number_ - 1) % len(PATTERN)],) * self._gpus
        if not model.geometries:
            roles = tuple(NodeRole.INFERENCE if one is NodeRole.MIG else one for one in roles)
        role = roles[-1]
        every = tuple(self._gpu(cluster, number_, name, roles[at], at) for at in range(self._gpus))
        in_kubernetes = role in (NodeRole.INFERENCE, NodeRole.MIG, NodeRole.VM)
        identity = Machine(
            name=name,
            machine_id=digits(32, *key, "machine-id"),
            system_uuid=uuid_of(*key, "system"),
            k8s_node_uid=uuid_of(*key, "k8s") if in_kubernetes else None,
            k8s_node_name=name if in_kubernetes else None,
        )
        in_guests = role is NodeRole.VM
        return FleetNode(
            cluster=cluster,
            number=number_,
            cluster_id=self.cluster_id(cluster),
            name=name,
            role=role,
            identity=identity,
            gpus=() if in_guests else every,
            guests=_guests(name, every) if in_guests else (),
            boot_phase=number(BOOT_NS, *key, "boot"),
        )

    def _gpu(self, cluster: int, node: int, name: str, role: NodeRole, at: int) -> FleetGpu:
        key = (self._seed, name, at)
        model = self.model(cluster)
        side = Side.GUEST if role is NodeRole.VM else Side.HOST
        view = View(
            kind=ViewKind.GPU,
            side=side,
            uuid=f"GPU-{uuid_of(*key)}",
            pci_address=f"0000:{9 + at % -(-self._gpus // 2):02x}:00.0" if side is Side.GUEST else pci_address(at),
            index=at % -(-self._gpus // 2) if side is Side.GUEST else at,
        )
        parts: tuple[GpuPart, ...] = ()
        loads: tuple[tuple[float, Workload], ...] = ()
        if role is NodeRole.MIG:
            geometry = _geometry(model, (self._seed, self.cluster_id(cluster)))
            parts = tuple(self._mig(key, name, view, slot) for slot in geometry)
        elif role is NodeRole.VGPU:
            parts = tuple(self._vgpu(key, name, view, model, place) for place in range(self._vgpus or VGPUS))
        elif role is not NodeRole.IDLE:
            loads = ((1.0, self._work(role, cluster, node, name, at)),)
        return FleetGpu(
            number=at,
            model=model,
            view=view,
            serial=f"165{number(10**10, *key, 'serial'):010d}",
            loads=loads or tuple((part.share, part.work) for part in parts),
            parts=parts,
            peak_watts=model.limit_watts * between(0.93, 0.99, *key, "peak"),
            ambient=between(24.0, 30.0, *key, "ambient"),
            rise=between(36.0, 44.0, *key, "rise"),
            worn=number(40, *key, "worn"),
        )

    def _work(self, role: NodeRole, cluster: int, node: int, name: str, at: int) -> Workload:
        if role is NodeRole.TRAINING:
            job = f"train-{self._group(cluster, node)}"
            return self._new(LoadShape.TRAINING, HolderKind.JOB, job, queue="train", memory=0.86)
        if role is NodeRole.BATCH:
            return self._new(LoadShape.BATCH, HolderKind.JOB, f"batch-{name}-{at // 2}", queue="batch", memory=0.55)
        if role is NodeRole.VM:
            guest = guest_name(name, at // -(-self._gpus // 2))
            return self._new(LoadShape.INFERENCE, HolderKind.VM, guest, namespace="vms", is_permanent=True, memory=0.7)
        pod, team = f"serve-{name}-{at}", "inference"
        return self._new(LoadShape.INFERENCE, HolderKind.POD, pod, namespace=team, controller=DEPLOYMENT, memory=0.78)

    def _group(self, cluster: int, node: int) -> str:
        """Return the job name of a training node: adjacent training nodes run the same job."""
        first = node
        while first > 1 and PATTERN[(first - 2) % len(PATTERN)] is NodeRole.TRAINING:
            first -= 1
        return f"{self.cluster_id(cluster)}-{first:04d}"

    def _mig(self, key: tuple[int | str, ...], name: str, gpu: View, slot: MigSlot) -> GpuPart:
        pod = f"notebook-{name}-{gpu.index}-{slot.instance}"
        return GpuPart(
            view=View(
                kind=ViewKind.MIG,
                side=Side.HOST,
                uuid=f"MIG-{uuid_of(*key, slot.instance)}",
                instance=f"{slot.instance}/0",
                parent=gpu.key,
            ),
            share=slot.profile.slices / 7,
            memory_bytes=slot.profile.memory_bytes,
            work=self._new(
                LoadShape.BATCH, HolderKind.POD, pod, namespace="notebooks", controller="StatefulSet", memory=0.6
            ),
            slot=slot,
        )

    def _vgpu(self, key: tuple[int | str, ...], name: str, gpu: View, model: GpuModel, place: int) -> GpuPart:
        vm, count = f"{name}-desk-{gpu.index}-{place}", self._vgpus or VGPUS
        instance = 3_251_634_000 + max(10, count) * number(1000, *key, "instance") + place
        vgpu_type, memory_bytes = model.vgpu_share(self._vgpus) if self._vgpus else (model.vgpu_type, model.vgpu_bytes)
        return GpuPart(
            view=View(
                kind=ViewKind.VGPU,
                side=Side.VGPU_HOST,
                uuid=uuid_of(*key, "vgpu", place),
                instance=str(instance),
                parent=gpu.key,
            ),
            share=1 / count,
            memory_bytes=memory_bytes,
            work=self._new(LoadShape.INFERENCE, HolderKind.VM, vm, namespace="desks", is_permanent=True, memory=0.5),
            vm=uuid_of(vm),
            vgpu_type=vgpu_type,
        )

    def _new(
        self,
        shape: LoadShape,
        kind: HolderKind,
        name: str,
        *,
        namespace: str = "",
        controller: str = "",
        queue: str = "",
        is_permanent: bool = False,
        memory: float,
    ) -> Workload:
        key = (self._seed, shape.value, name)
        return Workload(
            cycle=self._cycles[shape, number(VARIANTS, *key)],
            phase=number(DAY_NS, *key, "phase"),
            kind=kind,
            name=name,
            namespace=namespace,
            controller=controller,
            queue=queue,
            is_permanent=is_permanent,
            memory=memory * between(0.9, 1.1, *key, "memory"),
        )


def pci_address(at: int) -> str:
    """Return the PCI address of a GPU on its host."""
    return f"0000:{PCI_BUSES[at] if at < len(PCI_BUSES) else (_FURTHER + at):02x}:00.0"


def host_view(node: FleetNode, gpu: FleetGpu) -> View:
    """Return a GPU as its host shows it: by PCI address only if it is bound to vfio-pci."""
    if not node.is_passthrough:
        return gpu.view
    return View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=pci_address(gpu.number))


def guest_name(node: str, number_: int) -> str:
    """Return the name of a virtual machine."""
    return f"{node}-vm{number_}"


def _geometry(model: GpuModel, key: tuple[int | str, ...]) -> tuple[MigSlot, ...]:
    """Return the MIG partitioning for a key: the same for all GPUs of a cluster, as in an administered pool."""
    return model.geometries[number(len(model.geometries), *key, "geometry")]


def _guests(node: str, every: tuple[FleetGpu, ...]) -> tuple[FleetGuest, ...]:
    half = -(-len(every) // 2)
    found = [every[at : at + half] for at in range(0, len(every), half)]
    return tuple(
        FleetGuest(_guest_machine(guest_name(node, at), node), gpus, len(gpus)) for at, gpus in enumerate(found)
    )


def _guest_machine(name: str, node: str) -> Machine:
    return Machine(name=name, kind=MachineKind.GUEST, system_uuid=uuid_of(name), hypervisor=node)


def sharing_of(kind: ViewKind) -> Share:
    """Return how the holder of a view of this kind shares the GPU."""
    return {ViewKind.MIG: Share.MIG, ViewKind.VGPU: Share.VGPU}.get(kind, Share.EXCLUSIVE)
