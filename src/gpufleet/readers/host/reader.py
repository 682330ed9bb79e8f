"""The host reader: reads the machine itself from kernel files."""

import hashlib
from typing import Protocol

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError, WireError
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
from gpufleet.readers.host.mapping.identity import known_system_uuid, map_identity
from gpufleet.readers.host.mapping.kernel import map_boot_time, map_memory, map_pressure, map_processor
from gpufleet.readers.host.mapping.network import map_infiniband, map_network
from gpufleet.readers.host.mapping.node import provider_to_query
from gpufleet.readers.host.parse.cloud import InstanceData
from gpufleet.readers.host.parse.identity import parse_boot_id
from gpufleet.readers.host.parse.kernel import ProcessorTimes
from gpufleet.readers.host.source import FetchedFiles

_REASONS = {ChannelProblem.TIMEOUT: Reason.TIMEOUT, ChannelProblem.NOT_ENABLED: Reason.NOT_ENABLED}
"""Reasons of absence by the problem of the metadata service."""


class MetadataService(Protocol):
    """Metadata service of a cloud; see `metadata.CloudMetadata`."""

    def knows(self, provider: str) -> bool:
        """Return whether the service of a provider can be read."""
        ...

    async def fetch(self, provider: str) -> InstanceData:
        """Return the instance. Raises ChannelError or WireError."""
        ...


class HostReader:
    """Reads processor, memory, pressure, filesystems, network, PCI, services and identity from kernel files.

    Args:
        files: channel to the machine's files.
        clock: clock of the samples' times.
        node: sources of the machine's name in Kubernetes; None leaves it out, as for guests.
        metadata: metadata service of the machine's cloud; None queries none. It is queried for what DMI and cloud-init
            lack, until it has answered once.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        node: plan.KubernetesNode | None = None,
        metadata: MetadataService | None = None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._node = node
        self._metadata = metadata
        self._instance: InstanceData | None = None
        self._times: ProcessorTimes | None = None

    @property
    def name(self) -> str:
        """Return `host`."""
        return "host"

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static, fast and slow."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        Raises:
            ReaderError: if the channel fails, or no file of the lane could be read.
        """
        try:
            fetched, disk = await fetch_lane(self._files, lane, self._node)
        except ChannelError as error:
            raise ReaderError(Reason.READER_FAILED, str(error)) from error
        measured_at = self._clock.now_ns()
        if not fetched.files:
            errors = ", ".join(f"{path}: {name}" for path, name in list(fetched.errors.items())[:3])
            raise ReaderError(Reason.READER_FAILED, f"no kernel file could be read ({errors})")
        source = FetchedFiles(fetched)
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
            machine = map_identity(source, disk, self._node, into, await self._query_instance(source))
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

    async def _query_instance(self, source: FetchedFiles) -> InstanceData | Absent | None:
        """Return the instance by the metadata service, or why it is unknown; None if it is not queried."""
        if self._metadata is None or self._instance is not None:
            return self._instance
        provider = provider_to_query(source, known_system_uuid(source))
        if not self._metadata.knows(provider):
            return None
        try:
            self._instance = await self._metadata.fetch(provider)
        except ChannelError as error:
            return Absent(_REASONS.get(error.problem, Reason.READER_FAILED), str(error))
        except WireError as error:
            return Absent(Reason.INVALID_VALUE, f"the metadata service answers with invalid data: {error}")
        return self._instance

    async def close(self) -> None:
        """Drop the state of the previous pass."""
        self._times = None


def driver_session(boot_id: str | Absent) -> int:
    """Return a number for the boot, at which kernel counters start; 0 if the boot id is unknown."""
    if isinstance(boot_id, Absent):
        return 0
    return int.from_bytes(hashlib.sha256(boot_id.encode()).digest()[:8], "big") >> 1
