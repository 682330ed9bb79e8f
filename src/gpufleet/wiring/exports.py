"""Ways to other systems, put together from their configuration."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpufleet.config.agent import AgentConfig
from gpufleet.config.dialects import full_names
from gpufleet.config.headers_file import HeadersFile
from gpufleet.config.push import OtlpConfig, Receiver, RemoteWriteConfig
from gpufleet.ports import Clock
from gpufleet.wiring.sending import token_of, trust_of

if TYPE_CHECKING:
    from gpufleet.agent.export import Export
    from gpufleet.sending.http import HttpSender

OTLP_METRICS, OTLP_LOGS, REMOTE_WRITE = "otlp_metrics", "otlp_logs", "remote_write"
"""Names of exports in figures and capabilities."""


def make_exports(config: AgentConfig, name: str, clock: Clock) -> "list[Export]":
    """Return the exports that are configured; `name` is the node's.

    Raises:
        ConfigError: if a token, headers, authorities or a certificate cannot be read.
    """
    exports = []
    if config.push.otlp.endpoint is not None:
        exports += _otlp(config.push.otlp, config.push.otlp.endpoint, config.cluster, clock)
    if config.push.remote_write.url is not None:
        exports.append(_remote_write(config.push.remote_write, config.push.remote_write.url, config, name, clock))
    return exports


def _otlp(config: OtlpConfig, endpoint: str, cluster: str, clock: Clock) -> "list[Export]":
    # Imported here: an agent that pushes nowhere does without the HTTP client and protobuf.
    from gpufleet.agent.export import Export, Source
    from gpufleet.exporters.otlp import OtlpMetrics
    from gpufleet.exporters.otlp_logs import OtlpLogs
    from gpufleet.sending.otlp import OtlpWire
    from gpufleet.sending.outlet import Outlet

    def export(what: str, source: Source, path: str, *, logs: bool) -> Export:
        wire = OtlpWire(http_sender(f"{endpoint.rstrip('/')}{path}", config), logs=logs)
        outlet = Outlet(what, wire, max_bytes=config.queue_bytes, now_ns=clock.now_ns)
        return Export(source, outlet, interval_seconds=config.interval_seconds)

    attributes = config.more_attributes
    metrics = OtlpMetrics(cluster, attributes, clock.now_ns, config.dialects)
    made = [export(OTLP_METRICS, metrics, "/v1/metrics", logs=False)]
    if config.events:
        made.append(export(OTLP_LOGS, OtlpLogs(cluster, attributes), "/v1/logs", logs=True))
    return made


def _remote_write(config: RemoteWriteConfig, url: str, agent: AgentConfig, name: str, clock: Clock) -> "Export":
    from gpufleet.agent.export import Export
    from gpufleet.exporters.remote_write import RemoteWriteSeries
    from gpufleet.sending.outlet import Outlet
    from gpufleet.sending.remote_write import RemoteWriteWire

    labels = {"cluster": agent.cluster, "job": config.job, "instance": name, **config.more_labels}
    source = RemoteWriteSeries(
        full_names(config.dialects),
        labels,
        version=config.version,
        interval_seconds=config.interval_seconds,
        now_ns=clock.now_ns,
    )
    wire = RemoteWriteWire(http_sender(url, config), config.version)
    outlet = Outlet(REMOTE_WRITE, wire, max_bytes=config.queue_bytes, now_ns=clock.now_ns)
    return Export(source, outlet, interval_seconds=config.interval_seconds)


def http_sender(url: str, config: Receiver) -> "HttpSender":
    """Return what posts to an address with the credentials that are configured; raises as `make_exports`."""
    from gpufleet.sending.http import HttpSender

    return HttpSender(
        url,
        timeout_seconds=config.timeout_seconds,
        headers=_credentials(config.token_file, config.headers_file),
        tls=trust_of(config.ca, config.certificate, config.key),
    )


def _credentials(token_file: str | None, headers_file: str | None) -> Callable[[], Mapping[str, str]]:
    """Return what gives the headers of a request now, having read their files once."""
    token = token_of(token_file)
    file = HeadersFile(headers_file) if headers_file is not None else None

    def headers() -> dict[str, str]:
        more = dict(file.headers()) if file is not None else {}
        return {**more, "Authorization": f"Bearer {token()}"} if token is not None else more

    headers()
    return headers
