"""`nvidia-smi -q` and `nvidia-smi vgpu -q`: names and values, nested by indentation."""

import re

from gpufleet.codecs.nvidia_smi.records import (
    MAX_DEPTH,
    MAX_DEVICES,
    MAX_PARTS,
    MAX_VALUE,
    Building,
    Leaves,
    Log,
    add_part,
)
from gpufleet.codecs.nvidia_smi.values import Messages, slug, split_lines
from gpufleet.model.errors import WireError, WireLimitError

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*")
_BANNER = re.compile(r"=+ ?NVSMI (?:vGPU )?LOG ?=+", re.IGNORECASE)


def parse_text(content: bytes) -> Log:
    """Read an output. Lines before its first device that are no pairs of name and value are messages.

    Of an output that was cut off, what is there counts: a value that was not printed is nowhere in the records.

    Raises:
        WireLimitError: if it is too long, too deep, or has too many devices or values.
        WireError: if no line of it begins a GPU.
    """
    reading = _Reading()
    lines = split_lines(content, "-q")
    torn = False
    if lines[-1].strip():
        reading.messages.add(f"the output ends within a line, which is not read: {lines.pop()}")
        torn = True
    for line in lines:
        if reading.devices and _BANNER.fullmatch(line.strip()):  # of `--loop`: another instant
            reading.messages.add("another output follows the first one, and is not read")
            break
        reading.take(line[: 2 * MAX_VALUE].rstrip().expandtabs(4))
    else:
        if torn and reading.devices:
            reading.devices[-1].processes.clear()  # there may be more of them
    if not reading.devices:
        raise WireError("-q", "no line of it begins a GPU, such as `GPU 00000000:1B:00.0`")
    return Log(
        leaves=reading.leaves.found,
        devices=tuple(device.record() for device in reading.devices),
        messages=reading.messages.told(),
    )


class _Reading:
    """Where in an output it is: the names above the line, by how far they are indented."""

    def __init__(self) -> None:
        self.leaves = Leaves()
        self.devices: list[Building] = []
        self.messages = Messages()
        self._above: list[tuple[int, str]] = []
        self._device: Building | None = None
        self._part: Building | None = None
        self._process: Leaves | None = None

    def take(self, line: str) -> None:
        """Take in the next line."""
        name = line.strip()
        if not name or _BANNER.fullmatch(name):
            return
        if (gpu := _GPU.fullmatch(line)) is not None:
            if len(self.devices) == MAX_DEVICES:
                raise WireLimitError("-q", f"more than {MAX_DEVICES} GPUs")
            self._device = Building(gpu[1])
            self.devices.append(self._device)
            self._part = self._process = None
            self._above = []
            return
        indent = len(line) - len(line.lstrip())
        pair = _pair(name)
        if self._device is None:
            self._take_head(indent, name, pair)
        else:
            self._take_value(self._device, indent, name, pair)

    def _take_head(self, indent: int, name: str, pair: tuple[str, str] | None) -> None:
        if pair is None or indent or not slug(pair[0]):
            self.messages.add(name)
        else:
            self.leaves.put(slug(pair[0]), pair[1])

    def _take_value(self, device: Building, indent: int, name: str, pair: tuple[str, str] | None) -> None:
        while self._above and self._above[-1][0] >= indent:
            self._above.pop()
        key = slug(pair[0] if pair is not None else name) or "_"
        if indent == 0 or (not self._above and pair is None and not _looks_like_heading(name)):
            self.messages.add(name)  # the driver's words between two devices
            return
        if not self._above:
            self._part = self._process = None
            if key == "mig_device" and pair is None:
                self._part = add_part(device.mig, str(len(device.mig)))
            elif key == "vgpu_id" and pair is not None:
                self._part = add_part(device.vgpus, pair[1])
        path = [above for _, above in self._above] + [key]
        if len(path) > MAX_DEPTH:
            raise WireLimitError("-q", f"deeper than {MAX_DEPTH} levels")
        self._above.append((indent, key))
        if pair is not None:
            self._put(device, path, pair[1])

    def _put(self, device: Building, path: list[str], value: str) -> None:
        if self._part is not None:
            self._part.leaves.put("/".join(path[1:] or path), value)
        elif path[0] == "processes" and len(path) > 1:
            self._put_process(device, path[-1], value)
        else:
            device.leaves.put("/".join(path), value)

    def _put_process(self, device: Building, name: str, value: str) -> None:
        """Add to the last process; a name that it has already begins the next one."""
        if self._process is None or name in self._process.found:
            if len(device.processes) == MAX_PARTS:
                raise WireLimitError("-q", f"more than {MAX_PARTS} processes of one GPU")
            self._process = Leaves()
            device.processes.append(self._process)
        self._process.put(name, value)


def _pair(line: str) -> tuple[str, str] | None:
    """Split `Name      : value`; the value may be empty, and may hold colons itself."""
    name, colon, value = line.partition(" : ")
    if not colon:
        if not line.endswith(" :"):
            return None
        name, value = line[:-2], ""
    return name.strip(), value.strip()


def _looks_like_heading(name: str) -> bool:
    return len(name) <= 60 and not name.endswith((".", "!")) and ":" not in name
