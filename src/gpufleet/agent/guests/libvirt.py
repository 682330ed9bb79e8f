"""Virtual machines of this host's libvirt: the domains that hold an NVIDIA GPU, asked for over its read-only socket.

libvirt's own files tell the same and are root's; that socket is everybody's, and libvirt lets nobody change anything
over it. What a domain holds is libvirt's word, what of it is a GPU is this host's kernel's.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable

from gpufleet.agent.guests.sources import Listing
from gpufleet.codecs import libvirt_wire as wire
from gpufleet.codecs.libvirt_domain import Domain, parse_domain
from gpufleet.config.guests import Channel, DcgmChannel, GuestConfig, LibvirtConfig, MetricsChannel, QemuAgentChannel
from gpufleet.config.load import ImpossibleValueError
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.text import clean
from gpufleet.model.view import normalise_uuid
from gpufleet.ports.channel import Dialer, Fetched, FetchPlan, Files, Stream

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""What a look may take, and between two of them."""

_DISPLAY_CLASSES = (b"0x0300", b"0x0302", b"0x0380")
_PCI, _MDEV = "/sys/bus/pci/devices", "/sys/bus/mdev/devices"
_WORDS = 300


class LibvirtSource:
    """Asks libvirt again and again; while it does not answer, its domains stay: they run on without it."""

    name = "libvirt"
    every_seconds = LOOK_SECONDS
    adds = True

    def __init__(
        self, dialer: Dialer, files: Files, settings: LibvirtConfig, *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        """Take the parts.

        Args:
            dialer: of its socket.
            files: this host's, for what the kernel says of devices.
            settings: what is asked of domains.
            look_seconds: what a look may take.
        """
        self._dialer, self._files, self._settings, self._look_seconds = dialer, files, settings, look_seconds
        self._kept = Listing({}, {})

    async def look(self) -> Listing:
        """Return the domains with a GPU that run now."""
        try:
            async with asyncio.timeout(self._look_seconds):
                self._kept = await self._look()
        except TimeoutError:
            return self._failed(f"no answer within {self._look_seconds:g} s")
        except (ChannelError, WireError) as error:
            return self._failed(str(error))
        return self._kept

    def _failed(self, words: str) -> Listing:
        told = f"libvirt at {self._settings.socket} cannot be asked: {clean(words)[:_WORDS]}"
        if self._settings.socket not in self._kept.problems:
            log.warning("%s", told)
        self._kept = Listing(self._kept.guests, {self._settings.socket: told})
        return self._kept

    async def _look(self) -> Listing:
        guests: dict[str, GuestConfig] = {}
        problems: dict[str, str] = {}
        domains: dict[wire.DomainRef, Domain] = {}
        for ref, answer in (await ask_domains(self._dialer, self._settings.uri)).items():
            try:
                domains[ref] = parse_domain(answer)
            except WireError as error:
                problems[f"domain {_name(ref)}"] = _problem(ref, error)
        count = await self._counter(domains.values())
        for ref, domain in domains.items():
            gpus = count(domain)
            try:
                if gpus != 0:
                    guests[f"{_name(ref)} ({ref.id})"] = self._describe(ref, domain, gpus)
            except WireError as error:
                problems[f"domain {_name(ref)}"] = _problem(ref, error)
        return Listing(dict(sorted(guests.items())), problems)

    async def _counter(self, domains: Collection[Domain]) -> Callable[[Domain], int | None]:
        """Ask the kernel of every device at once; return what counts a domain's GPUs and vGPUs.

        It returns None where the kernel does not tell of a device.
        """
        links = {f"{_MDEV}/{one}" for domain in domains for one in domain.mdevs}
        cut_from = (await self._files.fetch(FetchPlan(links=tuple(sorted(links))))).links if links else {}

        def functions(domain: Domain) -> list[str]:
            return [*domain.pci, *(_parent(cut_from.get(f"{_MDEV}/{one}", "")) for one in domain.mdevs)]

        addresses = {address for domain in domains for address in functions(domain)} - {""}
        told = await self._files.fetch(_plan(addresses)) if addresses else Fetched()

        def count(domain: Domain) -> int | None:
            judged = [_is_gpu(told, address) for address in functions(domain)]
            return None if None in judged else sum(one is True for one in judged)

        return count

    def _describe(self, ref: wire.DomainRef, domain: Domain, gpus: int | None) -> GuestConfig:
        uid, name = normalise_uuid(ref.uuid.hex()), _name(ref)
        if uid is None or not name:
            raise WireError("domain", "it has no name or no UUID")
        try:
            return GuestConfig(name=name, vm_uuid=uid, gpus=gpus, channels=tuple(self._channels(domain)))
        except ImpossibleValueError as error:
            raise WireError("domain", str(error)) from error

    def _channels(self, domain: Domain) -> Iterable[Channel]:
        settings = self._settings
        if domain.cid is not None and settings.dcgm_port:
            yield DcgmChannel(address=f"vsock://{domain.cid}:{settings.dcgm_port}")
        if domain.cid is not None and settings.metrics_port:
            yield MetricsChannel(address=f"vsock://{domain.cid}:{settings.metrics_port}")
        if settings.guest_agent in domain.channels:
            yield QemuAgentChannel(socket=domain.channels[settings.guest_agent])


async def ask_domains(dialer: Dialer, uri: str) -> dict[wire.DomainRef, bytes]:
    """Return the XML of every domain that runs or is paused; one that went away meanwhile has none.

    Raises:
        ChannelError: if libvirt does not answer.
        WireError: if it refuses, or what comes is not its language.
    """
    stream = await dialer.dial()
    try:
        serials = itertools.count()
        serial = next(serials)
        await _reply(stream, wire.encode_open(serial, uri), wire.OPEN, serial)
        serial = next(serials)
        listed = wire.decode_list(await _reply(stream, wire.encode_list(serial), wire.LIST, serial))
        found: dict[wire.DomainRef, bytes] = {}
        for ref, serial in zip(listed, serials, strict=False):
            try:
                body = await _reply(stream, wire.encode_xml(serial, ref), wire.XML, serial)
            except wire.RefusedError:
                continue  # it ended between the two questions: no other reason is known for a domain of the list
            found[ref] = wire.decode_xml(body)
        serial = next(serials)
        await _reply(stream, wire.encode_close(serial), wire.CLOSE, serial)
        return found
    finally:
        await stream.close()


async def _reply(stream: Stream, question: bytes, procedure: int, serial: int) -> bytes:
    await stream.send(question)
    size = wire.packet_bytes(await stream.receive_exactly(wire.LENGTH_BYTES))
    return wire.answer_of(await stream.receive_exactly(size), procedure, serial)


def _name(ref: wire.DomainRef) -> str:
    return clean(ref.name)[:253]


def _problem(ref: wire.DomainRef, error: WireError) -> str:
    return f"libvirt's domain {_name(ref)}: {clean(str(error))[:_WORDS]}"


def _parent(link: str) -> str:
    """Return the PCI address of what a mediated device is cut from: its folder is in the other's."""
    return link.rstrip("/").rpartition("/")[0].rpartition("/")[2]


def _plan(addresses: Collection[str]) -> FetchPlan:
    return FetchPlan(files=tuple(f"{_PCI}/{one}/{name}" for one in sorted(addresses) for name in ("vendor", "class")))


def _is_gpu(told: Fetched, address: str) -> bool | None:
    """Tell whether a PCI function is an NVIDIA GPU, or a virtual function of one; None where nothing says so."""
    vendor, kind = (told.files.get(f"{_PCI}/{address}/{name}", b"").strip() for name in ("vendor", "class"))
    if not vendor or not kind:
        return None
    return vendor == f"0x{NVIDIA_VENDOR:04x}".encode() and kind[:6] in _DISPLAY_CLASSES
