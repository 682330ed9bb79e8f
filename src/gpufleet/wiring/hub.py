"""Construction of the hub from its configuration."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from gpufleet.config.agent import parse_listen
from gpufleet.config.hub import HubConfig
from gpufleet.hub.captures import CaptureArchive
from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.findings.instant import InstantSource, disk_free_ratio
from gpufleet.hub.flush.flusher import Flusher, run_rollups
from gpufleet.hub.imports.receiver import ImportReceiver
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.hub.liveness.senders import Senders
from gpufleet.hub.liveness.uptime import IngestClock, run_ingest_clock
from gpufleet.hub.query import Queries
from gpufleet.hub.query.overview import Overview
from gpufleet.hub.query.prices import CurrentPrices
from gpufleet.hub.query.records import CoverageCounter
from gpufleet.hub.query.status import HubStatus
from gpufleet.hub.receive.clusters import Clusters
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.credentials import Credentials
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.listener import Listener, reported_listener
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Tokens
from gpufleet.ports.store import Store
from gpufleet.runtime import SystemClock, named_threads, supervise, trim_regularly
from gpufleet.wiring.connections import open_store
from gpufleet.wiring.contract import load_contract
from gpufleet.wiring.findings import RuleParts, make_evaluator, run_evaluator
from gpufleet.wiring.forward import run_forwarder
from gpufleet.wiring.hub_parts import load_newest, open_parts
from gpufleet.wiring.notify import NotifyContext, make_receivers, run_housekeeping, run_notifications
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
    from gpufleet.web.hub.access import BATCHES, BENCHMARKS, LOGS, METRICS, WRITE, Authenticator
    from gpufleet.web.hub.app import HubApp, IngestEndpoint, build_api
    from gpufleet.web.hub.audit import AuditRecorder
    from gpufleet.web.hub.benchmarks import CaptureEndpoint
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
        parts = await loop.run_in_executor(writing, open_parts, config, store, clock, stack, accept_data_loss)
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
        rules = RuleParts.of(senders, parts.late, parts.registry.allocations(), config.findings.interval_seconds)
        ingest = Ingest(
            wal=parts.wal,
            ledger=parts.ledger,
            clusters=clusters,
            counters=parts.counters,
            decoding=decoding,
            conflicts=conflicts,
            accepted=rules.note,
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
        notifying = NotifyContext(
            findings=parts.findings,
            machines=parts.registry,
            store=parts.store,
            hub=parts.wal.epoch,
            folder=config.folder,
            threads=reading,
            writing=writing,
            clock=clock,
        )
        receivers = make_receivers(config.findings, notifying)
        contract = ContractVerdicts(load_contract(), parts.findings)
        status = HubStatus(
            counters=parts.counters,
            wal=parts.wal,
            ledger=parts.ledger,
            flusher=flusher,
            pressure=pressure,
            clock=clock,
            target_statuses=target_statuses,
            forwarder=parts.forwarder,
            receivers=[one.stats for one in receivers],
            rules=rules.status if config.findings.enabled else None,
            contract=contract if config.findings.enabled else None,
        )
        live_findings = rules.live(config.findings)
        coverage = CoverageCounter(
            registry=parts.registry, store=parts.store, clock=clock, stale_after_seconds=config.stale_after_seconds
        )
        overview = Overview(
            senders=senders,
            ingest_clock=ingest_clock,
            ledger=parts.ledger,
            conflicts=conflicts,
            clusters=clusters,
            covering=coverage,
            store=parts.store,
            registry=parts.registry,
            threads=reading,
            clock=clock,
            flush_lag_seconds=lambda: status.flush_lag_seconds,
            unflushed_since=lambda: status.unflushed_since,
            findings=live_findings,
            contract=contract,
        )
        queries = Queries(
            registry=parts.registry,
            store=parts.store,
            claims=rules.claims,
            threads=reading,
            usage_threads=calculating,
            sql_thread=sql_executor,
            probe_thread=probe_executor,
            clock=clock,
            clusters=clusters,
            stale_after_seconds=config.stale_after_seconds,
            instant=overview.instant,
            prices=CurrentPrices(config.usage),
            findings=parts.findings,
            live_findings=live_findings,
        )
        source = InstantSource(
            liveness=overview.instant,
            served=lambda: clusters.served,
            ingest_clock=ingest_clock,
            ledger=parts.ledger,
            conflicts=conflicts,
            counters=parts.counters,
            wal=parts.wal,
            flush_lag_seconds=lambda: status.flush_lag_seconds,
            disk_free_ratio=partial(disk_free_ratio, config.data_folders),
            readiness=queries.readiness,
        )
        evaluator = make_evaluator(
            config, rules, parts, source, coverage=coverage, contract=contract, queries=queries, clock=clock
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
        trimming = asyncio.create_task(
            supervise(partial(trim_regularly, reading), "memory trim", on_end=parts.counters.restart_counter("memory")),
            name="memory trim",
        )
        stack.callback(trimming.cancel)
        try:
            authenticator = Authenticator(
                await load_credentials(parts.tokens, stack, parts.counters) if config.auth == "tokens" else None,
                counters=parts.counters,
                clock=clock,
            )
            recorder = AuditRecorder(parts.audit, clock)
            archive = await loop.run_in_executor(reading, CaptureArchive, config.folder / "benchmarks", clock)
            api = build_api(authenticator, queries, overview, clusters, recorder, status, parts.marks, archive)
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
            capture_endpoint = CaptureEndpoint(
                archive=archive,
                served=clusters,
                pressure=pressure,
                threads=reading,
                body_timeout_seconds=config.ingest.body_timeout_seconds,
            )
            endpoints: dict[str, IngestEndpoint] = {
                BATCHES: endpoint,
                BENCHMARKS: capture_endpoint,
                **import_endpoints,
            }
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
                run_evaluator(evaluator, parts.counters),
                run_notifications(receivers, parts.counters),
                run_housekeeping(receivers, notifying, parts.counters),
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
                parts.loader.submit(load_newest, parts.store)  # only now: it would delay the start
                parts.marks.open()
                running = RunningHub(host=host, port=bound, secure=tls is not None, task=task)
                try:
                    with reported_listener(config.folder, running.listener(config)):
                        yield running
                finally:
                    parts.marks.close()  # otherwise the server waits for the streams
                    abort_timer = loop.call_later(store_seconds, parts.store.abort_requests)
                    stack.callback(abort_timer.cancel)
        finally:
            flusher.stop()  # after the server, so that no batch arrives afterwards
            await task


async def load_credentials(tokens: Tokens, stack: contextlib.AsyncExitStack, counters: Counters) -> Credentials:
    """Load the tokens and start a task that reloads changed tokens."""
    credentials = Credentials(tokens)
    if await asyncio.to_thread(credentials.load) == 0:
        log.warning("no token exists: create one on this host with `gpufleet token create`")
    run = supervise(credentials.run, "token reload", on_end=counters.restart_counter("tokens"))
    task = asyncio.create_task(run, name="tokens")
    stack.callback(task.cancel)
    return credentials
