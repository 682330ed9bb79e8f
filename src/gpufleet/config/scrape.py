"""Configuration of scrape targets: exporters, target discovery, and Prometheus servers of clusters."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from gpufleet.config.load import InvalidValueError
from gpufleet.config.urls import check_page_url, check_push_url

Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]


class ExporterTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exporter. Its readings are attributed to one machine, whatever names the page has.

    Attributes:
        name: name of the target; its reader is `exporter/NAME`.
        url: URL of the page, such as `http://127.0.0.1:9400/metrics`.
        address: stream address instead of `url`, such as `unix:///run/exporter.sock` or `vsock://5:9400`.
        path: path of the page at `address`.
        dialect: dialect of the metric names; `auto` detects it from the first page.
        token_file: file with a bearer token, such as `/etc/gpufleet/exporter.token`; read again when it changes.
        ca: PEM file of CAs that sign its certificate, such as `/etc/gpufleet/ca.crt`; None means the system's CAs.
        insecure: allow the token over plain HTTP beyond loopback.
        timeout_seconds: time limit of a request.
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
        """Check the address, and refuse the token over plain HTTP."""
        if (self.url is None) == (self.address is None):
            raise InvalidValueError("url", "set either url or address, not both")
        if self.url is not None:
            check_page_url("url", self.url, sends_token=bool(self.token_file) and not self.insecure)


ClusterId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
ShortName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
PullSeconds = Annotated[float, msgspec.Meta(ge=1, le=600)]

_PATTERN = re.compile(r"[^*?\[]*(\*[^/?\[]*)?\.(json|yml|yaml|JSON|YML|YAML)")
"""Paths that Prometheus accepts: at most one star, in the last part."""


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines without an agent that are listed in target files, in the format of Prometheus' `file_sd_configs`.

    Attributes:
        files: paths, with at most one star in the last part, such as `/etc/gpufleet/targets/*.yml`. Changes are
            followed.
        reads: kind of the targets.
        cluster: cluster of targets without a label `cluster`. The hub must serve it.
        name: name of these exporters; their reader is `exporter/NAME`.
        scheme, path: scheme and path of targets without the labels `__scheme__` and `__metrics_path__`.
        dialect: dialect of the metric names; `auto` detects it from the first page of each target.
        token_file: file with a bearer token for every target, such as `/etc/gpufleet/exporter.token`.
        ca: PEM file of CAs that sign their certificates, such as `/etc/gpufleet/ca.crt`; None means the system's CAs.
        insecure: allow the token over plain HTTP beyond loopback.
        timeout_seconds: time limit of a request.
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
        """Check the file patterns, and refuse credentials for Netdata."""
        for pattern in self.files:
            if not _PATTERN.fullmatch(pattern):
                message = (
                    f"{pattern!r} is not a target file: write PATH.json, .yml or .yaml, with * in the last part only"
                )
                raise InvalidValueError("files", message)
        for key in ("token_file", "ca"):
            if self.reads == "netdata" and getattr(self, key) is not None:
                raise InvalidValueError(key, "has no effect: Netdata is polled without credentials")


class KubeStateMetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's kube-state-metrics endpoint, used for the expected GPU count of each node.

    Attributes:
        cluster: its cluster. The hub must serve it.
        name: distinguishes several of a cluster; the sender is `scrape/NAME`.
        url: URL of its page, such as `https://kube-state-metrics.example/metrics`.
        interval_seconds: interval between requests.
        token_file: file with a bearer token, such as `/etc/gpufleet/kube.token`; read again when it changes.
        ca: PEM file of CAs that sign its certificate, such as `/etc/gpufleet/ca.crt`; None means the system's CAs.
        insecure: allow the token over plain HTTP beyond loopback.
        timeout_seconds: time limit of a request.
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
        """Check the URL, and refuse the token over plain HTTP."""
        check_page_url("url", self.url, sends_token=bool(self.token_file) and not self.insecure)


class FederationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster's Prometheus server, whose newest samples are read by federation.

    Attributes:
        cluster: its cluster. The hub must serve it.
        name: distinguishes several of a cluster; the sender is `federate/NAME`.
        url: root URL, such as `https://prometheus.example:9090`; `/federate` is added.
        match: Prometheus series selectors. Not set means all metric names of known projects.
        pod_labels: meaning of the labels `pod` and `namespace`. `workload` if Prometheus scrapes its exporters with
            `honor_labels: true`. Otherwise they are those of the exporter, and those of workloads are `exported_pod`
                and `exported_namespace`.
        interval_seconds: interval between requests; not shorter than the scrape interval of the exporters.
        token_file: file with a bearer token, such as `/etc/gpufleet/prometheus.token`; read again when it changes.
        ca: PEM file of CAs that sign its certificate, such as `/etc/gpufleet/ca.crt`; None means the system's CAs.
        insecure: allow the token over plain HTTP beyond loopback.
        timeout_seconds: time limit of a request.
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
        """Check the URL, and refuse the token over plain HTTP."""
        check_push_url("url", self.url, sends_secrets=bool(self.token_file) and not self.insecure)
        if urlsplit(self.url).query:
            raise InvalidValueError("url", f"{self.url!r} has a query: write selectors in match")
