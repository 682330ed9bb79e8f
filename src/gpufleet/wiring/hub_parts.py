"""Files and databases of the hub: opening them, and replaying the log."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.config.hub import HubConfig
from gpufleet.hub.findings.late import LateReports
from gpufleet.hub.flush.quarantine import Quarantine
from gpufleet.hub.flush.writer import FlushedState, StoreWriter
from gpufleet.hub.forward.forwarder import SeriesForwarder
from gpufleet.hub.liveness.senders import is_newer, next_report
from gpufleet.hub.liveness.uptime import HistoryFile, IngestHistory
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from gpufleet.hub.receive.ledger import Ledger, key_of
from gpufleet.hub.receive.listener import clear_listener
from gpufleet.hub.receive.log import Wal, has_log
from gpufleet.hub.receive.machines import MachineAdmission
from gpufleet.hub.receive.sequences import digest_of
from gpufleet.hub.updates.marks import ChangeMarks
from gpufleet.model.errors import RegistryError, StoreError, WireError
from gpufleet.model.stored.ledger import SenderState
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry
from gpufleet.ports.registry import Audit, Registry, Tokens
from gpufleet.ports.store import Store
from gpufleet.runtime import named_threads
from gpufleet.wiring.forward import make_forwarder

LOG = logging.getLogger(__name__)

HISTORY_FILE = "alive.json"
"""File of the ingest history, in the hub's folder."""


class HubParts(msgspec.Struct, frozen=True, kw_only=True):
    """Open files and databases, and what was read from them at the start."""

    wal: Wal
    registry: Registry
    tokens: Tokens
    audit: Audit
    findings: FindingRegistry
    late: LateReports
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
    loader: Executor
    forwarder: SeriesForwarder | None
    marks: ChangeMarks


def check_state(registry: Registry, store: Store) -> None:
    """Check that registry and store belong together, before anything is written.

    Raises:
        StoreError: if the store has no tables, but the registry knows machines.
        RegistryError: if the registry knows no machine, but the store has samples.
    """
    knows_machines = registry.has_machines()
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


def open_parts(
    config: HubConfig,
    open_at: Callable[[str], Store],
    clock: Clock,
    stack: contextlib.AsyncExitStack,
    accept_data_loss: bool,
) -> HubParts:
    """Open all files and databases and replay the log. Blocking.

    Args:
        config: the configuration in force.
        open_at: opens the store at a DSN.
        clock: the hub's clock.
        stack: closes everything again.
        accept_data_loss: as in `running_hub`.

    Raises:
        GpufleetError: if something cannot be opened.
    """
    from gpufleet.registry.audit import SqlAudit
    from gpufleet.registry.database import Database
    from gpufleet.registry.findings import SqlFindings
    from gpufleet.registry.sql import SqlRegistry
    from gpufleet.registry.tokens import SqlTokens

    try:
        config.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the hub's folder {config.folder}: {error.strerror}") from error
    had_log = has_log(config.folder / "wal")
    wal = Wal.open(
        config.folder / "wal", max_bytes=config.ingest.wal_max_bytes, max_body_bytes=config.ingest.max_body_bytes
    )
    stack.callback(wal.close)
    clear_listener(config.folder)
    database = Database.open(config.registry_dsn)
    registry = SqlRegistry(database, max_machines=config.ingest.max_machines)
    stack.callback(registry.close)
    registry.migrate()
    store = open_at(config.store_dsn)
    stack.callback(store.close)
    if not accept_data_loss:
        check_state(registry, store)
    if not had_log and registry.has_machines():
        LOG.error(
            "the log %s is missing or empty, but the registry knows machines: batches that were acknowledged and not "
            "yet stored are lost. Mount its disk, or restore the folder from a backup if there is one; the hub "
            "continues with an empty log",
            config.folder / "wal",
        )
    store.migrate(config.retention.as_record, hub=wal.epoch)
    loader = stack.enter_context(named_threads(1, "hub-loader"))
    loader.submit(load_counts, store, clock.now_ns())
    registry.load()
    registry.register_clusters(config.clusters, clock.now_ns())
    counters = Counters()
    flushed = FlushedState.load(registry)
    ledger = Ledger(flushed.sequences, max_senders=config.ingest.max_senders)
    senders = {(item.cluster, item.sender): item for item in flushed.senders}
    machines = MachineAdmission(registry, wal.make_drain_check)
    replay(wal, ledger, senders, machines)
    history_file, decoded_cache = HistoryFile(config.folder / HISTORY_FILE), DecodedBatchCache()
    forwarder = make_forwarder(config, clock)
    if forwarder is not None:
        stack.callback(forwarder.queue.close)
    marks = ChangeMarks(clock.monotonic)
    findings = SqlFindings(database)
    late = LateReports(findings, flushed.senders)
    written = [marks.note_batches, *([late.note] if config.findings.enabled else [])]
    newest_received_at = max((state.newest_report.received_at for state in senders.values()), default=0)
    writer = StoreWriter(
        wal=wal.epoch,
        store=store,
        registry=registry,
        flushed=flushed,
        quarantine=Quarantine(config.folder / "quarantine"),
        counters=counters,
        decoded_cache=decoded_cache,
        written=note_all(*written, *([forwarder.offer] if forwarder is not None else [])),
        now=clock.now_ns,
    )
    return HubParts(
        wal=wal,
        registry=registry,
        tokens=SqlTokens(database),
        audit=SqlAudit(database),
        findings=findings,
        late=late,
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
        loader=loader,
        forwarder=forwarder,
        marks=marks,
    )


def load_counts(store: Store, now: int) -> None:
    """Load what the overview of the fleet needs."""
    try:
        store.load_counts()
        store.declared_gpus(now)
    except StoreError as error:
        LOG.warning("%s; the first overview of the fleet loads it again", error)


def load_newest(store: Store) -> None:
    """Load the newest samples, which rules and lists of a cluster need."""
    try:
        store.load()
    except StoreError as error:
        LOG.warning("%s; the first answer about a cluster loads it again", error)


def note_all(*functions: Callable[[Sequence[AcceptedBatch]], None]) -> Callable[[Sequence[AcceptedBatch]], None]:
    """Return a function that passes batches to each of the functions."""

    def note(accepted: Sequence[AcceptedBatch]) -> None:
        for function in functions:
            function(accepted)

    return note


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
