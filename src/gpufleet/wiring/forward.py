"""The hub's way to a time-series database, put together from its configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gpufleet.config.hub import HubConfig
from gpufleet.hub.receive.counters import Counters
from gpufleet.ports.clock import Clock
from gpufleet.runtime import keep

if TYPE_CHECKING:
    from gpufleet.hub.forward.forwarder import Forwarder

FOLDER = "forward"
"""In the hub's folder: what waits for the database."""


@contextlib.asynccontextmanager
async def forwarding(forwarder: "Forwarder | None", counters: Counters) -> AsyncIterator[None]:
    """Pass on while the context is open; what waits then stays in the queue for the next start."""
    task = None
    if forwarder is not None:
        run = keep(forwarder.run, "passing on to the database", ended=counters.defect("forward"))
        task = asyncio.create_task(run, name="forwarder")
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def make_forwarder(config: HubConfig, clock: Clock) -> "Forwarder | None":
    """Return what passes on, or None where nothing is. Blocking: opens its queue.

    Raises:
        ConfigError: if a token, headers, authorities or a certificate cannot be read.
        SpoolError: if the queue cannot be opened.
    """
    forward = config.forward
    if forward.url is None:
        return None
    # Imported here: a hub that passes nothing on does without.
    from gpufleet.codecs.remote_write.encode import encode_1, encode_2
    from gpufleet.delivery.receivers import RemoteWriteWire
    from gpufleet.hub.forward.forwarder import Forwarder, ForwardQueue
    from gpufleet.hub.forward.series import ForwardSeries
    from gpufleet.wiring.exports import http_sender

    wire = RemoteWriteWire(http_sender(forward.url, forward), forward.version)
    encode = encode_2 if forward.version == "2.0" else encode_1
    queue = ForwardQueue.open(config.folder / FOLDER, max_bytes=forward.queue_bytes, encode=encode)
    series = ForwardSeries(forward.more_labels, sends_late=forward.late == "send")
    return Forwarder(series, queue, wire, now_ns=clock.now_ns)
