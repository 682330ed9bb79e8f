"""The hub, put together from its configuration."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.config.agent import parse_listen
from gpufleet.config.hub import HubConfig, UsageConfig
from gpufleet.fleet.attribution.contract import Claims
from gpufleet.fleet.usage.totals import Prices
from gpufleet.hub.flush.flusher import Flusher, rolling
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import Writer
from gpufleet.hub.forward.forwarder import Forwarder
from gpufleet.hub.imports.receiver import Writes
from gpufleet.hub.imports.scrape_status import Standings
from gpufleet.hub.liveness.senders import Senders, heard, is_news
from gpufleet.hub.liveness.uptime import Listening, Mark, Past, watching
from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.records import Covering
from gpufleet.hub.query.status import HubStatus
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials
from gpufleet.hub.receive.decoded import Unpacked
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.limits import Pressure
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import Conflicts, digest_of
from gpufleet.model.api.usage import Price
from gpufleet.model.errors import StoreError, WireError
from gpufleet.model.stored.ledger import SenderState
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Audit, Registry, Tokens
from gpufleet.ports.store import Store
from gpufleet.runtime import SystemClock, keep, named_threads
from gpufleet.wiring.forward import forwarding, make_forwarder
from gpufleet.wiring.polled import Pulling, polling
from gpufleet.wiring.sending import open_store

log = logging.getLogger(__name__)

CONNECTIONS = 4096
"""Open at once."""

ANSWER_SECONDS = 5.0
"""How much longer than the configured time for a body its connection stays, so that 408 can be said."""

STOP_SECONDS = 5
"""How long stopping waits for answers under way."""

STORE_SECONDS = 20
"""How long stopping waits for a store on a server; then what it was asked is given up, and the log has the rest."""

MARK = "alive.json"
"""File in the hub's folder that says when it last lived."""

READER_THREADS = 4
"""Questions that are asked of the store at once."""


class RunningHub(msgspec.Struct, frozen=True, kw_only=True):
    """A hub that runs.

    Attributes:
        host, port: where it answers; the port is the kernel's choice where the configuration says 0.
        secure: whether it speaks TLS.
        task: what empties the log; ends only when the hub is stopped.
    """

    host: str
    port: int
    secure: bool
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Root of its HTTP surface."""
        return (
            f"{'https' if self.secure else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        )


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    wal: Wal
    registry: Registry
    tokens: Tokens
    audit: Audit
    store: Store
    ledger: Ledger
    writer: Writer
    unpacked: Unpacked
    counters: Counters
    senders: tuple[SenderState, ...]
    mark: Mark
    past: Past
    is_caught_up: Callable[[], bool]
    forwarder: Forwarder | None


@contextlib.asynccontextmanager
async def running_hub(
    config: HubConfig,
    *,
    store: Callable[[str], Store] = open_store,
    clock: Clock | None = None,
    store_seconds: float = STORE_SECONDS,
) -> AsyncIterator[RunningHub]:
    """Run a hub while the context is open; leaving it flushes what can be flushed, and keeps the rest in the log.

    Args:
        config: the configuration in force.
        store: opens the store at a DSN.
        clock: the hub's clock; the system's unless given.
        store_seconds: how long leaving waits for a store on a server.

    Raises:
        GpufleetError: if it cannot listen, or its log, registry or store cannot be opened.
    """
    # Imported here: whoever imports this module to read a configuration does without the server.
    from gpufleet.web.hub.access import BATCHES, LOGS, METRICS, WRITE, Door
    from gpufleet.web.hub.app import Endpoint, HubApp, build_api
    from gpufleet.web.hub.audit import Recorder
    from gpufleet.web.hub.imports import ImportEndpoint
    from gpufleet.web.hub.ingest import BatchEndpoint
    from gpufleet.web.hub.otlp import Otlp
    from gpufleet.web.hub.remote_write import RemoteWrite
    from gpufleet.web.server import serve
    from gpufleet.web.tls import ServerTls

    clock = clock or SystemClock()
    tls = ServerTls.of(config.tls)
    host, port = parse_listen(config.listen)
    async with contextlib.AsyncExitStack() as stack:
        writing = stack.enter_context(named_threads(1, "hub-writer"))
        decoding = stack.enter_context(named_threads(1, "hub-decoder"))
        importing = stack.enter_context(named_threads(1, "hub-importer"))
        pulling = stack.enter_context(named_threads(1, "hub-puller"))
        reading = stack.enter_context(named_threads(READER_THREADS, "hub-reader"))
        asking = stack.enter_context(named_threads(1, "hub-sql"))
        probing = stack.enter_context(named_threads(1, "hub-prober"))
        loop = asyncio.get_running_loop()
        parts = await loop.run_in_executor(writing, _open, config, store, clock, stack)
        listening = Listening(clock, parts.past)
        flusher = Flusher(
            wal=parts.wal,
            writer=parts.writer,
            thread=writing,
            counters=parts.counters,
            clock=clock,
            interval_seconds=config.flush.interval_seconds,
            max_records=config.flush.max_records,
            max_bytes=config.flush.max_bytes,
        )
        clusters = Clusters(config.clusters, registry=parts.registry, threads=reading, clock=clock)
        pressure = Pressure(config.ingest.max_pending_bytes)
        conflicts = Conflicts()
        senders = Senders(listening, parts.senders)
        ingest = Ingest(
            wal=parts.wal,
            ledger=parts.ledger,
            clusters=clusters,
            counters=parts.counters,
            decoding=decoding,
            conflicts=conflicts,
            accepted=senders.note,
            unpacked=parts.unpacked,
        )
        endpoint = BatchEndpoint(
            ingest=ingest,
            pressure=pressure,
            counters=parts.counters,
            clock=clock,
            max_body_bytes=config.ingest.max_body_bytes,
            body_timeout_seconds=config.ingest.body_timeout_seconds,
            listening=listening,
        )
        standings = Standings()
        status = HubStatus(
            counters=parts.counters,
            wal=parts.wal,
            ledger=parts.ledger,
            flusher=flusher,
            pressure=pressure,
            clock=clock,
            standings=standings,
            forwarder=parts.forwarder,
        )
        overview = Overview(
            senders=senders,
            listening=listening,
            ledger=parts.ledger,
            conflicts=conflicts,
            clusters=clusters,
            covering=Covering(
                registry=parts.registry,
                store=parts.store,
                clock=clock,
                stale_after_seconds=config.stale_after_seconds,
            ),
            registry=parts.registry,
            threads=reading,
            clock=clock,
            flush_lag_seconds=lambda: status.flush_lag_seconds,
            unflushed_since=lambda: status.unflushed_since,
        )
        queries = Queries(
            registry=parts.registry,
            store=parts.store,
            claims=Claims(parts.registry.allocations()),
            threads=reading,
            sql_thread=asking,
            probe_thread=probing,
            clock=clock,
            clusters=clusters,
            stale_after_seconds=config.stale_after_seconds,
            instant=overview.instant,
            prices=prices_of(config.usage),
        )
        task = asyncio.create_task(flusher.run(), name="flusher")
        try:
            door = Door(
                await credentials_of(parts.tokens, stack, parts.counters) if config.auth == "tokens" else None,
                counters=parts.counters,
                clock=clock,
            )
            recorder = Recorder(parts.audit, clock)
            api = build_api(door, queries, overview, clusters, recorder, status)
            # Of its own for what is asked: those who push can neither hold it up nor take its places.
            writes, pulls = (
                Writes(
                    ingest=ingest,
                    clusters=clusters,
                    registry=parts.registry,
                    store=parts.store,
                    counters=parts.counters,
                    clock=clock,
                    threads=threads,
                    is_caught_up=parts.is_caught_up,
                )
                for threads in (importing, pulling)
            )
            of_others = {
                path: ImportEndpoint(
                    form,
                    writes=writes,
                    served=lambda: clusters.served,
                    pressure=pressure,
                    counters=parts.counters,
                    listening=listening,
                    body_timeout_seconds=config.ingest.body_timeout_seconds,
                )
                for path, form in ((WRITE, RemoteWrite()), (METRICS, Otlp()), (LOGS, Otlp(logs=True)))
            }
            endpoints: dict[str, Endpoint] = {BATCHES: endpoint, **of_others}
            app = HubApp(door=door, endpoints=endpoints, api=api, recorder=recorder)
            async with (
                watching(listening, parts.mark, parts.counters.defect("watch")),
                forwarding(parts.forwarder, parts.counters),
                polling(
                    config,
                    Pulling(
                        ingest=ingest,
                        writes=pulls,
                        counters=parts.counters,
                        pressure=pressure,
                        standings=standings,
                        clock=clock,
                        states=parts.senders,
                    ),
                ),
                rolling(parts.store, parts.counters, clock),
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
                try:
                    yield RunningHub(host=host, port=bound, secure=tls is not None, task=task)
                finally:
                    giving_up = loop.call_later(store_seconds, parts.store.hang_up)
                    stack.callback(giving_up.cancel)
        finally:
            flusher.stop()  # after the server: nothing comes in any more
            await task


def prices_of(config: UsageConfig) -> Prices:
    """Return what GPUs cost."""
    return Prices(
        config.currency or None,
        tuple(Price(model=one.model, per_gpu_hour=one.per_gpu_hour, valid_from=one.valid_from) for one in config.price),
    )


async def credentials_of(tokens: Tokens, stack: contextlib.AsyncExitStack, counters: Counters) -> Credentials:
    """Read the tokens, and see that changes are seen."""
    credentials = Credentials(tokens)
    if await asyncio.to_thread(credentials.load) == 0:
        log.warning("there is no token yet: make one on this host with `gpufleet token create`")
    run = keep(credentials.run, "looking for changes of tokens", ended=counters.defect("tokens"))
    watching = asyncio.create_task(run, name="tokens")
    stack.callback(watching.cancel)
    return credentials


def _open(config: HubConfig, open_at: Callable[[str], Store], clock: Clock, stack: contextlib.AsyncExitStack) -> _Parts:
    """Open everything on disk, and learn what the log holds. Blocking."""
    from gpufleet.registry.audit import SqlAudit
    from gpufleet.registry.database import Database
    from gpufleet.registry.sql import SqlRegistry
    from gpufleet.registry.tokens import SqlTokens

    try:
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the hub's folder {config.folder}: {error.strerror}") from error
    wal = Wal.open(
        config.folder / "wal", max_bytes=config.ingest.wal_max_bytes, max_body_bytes=config.ingest.max_body_bytes
    )
    stack.callback(wal.close)
    database = Database.open(config.registry_dsn)
    registry = SqlRegistry(database)
    stack.callback(registry.close)
    registry.migrate()
    registry.register_clusters(config.clusters, clock.now_ns())
    store = open_at(config.store_dsn)
    stack.callback(store.close)
    store.migrate(config.retention.kept, hub=wal.epoch)
    counters = Counters()
    ledger = Ledger(registry.sequences(), max_senders=config.ingest.max_senders)
    senders = {(one.cluster, one.sender): one for one in registry.senders()}
    replay(wal, ledger, senders)
    mark, unpacked = Mark(config.folder / MARK), Unpacked()
    forwarder = make_forwarder(config, clock)
    if forwarder is not None:
        stack.callback(forwarder.queue.close)
    writer = Writer(
        wal=wal.epoch,
        store=store,
        registry=registry,
        quarantine=Quarantine(config.folder / "quarantine"),
        counters=counters,
        unpacked=unpacked,
        written=forwarder.offer if forwarder is not None else lambda _: None,
        now=clock.now_ns,
    )
    return _Parts(
        wal=wal,
        registry=registry,
        tokens=SqlTokens(database),
        audit=SqlAudit(database),
        store=store,
        ledger=ledger,
        writer=writer,
        unpacked=unpacked,
        counters=counters,
        senders=tuple(senders.values()),
        mark=mark,
        past=mark.load() or Past.until(max((one.heard.received_at for one in senders.values()), default=0)),
        is_caught_up=wal.what_waits(),
        forwarder=forwarder,
    )


def replay(wal: Wal, ledger: Ledger, senders: dict[tuple[str, str], SenderState] | None = None) -> None:
    """Hold every batch that was acknowledged and not flushed before the last stop or crash; `senders` learn of it."""
    for record in wal.replay():
        try:
            batch = decode(record.body)
        except WireError:
            continue  # the writer will put it aside, and say so
        key, who = key_of(batch), (batch.cluster, batch.sender)
        before = senders[who].heard if senders is not None and who in senders else None
        if senders is not None and is_news(before, batch, known_epoch=ledger.knows(key)):
            newest = heard(before, batch, received_at=record.received_at)
            senders[who] = SenderState(cluster=batch.cluster, sender=batch.sender, heard=newest)
        ledger.hold(key, batch, digest_of(record.body), record.came_at)
