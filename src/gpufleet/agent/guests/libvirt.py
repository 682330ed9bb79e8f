"""Guest source: domains of this host's libvirt that have an NVIDIA GPU, queried over its read-only socket.

libvirt's own files hold the same data but need root. The read-only socket is open to all users and allows no change.
The devices of a domain come from libvirt; whether a device is a GPU comes from this host's kernel.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from gpufleet.codecs.libvirt_domain import Domain, parse_domain
from gpufleet.codecs.sysfs_devices import is_gpu, parent_of, plan_functions, plan_mdevs
from gpufleet.config.guests import Channel, DcgmChannel, GuestConfig, LibvirtConfig, MetricsChannel, QemuAgentChannel
from gpufleet.config.load import InvalidValueError
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.model.text import clean
from gpufleet.ports.channel import Files
from gpufleet.ports.guests import GuestDetails, GuestListing
from gpufleet.ports.hypervisor import DomainDocument, Hypervisor

log = logging.getLogger(__name__)

QUERY_SECONDS = 5.0
"""Time limit of a query, and the interval between queries."""

_MAX_ERROR_LENGTH = 300


class LibvirtSource:
    """Polls libvirt. While libvirt does not answer, the known domains are kept: they run on without it."""

    name = "libvirt"
    every_seconds = QUERY_SECONDS
    adds = True

    def __init__(
        self, hypervisor: Hypervisor, files: Files, settings: LibvirtConfig, *, query_seconds: float = QUERY_SECONDS
    ) -> None:
        """Take the parts.

        Args:
            hypervisor: libvirt.
            files: this host's files, for the kernel's device data.
            settings: how domains are read.
            query_seconds: time limit of a query.
        """
        self._hypervisor, self._files = hypervisor, files
        self._settings, self._query_seconds = settings, query_seconds
        self._listing = GuestListing({}, {})

    async def list_guests(self) -> GuestListing:
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
        self._listing = GuestListing(self._listing.guests, {self._settings.socket: problem}, self._listing.details)
        return self._listing

    async def _query(self) -> GuestListing:
        guests: dict[str, GuestConfig] = {}
        problems: dict[str, str] = {}
        details: dict[str, GuestDetails] = {}
        parsed: list[tuple[DomainDocument, Domain]] = []
        for document in await self._hypervisor.domains():
            try:
                parsed.append((document, parse_domain(document.xml)))
            except WireError as error:
                problems[f"domain {document.name}"] = _problem(document, error)
        count = await self._gpu_counter([domain for _, domain in parsed])
        for document, domain in parsed:
            gpus = count(domain)
            try:
                if gpus != 0:
                    label = f"{document.name} ({document.id})"
                    guests[label] = self._describe(document, domain, gpus)
                    details[label] = GuestDetails(hugepages=domain.hugepages)
            except WireError as error:
                problems[f"domain {document.name}"] = _problem(document, error)
        return GuestListing(dict(sorted(guests.items())), problems, details)

    async def _gpu_counter(self, domains: Collection[Domain]) -> Callable[[Domain], int | None]:
        """Read all devices from the kernel in one fetch; return a function that counts a domain's GPUs and vGPUs.

        The count is None if the kernel has no data for a device.
        """
        parents = await self._files.fetch(plan_mdevs(device for domain in domains for device in domain.mdevs))

        def functions(domain: Domain) -> list[str]:
            return [*domain.pci, *(parent_of(parents, device) for device in domain.mdevs)]

        fetched = await self._files.fetch(plan_functions(pci for domain in domains for pci in functions(domain)))

        def count(domain: Domain) -> int | None:
            results = [is_gpu(fetched, address) for address in functions(domain)]
            return None if None in results else sum(result is True for result in results)

        return count

    def _describe(self, document: DomainDocument, domain: Domain, gpus: int | None) -> GuestConfig:
        if not document.name:
            raise WireError("domain", "it has no name")
        try:
            return GuestConfig(
                name=document.name, vm_uuid=document.uuid, gpus=gpus, channels=tuple(self._channels(domain))
            )
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


def _problem(document: DomainDocument, error: WireError) -> str:
    return f"libvirt's domain {document.name}: {clean(str(error))[:_MAX_ERROR_LENGTH]}"
