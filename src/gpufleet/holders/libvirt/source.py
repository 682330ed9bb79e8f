"""libvirt as a holder source."""

import asyncio
from collections.abc import Callable, Collection

from gpufleet.codecs.libvirt_domain import Domain, parse_domain
from gpufleet.codecs.sysfs_devices import is_gpu, parent_of, plan_functions, plan_mdevs
from gpufleet.holders.libvirt.mapping import claims_of
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelProblem, HolderError, WireError
from gpufleet.model.holdings import HolderKind
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Files
from gpufleet.ports.holder import HolderReport
from gpufleet.ports.hypervisor import DomainDocument, Hypervisor

TIMEOUT_SECONDS = 5.0
MAX_DETAIL = 1_000

_ABSENCES = {
    ChannelProblem.NO_SUCH_VM: Reason.NOT_ENABLED,  # the socket does not exist
    ChannelProblem.NOT_PERMITTED: Reason.NOT_PERMITTED,
    ChannelProblem.TIMEOUT: Reason.TIMEOUT,
}


class LibvirtHolders:
    """Running and paused domains of this host and the devices of their definitions.

    Args:
        hypervisor: libvirt.
        files: this host's files, which show whether a device is a GPU.
        timeout_seconds: time limit of a report.
    """

    def __init__(self, hypervisor: Hypervisor, files: Files, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._hypervisor, self._files, self._timeout = hypervisor, files, timeout_seconds

    @property
    def name(self) -> str:
        """Return `libvirt`."""
        return "libvirt"

    async def report(self) -> HolderReport:
        """Return the domains with their devices; see `HolderSource.report`."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._report()
        except TimeoutError:
            raise HolderError(Reason.TIMEOUT, f"no answer within {self._timeout:g} s") from None
        except ChannelError as error:
            raise _holder_error(error) from None
        except WireError as error:
            raise HolderError(Reason.READER_FAILED, bounded(str(error), MAX_DETAIL)) from None

    async def close(self) -> None:
        """Do nothing: each report opens and closes its own connection."""

    async def _report(self) -> HolderReport:
        documents = await self._hypervisor.domains()
        parsed: list[tuple[DomainDocument, Domain]] = []
        problems: list[str] = []
        for document in documents:
            try:
                parsed.append((document, parse_domain(document.xml)))
            except WireError as error:
                problems.append(f"domain {document.name}: {error}")
        is_other = await self._classify([domain for _, domain in parsed])
        running = frozenset((HolderKind.VM, document.uuid) for document in documents)
        return HolderReport(
            claims=tuple(claim for document, domain in parsed for claim in claims_of(document, domain, is_other)),
            complete=not problems,
            lists=HolderKind.VM,
            listed=running,
            detail=bounded("; ".join(problems), MAX_DETAIL),
        )

    async def _classify(self, domains: Collection[Domain]) -> Callable[[str], bool]:
        """Return a function that returns whether a PCI address or mediated device is known not to be a GPU."""
        mdevs = {mdev for domain in domains for mdev in domain.mdevs}
        links = await self._files.fetch(plan_mdevs(mdevs))
        functions = {mdev: parent_of(links, mdev) for mdev in mdevs}
        functions |= {pci: pci for domain in domains for pci in domain.pci}
        fetched = await self._files.fetch(plan_functions(functions.values()))
        return lambda device: is_gpu(fetched, functions[device]) is False


def _holder_error(error: ChannelError) -> HolderError:
    message = bounded(str(error), MAX_DETAIL)
    absence = _ABSENCES.get(error.problem, Reason.READER_FAILED)
    if absence is Reason.NOT_PERMITTED:
        message += ": use libvirt's read-only socket, or add the agent's user to the group libvirt"
    return HolderError(absence, message)
