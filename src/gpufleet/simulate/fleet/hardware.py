"""GPU models of the fleet, from captured driver output.

Values without a capture are from data sheets and NVIDIA's documentation: idle power, the memory of the H100's MIG
devices (NVIDIA's `mig -lgip`), the names of vGPU types, the clocks of the A100.
"""

import msgspec

MIB = 1 << 20
MHZ = 1_000_000

MIG_SLICES = 7
"""Slices of a MIG-capable GPU, and thus the maximum number of its MIG devices."""


class MigProfile(msgspec.Struct, frozen=True):
    """Profile of a MIG device.

    Attributes:
        name: as `nvidia-smi -L` writes it.
        slices: sevenths of the GPU's multiprocessors.
        memory_slices: eighths of its memory, as placements count them.
        multiprocessors: number of multiprocessors.
        memory_bytes: memory of a MIG device.
        engines: copy engines, decoders and JPEG engines.
    """

    name: str
    slices: int
    memory_slices: int
    multiprocessors: int
    memory_bytes: int
    engines: tuple[int, int, int]


class MigSlot(msgspec.Struct, frozen=True):
    """Placement of a MIG device: its profile, the id of its GPU instance, its first memory slice."""

    profile: MigProfile
    instance: int
    start: int


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """GPU model.

    Attributes:
        name: as the driver reports it.
        short: class name, as used in the expected GPUs of a registration.
        architecture, compute_capability, vbios, part_number: texts of the driver.
        pci_device: PCI device id.
        memory_bytes, reserved_bytes, bar1_bytes: memory sizes.
        idle_watts, limit_watts: idle power and power limit.
        idle_hertz, busy_hertz, memory_hertz: idle and maximum clock of the multiprocessors, and memory clock.
        idle_state: P-state when idle.
        idle_pcie, pcie: PCIe generation of the link when idle and when busy.
        slowdown_celsius: temperature at which hardware slowdown starts.
        hbm: whether it has HBM, which has a temperature sensor.
        nvlink_bytes: bytes per second in one direction; 0 without NVLink.
        nvlinks: NVLinks of a GPU. All of them end at an NVSwitch.
        has_fabric: whether the driver reports the state of its NVLink fabric: from Hopper on.
        geometries: MIG partitionings; empty if unknown.
        vgpu_type, vgpu_bytes: type and memory of its vGPU instances.
    """

    name: str
    short: str
    architecture: str
    compute_capability: str
    vbios: str
    part_number: str
    pci_device: int
    memory_bytes: int
    reserved_bytes: int
    bar1_bytes: int
    idle_watts: float
    limit_watts: float
    idle_hertz: int
    busy_hertz: int
    memory_hertz: int
    idle_state: int = 0
    idle_pcie: int
    pcie: int
    slowdown_celsius: float
    hbm: bool = True
    nvlink_bytes: float
    nvlinks: int = 0
    has_fabric: bool = False
    geometries: tuple[tuple[MigSlot, ...], ...] = ()
    vgpu_type: str
    vgpu_bytes: int

    def vgpu_share(self, count: int) -> tuple[str, int]:
        """Return type and memory of one of `count` equal vGPU instances, which share all memory that is not reserved.

        The memory is a whole number of MiB. The name follows the pattern of NVIDIA's types, with the memory in GiB.
        """
        size = (self.memory_bytes - self.reserved_bytes) // count // MIB * MIB
        board, _, usual = self.vgpu_type.rpartition("-")
        return f"{board}-{round(size / (1024 * MIB))}{usual[-1]}", size


def _sevenths(names: tuple[str, str, str, str], mib: tuple[int, int, int]) -> tuple[tuple[MigSlot, ...], ...]:
    """Return MIG partitionings of a Hopper GPU; `mib` is the memory of one, two and four memory slices.

    The third is that of the captured H200. The rules are those of NVIDIA's MIG user guide (sevenths of the
    multiprocessors, eighths of the memory, 3g starts at 0 or 4, 4g at 0, 2g at 0, 2 or 4).
    """
    one, two, three, four = (
        MigProfile(name, slices, memory, units, size * MIB, (slices, slices, slices))
        for name, slices, memory, units, size in zip(
            names, (1, 2, 3, 4), (1, 2, 4, 4), (16, 32, 60, 64), (*mib, mib[2]), strict=True
        )
    )
    return (
        tuple(MigSlot(one, 7 + at, at) for at in range(7)),
        (MigSlot(three, 1, 4), MigSlot(three, 2, 0)),
        (MigSlot(three, 2, 4), MigSlot(two, 3, 0), MigSlot(one, 9, 2), MigSlot(one, 10, 3)),
        (MigSlot(two, 3, 0), MigSlot(two, 4, 2), MigSlot(two, 5, 4), MigSlot(one, 13, 6)),
        (MigSlot(four, 1, 0), MigSlot(two, 3, 4), MigSlot(one, 13, 6)),
    )


_A100_PART = MigProfile("1g.20gb", 1, 2, 14, 19_968 * MIB, (1, 1, 0))

H200 = GpuModel(
    name="NVIDIA H200",
    short="H200",
    architecture="Hopper",
    compute_capability="9.0",
    vbios="96.00.A5.00.03",
    part_number="695-2G520-0280-001",
    pci_device=0x2335,
    memory_bytes=143_771 * MIB,
    reserved_bytes=614 * MIB,
    bar1_bytes=262_144 * MIB,
    idle_watts=75.0,
    limit_watts=700.0,
    idle_hertz=345 * MHZ,
    busy_hertz=1980 * MHZ,
    memory_hertz=3201 * MHZ,
    idle_pcie=5,
    pcie=5,
    slowdown_celsius=87.0,
    nvlink_bytes=450e9,
    nvlinks=18,
    has_fabric=True,
    geometries=_sevenths(("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb"), (16_384, 33_280, 71_424)),
    vgpu_type="NVIDIA H200X-35C",
    vgpu_bytes=35_840 * MIB,
)
H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    short="H100",
    architecture="Hopper",
    compute_capability="9.0",
    vbios="96.00.99.00.01",
    part_number="692-2G520-0200-000",
    pci_device=0x2330,
    memory_bytes=81_559 * MIB,
    reserved_bytes=480 * MIB,
    bar1_bytes=131_072 * MIB,
    idle_watts=68.0,
    limit_watts=700.0,
    idle_hertz=345 * MHZ,
    busy_hertz=1980 * MHZ,
    memory_hertz=2619 * MHZ,
    idle_pcie=5,
    pcie=5,
    slowdown_celsius=87.0,
    nvlink_bytes=450e9,
    nvlinks=18,
    has_fabric=True,
    geometries=_sevenths(("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"), (9_984, 20_096, 40_448)),
    vgpu_type="NVIDIA H100XM-20C",
    vgpu_bytes=20_480 * MIB,
)
A100 = GpuModel(
    name="NVIDIA A100-SXM4-80GB",
    short="A100",
    architecture="Ampere",
    compute_capability="8.0",
    vbios="92.00.36.00.02",
    part_number="692-2G506-0212-002",
    pci_device=0x20B2,
    memory_bytes=81_920 * MIB,
    reserved_bytes=869 * MIB,
    bar1_bytes=131_072 * MIB,
    idle_watts=60.0,
    limit_watts=400.0,
    idle_hertz=210 * MHZ,
    busy_hertz=1410 * MHZ,
    memory_hertz=1593 * MHZ,
    idle_pcie=4,
    pcie=4,
    slowdown_celsius=89.0,
    nvlink_bytes=300e9,
    nvlinks=12,
    geometries=(tuple(MigSlot(_A100_PART, 3 + at, 2 * at) for at in range(4)),),
    vgpu_type="GRID A100DX-20C",
    vgpu_bytes=20_480 * MIB,
)
L40S = GpuModel(
    name="NVIDIA L40S",
    short="L40S",
    architecture="Ada",
    compute_capability="8.9",
    vbios="95.02.66.00.15",
    part_number="900-2G133-A880-000",
    pci_device=0x26B9,
    memory_bytes=46_068 * MIB,
    reserved_bytes=609 * MIB,
    bar1_bytes=65_536 * MIB,
    idle_watts=35.0,
    limit_watts=350.0,
    idle_hertz=210 * MHZ,
    busy_hertz=2520 * MHZ,
    memory_hertz=9001 * MHZ,
    idle_state=8,
    idle_pcie=1,
    pcie=4,
    slowdown_celsius=88.0,
    hbm=False,
    nvlink_bytes=0.0,
    vgpu_type="NVIDIA L40S-12Q",
    vgpu_bytes=12_288 * MIB,
)

MODELS = (H200, H100, A100, L40S)
"""Models of the clusters, in rotation."""

DRIVER = "580.105.08"
CUDA = "13.0"
