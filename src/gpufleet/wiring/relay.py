"""Construction of the relay from the hub's configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gpufleet.config.agent import parse_listen
from gpufleet.config.hub import HubConfig
from gpufleet.hub.liveness.senders import SenderReport, Senders
from gpufleet.hub.liveness.uptime import IngestClock, run_ingest_clock
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.listener import clear_listener, reported_listener
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.hub.relay.senders import RelaySenders
from gpufleet.model.errors import ConfigError, StoreError
from gpufleet.ports.clock import Clock
from gpufleet.runtime import SystemClock, named_threads
from gpufleet.wiring.connections import make_hub_client
from gpufleet.wiring.hub import ANSWER_SECONDS, CONNECTIONS, STOP_SECONDS, RunningHub, load_credentials
from gpufleet.wiring.hub_parts import replay


@contextlib.asynccontextmanager
async def running_relay(config: HubConfig, *, clock: Clock | None = None) -> AsyncIterator[RunningHub]:
    """Run a relay while the context is open. Batches that the next hub has not accepted stay in the log.

    Args:
        config: the configuration in force; it names the next hub.
        clock: the relay's clock; the system's by default.

    Raises:
        GpufleetError: if it cannot listen, or its log cannot be opened.
    """
    # Imported here: reading a configuration does not load client and server.
    from gpufleet.delivery.post import RejectedBatches
    from gpufleet.hub.relay.forwarding import RelayForwarder, Renumberer
    from gpufleet.web.hub.access import Authenticator
    from gpufleet.web.hub.ingest import BatchEndpoint
    from gpufleet.web.hub.relay import LoopDetector, RelayApp, RelayStatus
    from gpufleet.web.server import serve
    from gpufleet.web.tls import ServerTls

    if config.relay.to is None:
        raise ConfigError("configuration", "relay.to", "must name the next hub")
    if config.forward.url is not None:
        reason = "has no effect on a relay (relay.to is set): configure it on the next hub"
        raise ConfigError("configuration", "forward.url", reason)
    clock = clock or SystemClock()
    tls = ServerTls.of(config.tls)
    clusters = frozenset(config.clusters)
    host, port = parse_listen(config.listen)
    async with contextlib.AsyncExitStack() as stack:
        decoding = stack.enter_context(named_threads(1, "relay-decoder"))
        ledger = Ledger({}, max_senders=config.ingest.max_senders)
        wal = await asyncio.to_thread(_open, config, ledger, stack)
        counters = Counters()
        conflicts = EpochConflicts()
        ingest_clock = IngestClock(clock)
        relay_senders = RelaySenders(ledger, conflicts, Senders(ingest_clock))
        loop_detector = LoopDetector(wal.epoch)
        forwarder = RelayForwarder(
            wal,
            make_hub_client(
                config.relay.to,
                name="gpufleet-relay",
                timeout_seconds=config.relay.timeout_seconds,
                token_file=config.relay.token_file,
                ca=config.relay.ca,
                connections=config.relay.connections,
                relays=loop_detector.header_value,
            ),
            connections=config.relay.connections,
            refused=RejectedBatches(config.folder / "refused"),
            renumbering=Renumberer(ledger),
            now_ns=clock.now_ns,
        )

        def accepted(report: SenderReport) -> None:
            relay_senders.note(report)
            forwarder.wake()

        pressure = ByteBudget(config.ingest.max_pending_bytes)
        endpoint = BatchEndpoint(
            ingest=Ingest(
                wal=wal,
                ledger=ledger,
                clusters=clusters,
                counters=counters,
                decoding=decoding,
                conflicts=conflicts,
                upstream_refusal=forwarder.held.refusal,
                accepted=accepted,
            ),
            pressure=pressure,
            counters=counters,
            clock=clock,
            max_body_bytes=config.ingest.max_body_bytes,
            body_timeout_seconds=config.ingest.body_timeout_seconds,
            ingest_clock=ingest_clock,
        )
        status = RelayStatus(
            counters=counters, wal=wal, forwarder=forwarder, pressure=pressure, relay_senders=relay_senders, clock=clock
        )
        credentials = await _credentials(config, stack, counters)
        app = RelayApp(
            authenticator=Authenticator(credentials, counters=counters, clock=clock),
            endpoint=endpoint,
            status=status,
            next_hub=config.relay.to,
            loop_detector=loop_detector,
            clusters=clusters,
        )
        task = asyncio.create_task(forwarder.run(), name="forwarder")
        try:
            async with (
                run_ingest_clock(ingest_clock, None, counters.restart_counter("watch")),
                serve(
                    app,
                    host,
                    port,
                    connections=CONNECTIONS,
                    stop_seconds=STOP_SECONDS,
                    body_seconds=config.ingest.body_timeout_seconds + ANSWER_SECONDS,
                    tls=tls,
                ) as bound,
            ):
                running = RunningHub(host=host, port=bound, secure=tls is not None, task=task)
                with reported_listener(config.folder, running.listener(config)):
                    yield running
        finally:
            forwarder.stop()  # after the server, so that no batch arrives afterwards
            await task


def _open(config: HubConfig, ledger: Ledger, stack: contextlib.AsyncExitStack) -> Wal:
    """Open the log and load its sequences. Blocking."""
    try:
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the relay's folder {config.folder}: {error.strerror}") from error
    wal = Wal.open(
        config.folder / "wal", max_bytes=config.ingest.wal_max_bytes, max_body_bytes=config.ingest.max_body_bytes
    )
    stack.callback(wal.close)
    clear_listener(config.folder)
    replay(wal, ledger)
    return wal


async def _credentials(config: HubConfig, stack: contextlib.AsyncExitStack, counters: Counters) -> Credentials | None:
    """Load the relay's own tokens if it requires tokens."""
    if config.auth != "tokens":
        return None
    from gpufleet.registry.database import Database
    from gpufleet.registry.sql import SqlRegistry
    from gpufleet.registry.tokens import SqlTokens

    database = await asyncio.to_thread(Database.open, config.registry_dsn)
    registry = SqlRegistry(database)
    stack.callback(registry.close)
    await asyncio.to_thread(registry.migrate)
    return await load_credentials(SqlTokens(database), stack, counters)
