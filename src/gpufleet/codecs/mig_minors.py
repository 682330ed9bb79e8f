"""The NVIDIA driver's table of MIG capabilities, `/proc/driver/nvidia-caps/mig-minors`. Pure.

The driver lists the minor number of the device file `/dev/nvidia-caps/nvidia-capN` of every possible GPU instance and
compute instance of every GPU, whether the instance exists or not. A process needs the files of a compute instance and
of its GPU instance to use a MIG device.
"""

import re
from typing import NamedTuple

PATH = "/proc/driver/nvidia-caps/mig-minors"

MAJOR_NAME = "nvidia-caps"
"""Name of the major number of the device files in /proc/devices."""

MAX_LINES = 65_536
"""Maximum number of lines that are read."""

_LINE = re.compile(r"gpu(\d{1,5})/gi(\d{1,5})/(?:ci(\d{1,5})/)?access (\d{1,9})\Z", re.ASCII)
_MAJOR = re.compile(rf"^ *(\d{{1,6}}) {MAJOR_NAME}$", re.ASCII | re.MULTILINE)


class MigCapability(NamedTuple):
    """Instance that a capability file opens.

    Attributes:
        gpu: N of the GPU's device node /dev/nvidiaN.
        instance: id of the GPU instance.
        compute: id of the compute instance, or None for the GPU instance.
    """

    gpu: int
    instance: int
    compute: int | None = None

    @property
    def name(self) -> str:
        """Return `gpu/gi` or `gpu/gi/ci`."""
        return "/".join(str(part) for part in self if part is not None)


def parse_mig_minors(data: bytes) -> dict[int, MigCapability]:
    """Return minor number to instance. Other capabilities and malformed lines are left out."""
    found: dict[int, MigCapability] = {}
    for line in data.decode("ascii", "replace").splitlines()[:MAX_LINES]:
        if match := _LINE.match(line.strip()):
            compute = None if match[3] is None else int(match[3])
            found[int(match[4])] = MigCapability(int(match[1]), int(match[2]), compute)
    return found


def parse_major(devices: bytes) -> int | None:
    """Return the major number of capability files in /proc/devices, or None without one."""
    match = _MAJOR.search(devices.decode("ascii", "replace"))
    return int(match[1]) if match else None
