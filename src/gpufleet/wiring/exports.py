"""Construction of exports to other systems, and of readers of exporters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpufleet.channels.stream.dialers import make_dialer
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import MetricsChannel
from gpufleet.config.push import OtlpConfig, ReceiverConfig, RemoteWriteConfig, full_names
from gpufleet.config.scrape import ExporterTarget
from gpufleet.config.secret_files import HeadersFile
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.model.errors import ConfigError
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.exporter.fetch import MemoryBudget, PageFetcher, StreamPageFetcher, UrlPageFetcher
from gpufleet.readers.exporter.reader import ExporterReader
from gpufleet.wiring.connections import tls_context, token_reader

if TYPE_CHECKING:
    from gpufleet.delivery.export import Export
    from gpufleet.delivery.transports import HttpSender

OTLP_METRICS, OTLP_LOGS, REMOTE_WRITE = "otlp_metrics", "otlp_logs", "remote_write"
"""Export names in counters and capabilities."""


def make_exports(config: AgentConfig, name: str, clock: Clock) -> "list[Export]":
    """Return the configured exports. `name` is the node's name.

    Raises:
        ConfigError: if a token, headers file, CA file or certificate cannot be read.
    """
    exports = []
    if config.push.otlp.endpoint is not None:
        exports += _otlp(config.push.otlp, config.push.otlp.endpoint, config.cluster, clock)
    if config.push.remote_write.url is not None:
        exports.append(_remote_write(config.push.remote_write, config.push.remote_write.url, config, name, clock))
    return exports


def _otlp(config: OtlpConfig, endpoint: str, cluster: str, clock: Clock) -> "list[Export]":
    # Imported here: without exports the agent does not load the HTTP client and protobuf.
    from gpufleet.delivery.export import Export, ExportSource
    from gpufleet.delivery.export_queue import ExportQueue
    from gpufleet.delivery.transports import OtlpTransport
    from gpufleet.exporters.otlp import OtlpMetrics
    from gpufleet.exporters.otlp_logs import OtlpLogs

    def export(export_name: str, source: ExportSource, path: str, *, logs: bool) -> Export:
        transport = OtlpTransport(make_http_sender(f"{endpoint.rstrip('/')}{path}", config), logs=logs)
        queue = ExportQueue(export_name, transport, max_bytes=config.queue_bytes, now_ns=clock.now_ns)
        return Export(source, queue, interval_seconds=config.interval_seconds)

    attributes = config.attribute_pairs
    metrics = OtlpMetrics(cluster, attributes, clock.now_ns, config.dialects)
    made = [export(OTLP_METRICS, metrics, "/v1/metrics", logs=False)]
    if config.events:
        made.append(export(OTLP_LOGS, OtlpLogs(cluster, attributes), "/v1/logs", logs=True))
    return made


def _remote_write(config: RemoteWriteConfig, url: str, agent: AgentConfig, name: str, clock: Clock) -> "Export":
    from gpufleet.delivery.export import Export
    from gpufleet.delivery.export_queue import ExportQueue
    from gpufleet.delivery.transports import RemoteWriteTransport
    from gpufleet.exporters.remote_write import RemoteWriteSeries

    labels = {"cluster": agent.cluster, "job": config.job, "instance": name, **config.label_pairs}
    source = RemoteWriteSeries(
        full_names(config.dialects),
        labels,
        version=config.version,
        interval_seconds=config.interval_seconds,
        now_ns=clock.now_ns,
        holder_labels=agent.metrics.holder_labels,
        dcgm_pod_labels=agent.metrics.dcgm_pod_labels,
    )
    transport = RemoteWriteTransport(make_http_sender(url, config), config.version)
    queue = ExportQueue(REMOTE_WRITE, transport, max_bytes=config.queue_bytes, now_ns=clock.now_ns)
    return Export(source, queue, interval_seconds=config.interval_seconds)


def make_http_sender(
    url: str, config: ReceiverConfig, *, name: str = "gpufleet-agent", connections: int = 1
) -> "HttpSender":
    """Return a sender for an address with the configured credentials. Raises as `make_exports`.

    `name` and `connections` are those of `Session`.
    """
    from gpufleet.delivery.transports import HttpSender

    return HttpSender(
        url,
        timeout_seconds=config.timeout_seconds,
        headers=_credentials(config.token_file, config.headers_file),
        name=name,
        connections=connections,
        tls=tls_context(config.ca, config.certificate, config.key),
    )


def _credentials(token_file: str | None, headers_file: str | None) -> Callable[[], Mapping[str, str]]:
    """Return a function for the headers of a request. The files are read once now, so that errors surface at start."""
    token = token_reader(token_file)
    file = HeadersFile(headers_file) if headers_file is not None else None

    def headers() -> dict[str, str]:
        more = dict(file.headers()) if file is not None else {}
        return {**more, "Authorization": f"Bearer {token()}"} if token is not None else more

    headers()
    return headers


GUEST_SECONDS, GUEST_BYTES = 15.0, 4 << 20

DIALECTS = {
    "auto": None,
    "native": NATIVE,
    "dcgm": DCGM_EXPORTER,
    "all-smi": ALL_SMI,
    "nvidia-gpu-exporter": NVIDIA_GPU_EXPORTER,
}
"""Configuration value to dialect."""


def make_exporter_reader(
    target: ExporterTarget,
    clock: Clock,
    key: str,
    *,
    budget: MemoryBudget | None = None,
    drift: Callable[[Mapping[str, int], Mapping[str, int]], None] = lambda *_: None,
) -> ExporterReader:
    """Return the reader of a target. Nothing is requested yet.

    Args:
        target: the exporter.
        clock: wall and monotonic time.
        key: its key in the configuration, for error messages.
        budget: limit of the memory of all targets' pages.
        drift: called with names and labels that the dialect's table lacks; see `ExporterReader`.

    Raises:
        ConfigError: if a token or CA file cannot be read, or the address is invalid.
    """
    pages = make_pages(target, key, budget)
    return ExporterReader(target.name, pages, clock, dialect=DIALECTS[target.dialect], drift=drift)


def make_guest_exporter_reader(channel: MetricsChannel, clock: Clock) -> ExporterReader:
    """Return the reader of an exporter in a guest. Its readings are the guest's own.

    Its time limit is that of the pass, which the reader of the guest sets.
    """
    pages = StreamPageFetcher(
        make_dialer(channel.address),
        where=channel.address,
        path=channel.path,
        timeout_seconds=GUEST_SECONDS,
        max_bytes=GUEST_BYTES,
    )
    return ExporterReader("guest", pages, clock, dialect=DIALECTS[channel.dialect], side=Side.GUEST)


def make_pages(target: ExporterTarget, key: str, budget: MemoryBudget | None = None) -> PageFetcher:
    """Return the page fetcher of a target. Raises as `make_exporter_reader`."""
    token = token_reader(target.token_file)
    if target.url is not None:
        return UrlPageFetcher(
            target.url, timeout_seconds=target.timeout_seconds, token=token, tls=tls_context(target.ca), budget=budget
        )
    assert target.address is not None
    try:
        dialer = make_dialer(target.address)
    except ValueError as error:
        raise ConfigError("configuration", f"{key}.address", str(error)) from error
    return StreamPageFetcher(
        dialer, where=target.address, path=target.path, timeout_seconds=target.timeout_seconds, token=token
    )
