"""Configuration of push receivers, and of dialects of metric names."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from gpufleet.config.load import InvalidValueError
from gpufleet.config.tls import check_pair
from gpufleet.config.urls import check_push_url

DialectName = Literal[
    "native", "dcgm", "all-smi", "nvidia-gpu-exporter", "kubevirt", "l9gpu", "gpufleet", "dcgm-exporter"
]
Dialects = Annotated[tuple[DialectName, ...], msgspec.Meta(min_length=1, max_length=8)]

OtlpDialects = Annotated[tuple[Literal["otel", "l9gpu"], ...], msgspec.Meta(min_length=1, max_length=2)]
"""Dialects of OTLP."""

_FULL_NAMES = {"native": "gpufleet", "dcgm": "dcgm-exporter"}


def full_names(dialects: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of the dialects, without duplicates."""
    return tuple(dict.fromkeys(_FULL_NAMES.get(name, name) for name in dialects))


PushSeconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]
PushTimeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
QueueBytes = Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 32)]
Pairs = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=1024)], ...], msgspec.Meta(max_length=32)]

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,99}")


def parse_pairs(key: str, pairs: Iterable[str], name_pattern: re.Pattern[str]) -> dict[str, str]:
    """Parse `name=value` pairs.

    Raises:
        InvalidValueError: naming `key`, for an invalid pair or a duplicate name.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if (
            not equals
            or not value
            or not value.isprintable()
            or not name_pattern.fullmatch(name)
            or name.startswith("__")
        ):
            raise InvalidValueError(key, f"{pair!r} is not name=value")
        if name in found:
            raise InvalidValueError(key, f"{name!r} is set twice")
        found[name] = value
    return found


class ReceiverConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every push receiver.

    Attributes:
        timeout_seconds: time limit of a request.
        token_file: file with a bearer token, such as `/etc/gpufleet/push.token`; read again when it changes.
        headers_file: file with additional headers, `Name: value` per line, such as `/etc/gpufleet/push.headers`; read
            again when it changes.
        ca: PEM file of CAs that sign the receiver's certificate, such as `/etc/gpufleet/ca.crt`; None means the
            system's CAs.
        certificate: PEM file of the client certificate, such as `/etc/gpufleet/agent.crt`, if the receiver requires
            one.
        key: PEM file of its private key, such as `/etc/gpufleet/agent.key`.
        insecure: allow credentials over plain HTTP beyond loopback.
    """

    timeout_seconds: PushTimeout = 10.0
    token_file: str | None = None
    headers_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse a certificate without a key, and the reverse."""
        check_pair(self.certificate, self.key)

    def check_url(self, key: str, url: str) -> None:
        """Check a URL, and refuse credentials over plain HTTP.

        Raises:
            InvalidValueError: naming `key`.
        """
        check_push_url(key, url, sends_secrets=bool(self.token_file or self.headers_file) and not self.insecure)


class PushReceiverConfig(ReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every receiver that the agent pushes to.

    Attributes:
        interval_seconds: interval between pushes of new data.
        queue_bytes: maximum size of queued requests, in memory; with OTLP separately for metrics and events. Beyond it
            the oldest requests are dropped and counted.
    """

    interval_seconds: PushSeconds = 10.0
    queue_bytes: QueueBytes = 16 << 20


class OtlpConfig(PushReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Push of measurements as OTLP over HTTP, and of events as its logs.

    Attributes:
        endpoint: root URL of the receiver, such as `http://127.0.0.1:4318`; `/v1/metrics` and `/v1/logs` are added.
            None means that nothing is pushed.
        dialects: metric names: `otel` (OpenTelemetry's `hw.*` and `system.*`, and gpufleet's own for the rest) and
            `l9gpu` (`gpu.*`, for dashboards that use it). With both, every reading is sent under both names.
        events: send events as log records.
        attributes: additional resource attributes, each `name=value`.
    """

    endpoint: str | None = None
    dialects: OtlpDialects = ("otel",)
    events: bool = True
    attributes: Pairs = ()

    def __post_init__(self) -> None:
        """Check the endpoint and the attributes."""
        super().__post_init__()
        if self.endpoint is not None:
            self.check_url("endpoint", self.endpoint)
        parse_pairs("attributes", self.attributes, _ATTRIBUTE)

    @property
    def attribute_pairs(self) -> dict[str, str]:
        """Parsed pairs of `attributes`."""
        return parse_pairs("attributes", self.attributes, _ATTRIBUTE)


class RemoteWriteConfig(PushReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Push of the series of `/metrics` as Prometheus remote write, with the times of their measurements.

    Attributes:
        url: complete URL of the receiver, such as `http://127.0.0.1:9090/api/v1/write`; None means that nothing is
            pushed.
        version: version of remote write. `2.0` falls back to `1.0` if the receiver does not support it.
        dialects: dialects of the metric names, as in `[metrics]`.
        job: label `job` of every series. The label `instance` is the node's name.
        labels: additional labels of every series, each `name=value`; `cluster` is the agent's own unless set here.
    """

    url: str | None = None
    version: Literal["1.0", "2.0"] = "1.0"
    dialects: Dialects = ("native",)
    job: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "gpufleet"
    labels: Pairs = ()

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


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other systems that the agent pushes to, in addition to the hub."""

    otlp: OtlpConfig = OtlpConfig()
    remote_write: RemoteWriteConfig = RemoteWriteConfig()
