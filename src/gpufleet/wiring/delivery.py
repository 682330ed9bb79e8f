"""Construction of the queue to a hub, the same for each sender."""

import contextlib
from pathlib import Path

from gpufleet.config.agent import HubClientConfig, SpoolConfig
from gpufleet.delivery.batch_queue import BatchQueue, MemoryQueue
from gpufleet.delivery.outbox import Delivery, Outbox
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import RejectedBatches
from gpufleet.delivery.pusher import Pusher
from gpufleet.ports.clock import Clock
from gpufleet.spool import Spool
from gpufleet.wiring.connections import make_hub_client


async def open_delivery(
    hub: HubClientConfig,
    spool: SpoolConfig,
    *,
    folder: Path,
    cluster: str,
    sender: str,
    client: str,
    config_hash: str,
    clock: Clock,
    stack: contextlib.AsyncExitStack,
) -> Delivery:
    """Open the spool and return the delivery; `stack` closes the spool.

    Args:
        hub: the hub, with its URL.
        spool: limits of the spool.
        folder: folder of the sender's own files.
        cluster, sender: identity of the sender.
        client: name of the client in requests.
        config_hash: hash of the active configuration.
        clock: wall and monotonic time.
        stack: closes the spool.

    Raises:
        ConfigError: if the token or CA file cannot be read.
        SpoolError: if the spool cannot be opened.
    """
    assert hub.url is not None

    def open_spool() -> Spool:
        return Spool.open(folder / "spool", max_bytes=spool.max_bytes, max_age_seconds=spool.max_age_seconds)

    queue = BatchQueue(open_spool, MemoryQueue())
    await queue.open()
    stack.callback(queue.close)
    outbox = Outbox(
        queue,
        cluster=cluster,
        sender=sender,
        heartbeat_seconds=hub.heartbeat_seconds,
        config_hash=config_hash,
        clock=clock,
    )
    pusher = Pusher(
        queue,
        make_hub_client(
            hub.url, name=client, timeout_seconds=hub.timeout_seconds, token_file=hub.token_file, ca=hub.ca
        ),
        backfill=Pacer(spool.backfill_per_second),
        refused=RejectedBatches(folder / "refused"),
        stats=outbox.stats,
        clock=clock,
    )
    return Delivery(outbox, pusher)
