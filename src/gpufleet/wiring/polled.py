"""What a hub asks by itself, put together from its configuration."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping

import msgspec

from gpufleet.config.hub import HubConfig
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.scrape import DiscoveryConfig, ExporterTarget, FederationConfig, KubeStateMetricsConfig
from gpufleet.hub.imports.federation import KUBERNETES_READER as SCRAPE
from gpufleet.hub.imports.federation import MAX_PAGE_BYTES, ClusterPage, Federated, KubernetesPage, federate_url
from gpufleet.hub.imports.federation import READER as FEDERATE
from gpufleet.hub.imports.receiver import Writes
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.scrape_status import Standings, Who
from gpufleet.hub.imports.targets import Discovery, Target
from gpufleet.hub.liveness.senders import answered_at
from gpufleet.hub.receive.counters import Counters, bounded
from gpufleet.hub.receive.ingest import Ingest
from gpufleet.hub.receive.limits import Pressure
from gpufleet.model.errors import ConfigError
from gpufleet.model.stored.ledger import SenderState
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.runtime import keep
from gpufleet.wiring.polled_host import PolledHost, sender_of
from gpufleet.wiring.sending import token_of, trust_of

Asking = Callable[[], Coroutine[None, None, None]]


class Pulling(msgspec.Struct, frozen=True, kw_only=True):
    """What targets are asked with.

    Attributes:
        ingest: takes in what single hosts say.
        writes: takes in what pages of whole clusters say.
        counters: count names that no table has.
        pressure: the bound on pages that are held at once, together with bodies that are pushed.
        standings: learn how it goes.
        clock: the clocks.
        states: what is remembered of senders of an earlier process.
    """

    ingest: Ingest
    writes: Writes
    counters: Counters
    pressure: Pressure
    standings: Standings
    clock: Clock
    states: Iterable[SenderState]

    def drift(self, names: Mapping[str, int], labels: Mapping[str, int]) -> None:
        """Count names under a known project's prefix, and labels, that its table lacks."""
        for name, count in names.items():
            bounded(self.counters.unknown_metrics, name, count)
        for name, count in labels.items():
            bounded(self.counters.unknown_labels, name, count)


@contextlib.asynccontextmanager
async def polling(config: HubConfig, pulling: Pulling) -> AsyncIterator[None]:
    """Ask what the configuration names while the context is open.

    Raises:
        ConfigError: if the token or the authorities of one cannot be read, or its address is none.
    """
    tasks = [asyncio.create_task(run(), name="pull") for run in _everything(config, _Hosts(pulling), pulling)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Hosts:
    """Makes hosts; no two of one name."""

    def __init__(self, pulling: Pulling) -> None:
        self._pulling = pulling
        self._answered = {(one.cluster, one.sender): answered_at(one.heard) for one in pulling.states}
        self._asked: dict[Who, str] = {}

    def of(self, cluster: str, node: str, reader: Reader, where: str) -> Asking:
        """Return what asks a host; raises ConfigError if somebody does already."""
        pulling, who = self._pulling, (cluster, sender_of(reader, node))
        if who in self._asked:
            words = f"{who[1]} of cluster {cluster} is asked at {self._asked[who]} already: give one another name"
            raise ConfigError("configuration", where, words)
        self._asked[who] = where

        async def run() -> None:
            standing = pulling.standings.open(*who, where)

            async def ask() -> None:
                host = PolledHost(
                    cluster, node, reader, pulling.ingest, pulling.clock, standing, self._answered.get(who, 0)
                )
                try:
                    await host.run()
                finally:
                    self._answered[who] = host.answered_at

            def ended(words: str) -> None:
                standing.failed(words)
                pulling.counters.task_defects["pull"] += 1

            try:
                await keep(ask, f"asking {where}", ended=ended)
            finally:
                del self._asked[who]
                pulling.standings.close(*who)

        return run

    def discovered(self, config: DiscoveryConfig) -> Callable[[Target], Asking]:
        """Return what makes the tasks of one list's targets; its own files are looked at once now."""
        token_of(config.token_file)
        trust_of(config.ca)

        def start(target: Target) -> Asking:
            return self.of(target.cluster, target.node, self._reader(config, target), target.url)

        return start

    def _reader(self, config: DiscoveryConfig, target: Target) -> Reader:
        if config.reads == "netdata":
            from gpufleet.readers.netdata.reader import NetdataReader

            return NetdataReader(target.url, self._pulling.clock)
        try:
            made = ExporterTarget(
                name=config.name,
                url=target.url,
                dialect=config.dialect,
                token_file=config.token_file,
                ca=config.ca,
                insecure=config.insecure,
                timeout_seconds=config.timeout_seconds,
            )
        except ImpossibleValueError as error:
            raise ConfigError("discovery", error.key, error.reason) from error
        return self.exporter(made, f"exporter {target.node}")

    def exporter(self, target: ExporterTarget, key: str) -> Reader:
        """Return the reader of an exporter."""
        from gpufleet.wiring.exports import exporter_reader

        pulling = self._pulling
        return exporter_reader(target, pulling.clock, key, room=pulling.pressure, drift=pulling.drift)


def _everything(config: HubConfig, hosts: _Hosts, pulling: Pulling) -> list[Asking]:
    asking: list[Asking] = []
    # The HTTP clients of these readers are only loaded where they read.
    if config.netdata:
        from gpufleet.readers.netdata.reader import NetdataReader

        asking += [
            hosts.of(host.cluster, host.node, NetdataReader(host.url, pulling.clock), host.url)
            for host in config.netdata
        ]
    for target in config.exporter:
        reader = hosts.exporter(target, f"exporter {target.node}/{target.name}")
        asking.append(hosts.of(target.cluster, target.node, reader, target.url or target.address or ""))
    for federation in config.federation:
        asking.append(_kept(_federation(federation, pulling).run, f"asking {federation.url}", pulling))
    for kubernetes in config.kube_state_metrics:
        asking.append(_kept(_kubernetes(kubernetes, pulling).run, f"asking {kubernetes.url}", pulling))
    for discovery in config.discovery:
        found = Discovery(discovery, hosts.discovered(discovery), pulling.standings)
        asking.append(_kept(found.run, f"following {', '.join(discovery.files)}", pulling))
    return asking


def _kept(run: Asking, name: str, pulling: Pulling) -> Asking:
    return lambda: keep(run, name, ended=pulling.counters.defect("pull"))


def _federation(config: FederationConfig, pulling: Pulling) -> ClusterPage:
    read = Federated(plain_pods=config.pod_labels == "workload")
    return _page(config, federate_url(config.url, config.match), f"{FEDERATE}/{config.name}", read, pulling)


def _kubernetes(config: KubeStateMetricsConfig, pulling: Pulling) -> ClusterPage:
    page = KubernetesPage(pulling.clock)
    return _page(config, config.url, f"{SCRAPE}/{config.name}", page, pulling, page.taken)


def _page(
    config: FederationConfig | KubeStateMetricsConfig,
    url: str,
    sender: str,
    read: Callable[[bytes], Written],
    pulling: Pulling,
    taken: Callable[[], None] = lambda: None,
) -> ClusterPage:
    from gpufleet.readers.exporter.fetch import UrlPages

    pages = UrlPages(
        url,
        timeout_seconds=config.timeout_seconds,
        token=token_of(config.token_file),
        tls=trust_of(config.ca),
        room=pulling.pressure,
        max_bytes=MAX_PAGE_BYTES,
    )
    return ClusterPage(
        config.cluster,
        sender,
        pages,
        read,
        pulling.writes,
        pulling.clock,
        pulling.standings.open(config.cluster, sender, config.url),
        interval_seconds=config.interval_seconds,
        taken=taken,
    )
