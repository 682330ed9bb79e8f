"""The reader of the machine itself."""

import hashlib

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ChannelError, ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.ports.channel import Files
from gpufleet.ports.clock import Clock
from gpufleet.readers.host import plan
from gpufleet.readers.host.fetch import fetch_lane
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.mapping.devices import (
    map_display_devices,
    map_filesystems,
    map_inventory,
    map_services,
)
from gpufleet.readers.host.mapping.identity import map_identity
from gpufleet.readers.host.mapping.kernel import map_boot_time, map_memory, map_pressure, map_processor
from gpufleet.readers.host.mapping.network import map_infiniband, map_network
from gpufleet.readers.host.parse.identity import parse_boot_id
from gpufleet.readers.host.parse.kernel import ProcessorTimes
from gpufleet.readers.host.source import Source


class HostReader:
    """Reads processor, memory, pressure, filesystems, network, PCI, services and identity from kernel files.

    Args:
        files: the channel to the machine's files.
        clock: names the instant of each pass.
    """

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._times: ProcessorTimes | None = None

    @property
    def name(self) -> str:
        """Its name in samples."""
        return "host"

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes it has something to read on."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        Raises:
            ReaderError: if the channel fails, or not one file of the lane could be read.
        """
        try:
            fetched, disk = await fetch_lane(self._files, lane)
        except ChannelError as error:
            raise ReaderError(Reason.READER_FAILED, str(error)) from error
        measured_at = self._clock.now_ns()
        if not fetched.files:
            words = ", ".join(f"{path}: {name}" for path, name in list(fetched.errors.items())[:3])
            raise ReaderError(Reason.READER_FAILED, f"no kernel file could be read ({words})")
        source = Source(fetched)
        into = Readings()
        inventory = machine = None
        if lane is Lane.FAST:
            self._times = map_processor(source, self._times, into)
            map_memory(source, into)
            map_pressure(source, into)
            map_network(source, into)
            map_infiniband(source, into)
        else:
            inventory = map_inventory(source)
        if lane is Lane.SLOW:
            map_boot_time(source, into)
            map_filesystems(source, into)
            map_services(source, into)
            map_display_devices(inventory, into)
        elif lane is Lane.STATIC:
            machine = map_identity(source, disk, into)
        sample = Sample(
            view=None,
            reader=self.name,
            lane=lane,
            measured_at=measured_at,
            values=into.values,
            dims=tuple(into.dims),
            driver_session=driver_session(source.take(plan.BOOT_ID, parse_boot_id)),
        )
        return Round(samples=(sample,), inventory=inventory, machine=machine, errors=source.errors)

    async def close(self) -> None:
        """Forget the pass before: the next one is a first one."""
        self._times = None


def driver_session(boot_id: str | Absent) -> int:
    """Number a boot: counters of the kernel count from it. 0 where the boot is not told."""
    if isinstance(boot_id, Absent):
        return 0
    return int.from_bytes(hashlib.sha256(boot_id.encode()).digest()[:8], "big") >> 1
