"""Records of all formats of nvidia-smi: devices with named texts as printed."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.errors import WireLimitError

MAX_BYTES = 8 << 20
"""Maximum size of an output; eight GPUs print 0.4 MB of XML."""

MAX_LINES = 50_000
"""Maximum lines or XML elements of an output: eight GPUs print 4,300. Hostile output of this size parses in 1 s."""

MAX_ROUNDS = 4096
"""Maximum number of outputs of `-q` in one file; one of a single GPU and section has about 25 lines."""

MAX_DEVICES = 256
MAX_PARTS = 1024
"""Maximum number of MIG devices, vGPU instances or processes of one device."""

MAX_LEAVES = 20_000
"""Maximum number of named texts of one device."""

MAX_DEPTH = 16
MAX_VALUE = 1024
"""Maximum length of a text; the rest is cut off."""


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Device as printed.

    Attributes:
        name: identifier in the output: the bus id of a GPU, the index of a MIG device, the id of a vGPU instance.
        leaves: path to text in XML and `-q`: `fb_memory_usage/total` to `81559 MiB`. Names are lower case with
            underscores in both, so most paths are the same; a repeated path has the suffix `[1]`, `[2]`.
        fields: `--query-gpu` name to text in CSV.
        mig, vgpus: its MIG devices and vGPU instances.
        processes: processes, each as name to text; None if the output lists none; the leaf `processes` then has
            the cause.
    """

    name: str
    leaves: dict[str, str] = {}
    fields: dict[str, str] = {}
    mig: "tuple[DeviceRecord, ...]" = ()
    vgpus: "tuple[DeviceRecord, ...]" = ()
    processes: tuple[dict[str, str], ...] | None = None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed output.

    Attributes:
        leaves: texts of the machine by path.
        devices: GPUs in the order of the output.
        messages: lines outside of devices: error messages of the driver.
    """

    leaves: dict[str, str]
    devices: tuple[DeviceRecord, ...]
    messages: tuple[str, ...] = ()


class NamedTexts:
    """Bounded collection of named texts of one device."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._repeats: dict[str, int] = {}

    def put(self, path: str, text: str) -> None:
        """Add a text; a repeated path gets a number.

        Raises:
            WireLimitError: if there are more than `MAX_LEAVES`.
        """
        if len(self.found) >= MAX_LEAVES:
            raise WireLimitError(path[:80], f"more than {MAX_LEAVES} values of one device")
        key = path
        if path in self.found:
            self._repeats[path] = self._repeats.get(path, 0) + 1
            key = f"{path}[{self._repeats[path]}]"
        self.found[key] = text[:MAX_VALUE]


class DeviceBuilder:
    """Builder of a `DeviceRecord` during parsing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaves = NamedTexts()
        self.mig: list[DeviceBuilder] = []
        self.vgpus: list[DeviceBuilder] = []
        self.processes: list[NamedTexts] = []

    def record(self) -> DeviceRecord:
        """Return the record."""
        return DeviceRecord(
            name=self.name,
            leaves=self.leaves.found,
            mig=tuple(one.record() for one in self.mig),
            vgpus=tuple(one.record() for one in self.vgpus),
            processes=tuple(one.found for one in self.processes) or None,
        )


def add_part(parts: list[DeviceBuilder], name: str) -> DeviceBuilder:
    """Append a device to a list. Raises WireLimitError if there are more than `MAX_PARTS`."""
    if len(parts) >= MAX_PARTS:
        raise WireLimitError(name[:80], f"more than {MAX_PARTS} parts of one device")
    parts.append(DeviceBuilder(name))
    return parts[-1]


def lookup(leaves: Mapping[str, str], path: str) -> str | None:
    """Return the text at a path or its nearest ancestor: `remapped_rows` may be `N/A` instead of a container."""
    while path:
        if path in leaves:
            return leaves[path]
        path = path.rpartition("/")[0]
    return None


def merge(records: Iterable[DeviceRecord]) -> DeviceRecord:
    """Merge records of one device; later values replace earlier ones."""
    leaves: dict[str, str] = {}
    fields: dict[str, str] = {}
    last: DeviceRecord | None = None
    mig: tuple[DeviceRecord, ...] = ()
    vgpus: tuple[DeviceRecord, ...] = ()
    processes: tuple[dict[str, str], ...] | None = None
    for record in records:
        last = record
        leaves |= record.leaves
        fields |= record.fields
        mig, vgpus = record.mig or mig, record.vgpus or vgpus
        processes = record.processes or processes
    if last is None:
        raise ValueError("no records to merge")
    return DeviceRecord(name=last.name, leaves=leaves, fields=fields, mig=mig, vgpus=vgpus, processes=processes)
