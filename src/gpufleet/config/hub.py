"""Configuration of the hub."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.agent import Name, default_state, parse_listen
from gpufleet.config.load import InvalidValueError
from gpufleet.config.notify import FindingReceiversConfig
from gpufleet.config.prices import PriceConfig, combined_prices
from gpufleet.config.push import LABEL, Pairs, ReceiverConfig, parse_pairs
from gpufleet.config.scrape import ClusterId, DiscoveryConfig, ExporterTarget, FederationConfig, KubeStateMetricsConfig
from gpufleet.config.tls import TlsConfig, check_exposure
from gpufleet.config.urls import check_http_root, check_hub_url
from gpufleet.model.stored.retention import UNLIMITED_DAYS, Retention

DiskBytes = Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)]


class ForwardConfig(ReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forwarding of every ingested numeric sample to a time-series database as Prometheus remote write.

    Samples have the time of their measurement.

    Attributes:
        url: complete URL of the receiver, such as `http://127.0.0.1:8428/api/v1/write`; None means no forwarding.
        version: version of remote write. `2.0` falls back to `1.0` if the receiver does not support it.
        late: handling of samples older than forwarded samples of the same series (backlog of an outage): `drop` for a
            Prometheus, which rejects them, `send` for a receiver that accepts them.
        labels: additional labels of every series, each `name=value`.
        queue_bytes: maximum size of queued requests, on disk. Beyond it the oldest requests are dropped and counted.
    """

    url: str | None = None
    version: Literal["1.0", "2.0"] = "1.0"
    late: Literal["drop", "send"] = "drop"
    labels: Pairs = ()
    queue_bytes: DiskBytes = 1 << 30

    def __post_init__(self) -> None:
        """Check the URL and the labels."""
        super().__post_init__()
        if self.url is not None:
            self.check_url("url", self.url)
        parse_pairs("labels", self.labels, LABEL)

    @property
    def label_pairs(self) -> dict[str, str]:
        """Parsed pairs of `labels`."""
        return parse_pairs("labels", self.labels, LABEL)


_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class UsageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of usage.

    Attributes:
        currency: currency of all prices, such as `EUR`. None if there are no prices.
        price: prices of GPUs, each a table `[[usage.price]]`.
        price_file: CSV file of further prices, read again after a change, such as `/etc/gpufleet/prices.csv`.
        commitments: commitments by which clusters are paid, each as `CLUSTER=COMMITMENT`, such as `rack-7=reserved-1y`.
    """

    currency: Annotated[str, msgspec.Meta(min_length=1, max_length=16)] | None = None
    price: Annotated[tuple[PriceConfig, ...], msgspec.Meta(max_length=1000)] = ()
    price_file: str | None = None
    commitments: Annotated[tuple[str, ...], msgspec.Meta(max_length=10_000)] = ()

    def __post_init__(self) -> None:
        """Refuse prices without a currency, and two prices of the same GPUs from the same instant."""
        if (self.price or self.price_file) and not self.currency:
            raise InvalidValueError("currency", "is required if prices are set")
        keys = [item.key for item in self.price]
        if len(set(keys)) < len(keys):
            raise InvalidValueError("price", "two prices of the same GPUs are valid from the same instant")
        parse_pairs("commitments", self.commitments, _CLUSTER)

    @property
    def all_prices(self) -> tuple[PriceConfig, ...]:
        """Prices of the configuration and of `price_file`, which is read. Raises ConfigProblemsError."""
        file = None if self.price_file is None else Path(self.price_file)
        return combined_prices(self.price, file, self.currency or "")

    @property
    def commitment_pairs(self) -> dict[str, str]:
        """Parsed pairs of `commitments`."""
        return parse_pairs("commitments", self.commitments, _CLUSTER)


ENV_PREFIX = "GPUFLEET_HUB_"
"""Prefix of the hub's environment variables."""

Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1 << 10, le=1 << 44)]


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of ingestion.

    Attributes:
        max_body_bytes: maximum size of a body; beyond it, 413.
        max_pending_bytes: maximum size of bodies being received or made durable; beyond it, 503.
        body_timeout_seconds: time limit for receiving a body; beyond it, 408.
        wal_max_bytes: maximum size of batches on disk that are not in the store yet; beyond it, 503.
        max_senders: maximum senders of a cluster, and four times as many epochs; beyond it, 403.
        max_machines: maximum machines of a cluster that are not retired, half of them by one sender; beyond it, 403.
    """

    max_body_bytes: Bytes = 8 << 20
    max_pending_bytes: Bytes = 128 << 20
    body_timeout_seconds: Seconds = 30.0
    wal_max_bytes: Bytes = 4 << 30
    max_senders: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    max_machines: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100_000

    def __post_init__(self) -> None:
        """Refuse limits that would reject every batch."""
        if self.max_pending_bytes < self.max_body_bytes:
            raise InvalidValueError("max_pending_bytes", "must be at least max_body_bytes")
        if self.wal_max_bytes < 2 * self.max_body_bytes:
            raise InvalidValueError("wal_max_bytes", "must be at least twice max_body_bytes")


class FlushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Flushes to the store.

    Attributes:
        interval_seconds: pause between flushes while there is little to write.
        max_records, max_bytes: maximum batches and bytes of bodies per flush.
    """

    interval_seconds: Seconds = 1.0
    max_records: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 5_000
    max_bytes: Bytes = 16 << 20


Days = Annotated[int, msgspec.Meta(ge=0, le=UNLIMITED_DAYS)]


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retention of rows in the store in days, by time of measurement.

    Attributes:
        raw_days: samples, dimensioned values and process lists; at least 2, or 0 to keep them permanently.
        rollup_1m_days: rollups by the minute. 0 disables them and removes existing rows.
        rollup_1h_days: rollups by the hour, which usage is computed from, and holdings since their last report; 0 to
            keep them permanently.
    """

    raw_days: Days = 30
    rollup_1m_days: Days = 90
    rollup_1h_days: Days = 1100

    def __post_init__(self) -> None:
        """Refuse gaps: coarser rows must be kept at least as long as finer rows."""
        if self.raw_days == 1:
            raise InvalidValueError(
                "raw_days", "must be at least 2, because hourly rollups need whole days; or 0 to keep rows permanently"
            )
        raw, hours = (days or UNLIMITED_DAYS for days in (self.raw_days, self.rollup_1h_days))
        if self.rollup_1m_days and self.rollup_1m_days < raw:
            raise InvalidValueError(
                "rollup_1m_days", "must be at least raw_days; or 0 to disable rollups by the minute"
            )
        if hours < max(raw, self.rollup_1m_days):
            raise InvalidValueError("rollup_1h_days", "must be at least raw_days and rollup_1m_days")

    @property
    def as_record(self) -> Retention:
        """Retention as a store record."""
        return Retention(raw_days=self.raw_days, rollup_1m_days=self.rollup_1m_days, rollup_1h_days=self.rollup_1h_days)


class FindingsConfig(FindingReceiversConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluation of the rules about the fleet, and receivers of findings.

    Attributes:
        enabled: whether the hub evaluates the rules.
        interval_seconds: time between two evaluations.
        rules: thresholds by rule id and name, each rule a table such as `[findings.rules."node.missing"]` with
            `intervals = 4`. `docs/reference/findings.md` has the names and defaults.
        relearn_classes: classes of machines whose learned number of GPUs is dropped at the start, by `machine_class` in
            the evidence of `node.below_class_max`.
    """

    enabled: bool = True
    interval_seconds: Annotated[float, msgspec.Meta(ge=10, le=180)] = 60.0
    rules: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    relearn_classes: tuple[str, ...] = ()


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relaying of batches to another hub, instead of writing them to a store.

    Attributes:
        to: root URL of the next hub, such as `https://hub:8470`; None means that this is a hub, not a relay.
        connections: maximum connections to the next hub.
        timeout_seconds: time limit of a request.
        token_file: file with the token for the next hub, such as `/etc/gpufleet/relay.token`; read again when it
            changes.
        ca: PEM file of CAs that sign the next hub's certificate, such as `/etc/gpufleet/ca.crt`; None means the
            system's CAs.
        insecure: allow the token over plain HTTP beyond loopback.
    """

    to: str | None = None
    connections: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    timeout_seconds: Seconds = 30.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Check the URL, and refuse the token over plain HTTP."""
        if self.to is not None:
            check_hub_url("to", self.to, sends_token=bool(self.token_file) and not self.insecure)


class NetdataHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host with Netdata and no agent.

    Attributes:
        cluster: id of its cluster. The hub must serve it.
        node: name of the host. An agent with the same name later is the same machine.
        url: root URL of its Netdata, such as `http://node-17:19999`.
    """

    cluster: ClusterId
    node: Name
    url: str

    def __post_init__(self) -> None:
        """Check that the URL is the root of an HTTP server."""
        check_http_root("url", self.url)


class ExporterHost(ExporterTarget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine with an exporter and no agent. All readings of the page are attributed to this machine.

    Attributes:
        cluster: id of its cluster. The hub must serve it.
        node: name of the machine. An agent with the same name later is the same machine.
    """

    cluster: ClusterId
    node: Name


STORE_SCHEMES = ("chdb", "clickhouse")
REGISTRY_SCHEMES = ("sqlite", "postgresql")
"""Schemes of DSNs. A registry's scheme may name a driver, such as `postgresql+psycopg`."""


def _check_scheme(key: str, dsn: str | None, schemes: tuple[str, ...]) -> None:
    """Refuse a DSN of an unknown database. The message has no other part of the DSN: it may contain a password."""
    if dsn is None:
        return
    scheme, separator, _ = dsn.partition("://")
    if not separator or scheme.partition("+")[0] not in schemes:
        found = f"has the scheme {scheme!r}" if separator else "is not a DSN"
        raise InvalidValueError(key, f"{found}: write {' or '.join(f'{one}://...' for one in schemes)}")


class HubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hub.

    Attributes:
        listen: address and port; with port 0 the kernel chooses.
        insecure_listen: allow listening beyond loopback without TLS or tokens.
        auth: `tokens` requires a token with every request; `none` gives every client full access.
        state: state folder of the log, the registry and the embedded store; the hub uses `hub/` in it.
        store: `chdb:///folder`, or a server such as `clickhouse://user:password@host:8123/gpufleet` (its HTTP
            port); None means embedded, in `state`.
        registry: SQLAlchemy DSN such as `postgresql+psycopg://user:password@host/gpufleet`; None means SQLite, in
            `state`.
        clusters: ids of clusters that this hub serves, in addition to registered clusters.
        stale_after_seconds: a machine without data for longer has no current values.
        log_level: minimum severity of logged messages.
        netdata: hosts without an agent that are read through their Netdata, each a table `[[netdata]]`.
        exporter: machines without an agent that are read through an exporter, each a table `[[exporter]]`.
        discovery: target files of machines without an agent, each a table `[[discovery]]`.
        federation: Prometheus servers of clusters, read by federation, each a table `[[federation]]`.
        kube_state_metrics: kube-state-metrics endpoints, used for expected GPU counts, each a table
            `[[kube_state_metrics]]`.
        tls, ingest, flush, retention, usage, findings, relay, forward: each a table of its own.
    """

    listen: str = "127.0.0.1:8470"
    insecure_listen: bool = False
    auth: Literal["none", "tokens"] = "none"
    state: str = msgspec.field(default_factory=lambda: default_state(os.environ, os.getuid()))
    store: str | None = None
    registry: str | None = None
    clusters: Annotated[tuple[ClusterId, ...], msgspec.Meta(min_length=1)] = ("local",)
    stale_after_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 120.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: TlsConfig = TlsConfig()
    ingest: IngestConfig = IngestConfig()
    flush: FlushConfig = FlushConfig()
    retention: RetentionConfig = RetentionConfig()
    usage: UsageConfig = UsageConfig()
    findings: FindingsConfig = FindingsConfig()
    relay: RelayConfig = RelayConfig()
    forward: ForwardConfig = ForwardConfig()
    netdata: Annotated[tuple[NetdataHost, ...], msgspec.Meta(max_length=1000)] = ()
    exporter: Annotated[tuple[ExporterHost, ...], msgspec.Meta(max_length=1000)] = ()
    discovery: Annotated[tuple[DiscoveryConfig, ...], msgspec.Meta(max_length=64)] = ()
    federation: Annotated[tuple[FederationConfig, ...], msgspec.Meta(max_length=64)] = ()
    kube_state_metrics: Annotated[tuple[KubeStateMetricsConfig, ...], msgspec.Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        """Refuse unprotected listening beyond loopback, and inconsistent settings."""
        host, _ = parse_listen(self.listen)
        if not self.insecure_listen:
            missing = [] if self.auth == "tokens" else ['auth = "tokens"']
            check_exposure(self.listen, host, missing + ([] if self.tls.is_on else ["[tls]"]))
        for key in ("netdata", "exporter", "discovery", "federation", "kube_state_metrics"):
            if self.relay.to is not None and getattr(self, key):
                message = "has no effect on a relay (relay.to is set): configure it on the next hub"
                raise InvalidValueError(key, message)
        names = [(target.cluster, target.node, target.name) for target in self.exporter]
        if len(set(names)) < len(names):
            message = "two targets of one node have the same name: names must be unique per node"
            raise InvalidValueError("exporter", message)
        for key, servers in (("federation", self.federation), ("kube_state_metrics", self.kube_state_metrics)):
            keys = [(item.cluster, item.name) for item in servers]
            if len(set(keys)) < len(keys):
                raise InvalidValueError(key, "two of one cluster have the same name: set a unique `name`")
        if not self.state:
            raise InvalidValueError("state", "must be the path of a folder")
        _check_scheme("store", self.store, STORE_SCHEMES)
        _check_scheme("registry", self.registry, REGISTRY_SCHEMES)

    @property
    def folder(self) -> Path:
        """Folder of this hub's own files."""
        return Path(self.state, "hub")

    @property
    def store_dsn(self) -> str:
        """DSN of the store."""
        return self.store or f"chdb://{(self.folder / 'store').absolute()}"

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """Folders that the hub writes to: its state, and an embedded store."""
        embedded = self.store_dsn.removeprefix("chdb://")
        return (self.folder,) if embedded == self.store_dsn else (self.folder, Path(embedded))

    @property
    def registry_dsn(self) -> str:
        """DSN of the registry."""
        return self.registry or f"sqlite:///{(self.folder / 'registry.sqlite').absolute()}"
