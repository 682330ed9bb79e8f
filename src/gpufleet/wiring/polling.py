"""Targets that the hub polls itself: construction from its configuration."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

import msgspec

from gpufleet.config.hub import HubConfig
from gpufleet.config.load import InvalidValueError
from gpufleet.config.scrape import DiscoveryConfig, ExporterTarget, FederationConfig, KubeStateMetricsConfig
from gpufleet.hub.imports.federation import KUBE_STATE_READER as SCRAPE
from gpufleet.hub.imports.federation import (
    MAX_PAGE_BYTES,
    ClusterPuller,
    FederationReader,
    KubeStateReader,
    federate_url,
)
from gpufleet.hub.imports.federation import READER as FEDERATE
from gpufleet.hub.imports.receiver import ImportReceiver
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.scrape_status import TargetKey, TargetStatuses
from gpufleet.hub.imports.targets import Discovery, ScrapeTarget
from gpufleet.hub.liveness.senders import answered_at
from gpufleet.hub.receive.counters import Counters, count_bounded
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.errors import ConfigError
from gpufleet.model.stored.ledger import SenderState
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.runtime import supervise
from gpufleet.wiring.connections import tls_context, token_reader
from gpufleet.wiring.polled_host import PolledHost, polled_sender

PollingTask = Callable[[], Coroutine[None, None, None]]


class PollingContext(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the polling tasks.

    Attributes:
        ingest: ingests batches of single hosts.
        receiver: ingests pages of whole clusters.
        counters: count unknown names and labels.
        pressure: limit of memory for pages, shared with pushed bodies.
        target_statuses: status of each target.
        clock: wall and monotonic time.
        states: states of senders of an earlier process.
    """

    ingest: Ingest
    receiver: ImportReceiver
    counters: Counters
    pressure: ByteBudget
    target_statuses: TargetStatuses
    clock: Clock
    states: Iterable[SenderState]

    def drift(self, names: Mapping[str, int], labels: Mapping[str, int]) -> None:
        """Count names with a known project's prefix, and labels, that are missing in the project's table."""
        for name, count in names.items():
            count_bounded(self.counters.unknown_metrics, name, count)
        for name, count in labels.items():
            count_bounded(self.counters.unknown_labels, name, count)


@contextlib.asynccontextmanager
async def run_polling(config: HubConfig, context: PollingContext) -> AsyncIterator[None]:
    """Poll the configured targets while the context is open.

    Raises:
        ConfigError: if a token or CA file cannot be read, or an address is invalid.
    """
    tasks = [asyncio.create_task(run(), name="pull") for run in _polling_tasks(config, _HostTasks(context), context)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _HostTasks:
    """Makes polling tasks of hosts. Each sender name is used once."""

    def __init__(self, context: PollingContext) -> None:
        self._context = context
        self._addresses: dict[TargetKey, str] = {}

    @functools.cached_property
    def _answered_at(self) -> dict[TargetKey, int]:
        """Time of the last response of each sender in an earlier process; only a hub with targets needs it."""
        return {(item.cluster, item.sender): answered_at(item.newest_report) for item in self._context.states}

    def make(self, cluster: str, node: str, reader: Reader, where: str) -> PollingTask:
        """Return the polling task of a host. Raises ConfigError if its sender name is in use."""
        context, target_key = self._context, (cluster, polled_sender(reader, node))
        if target_key in self._addresses:
            problem = f"{target_key[1]} of cluster {cluster} is already polled at {self._addresses[target_key]}"
            raise ConfigError("configuration", where, problem)
        self._addresses[target_key] = where

        async def run() -> None:
            target_status = context.target_statuses.open(*target_key, where)

            async def poll() -> None:
                host = PolledHost(
                    cluster,
                    node,
                    reader,
                    context.ingest,
                    context.clock,
                    target_status,
                    self._answered_at.get(target_key, 0),
                )
                try:
                    await host.run()
                finally:
                    self._answered_at[target_key] = host.answered_at

            def on_end(problem: str) -> None:
                target_status.record_failure(problem)
                context.counters.task_restarts["pull"] += 1

            try:
                await supervise(poll, f"polling {where}", on_end=on_end)
            finally:
                del self._addresses[target_key]
                context.target_statuses.close(*target_key)

        return run

    def discovered(self, config: DiscoveryConfig) -> Callable[[ScrapeTarget], PollingTask]:
        """Return a function that makes the tasks of one discovery's targets. Its credentials are checked now."""
        token_reader(config.token_file)
        tls_context(config.ca)

        def start(target: ScrapeTarget) -> PollingTask:
            return self.make(target.cluster, target.node, self._reader(config, target), target.url)

        return start

    def _reader(self, config: DiscoveryConfig, target: ScrapeTarget) -> Reader:
        if config.reads == "netdata":
            from gpufleet.readers.netdata.reader import NetdataReader

            return NetdataReader(target.url, self._context.clock)
        try:
            exporter = ExporterTarget(
                name=config.name,
                url=target.url,
                dialect=config.dialect,
                token_file=config.token_file,
                ca=config.ca,
                insecure=config.insecure,
                timeout_seconds=config.timeout_seconds,
            )
        except InvalidValueError as error:
            raise ConfigError("discovery", error.key, error.reason) from error
        return self.exporter(exporter, f"exporter {target.node}")

    def exporter(self, target: ExporterTarget, key: str) -> Reader:
        """Return the reader of an exporter."""
        from gpufleet.wiring.exports import make_exporter_reader

        context = self._context
        return make_exporter_reader(target, context.clock, key, budget=context.pressure, drift=context.drift)


def _polling_tasks(config: HubConfig, hosts: _HostTasks, context: PollingContext) -> list[PollingTask]:
    tasks: list[PollingTask] = []
    # Imported here: loads HTTP clients only if used.
    if config.netdata:
        from gpufleet.readers.netdata.reader import NetdataReader

        tasks += [
            hosts.make(host.cluster, host.node, NetdataReader(host.url, context.clock), host.url)
            for host in config.netdata
        ]
    for target in config.exporter:
        reader = hosts.exporter(target, f"exporter {target.node}/{target.name}")
        tasks.append(hosts.make(target.cluster, target.node, reader, target.url or target.address or ""))
    for federation in config.federation:
        tasks.append(_supervised(_federation_puller(federation, context).run, f"polling {federation.url}", context))
    for kubernetes in config.kube_state_metrics:
        tasks.append(_supervised(_kubernetes_puller(kubernetes, context).run, f"polling {kubernetes.url}", context))
    for discovery in config.discovery:
        found = Discovery(discovery, hosts.discovered(discovery), context.target_statuses)
        tasks.append(_supervised(found.run, f"following {', '.join(discovery.files)}", context))
    return tasks


def _supervised(run: PollingTask, name: str, context: PollingContext) -> PollingTask:
    return lambda: supervise(run, name, on_end=context.counters.restart_counter("pull"))


def _federation_puller(config: FederationConfig, context: PollingContext) -> ClusterPuller:
    parse = FederationReader(plain_pods=config.pod_labels == "workload")
    return _cluster_puller(config, federate_url(config.url, config.match), f"{FEDERATE}/{config.name}", parse, context)


def _kubernetes_puller(config: KubeStateMetricsConfig, context: PollingContext) -> ClusterPuller:
    page = KubeStateReader(context.clock)
    return _cluster_puller(config, config.url, f"{SCRAPE}/{config.name}", page, context, page.commit)


def _cluster_puller(
    config: FederationConfig | KubeStateMetricsConfig,
    url: str,
    sender: str,
    parse: Callable[[bytes], ImportedRequest],
    context: PollingContext,
    on_durable: Callable[[], None] = lambda: None,
) -> ClusterPuller:
    from gpufleet.readers.exporter.fetch import UrlPageFetcher

    pages = UrlPageFetcher(
        url,
        timeout_seconds=config.timeout_seconds,
        token=token_reader(config.token_file),
        tls=tls_context(config.ca),
        budget=context.pressure,
        max_bytes=MAX_PAGE_BYTES,
    )
    return ClusterPuller(
        config.cluster,
        sender,
        pages,
        parse,
        context.receiver,
        context.clock,
        context.target_statuses.open(config.cluster, sender, config.url),
        interval_seconds=config.interval_seconds,
        on_durable=on_durable,
    )
