"""GPUs that the fleet is made of: what captured outputs of their drivers say of them.

What no capture shows is from data sheets and NVIDIA's documentation: what they draw at rest, the memory of the H100's
MIG devices (NVIDIA's `mig -lgip`), the names of vGPU types, the clocks of the A100.
"""

import msgspec

MIB = 1 << 20
MHZ = 1_000_000

MIG_SLICES = 7
"""Slices of a GPU that can be cut, and so most MIG devices of it."""


class MigProfile(msgspec.Struct, frozen=True):
    """One size of MIG device.

    Attributes:
        name: as `nvidia-smi -L` writes it.
        slices: sevenths of the GPU's multiprocessors.
        memory_slices: eighths of its memory, as placements count them.
        multiprocessors: how many it has.
        memory_bytes: what a MIG device of it has.
        engines: copy engines, decoders and JPEG engines.
    """

    name: str
    slices: int
    memory_slices: int
    multiprocessors: int
    memory_bytes: int
    engines: tuple[int, int, int]


class Slot(msgspec.Struct, frozen=True):
    """Where a MIG device is in its GPU: its profile, the id of its GPU instance, its first memory slice."""

    profile: MigProfile
    instance: int
    start: int


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One product.

    Attributes:
        name: as the driver says it.
        short: the class of it that a registration expects so many of.
        architecture, compute_capability, vbios, part_number: texts of the driver.
        pci_device: PCI device number.
        memory_bytes, reserved_bytes, bar1_bytes: of its memory.
        idle_watts, limit_watts: what it draws at rest, and may draw.
        idle_hertz, busy_hertz, memory_hertz: clocks of the multiprocessors at rest and at most, and of the memory.
        idle_state: P-state at rest.
        idle_pcie, pcie: PCIe generation of the link at rest and at work.
        slowdown_celsius: from here on the hardware slows itself down.
        hbm: whether its memory is HBM, which has a sensor.
        nvlink_bytes: bytes a second in one direction; 0 without NVLink.
        geometries: ways to cut it into MIG devices; none where they are not known.
        vgpu_type, vgpu_bytes: the vGPU that its host hands out, and its memory.
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
    geometries: tuple[tuple[Slot, ...], ...] = ()
    vgpu_type: str
    vgpu_bytes: int


def _sevenths(names: tuple[str, str, str, str], mib: tuple[int, int, int]) -> tuple[tuple[Slot, ...], ...]:
    """Return geometries of a Hopper GPU; `mib` is the memory of one, two and four memory slices.

    The third is that of the captured H200; the rules are those of NVIDIA's MIG user guide (sevenths of the
    multiprocessors, eighths of the memory, 3g starts at 0 or 4, 4g at 0, 2g at 0, 2 or 4).
    """
    one, two, three, four = (
        MigProfile(name, slices, memory, units, size * MIB, (slices, slices, slices))
        for name, slices, memory, units, size in zip(
            names, (1, 2, 3, 4), (1, 2, 4, 4), (16, 32, 60, 64), (*mib, mib[2]), strict=True
        )
    )
    return (
        tuple(Slot(one, 7 + at, at) for at in range(7)),
        (Slot(three, 1, 4), Slot(three, 2, 0)),
        (Slot(three, 2, 4), Slot(two, 3, 0), Slot(one, 9, 2), Slot(one, 10, 3)),
        (Slot(two, 3, 0), Slot(two, 4, 2), Slot(two, 5, 4), Slot(one, 13, 6)),
        (Slot(four, 1, 0), Slot(two, 3, 4), Slot(one, 13, 6)),
    )


_A100_PART = MigProfile("1g.20gb", 1, 2, 14, 19_968 * MIB, (1, 1, 0))

H200 = Model(
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
    geometries=_sevenths(("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb"), (16_384, 33_280, 71_424)),
    vgpu_type="NVIDIA H200X-35C",
    vgpu_bytes=35_840 * MIB,
)
H100 = Model(
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
    geometries=_sevenths(("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"), (9_984, 20_096, 40_448)),
    vgpu_type="NVIDIA H100XM-20C",
    vgpu_bytes=20_480 * MIB,
)
A100 = Model(
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
    geometries=(tuple(Slot(_A100_PART, 3 + at, 2 * at) for at in range(4)),),
    vgpu_type="GRID A100DX-20C",
    vgpu_bytes=20_480 * MIB,
)
L40S = Model(
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
"""The classes that clusters are made of, in turn."""

DRIVER = "580.105.08"
CUDA = "13.0"
