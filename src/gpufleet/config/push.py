"""Configuration of what an agent pushes to other systems.

Under whose names readings are shown, as a configuration says it.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from gpufleet.config.hub_url import check_push_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.tls import check_pair

DialectName = Literal["native", "dcgm", "all-smi", "nvidia-gpu-exporter", "kubevirt", "gpufleet", "dcgm-exporter"]
Dialects = Annotated[tuple[DialectName, ...], msgspec.Meta(min_length=1, max_length=7)]

OtlpDialects = Annotated[tuple[Literal["otel", "l9gpu"], ...], msgspec.Meta(min_length=1, max_length=2)]
"""Names that only OTLP can carry."""

_FULL_NAMES = {"native": "gpufleet", "dcgm": "dcgm-exporter"}


def full_names(dialects: Iterable[str]) -> tuple[str, ...]:
    """Return the dialects by their own names, each once."""
    return tuple(dict.fromkeys(_FULL_NAMES.get(name, name) for name in dialects))


PushSeconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]
PushTimeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
QueueBytes = Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 32)]
Pairs = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=1024)], ...], msgspec.Meta(max_length=32)]

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,99}")


def parse_pairs(key: str, pairs: Iterable[str], name_of: re.Pattern[str]) -> dict[str, str]:
    """Read pairs of `name=value`.

    Raises:
        ImpossibleValueError: blaming `key`, if one is none, or a name comes twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not value or not value.isprintable() or not name_of.fullmatch(name) or name.startswith("__"):
            raise ImpossibleValueError(key, f"{pair!r} is no name=value")
        if name in found:
            raise ImpossibleValueError(key, f"{name!r} is there twice")
        found[name] = value
    return found


class Receiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every system that is posted to has.

    Attributes:
        timeout_seconds: a request that takes longer is given up.
        token_file: file with a token to present, such as `/etc/gpufleet/push.token`; read again when it changes.
        headers_file: file with headers to add, `Name: value` a line, such as `/etc/gpufleet/push.headers`; read again
            when it changes.
        ca: PEM file of the authorities that vouch for the receiver, such as `/etc/gpufleet/ca.crt`; None means the
            system's.
        certificate: PEM file of the certificate to show, such as `/etc/gpufleet/agent.crt`, where the receiver asks.
        key: PEM file of its private key, such as `/etc/gpufleet/agent.key`.
        insecure: present token or headers over plain HTTP beyond loopback.
    """

    timeout_seconds: PushTimeout = 10.0
    token_file: str | None = None
    headers_file: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse half of a certificate."""
        check_pair(self.certificate, self.key)

    def check_url(self, key: str, url: str) -> None:
        """Refuse an address that is none, or would have secrets shown on the way.

        Raises:
            ImpossibleValueError: blaming `key`.
        """
        check_push_url(key, url, shows_secrets=bool(self.token_file or self.headers_file) and not self.insecure)


class PushTarget(Receiver, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every system that an agent pushes to has.

    Attributes:
        interval_seconds: how often what is new is sent.
        queue_bytes: of requests that wait, in memory; of OTLP, for each of metrics and events. Beyond it the oldest go
            and are counted.
    """

    interval_seconds: PushSeconds = 10.0
    queue_bytes: QueueBytes = 16 << 20


class OtlpConfig(PushTarget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where measurements go as OTLP over HTTP, and events as its logs.

    Attributes:
        endpoint: root of the receiver, such as `http://127.0.0.1:4318`, to which `/v1/metrics` and `/v1/logs` are
            added; None means that nothing is pushed.
        dialects: under whose names: `otel` (OpenTelemetry's `hw.*` and `system.*`, and ours for what has none) and
            `l9gpu` (`gpu.*`, for dashboards that were written for it); all of them, where there are several.
        events: whether events are sent too, as log records.
        attributes: added to the resource, each `name=value`.
    """

    endpoint: str | None = None
    dialects: OtlpDialects = ("otel",)
    events: bool = True
    attributes: Pairs = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        super().__post_init__()
        if self.endpoint is not None:
            self.check_url("endpoint", self.endpoint)
        parse_pairs("attributes", self.attributes, _ATTRIBUTE)

    @property
    def more_attributes(self) -> dict[str, str]:
        """The pairs of `attributes`."""
        return parse_pairs("attributes", self.attributes, _ATTRIBUTE)


class RemoteWriteConfig(PushTarget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the series of `/metrics` go as Prometheus remote write, with the times of their measurements.

    Attributes:
        url: all of the receiver's address, such as `http://127.0.0.1:9090/api/v1/write`; None means that nothing is
            pushed.
        version: of remote write; `2.0` falls back where the receiver does not speak it.
        dialects: under whose names readings go there, as those of `[metrics]`.
        job: label `job` of every series; `instance` is the node's name.
        labels: added to every series, each `name=value`; `cluster` is the agent's own unless it is here.
    """

    url: str | None = None
    version: Literal["1.0", "2.0"] = "1.0"
    dialects: Dialects = ("native",)
    job: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "gpufleet"
    labels: Pairs = ()

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


class PushConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other systems that the agent pushes to, beside the hub."""

    otlp: OtlpConfig = OtlpConfig()
    remote_write: RemoteWriteConfig = RemoteWriteConfig()
