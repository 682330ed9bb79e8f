"""Construction of the hub from its configuration."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.config.agent import parse_listen
from gpufleet.config.hub import HubConfig, UsageConfig
from gpufleet.fleet.attribution.bindings import Claims
from gpufleet.fleet.usage.totals import Prices
from gpufleet.hub.flush.flusher import Flusher, run_rollups
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import StoreWriter
from gpufleet.hub.forward.forwarder import SeriesForwarder
from gpufleet.hub.imports.receiver import ImportReceiver
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.hub.liveness.senders import Senders, is_newer, next_report
from gpufleet.hub.liveness.uptime import HistoryFile, IngestClock, IngestHistory, run_ingest_clock
from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.hub.query.status import HubStatus
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.listener import Listener, clear_listener, reported_listener
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.machines import MachineAdmission
from gpufleet.hub.receive.sequences import EpochConflicts, digest_of
from gpufleet.model.api.usage import Price
from gpufleet.model.errors import RegistryError, StoreError, WireError
from gpufleet.model.stored.ledger import SenderState
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Audit, Registry, Tokens
from gpufleet.ports.store import Store
from gpufleet.runtime import SystemClock, named_threads, supervise
from gpufleet.wiring.connections import open_store
from gpufleet.wiring.forward import make_forwarder, run_forwarder
from gpufleet.wiring.polling import PollingContext, run_polling

log = logging.getLogger(__name__)

CONNECTIONS = 4096
"""Maximum open connections."""

ANSWER_SECONDS = 5.0
"""Time that a connection stays open after the time limit of a body, so that 408 can be sent."""

STOP_SECONDS = 5
"""Time that stopping waits for responses in progress."""

STORE_SECONDS = 20
"""Time that stopping waits for a store on a server. Then its requests are aborted; the log keeps the unwritten rest."""

HISTORY_FILE = "alive.json"
"""File of the ingest history, in the hub's folder."""

READER_THREADS = 4
"""Maximum concurrent short queries of the store."""

USAGE_THREADS = 2
"""Maximum concurrent usage queries, which can take a minute. Further ones are queued."""


class RunningHub(msgspec.Struct, frozen=True, kw_only=True):
    """A running hub.

    Attributes:
        host, port: listening address; the port is chosen by the kernel if it is 0 in the configuration.
        secure: whether it uses TLS.
        task: flushes the log; ends only when the hub is stopped.
    """

    host: str
    port: int
    secure: bool
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Root URL of its HTTP API."""
        return (
            f"{'https' if self.secure else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        )

    def listener(self, config: HubConfig) -> Listener:
        """Return its address and protection."""
        address = self.url.partition("://")[2]
        return Listener(address=address, tls=self.secure, tokens=config.auth == "tokens")


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    wal: Wal
    registry: Registry
    tokens: Tokens
    audit: Audit
    store: Store
    ledger: Ledger
    machines: MachineAdmission
    writer: StoreWriter
    decoded_cache: DecodedBatchCache
    counters: Counters
    senders: tuple[SenderState, ...]
    history_file: HistoryFile
    history: IngestHistory
    is_caught_up: Callable[[], bool]
    forwarder: SeriesForwarder | None


@contextlib.asynccontextmanager
async def running_hub(
    config: HubConfig,
    *,
    store: Callable[[str], Store] = open_store,
    clock: Clock | None = None,
    store_seconds: float = STORE_SECONDS,
    accept_data_loss: bool = False,
) -> AsyncIterator[RunningHub]:
    """Run a hub while the context is open. Leaving the context flushes what it can; the rest stays in the log.

    Args:
        config: the configuration in force.
        store: opens the store at a DSN.
        clock: the hub's clock; the system's by default.
        store_seconds: time that leaving waits for a store on a server.
        accept_data_loss: start although the registry or the store is empty while the other has data.

    Raises:
        GpufleetError: if it cannot listen, or its log, registry or store cannot be opened.
    """
    # Imported here: reading a configuration does not load the server.
    from gpufleet.web.hub.access import BATCHES, LOGS, METRICS, WRITE, Authenticator
    from gpufleet.web.hub.app import HubApp, IngestEndpoint, build_api
    from gpufleet.web.hub.audit import AuditRecorder
    from gpufleet.web.hub.imports import ImportEndpoint
    from gpufleet.web.hub.ingest import BatchEndpoint
    from gpufleet.web.hub.otlp import OtlpFormat
    from gpufleet.web.hub.remote_write import RemoteWriteFormat
    from gpufleet.web.page.files import PageFiles
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
        calculating = stack.enter_context(named_threads(USAGE_THREADS, "hub-usage"))
        sql_executor = stack.enter_context(named_threads(1, "hub-sql"))
        probe_executor = stack.enter_context(named_threads(1, "hub-prober"))
        loop = asyncio.get_running_loop()
        parts = await loop.run_in_executor(writing, _open, config, store, clock, stack, accept_data_loss)
        ingest_clock = IngestClock(clock, parts.history)
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
        pressure = ByteBudget(config.ingest.max_pending_bytes)
        conflicts = EpochConflicts()
        senders = Senders(ingest_clock, parts.senders)
        ingest = Ingest(
            wal=parts.wal,
            ledger=parts.ledger,
            clusters=clusters,
            counters=parts.counters,
            decoding=decoding,
            conflicts=conflicts,
            accepted=senders.note,
            decoded_cache=parts.decoded_cache,
            machines=parts.machines,
        )
        endpoint = BatchEndpoint(
            ingest=ingest,
            pressure=pressure,
            counters=parts.counters,
            clock=clock,
            max_body_bytes=config.ingest.max_body_bytes,
            body_timeout_seconds=config.ingest.body_timeout_seconds,
            ingest_clock=ingest_clock,
        )
        target_statuses = TargetStatuses()
        status = HubStatus(
            counters=parts.counters,
            wal=parts.wal,
            ledger=parts.ledger,
            flusher=flusher,
            pressure=pressure,
            clock=clock,
            target_statuses=target_statuses,
            forwarder=parts.forwarder,
        )
        overview = Overview(
            senders=senders,
            ingest_clock=ingest_clock,
            ledger=parts.ledger,
            conflicts=conflicts,
            clusters=clusters,
            covering=CoverageCounter(
                registry=parts.registry,
                store=parts.store,
                clock=clock,
                stale_after_seconds=config.stale_after_seconds,
            ),
            store=parts.store,
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
            usage_threads=calculating,
            sql_thread=sql_executor,
            probe_thread=probe_executor,
            clock=clock,
            clusters=clusters,
            stale_after_seconds=config.stale_after_seconds,
            instant=overview.instant,
            prices=make_prices(config.usage),
        )
        task = asyncio.create_task(flusher.run(), name="flusher")
        binding = asyncio.create_task(
            supervise(
                queries.allocations.run_binding,
                "allocation binding",
                on_end=parts.counters.restart_counter("binding"),
            ),
            name="binding",
        )
        stack.callback(binding.cancel)
        try:
            authenticator = Authenticator(
                await load_credentials(parts.tokens, stack, parts.counters) if config.auth == "tokens" else None,
                counters=parts.counters,
                clock=clock,
            )
            recorder = AuditRecorder(parts.audit, clock)
            api = build_api(authenticator, queries, overview, clusters, recorder, status)
            # Pushed and polled data have separate receivers, so that pushes cannot delay polls.
            push_receiver, pull_receiver = (
                ImportReceiver(
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
            import_endpoints = {
                path: ImportEndpoint(
                    form,
                    receiver=push_receiver,
                    served=lambda: clusters.served,
                    pressure=pressure,
                    counters=parts.counters,
                    ingest_clock=ingest_clock,
                    body_timeout_seconds=config.ingest.body_timeout_seconds,
                )
                for path, form in ((WRITE, RemoteWriteFormat()), (METRICS, OtlpFormat()), (LOGS, OtlpFormat(logs=True)))
            }
            endpoints: dict[str, IngestEndpoint] = {BATCHES: endpoint, **import_endpoints}
            page = PageFiles(requires_token=config.auth == "tokens")
            app = HubApp(authenticator=authenticator, endpoints=endpoints, api=api, recorder=recorder, page=page)
            async with (
                run_ingest_clock(ingest_clock, parts.history_file, parts.counters.restart_counter("watch")),
                run_forwarder(parts.forwarder, parts.counters),
                run_polling(
                    config,
                    PollingContext(
                        ingest=ingest,
                        receiver=pull_receiver,
                        counters=parts.counters,
                        pressure=pressure,
                        target_statuses=target_statuses,
                        clock=clock,
                        states=parts.senders,
                    ),
                ),
                run_rollups(parts.store, parts.counters, clock),
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
                try:
                    with reported_listener(config.folder, running.listener(config)):
                        yield running
                finally:
                    abort_timer = loop.call_later(store_seconds, parts.store.abort_requests)
                    stack.callback(abort_timer.cancel)
        finally:
            flusher.stop()  # after the server, so that no batch arrives afterwards
            await task


def make_prices(config: UsageConfig) -> Prices:
    """Return the configured prices of GPUs."""
    return Prices(
        config.currency or None,
        tuple(
            Price(model=item.model, per_gpu_hour=item.per_gpu_hour, valid_from=item.valid_from) for item in config.price
        ),
    )


async def load_credentials(tokens: Tokens, stack: contextlib.AsyncExitStack, counters: Counters) -> Credentials:
    """Load the tokens and start a task that reloads changed tokens."""
    credentials = Credentials(tokens)
    if await asyncio.to_thread(credentials.load) == 0:
        log.warning("no token exists: create one on this host with `gpufleet token create`")
    run = supervise(credentials.run, "token reload", on_end=counters.restart_counter("tokens"))
    task = asyncio.create_task(run, name="tokens")
    stack.callback(task.cancel)
    return credentials


def check_state(registry: Registry, store: Store) -> None:
    """Check that registry and store belong together, before anything is written.

    Raises:
        StoreError: if the store has no tables, but the registry knows machines.
        RegistryError: if the registry knows no machine, but the store has samples.
    """
    knows_machines = bool(registry.machines(limit=1))
    if knows_machines and store.schema_version() == 0:
        raise StoreError(
            "the store has no tables, but the registry knows machines with stored data: check `store` in the "
            "configuration and that its disk is mounted, or restore the store from a backup. To start with an empty "
            "store, run `gpufleet hub --accept-data-loss` once"
        )
    if not knows_machines and not store.is_empty():
        raise RegistryError(
            "the registry knows no machine, but the store has their samples: check `registry` in the configuration, "
            "or restore the registry from a backup. To start with an empty registry, in which every machine gets a "
            "new id, run `gpufleet hub --accept-data-loss` once"
        )


def _open(
    config: HubConfig,
    open_at: Callable[[str], Store],
    clock: Clock,
    stack: contextlib.AsyncExitStack,
    accept_data_loss: bool,
) -> _Parts:
    """Open all files and databases and replay the log. Blocking."""
    from gpufleet.registry.audit import SqlAudit
    from gpufleet.registry.database import Database
    from gpufleet.registry.sql import SqlRegistry
    from gpufleet.registry.tokens import SqlTokens

    try:
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the hub's folder {config.folder}: {error.strerror}") from error
    wal = Wal.open(
        config.folder / "wal", max_bytes=config.ingest.wal_max_bytes, max_body_bytes=config.ingest.max_body_bytes
    )
    stack.callback(wal.close)
    clear_listener(config.folder)
    database = Database.open(config.registry_dsn)
    registry = SqlRegistry(database, max_machines=config.ingest.max_machines)
    stack.callback(registry.close)
    registry.migrate()
    registry.register_clusters(config.clusters, clock.now_ns())
    store = open_at(config.store_dsn)
    stack.callback(store.close)
    if not accept_data_loss:
        check_state(registry, store)
    store.migrate(config.retention.as_record, hub=wal.epoch)
    counters = Counters()
    ledger = Ledger(registry.sequences(), max_senders=config.ingest.max_senders)
    senders = {(item.cluster, item.sender): item for item in registry.senders()}
    machines = MachineAdmission(registry, wal.make_drain_check)
    replay(wal, ledger, senders, machines)
    history_file, decoded_cache = HistoryFile(config.folder / HISTORY_FILE), DecodedBatchCache()
    forwarder = make_forwarder(config, clock)
    if forwarder is not None:
        stack.callback(forwarder.queue.close)
    newest_received_at = max((state.newest_report.received_at for state in senders.values()), default=0)
    writer = StoreWriter(
        wal=wal.epoch,
        store=store,
        registry=registry,
        quarantine=Quarantine(config.folder / "quarantine"),
        counters=counters,
        decoded_cache=decoded_cache,
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
        machines=machines,
        writer=writer,
        decoded_cache=decoded_cache,
        counters=counters,
        senders=tuple(senders.values()),
        history_file=history_file,
        history=history_file.load() or IngestHistory.until(newest_received_at),
        is_caught_up=wal.make_drain_check(),
        forwarder=forwarder,
    )


def replay(
    wal: Wal,
    ledger: Ledger,
    senders: dict[tuple[str, str], SenderState] | None = None,
    machines: MachineAdmission | None = None,
) -> None:
    """Enter every batch that was acknowledged but not flushed into the ledger and, if given, the other records."""
    for record in wal.replay():
        try:
            batch = decode(record.body)
        except WireError:
            continue  # the writer quarantines and logs it
        key, sender_key = key_of(batch), (batch.cluster, batch.sender)
        before = senders[sender_key].newest_report if senders is not None and sender_key in senders else None
        if senders is not None and is_newer(before, batch, known_epoch=ledger.knows(key)):
            newest = next_report(before, batch, received_at=record.received_at)
            senders[sender_key] = SenderState(cluster=batch.cluster, sender=batch.sender, newest_report=newest)
        ledger.hold(key, batch, digest_of(record.body), record.came_at)
        if machines is not None:
            machines.restore(batch, record.came_at)
