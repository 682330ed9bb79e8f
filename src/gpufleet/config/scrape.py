"""Configuration of one exporter that is scraped.

Configuration of what a hub asks by itself, beside single hosts: files of targets, and whole clusters' Prometheus.
"""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from gpufleet.config.hub_url import check_page_url, check_push_url
from gpufleet.config.load import ImpossibleValueError

Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]


class ExporterTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exporter. What it tells is told of one machine, whatever names it writes.

    Attributes:
        name: what its reader is called: `exporter/NAME`.
        url: of its page, such as `http://127.0.0.1:9400/metrics`.
        address: instead of `url`, a stream to it, such as `unix:///run/exporter.sock` or `vsock://5:9400`.
        path: of the page at `address`.
        dialect: whose names it writes; `auto` takes the only dialect that its first page has.
        token_file: file with a token to present, such as `/etc/gpufleet/exporter.token`; read again when it changes.
        ca: PEM file of the authorities that vouch for it, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
        timeout_seconds: a page that takes longer is given up.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
    url: str | None = None
    address: str | None = None
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,1023}$")] = "/metrics"
    dialect: Literal["auto", "native", "dcgm", "all-smi", "nvidia-gpu-exporter"] = "auto"
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False
    timeout_seconds: Timeout = 5.0

    def __post_init__(self) -> None:
        """Refuse what names no page, and to show the token to whoever listens on the way."""
        if (self.url is None) == (self.address is None):
            raise ImpossibleValueError("url", "give either url or address, and not both")
        if self.url is not None:
            check_page_url("url", self.url, shows_token=bool(self.token_file) and not self.insecure)


ClusterId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
ShortName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
PullSeconds = Annotated[float, msgspec.Meta(ge=1, le=600)]

_PATTERN = re.compile(r"[^*?\[]*(\*[^/?\[]*)?\.(json|yml|yaml|JSON|YML|YAML)")
"""What Prometheus takes: a star in the last part of a path at most."""


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines without an agent that stand in files of targets, as Prometheus' `file_sd_configs` has them.

    Attributes:
        files: paths, with a star in their last part at most, such as `/etc/gpufleet/targets/*.yml`; they are watched.
        reads: what the targets are.
        cluster: of targets whose labels do not say `cluster`; one that this hub serves.
        name: what the reader of these exporters is called: `exporter/NAME`.
        scheme, path: of a target's page, where its labels do not say `__scheme__` and `__metrics_path__`.
        dialect: whose names the exporters write; `auto` takes the only dialect that the first page of each has.
        token_file: file with a token to present to each of them, such as `/etc/gpufleet/exporter.token`.
        ca: PEM file of the authorities that vouch for them, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
        timeout_seconds: a page that takes longer is given up.
    """

    files: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(min_length=1, max_length=64)
    ]
    reads: Literal["exporter", "netdata"] = "exporter"
    cluster: ClusterId | None = None
    name: ShortName = "exporter"
    scheme: Literal["http", "https"] = "http"
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,1023}$")] = "/metrics"
    dialect: Literal["auto", "native", "dcgm", "all-smi", "nvidia-gpu-exporter"] = "auto"
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False
    timeout_seconds: Timeout = 5.0

    def __post_init__(self) -> None:
        """Refuse patterns that Prometheus would not take, and what Netdata has no use for."""
        for pattern in self.files:
            if not _PATTERN.fullmatch(pattern):
                words = (
                    f"{pattern!r} is no file of targets: PATH.json, PATH.yml or PATH.yaml, a * in the last part at most"
                )
                raise ImpossibleValueError("files", words)
        for key in ("token_file", "ca"):
            if self.reads == "netdata" and getattr(self, key) is not None:
                raise ImpossibleValueError(key, "is of no use for Netdata, which is asked without credentials")


class KubeStateMetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's kube-state-metrics, which is asked how many GPUs each node should have.

    Attributes:
        cluster: whose it is; one that this hub serves.
        name: tells several of one cluster apart; the sender is `scrape/NAME`.
        url: of its page, such as `https://kube-state-metrics.example/metrics`.
        interval_seconds: how often it is asked.
        token_file: file with a token to present, such as `/etc/gpufleet/kube.token`; read again when it changes.
        ca: PEM file of the authorities that vouch for it, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
        timeout_seconds: a page that takes longer is given up.
    """

    cluster: ClusterId
    name: ShortName = "kube-state-metrics"
    url: str
    interval_seconds: PullSeconds = 30.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False
    timeout_seconds: Timeout = 20.0

    def __post_init__(self) -> None:
        """Refuse what names no page, and to show the token to whoever listens on the way."""
        check_page_url("url", self.url, shows_token=bool(self.token_file) and not self.insecure)


class FederationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's own Prometheus, which is asked for the newest samples that it has.

    Attributes:
        cluster: whose Prometheus it is; one that this hub serves.
        name: tells several of one cluster apart; the sender is `federate/NAME`.
        url: root of it, such as `https://prometheus.example:9090`; `/federate` is added.
        match: selectors of the series to ask for, each as Prometheus has them; not set: every name of a project that is
            known here.
        pod_labels: whose the labels `pod` and `namespace` are: `workload` where it scrapes its exporters with
            `honor_labels: true`; else they are the exporter's own, and those of workloads are `exported_pod` and
            `exported_namespace`.
        interval_seconds: how often it is asked: no more often than it scrapes its exporters.
        token_file: file with a token to present, such as `/etc/gpufleet/prometheus.token`; read again when it changes.
        ca: PEM file of the authorities that vouch for it, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
        timeout_seconds: a page that takes longer is given up.
    """

    cluster: ClusterId
    name: ShortName = "prometheus"
    url: str
    match: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=1024)], ...], msgspec.Meta(max_length=16)
    ] = ()
    pod_labels: Literal["exported", "workload"] = "exported"
    interval_seconds: PullSeconds = 30.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False
    timeout_seconds: Timeout = 20.0

    def __post_init__(self) -> None:
        """Refuse what is not the root of a Prometheus, and to show the token to whoever listens on the way."""
        check_push_url("url", self.url, shows_secrets=bool(self.token_file) and not self.insecure)
        if urlsplit(self.url).query:
            raise ImpossibleValueError("url", f"{self.url!r} has a query: selectors belong in match")
