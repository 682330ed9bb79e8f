"""Which machines a batch only names: of which it has nothing but what Kubernetes says of them. Pure."""

from gpufleet.model.catalogue import SAID_BY_KUBERNETES
from gpufleet.model.wire import WireBatch


def named_only(batch: WireBatch) -> frozenset[int]:
    """Return the positions of those machines; whoever sends such a batch has not heard of them."""
    named = {place for block in batch.dims if block.metric in SAID_BY_KUBERNETES for place in block.machine}
    if not named:
        return frozenset()
    heard = {part.machine for part in batch.parts}
    heard.update(place for block in batch.samples for place in block.machine)
    heard.update(place for block in batch.dims if block.metric not in SAID_BY_KUBERNETES for place in block.machine)
    return frozenset(named - heard)
