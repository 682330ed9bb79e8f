"""Configuration of the receivers of findings: webhooks and Alertmanagers."""

import hashlib
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from gpufleet.config.load import InvalidValueError
from gpufleet.config.push import LABEL, Pairs, ReceiverConfig, parse_pairs
from gpufleet.config.scrape import ClusterId, ShortName
from gpufleet.config.urls import check_http_root, check_plain_http, parse_http_url

MAX_RECEIVERS = 16
"""Maximum number of webhooks, and of tables of Alertmanagers."""

OWN_LABELS = frozenset(
    {"alertname", "rule", "severity", "cluster", "machine", "node", "gpu", "sender", "allocation", "receiver"}
)
"""Labels of alerts that the hub sets, and `receiver`, which is a term of Alertmanager's templates."""

RuleId = Annotated[str, msgspec.Meta(pattern=r"^[a-z]+(\.[a-z0-9_]+)+$", max_length=100)]


class WebhookConfig(ReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Webhook that receives the transitions of findings as signed CloudEvents.

    Attributes:
        name: unique name, in logs and metrics. Under another name the webhook is a new one.
        url: complete URL, such as `https://tickets.example/gpufleet`. HTTPS is required beyond loopback, unless
            `insecure` is set.
        secret_file: file with the secret of the signatures, such as `/etc/gpufleet/webhook.secret`; read again when it
            changes.
        min_severity: only findings of at least this severity.
        clusters: only findings of these clusters. Empty for all clusters and the hub itself.
        rules: only findings of these rules, such as `gpu.lost`; empty for all.
    """

    name: ShortName
    url: str
    secret_file: str
    min_severity: Literal["info", "warning", "critical"] = "info"
    clusters: Annotated[tuple[ClusterId, ...], msgspec.Meta(max_length=1000)] = ()
    rules: Annotated[tuple[RuleId, ...], msgspec.Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        """Check the URL, and refuse plain HTTP beyond loopback."""
        super().__post_init__()
        _check_url(self, "url", self.url)


class AlertmanagerConfig(ReceiverConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Alertmanagers that receive open findings as alerts.

    Attributes:
        name: unique name, in logs and metrics.
        urls: root URLs, such as `http://127.0.0.1:9093`. Each of them receives every alert, as Alertmanagers of a
            cluster require. HTTPS is required beyond loopback, unless `insecure` is set.
        labels: additional labels of every alert, each `name=value`.
    """

    name: ShortName
    urls: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=8)]
    labels: Pairs = ()

    def __post_init__(self) -> None:
        """Check the URLs, and refuse labels that the hub sets."""
        super().__post_init__()
        for url in self.urls:
            _check_url(self, "urls", url)
            if urlsplit(url).query:
                raise InvalidValueError("urls", "has a query: write the root of the Alertmanager only")
        if len(set(map(receiver_address, self.urls))) < len(self.urls):
            raise InvalidValueError("urls", "two have the same host, port and path: list each Alertmanager once")
        taken = sorted(OWN_LABELS & self.label_pairs.keys())
        if taken:
            raise InvalidValueError("labels", f"{taken[0]!r} is set by the hub: use another name")

    @property
    def label_pairs(self) -> dict[str, str]:
        """Parsed pairs of `labels`."""
        return parse_pairs("labels", self.labels, LABEL)


class FindingReceiversConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Receivers of findings.

    Attributes:
        webhook: webhooks, each a table `[[findings.webhook]]`.
        alertmanager: groups of Alertmanagers, each a table `[[findings.alertmanager]]`.
        link: root URL of the hub for its users, such as `https://gpufleet.example`. Notifications link to the page of
            their finding under it; None for no links.
    """

    webhook: Annotated[tuple[WebhookConfig, ...], msgspec.Meta(max_length=MAX_RECEIVERS)] = ()
    alertmanager: Annotated[tuple[AlertmanagerConfig, ...], msgspec.Meta(max_length=MAX_RECEIVERS)] = ()
    link: str | None = None

    def __post_init__(self) -> None:
        """Check the link, and refuse two receivers of a kind with the same name."""
        if self.link is not None:
            check_http_root("link", self.link)
            if urlsplit(self.link).username is not None:
                raise InvalidValueError("link", "has a password, which every receiver would get: remove it")
        for key in ("webhook", "alertmanager"):
            names = [one.name for one in getattr(self, key)]
            if len(set(names)) < len(names):
                raise InvalidValueError(key, "two have the same name: set a unique `name`")

    def finding_link(self, finding: str) -> str | None:
        """Return the URL of the page of a finding with this id; None without `link`."""
        return None if self.link is None else f"{self.link.rstrip('/')}/ui/#/findings/{finding}"


_PORTS = {"http": 80, "https": 443}
_HASH_DIGITS = 8


def receiver_address(url: str) -> str:
    """Return `HOST:PORT` of a valid URL, followed by `-` and a hash of the path if it has a path.

    The path itself and credentials are left out: they can be secrets, and the address is part of names in logs and
    metrics.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    address = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/")
    suffix = f"-{hashlib.sha256(path.encode()).hexdigest()[:_HASH_DIGITS]}" if path else ""
    return f"{address}:{parts.port or _PORTS[parts.scheme]}{suffix}"


def _check_url(config: ReceiverConfig, key: str, url: str) -> None:
    """Refuse an invalid URL, and plain HTTP beyond loopback. Errors do not contain the URL: it can have a secret."""
    try:
        parts = parse_http_url(key, url, invalid="not a URL", example="https://HOST/PATH")
    except InvalidValueError:
        raise InvalidValueError(key, "is not a URL: write https://HOST/PATH") from None
    if parts.fragment or parts.username is not None:
        raise InvalidValueError(key, "has a fragment or a password: passwords go into headers_file or token_file")
    if not config.insecure:
        check_plain_http(key, f"{parts.scheme}://{parts.hostname}", parts, "findings")
