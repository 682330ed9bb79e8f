"""The relay, put together from the hub's configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gpufleet.config.agent import parse_listen
from gpufleet.config.hub import HubConfig
from gpufleet.hub.liveness.senders import Senders, Word
from gpufleet.hub.liveness.uptime import Listening, watching
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import Pressure
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import Conflicts
from gpufleet.hub.relay.senders import Relayed
from gpufleet.model.errors import ConfigError, StoreError
from gpufleet.ports.clock import Clock
from gpufleet.runtime import SystemClock, named_threads
from gpufleet.wiring.hub import ANSWER_SECONDS, CONNECTIONS, STOP_SECONDS, RunningHub, credentials_of, replay
from gpufleet.wiring.sending import hub_client


@contextlib.asynccontextmanager
async def running_relay(config: HubConfig, *, clock: Clock | None = None) -> AsyncIterator[RunningHub]:
    """Run a relay while the context is open; what the next hub has not taken at the end stays in the log.

    Args:
        config: the configuration in force; it names the next hub.
        clock: the relay's clock; the system's unless given.

    Raises:
        GpufleetError: if it cannot listen, or its log cannot be opened.
    """
    # Imported here: whoever imports this module to read a configuration does without client and server.
    from gpufleet.delivery.post import Refused
    from gpufleet.hub.relay.forwarding import Forwarder, Renumbering
    from gpufleet.web.hub.access import Door
    from gpufleet.web.hub.ingest import BatchEndpoint
    from gpufleet.web.hub.relay import Circle, RelayApp, RelayStatus
    from gpufleet.web.server import serve
    from gpufleet.web.tls import ServerTls

    if config.relay.to is None:
        raise ConfigError("configuration", "relay.to", "must name the next hub")
    if config.forward.url is not None:
        words = "is of no use to a relay (relay.to): the hub behind it passes on to a database"
        raise ConfigError("configuration", "forward.url", words)
    clock = clock or SystemClock()
    tls = ServerTls.of(config.tls)
    host, port = parse_listen(config.listen)
    async with contextlib.AsyncExitStack() as stack:
        decoding = stack.enter_context(named_threads(1, "relay-decoder"))
        ledger = Ledger({}, max_senders=config.ingest.max_senders)
        wal = await asyncio.to_thread(_open, config, ledger, stack)
        counters = Counters()
        conflicts = Conflicts()
        listening = Listening(clock)
        relayed = Relayed(ledger, conflicts, Senders(listening))
        circle = Circle(wal.epoch)
        forwarder = Forwarder(
            wal,
            hub_client(
                config.relay.to,
                name="gpufleet-relay",
                timeout_seconds=config.relay.timeout_seconds,
                token_file=config.relay.token_file,
                ca=config.relay.ca,
                connections=config.relay.connections,
                relays=circle.names,
            ),
            connections=config.relay.connections,
            refused=Refused(config.folder / "refused"),
            renumbering=Renumbering(ledger),
            now_ns=clock.now_ns,
        )

        def accepted(word: Word) -> None:
            relayed.note(word)
            forwarder.wake()

        pressure = Pressure(config.ingest.max_pending_bytes)
        endpoint = BatchEndpoint(
            ingest=Ingest(
                wal=wal,
                ledger=ledger,
                clusters=frozenset(config.clusters),
                counters=counters,
                decoding=decoding,
                conflicts=conflicts,
                turned_away=forwarder.held.refusal,
                accepted=accepted,
            ),
            pressure=pressure,
            counters=counters,
            clock=clock,
            max_body_bytes=config.ingest.max_body_bytes,
            body_timeout_seconds=config.ingest.body_timeout_seconds,
            listening=listening,
        )
        status = RelayStatus(
            counters=counters, wal=wal, forwarder=forwarder, pressure=pressure, relayed=relayed, clock=clock
        )
        credentials = await _credentials(config, stack, counters)
        app = RelayApp(
            door=Door(credentials, counters=counters, clock=clock),
            endpoint=endpoint,
            status=status,
            next_hub=config.relay.to,
            circle=circle,
        )
        task = asyncio.create_task(forwarder.run(), name="forwarder")
        try:
            async with (
                watching(listening, None, counters.defect("watch")),
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
                yield RunningHub(host=host, port=bound, secure=tls is not None, task=task)
        finally:
            forwarder.stop()  # after the server: nothing comes in any more
            await task


def _open(config: HubConfig, ledger: Ledger, stack: contextlib.AsyncExitStack) -> Wal:
    """Open the log, and learn what it holds. Blocking."""
    try:
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the relay's folder {config.folder}: {error.strerror}") from error
    wal = Wal.open(
        config.folder / "wal", max_bytes=config.ingest.wal_max_bytes, max_body_bytes=config.ingest.max_body_bytes
    )
    stack.callback(wal.close)
    replay(wal, ledger)
    return wal


async def _credentials(config: HubConfig, stack: contextlib.AsyncExitStack, counters: Counters) -> Credentials | None:
    """Read the relay's own tokens, where it asks for them."""
    if config.auth != "tokens":
        return None
    from gpufleet.registry.database import Database
    from gpufleet.registry.sql import SqlRegistry
    from gpufleet.registry.tokens import SqlTokens

    database = await asyncio.to_thread(Database.open, config.registry_dsn)
    registry = SqlRegistry(database)
    stack.callback(registry.close)
    await asyncio.to_thread(registry.migrate)
    return await credentials_of(SqlTokens(database), stack, counters)
