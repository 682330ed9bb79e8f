"""Guest source: domains of this host's libvirt that have an NVIDIA GPU, queried over its read-only socket.

libvirt's own files hold the same data but need root. The read-only socket is open to all users and allows no change.
The devices of a domain come from libvirt; whether a device is a GPU comes from this host's kernel.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterable

from gpufleet.agent.guests.sources import GuestListing
from gpufleet.codecs import libvirt_wire as wire
from gpufleet.codecs.libvirt_domain import Domain, parse_domain
from gpufleet.config.guests import Channel, DcgmChannel, GuestConfig, LibvirtConfig, MetricsChannel, QemuAgentChannel
from gpufleet.config.load import InvalidValueError
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.text import clean
from gpufleet.model.view import normalise_uuid
from gpufleet.ports.channel import Dialer, Fetched, FetchPlan, Files, Stream

log = logging.getLogger(__name__)

QUERY_SECONDS = 5.0
"""Time limit of a query, and the interval between queries."""

_DISPLAY_CLASSES = (b"0x0300", b"0x0302", b"0x0380")
_PCI, _MDEV = "/sys/bus/pci/devices", "/sys/bus/mdev/devices"
_MAX_ERROR_LENGTH = 300


class LibvirtSource:
    """Polls libvirt. While libvirt does not answer, the known domains are kept: they run on without it."""

    name = "libvirt"
    every_seconds = QUERY_SECONDS
    adds = True

    def __init__(
        self, dialer: Dialer, files: Files, settings: LibvirtConfig, *, query_seconds: float = QUERY_SECONDS
    ) -> None:
        """Take the parts.

        Args:
            dialer: opens libvirt's socket.
            files: this host's files, for the kernel's device data.
            settings: how domains are read.
            query_seconds: time limit of a query.
        """
        self._dialer, self._files, self._settings, self._query_seconds = dialer, files, settings, query_seconds
        self._listing = GuestListing({}, {})

    async def look(self) -> GuestListing:
        """Return the running domains that have a GPU."""
        try:
            async with asyncio.timeout(self._query_seconds):
                self._listing = await self._query()
        except TimeoutError:
            return self._failed(f"no answer within {self._query_seconds:g} s")
        except (ChannelError, WireError) as error:
            return self._failed(str(error))
        return self._listing

    def _failed(self, error: str) -> GuestListing:
        problem = f"libvirt at {self._settings.socket} cannot be queried: {clean(error)[:_MAX_ERROR_LENGTH]}"
        if self._settings.socket not in self._listing.problems:
            log.warning("%s", problem)
        self._listing = GuestListing(self._listing.guests, {self._settings.socket: problem})
        return self._listing

    async def _query(self) -> GuestListing:
        guests: dict[str, GuestConfig] = {}
        problems: dict[str, str] = {}
        domains: dict[wire.DomainRef, Domain] = {}
        for ref, answer in (await query_domains(self._dialer, self._settings.uri)).items():
            try:
                domains[ref] = parse_domain(answer)
            except WireError as error:
                problems[f"domain {_name(ref)}"] = _problem(ref, error)
        count = await self._gpu_counter(domains.values())
        for ref, domain in domains.items():
            gpus = count(domain)
            try:
                if gpus != 0:
                    guests[f"{_name(ref)} ({ref.id})"] = self._describe(ref, domain, gpus)
            except WireError as error:
                problems[f"domain {_name(ref)}"] = _problem(ref, error)
        return GuestListing(dict(sorted(guests.items())), problems)

    async def _gpu_counter(self, domains: Collection[Domain]) -> Callable[[Domain], int | None]:
        """Read all devices from the kernel in one fetch; return a function that counts a domain's GPUs and vGPUs.

        The count is None if the kernel has no data for a device.
        """
        links = {f"{_MDEV}/{device}" for domain in domains for device in domain.mdevs}
        parents = (await self._files.fetch(FetchPlan(links=tuple(sorted(links))))).links if links else {}

        def functions(domain: Domain) -> list[str]:
            return [*domain.pci, *(_parent(parents.get(f"{_MDEV}/{device}", "")) for device in domain.mdevs)]

        addresses = {address for domain in domains for address in functions(domain)} - {""}
        fetched = await self._files.fetch(_plan(addresses)) if addresses else Fetched()

        def count(domain: Domain) -> int | None:
            results = [_is_gpu(fetched, address) for address in functions(domain)]
            return None if None in results else sum(result is True for result in results)

        return count

    def _describe(self, ref: wire.DomainRef, domain: Domain, gpus: int | None) -> GuestConfig:
        uid, name = normalise_uuid(ref.uuid.hex()), _name(ref)
        if uid is None or not name:
            raise WireError("domain", "it has no name or no UUID")
        try:
            return GuestConfig(name=name, vm_uuid=uid, gpus=gpus, channels=tuple(self._channels(domain)))
        except InvalidValueError as error:
            raise WireError("domain", str(error)) from error

    def _channels(self, domain: Domain) -> Iterable[Channel]:
        settings = self._settings
        if domain.cid is not None and settings.dcgm_port:
            yield DcgmChannel(address=f"vsock://{domain.cid}:{settings.dcgm_port}")
        if domain.cid is not None and settings.metrics_port:
            yield MetricsChannel(address=f"vsock://{domain.cid}:{settings.metrics_port}")
        if settings.guest_agent in domain.channels:
            yield QemuAgentChannel(socket=domain.channels[settings.guest_agent])


async def query_domains(dialer: Dialer, uri: str) -> dict[wire.DomainRef, bytes]:
    """Return the XML of every running or paused domain. A domain that ended meanwhile is left out.

    Raises:
        ChannelError: if libvirt does not answer.
        WireError: if libvirt refuses the connection or the answer is malformed.
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
                continue  # it ended after it was listed: no other reason for an error is known
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
    return f"libvirt's domain {_name(ref)}: {clean(str(error))[:_MAX_ERROR_LENGTH]}"


def _parent(link: str) -> str:
    """Return the PCI address of a mediated device's parent, whose folder contains the device's folder."""
    return link.rstrip("/").rpartition("/")[0].rpartition("/")[2]


def _plan(addresses: Collection[str]) -> FetchPlan:
    return FetchPlan(files=tuple(f"{_PCI}/{pci}/{name}" for pci in sorted(addresses) for name in ("vendor", "class")))


def _is_gpu(fetched: Fetched, address: str) -> bool | None:
    """Return whether a PCI function is an NVIDIA GPU or a virtual function of one; None if unknown."""
    vendor, kind = (fetched.files.get(f"{_PCI}/{address}/{name}", b"").strip() for name in ("vendor", "class"))
    if not vendor or not kind:
        return None
    return vendor == f"0x{NVIDIA_VENDOR:04x}".encode() and kind[:6] in _DISPLAY_CLASSES
