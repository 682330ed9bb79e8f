"""Ways to other systems, put together from their configuration.

Readers of exporters, put together from their targets.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpufleet.channels.stream.dialers import dialer_of
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import MetricsChannel
from gpufleet.config.push import OtlpConfig, Receiver, RemoteWriteConfig, full_names
from gpufleet.config.scrape import ExporterTarget
from gpufleet.config.secret_files import HeadersFile
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.model.errors import ConfigError
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.exporter.fetch import Pages, Room, StreamPages, UrlPages
from gpufleet.readers.exporter.reader import ExporterReader
from gpufleet.wiring.sending import token_of, trust_of

if TYPE_CHECKING:
    from gpufleet.delivery.export import Export
    from gpufleet.delivery.receivers import HttpSender

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
    from gpufleet.delivery.export import Export, Source
    from gpufleet.delivery.outlet import Outlet
    from gpufleet.delivery.receivers import OtlpWire
    from gpufleet.exporters.otlp import OtlpMetrics
    from gpufleet.exporters.otlp_logs import OtlpLogs

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
    from gpufleet.delivery.export import Export
    from gpufleet.delivery.outlet import Outlet
    from gpufleet.delivery.receivers import RemoteWriteWire
    from gpufleet.exporters.remote_write import RemoteWriteSeries

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
    from gpufleet.delivery.receivers import HttpSender

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


GUEST_SECONDS, GUEST_BYTES = 15.0, 4 << 20

DECLARED = {
    "auto": None,
    "native": NATIVE,
    "dcgm": DCGM_EXPORTER,
    "all-smi": ALL_SMI,
    "nvidia-gpu-exporter": NVIDIA_GPU_EXPORTER,
}
"""Dialects by their names in the configuration."""


def exporter_reader(
    target: ExporterTarget,
    clock: Clock,
    key: str,
    *,
    room: Room | None = None,
    drift: Callable[[Mapping[str, int], Mapping[str, int]], None] = lambda *_: None,
) -> ExporterReader:
    """Return the reader of a target, which has not asked anybody anything yet.

    Args:
        target: what is scraped.
        clock: the clocks.
        key: where in the configuration it stands, for words of errors.
        room: bounds pages of all targets that are held at once.
        drift: hears of names and labels that its dialect's table lacks, see `ExporterReader`.

    Raises:
        ConfigError: if a token or authorities cannot be read, or the address is none.
    """
    pages = pages_of(target, key, room)
    return ExporterReader(target.name, pages, clock, dialect=DECLARED[target.dialect], drift=drift)


def guest_exporter(channel: MetricsChannel, clock: Clock) -> ExporterReader:
    """Return the reader of an exporter inside of a guest: what it tells is of that guest, seen from inside.

    Its time is that of the pass, which whoever reads guests bounds.
    """
    pages = StreamPages(
        dialer_of(channel.address),
        where=channel.address,
        path=channel.path,
        timeout_seconds=GUEST_SECONDS,
        max_bytes=GUEST_BYTES,
    )
    return ExporterReader("guest", pages, clock, dialect=DECLARED[channel.dialect], side=Side.GUEST)


def pages_of(target: ExporterTarget, key: str, room: Room | None = None) -> Pages:
    """Return where a target's pages come from; raises as `exporter_reader` does."""
    token = token_of(target.token_file)
    if target.url is not None:
        return UrlPages(
            target.url, timeout_seconds=target.timeout_seconds, token=token, tls=trust_of(target.ca), room=room
        )
    assert target.address is not None
    try:
        dialer = dialer_of(target.address)
    except ValueError as error:
        raise ConfigError("configuration", f"{key}.address", str(error)) from error
    return StreamPages(
        dialer, where=target.address, path=target.path, timeout_seconds=target.timeout_seconds, token=token
    )
