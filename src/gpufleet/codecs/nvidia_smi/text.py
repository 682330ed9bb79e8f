"""Parser of `nvidia-smi -q` and `nvidia-smi vgpu -q`: names and values, nested by indentation."""

import re

from gpufleet.codecs.nvidia_smi.failure import named_device
from gpufleet.codecs.nvidia_smi.records import (
    MAX_DEPTH,
    MAX_DEVICES,
    MAX_PARTS,
    MAX_ROUNDS,
    MAX_VALUE,
    DeviceBuilder,
    Log,
    NamedTexts,
    add_part,
)
from gpufleet.codecs.nvidia_smi.values import OutputMessages, slug, split_lines
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.view import normalise_pci_address

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*")
_BANNER = re.compile(r"=+ ?NVSMI (?:vGPU )?LOG ?=+", re.IGNORECASE)


def parse_text(content: bytes) -> Log:
    """Parse an output. Lines before the first device that are not name-value pairs are messages.

    A truncated output yields the values that it has.

    Raises:
        WireLimitError: if it is too long, too deep, or has too many devices or values.
        WireError: if it has no GPU.
    """
    reading = _TextReader()
    lines = split_lines(content, "-q")
    torn = False
    if lines[-1].strip():
        reading.messages.add(f"the output is truncated within a line, which is ignored: {lines.pop()}")
        torn = True
    for line in lines:
        if reading.devices and _BANNER.fullmatch(line.strip()):  # output of another command
            reading.messages.add("the file has several outputs; only the first is used")
            break
        reading.take(line[: 2 * MAX_VALUE].rstrip().expandtabs(4))
    else:
        if torn and reading.devices:
            reading.devices[-1].processes.clear()  # the list may be incomplete
    if not reading.devices:
        raise WireError("-q", "no GPU section, such as `GPU 00000000:1B:00.0`")
    return Log(
        leaves=reading.leaves.found,
        devices=tuple(device.record() for device in reading.devices),
        messages=reading.messages.lines(),
    )


def split_text_rounds(content: bytes) -> list[bytes]:
    """Split an output into rounds: those of `--loop`, or of appended outputs of one command.

    After the first GPU of a round, a banner or a message about a GPU that the round already has starts the next one.
    If a later round is truncated within a line, its last GPU is left out: the GPU is complete in the round before.

    Raises:
        WireLimitError: if it is too long or has too many rounds.
    """
    rounds: list[list[str]] = [[]]
    banner = ""
    seen: set[str] = set()
    last = 0  # position of the last GPU in the round, from 1; 0 if none
    for line in split_lines(content, "-q"):
        gpu = _GPU.fullmatch(line)
        named = named_device(line) if gpu is None and line[:1].isalpha() else None
        text = line.strip()
        is_banner = _BANNER.fullmatch(text) is not None and banner in ("", text)
        banner = text if is_banner else banner
        if last and (is_banner or (named is not None and named[0] in seen)):
            if len(rounds) == MAX_ROUNDS:
                raise WireLimitError("-q", f"more than {MAX_ROUNDS} outputs")
            rounds[-1].append("")  # only the last line of the output can be truncated
            rounds.append([])
            seen.clear()
            last = 0
        if gpu is not None:
            seen.add(normalise_pci_address(gpu[1]))
            last = len(rounds[-1]) + 1
        elif named is not None:
            seen.add(named[0])
        rounds[-1].append(line)
    if last and len(rounds) > 1 and rounds[-1][-1].strip():
        rounds[-1][last - 1 :] = [""]
    return ["\n".join(one).encode() for one in rounds]


class _TextReader:
    """Parser state: the enclosing names of the current line, by indentation."""

    def __init__(self) -> None:
        self.leaves = NamedTexts()
        self.devices: list[DeviceBuilder] = []
        self.messages = OutputMessages()
        self._above: list[tuple[int, str]] = []
        self._device: DeviceBuilder | None = None
        self._part: DeviceBuilder | None = None
        self._process: NamedTexts | None = None

    def take(self, line: str) -> None:
        """Parse the next line."""
        name = line.strip()
        if not name or _BANNER.fullmatch(name):
            return
        if (gpu := _GPU.fullmatch(line)) is not None:
            if len(self.devices) == MAX_DEVICES:
                raise WireLimitError("-q", f"more than {MAX_DEVICES} GPUs")
            self._device = DeviceBuilder(gpu[1])
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

    def _take_value(self, device: DeviceBuilder, indent: int, name: str, pair: tuple[str, str] | None) -> None:
        while self._above and self._above[-1][0] >= indent:
            self._above.pop()
        key = slug(pair[0] if pair is not None else name) or "_"
        if indent == 0 or (not self._above and pair is None and not _looks_like_heading(name)):
            self.messages.add(name)  # a driver message between two devices
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

    def _put(self, device: DeviceBuilder, path: list[str], value: str) -> None:
        if self._part is not None:
            self._part.leaves.put("/".join(path[1:] or path), value)
        elif path[0] == "processes" and len(path) > 1:
            self._put_process(device, path[-1], value)
        else:
            device.leaves.put("/".join(path), value)

    def _put_process(self, device: DeviceBuilder, name: str, value: str) -> None:
        """Add a value to the last process; a repeated name starts the next process."""
        if self._process is None or name in self._process.found:
            if len(device.processes) == MAX_PARTS:
                raise WireLimitError("-q", f"more than {MAX_PARTS} processes of one GPU")
            self._process = NamedTexts()
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
