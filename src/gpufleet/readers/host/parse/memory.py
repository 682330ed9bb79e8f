"""/proc/meminfo and /proc/pressure."""

import re

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import count, decode, number

WINDOWS = {"avg10": "10s", "avg60": "60s", "avg300": "300s"}
"""The kernel's name of an averaging window, to the label's."""

_FIELD = re.compile(r"([A-Za-z0-9_()]{1,40}):\s+([0-9]{1,20})( kB)?\s*", re.ASCII)


def parse_meminfo(content: bytes, where: str) -> dict[str, int]:
    """Read the sizes of /proc/meminfo, in bytes; its `kB` are 1024 bytes. Counts of pages are left out.

    Raises:
        WireError: if a line is malformed or nothing is there.
    """
    sizes: dict[str, int] = {}
    for row in decode(content).splitlines():
        field = _FIELD.fullmatch(row)
        if field is None:
            raise WireError(where, f"{row[:60]!r} is not a field")
        if field[3]:
            sizes[field[1]] = count(str(count(field[2], where) * 1024), where)
    if not sizes:
        raise WireError(where, "no sizes in it")
    return sizes


class Pressure:
    """How long tasks waited, by share (`some`, `full`)."""

    __slots__ = ("ratios", "seconds")

    def __init__(self) -> None:
        self.ratios: dict[tuple[str, str], float] = {}
        self.seconds: dict[str, float] = {}


def parse_pressure(content: bytes, where: str) -> Pressure:
    """Read one file of /proc/pressure: averages become ratios, microseconds become seconds.

    Raises:
        WireError: if a line is malformed or nothing is there.
    """
    pressure = Pressure()
    for row in decode(content).splitlines():
        share, *columns = row.split() or [""]
        if share not in ("some", "full"):
            raise WireError(where, f"{share[:40]!r} is neither some nor full")
        fields = dict(column.partition("=")[::2] for column in columns)
        missing = [name for name in (*WINDOWS, "total") if name not in fields]
        if missing:
            raise WireError(where, f"{share} lacks {missing[0]}")
        for name, window in WINDOWS.items():
            percent = number(fields[name], where)
            if percent > 100:
                raise WireError(where, f"{share} {name} is {percent} %")
            pressure.ratios[share, window] = percent / 100
        pressure.seconds[share] = count(fields["total"], where) / 1_000_000
    if not pressure.seconds:
        raise WireError(where, "empty")
    return pressure
