"""Access Control Services (ACS) of PCI bridges, from their configuration space. Pure.

A bridge that redirects requests sends transfers between two devices below it through the root complex. GPUDirect
between them is then slower, or impossible.
"""

from collections import Counter

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import FetchPlan
from gpufleet.probe.facts import FactList
from gpufleet.readers.host.parse.pci import is_address
from gpufleet.readers.host.parse.text import decode, hexadecimal
from gpufleet.readers.host.source import FetchedFiles

PCI = "/sys/bus/pci/devices"
BRIDGE_CLASS = 0x0604
"""PCI-to-PCI bridge: root ports and ports of switches (PCI Code and ID Assignment)."""

MAX_BRIDGES = 256

CONFIGURATION_BYTES = 4096
_EXTENDED = 0x100
"""Start of the extended capabilities. Without privileges the kernel shows the first 64 bytes only."""

_HEADER_BYTES = 64
_MAX_CAPABILITIES = (CONFIGURATION_BYTES - _EXTENDED) // 8
_ACS = 0x000D
_REDIRECT = 0x0C
"""Bits of the control register: redirection of requests, and of completions."""


def bridge_addresses(source: FetchedFiles) -> tuple[str, ...]:
    """Return the PCI addresses of bridges, from the files `class`."""
    found = []
    for address in source.names_under(PCI, "class"):
        try:
            code = hexadecimal(decode(source.fetched.files.get(f"{PCI}/{address}/class", b"")), PCI)
        except WireError:
            continue
        if code >> 8 == BRIDGE_CLASS and is_address(address):
            found.append(address)
    return tuple(found[:MAX_BRIDGES])


def acs_plan(bridges: tuple[str, ...]) -> FetchPlan:
    """Return the plan of the configuration spaces of bridges."""
    return FetchPlan(files=tuple(f"{PCI}/{address}/config" for address in bridges), max_file_bytes=CONFIGURATION_BYTES)


def add_acs_fact(source: FetchedFiles, bridges: tuple[str, ...], into: FactList) -> None:
    """Add the number of bridges by state. One that cannot be read makes the fact absent."""
    states: Counter[str] = Counter()
    absent: Absent | None = None if bridges else Absent(Reason.NOT_SUPPORTED, "the machine has no PCI bridge")
    for address in bridges:
        state = source.take(f"{PCI}/{address}/config", _state)
        if isinstance(state, Absent):
            absent = state
        elif state is None:
            absent = Absent(Reason.NOT_PERMITTED, "the kernel shows the configuration space of bridges to root only")
        else:
            states[state] += 1
    shown = ", ".join(f"{state} ({total})" for state, total in sorted(states.items()))
    into.add("host_pci_acs", absent or shown, f"{PCI}/*/config")


def _state(content: bytes, where: str) -> str | None:
    return None if len(content) <= _HEADER_BYTES else acs_state(content, where)


def acs_state(content: bytes, where: str) -> str:
    """Return `redirect`, `on` (other controls), `off`, or `none` for a bridge without the capability.

    Raises:
        WireError: if the list of capabilities is malformed.
    """
    at = _EXTENDED
    for _ in range(_MAX_CAPABILITIES):
        if at + 8 > len(content):
            return "none"
        head = int.from_bytes(content[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            control = int.from_bytes(content[at + 6 : at + 8], "little")
            return "redirect" if control & _REDIRECT else "on" if control else "off"
        following = head >> 20
        if following == 0 or head in (0, 0xFFFF_FFFF):
            return "none"
        if following < _EXTENDED or following % 4:
            raise WireError(where, f"capability at {following}")
        at = following
    raise WireError(where, "the list of capabilities does not end")
