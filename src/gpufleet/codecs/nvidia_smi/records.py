"""What every format of nvidia-smi comes to: devices with named texts, as they were printed."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.errors import WireLimitError

MAX_BYTES = 8 << 20
"""Output that is longer is refused: eight GPUs print 0.4 MB of XML."""

MAX_LINES = 50_000
"""Lines, or elements of XML, of one output: eight GPUs print 4,300. A hostile one is read in a second."""

MAX_DEVICES = 256
MAX_PARTS = 1024
"""MIG devices, vGPU instances or processes of one device."""

MAX_LEAVES = 20_000
"""Named texts of one device."""

MAX_DEPTH = 16
MAX_VALUE = 1024
"""Letters of one text that are kept."""


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One device, as it was printed.

    Attributes:
        name: how the output introduces it: the bus id of a GPU, the index of a MIG device, the id of a vGPU instance.
        leaves: path to text, of XML and `-q`: `fb_memory_usage/total` to `81559 MiB`. Names are lower case with
            underscores in both, so most paths are the same; a path that comes again has `[1]`, `[2]` behind it.
        fields: `--query-gpu` name to text, of CSV.
        mig, vgpus: devices cut from it.
        processes: what uses it, each as name to text; None where the output lists none, for the leaf `processes`
            to say why.
    """

    name: str
    leaves: dict[str, str] = {}
    fields: dict[str, str] = {}
    mig: "tuple[DeviceRecord, ...]" = ()
    vgpus: "tuple[DeviceRecord, ...]" = ()
    processes: tuple[dict[str, str], ...] | None = None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """One whole output.

    Attributes:
        leaves: what is told of the machine, by path.
        devices: its GPUs, in the order of the output.
        messages: lines that belong to no device: the driver's words about what went wrong.
    """

    leaves: dict[str, str]
    devices: tuple[DeviceRecord, ...]
    messages: tuple[str, ...] = ()


class Leaves:
    """Collects named texts of one device, within bounds."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._repeats: dict[str, int] = {}

    def put(self, path: str, text: str) -> None:
        """Add one; a path that is taken is numbered.

        Raises:
            WireLimitError: past `MAX_LEAVES`.
        """
        if len(self.found) >= MAX_LEAVES:
            raise WireLimitError(path[:80], f"more than {MAX_LEAVES} values of one device")
        key = path
        if path in self.found:
            self._repeats[path] = self._repeats.get(path, 0) + 1
            key = f"{path}[{self._repeats[path]}]"
        self.found[key] = text[:MAX_VALUE]


class Building:
    """A device whose output is still being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaves = Leaves()
        self.mig: list[Building] = []
        self.vgpus: list[Building] = []
        self.processes: list[Leaves] = []

    def record(self) -> DeviceRecord:
        """Return what was read."""
        return DeviceRecord(
            name=self.name,
            leaves=self.leaves.found,
            mig=tuple(one.record() for one in self.mig),
            vgpus=tuple(one.record() for one in self.vgpus),
            processes=tuple(one.found for one in self.processes) or None,
        )


def add_part(parts: list[Building], name: str) -> Building:
    """Begin another device of a list. Raises WireLimitError past `MAX_PARTS`."""
    if len(parts) >= MAX_PARTS:
        raise WireLimitError(name[:80], f"more than {MAX_PARTS} parts of one device")
    parts.append(Building(name))
    return parts[-1]


def lookup(leaves: Mapping[str, str], path: str) -> str | None:
    """Return the text at a path, or at the container that stands in its place: `remapped_rows` may just say `N/A`."""
    while path:
        if path in leaves:
            return leaves[path]
        path = path.rpartition("/")[0]
    return None


def merge(records: Iterable[DeviceRecord]) -> DeviceRecord:
    """Join several outputs about one device into one record; what comes later replaces what came before."""
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
        raise ValueError("nothing to join")
    return DeviceRecord(name=last.name, leaves=leaves, fields=fields, mig=mig, vgpus=vgpus, processes=processes)
