"""Configuration of the hub.

Configuration of the hub's way to a time-series database.

What GPUs cost.
"""

import datetime as dt
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.agent import Name, default_state, parse_listen
from gpufleet.config.hub_url import check_http_root, check_hub_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.push import LABEL, Pairs, Receiver, parse_pairs
from gpufleet.config.scrape import ClusterId, DiscoveryConfig, ExporterTarget, FederationConfig, KubeStateMetricsConfig
from gpufleet.config.tls import TlsConfig, check_exposure
from gpufleet.model.stored.retention import LONGEST_DAYS, Retention

DiskBytes = Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 44)]


class ForwardConfig(Receiver, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A database that gets every number the hub takes in, as Prometheus remote write, at the time of its measurement.

    Attributes:
        url: all of the receiver's address, such as `http://127.0.0.1:8428/api/v1/write`; None means that nothing is
            passed on.
        version: of remote write; `2.0` falls back where the receiver does not speak it.
        late: what becomes of values that are older than what was passed on of the same readings already (backlog of an
            outage): `drop` for a Prometheus, which refuses them, `send` for a receiver that takes them.
        labels: added to every series, each `name=value`.
        queue_bytes: of requests that wait, on disk; beyond it the oldest go and are counted.
    """

    url: str | None = None
    version: Literal["1.0", "2.0"] = "1.0"
    late: Literal["drop", "send"] = "drop"
    labels: Pairs = ()
    queue_bytes: DiskBytes = 1 << 30

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        if self.url is not None:
            self.check_url("url", self.url)
        parse_pairs("labels", self.labels, LABEL)

    @property
    def more_labels(self) -> dict[str, str]:
        """The pairs of `labels`."""
        return parse_pairs("labels", self.labels, LABEL)


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an hour of a GPU costs, from an instant on until the next price of its model.

    Attributes:
        model: as the driver names it, in any case, such as `NVIDIA H200`.
        per_gpu_hour: in the `currency` of `[usage]`.
        valid_from: RFC 3339 with a time zone, such as `2026-01-01T00:00:00Z`.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    per_gpu_hour: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    valid_from: Annotated[dt.datetime, msgspec.Meta(tz=True)]


class UsageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What usage comes to.

    Attributes:
        currency: of all prices, such as `EUR`.
        price: what GPUs cost, each a table `[[usage.price]]`.
    """

    currency: Annotated[str, msgspec.Meta(max_length=16)] = ""
    price: Annotated[tuple[PriceConfig, ...], msgspec.Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        """Refuse prices in no currency, and two of one model at one time."""
        if self.price and not self.currency:
            raise ImpossibleValueError("currency", "must be given where there are prices")
        named = [(one.model.casefold(), one.valid_from) for one in self.price]
        if len(set(named)) < len(named):
            raise ImpossibleValueError("price", "two prices of one model are valid from the same instant")


ENV_PREFIX = "GPUFLEET_HUB_"
"""What environment variables of the hub start with."""

Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1 << 10, le=1 << 44)]


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Taking batches.

    Attributes:
        max_body_bytes: a larger body is answered 413.
        max_pending_bytes: bodies that are being received or made durable; beyond it, 503.
        body_timeout_seconds: a body that takes longer to arrive is answered 408.
        wal_max_bytes: what may wait on disk for the store; beyond it, 503.
        max_senders: a cluster may have so many senders, and four times as many epochs of them; beyond it, 403.
    """

    max_body_bytes: Bytes = 8 << 20
    max_pending_bytes: Bytes = 128 << 20
    body_timeout_seconds: Seconds = 30.0
    wal_max_bytes: Bytes = 4 << 30
    max_senders: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000

    def __post_init__(self) -> None:
        """Refuse bounds that would refuse every batch."""
        if self.max_pending_bytes < self.max_body_bytes:
            raise ImpossibleValueError("max_pending_bytes", "must be at least max_body_bytes")
        if self.wal_max_bytes < 2 * self.max_body_bytes:
            raise ImpossibleValueError("wal_max_bytes", "must be at least twice max_body_bytes")


class FlushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Writing to the store.

    Attributes:
        interval_seconds: pause between flushes while there is little to write.
        max_records, max_bytes: one flush takes at most this many batches and bytes of bodies.
    """

    interval_seconds: Seconds = 1.0
    max_records: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 5_000
    max_bytes: Bytes = 16 << 20


Days = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_DAYS)]


class RetentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After how many days rows leave the store, by the time at which they were measured.

    Attributes:
        raw_days: every sample, values with dimensions, lists of processes; at least 2, or 0 for ever.
        minute_days: what is made of them by the minute; 0 makes nothing, and has what there is leave.
        hour_days: what was made of them by the hour, and what usage is told from; 0 for ever.
    """

    raw_days: Days = 30
    minute_days: Days = 90
    hour_days: Days = 1100

    def __post_init__(self) -> None:
        """Refuse what would leave holes: coarser rows must stay at least as long as finer ones."""
        if self.raw_days == 1:
            raise ImpossibleValueError("raw_days", "must be at least 2: hours are made of whole days; or 0, for ever")
        raw, hours = (days or LONGEST_DAYS for days in (self.raw_days, self.hour_days))
        if self.minute_days and self.minute_days < raw:
            raise ImpossibleValueError("minute_days", "must not be less than raw_days; or 0, for no minutes")
        if hours < max(raw, self.minute_days):
            raise ImpossibleValueError("hour_days", "must not be less than that of what is finer")

    @property
    def kept(self) -> Retention:
        """As the store takes it."""
        return Retention(raw_days=self.raw_days, minute_days=self.minute_days, hour_days=self.hour_days)


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Passing batches on to another hub, instead of keeping them in a store.

    Attributes:
        to: root of the next hub, such as `https://hub:8470`; None means that this is no relay.
        connections: to the next hub at once.
        timeout_seconds: a request that takes longer is given up.
        token_file: file with the token to show to the next hub, such as `/etc/gpufleet/relay.token`; read again when it
            changes.
        ca: PEM file of the authorities that vouch for the next hub, such as `/etc/gpufleet/ca.crt`; None means the
            system's.
        insecure: show the token over plain HTTP beyond loopback.
    """

    to: str | None = None
    connections: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    timeout_seconds: Seconds = 30.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not the root of an HTTP server, and to show the token to whoever listens on the way."""
        if self.to is not None:
            check_hub_url("to", self.to, shows_token=bool(self.token_file) and not self.insecure)


class NetdataHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bare-metal host that has Netdata and no agent yet.

    Attributes:
        cluster: id of the cluster it belongs to; one that this hub serves.
        node: name of the host; an agent that comes later under the same name is the same machine.
        url: root of its Netdata, such as `http://node-17:19999`.
    """

    cluster: ClusterId
    node: Name
    url: str

    def __post_init__(self) -> None:
        """Refuse what is not the root of an HTTP server."""
        check_http_root("url", self.url)


class ExporterHost(ExporterTarget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that has an exporter and no agent yet: its page is told of this machine, whatever it says.

    Attributes:
        cluster: id of the cluster it belongs to; one that this hub serves.
        node: name of the machine; an agent that comes later under the same name is the same machine.
    """

    cluster: ClusterId
    node: Name


class HubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hub.

    Attributes:
        listen: address and port; port 0 lets the kernel choose.
        insecure_listen: listen beyond loopback though TLS or tokens are not set.
        auth: `tokens` asks for one with every request; `none` lets everybody who can connect do everything.
        state: folder of the log, the registry and the embedded store; `hub/` is made in it.
        store: `chdb:///folder`, or a server such as `clickhouse://user:password@host:8123/gpufleet` (its HTTP
            port); None means embedded, in `state`.
        registry: SQLAlchemy DSN such as `postgresql+psycopg://user:password@host/gpufleet`; None means SQLite, in
            `state`.
        clusters: ids of clusters that this hub takes batches of, beside those that are registered with it.
        stale_after_seconds: a machine that was not heard of for longer has no current values.
        log_level: the least severe message that is logged.
        netdata: hosts without an agent that are read through their Netdata.
        exporter: machines without an agent that are read through an exporter of theirs, each a table `[[exporter]]`.
        discovery: machines without an agent that stand in files of targets, each a table `[[discovery]]`.
        federation: Prometheus servers of clusters that are asked for what they have, each a table `[[federation]]`.
        kube_state_metrics: those of clusters, asked how many GPUs their nodes should have, each a table
            `[[kube_state_metrics]]`.
        tls, ingest, flush, retention, usage, relay, forward: see there.
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
    relay: RelayConfig = RelayConfig()
    forward: ForwardConfig = ForwardConfig()
    netdata: Annotated[tuple[NetdataHost, ...], msgspec.Meta(max_length=1000)] = ()
    exporter: Annotated[tuple[ExporterHost, ...], msgspec.Meta(max_length=1000)] = ()
    discovery: Annotated[tuple[DiscoveryConfig, ...], msgspec.Meta(max_length=64)] = ()
    federation: Annotated[tuple[FederationConfig, ...], msgspec.Meta(max_length=64)] = ()
    kube_state_metrics: Annotated[tuple[KubeStateMetricsConfig, ...], msgspec.Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        """Refuse to show the whole fleet beyond this machine by accident."""
        host, _ = parse_listen(self.listen)
        if not self.insecure_listen:
            lacking = [] if self.auth == "tokens" else ['auth = "tokens"']
            check_exposure(self.listen, host, lacking + ([] if self.tls.is_on else ["[tls]"]))
        for key in ("netdata", "exporter", "discovery", "federation", "kube_state_metrics"):
            if self.relay.to is not None and getattr(self, key):
                words = "is of no use to a relay (relay.to): it belongs in the hub's configuration"
                raise ImpossibleValueError(key, words)
        named = [(target.cluster, target.node, target.name) for target in self.exporter]
        if len(set(named)) < len(named):
            words = "two targets of one node have one name: their samples would be taken for each other's"
            raise ImpossibleValueError("exporter", words)
        for key, asked in (("federation", self.federation), ("kube_state_metrics", self.kube_state_metrics)):
            servers = [(one.cluster, one.name) for one in asked]
            if len(set(servers)) < len(servers):
                raise ImpossibleValueError(key, "two of one cluster have one name: give each its own `name`")
        if not self.state:
            raise ImpossibleValueError("state", "must name a folder")

    @property
    def folder(self) -> Path:
        """Where this hub keeps its own."""
        return Path(self.state, "hub")

    @property
    def store_dsn(self) -> str:
        """The store's DSN."""
        return self.store or f"chdb://{(self.folder / 'store').absolute()}"

    @property
    def registry_dsn(self) -> str:
        """The registry's DSN."""
        return self.registry or f"sqlite:///{(self.folder / 'registry.sqlite').absolute()}"
