"""Construction of the hub's forwarder to a time-series database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gpufleet.config.hub import HubConfig
from gpufleet.hub.receive.counters import Counters
from gpufleet.ports.clock import Clock
from gpufleet.runtime import supervise

if TYPE_CHECKING:
    from gpufleet.hub.forward.forwarder import SeriesForwarder

FOLDER = "forward"
"""Folder of the queue, in the hub's folder."""


@contextlib.asynccontextmanager
async def run_forwarder(forwarder: "SeriesForwarder | None", counters: Counters) -> AsyncIterator[None]:
    """Forward while the context is open. The backlog stays in the queue for the next start."""
    task = None
    if forwarder is not None:
        run = supervise(forwarder.run, "forwarding to the database", on_end=counters.restart_counter("forward"))
        task = asyncio.create_task(run, name="forwarder")
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def make_forwarder(config: HubConfig, clock: Clock) -> "SeriesForwarder | None":
    """Return the forwarder, or None if not configured. Blocking: opens its queue.

    Raises:
        ConfigError: if a token, headers file, CA file or certificate cannot be read.
        SpoolError: if the queue cannot be opened.
    """
    forward = config.forward
    if forward.url is None:
        return None
    # Imported here: loaded only if forwarding is configured.
    from gpufleet.codecs.remote_write.encode import encode_1, encode_2
    from gpufleet.delivery.transports import RemoteWriteTransport
    from gpufleet.hub.forward.forwarder import ForwardQueue, SeriesForwarder
    from gpufleet.hub.forward.series import ForwardSeries
    from gpufleet.wiring.exports import make_http_sender

    transport = RemoteWriteTransport(make_http_sender(forward.url, forward), forward.version)
    encode = encode_2 if forward.version == "2.0" else encode_1
    queue = ForwardQueue.open(config.folder / FOLDER, max_bytes=forward.queue_bytes, encode=encode)
    series = ForwardSeries(forward.label_pairs, sends_late=forward.late == "send")
    return SeriesForwarder(series, queue, transport, now_ns=clock.now_ns)
