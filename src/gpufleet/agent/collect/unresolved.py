"""Device names of holder sources that identify no device, for documents."""

from gpufleet.agent.collect.holders import HolderCollector
from gpufleet.fleet.attribution.holdings import UnresolvedClaim
from gpufleet.model.holdings import UnresolvedDevice, UnresolvedDevices
from gpufleet.model.text import bounded

MAX_DEVICES = 64
"""Maximum number of names in a document; all of them are counted."""

MAX_TEXT = 256


def unresolved_devices(collector: HolderCollector) -> UnresolvedDevices:
    """Return the device names of the newest round that identify no device, with the number for each source."""
    return UnresolvedDevices(
        counts=collector.unresolved_counts,
        devices=tuple(map(_record, collector.unresolved[:MAX_DEVICES])),
    )


def _record(one: UnresolvedClaim) -> UnresolvedDevice:
    name = one.name.name
    return UnresolvedDevice(
        source=one.source,
        name=bounded(name.original or name.text, MAX_TEXT),
        detail=bounded(one.name.detail, MAX_TEXT),
        holder=one.claim.holder,
        container=one.claim.container,
    )
