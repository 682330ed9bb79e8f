"""Speed of the codecs of other systems: Prometheus text, remote write, OTLP.

Method:

- Prometheus text: a page in the format of dcgm-exporter, 40 metrics of 8 GPUs with 16 instances each, 7 labels per
  series. It is compared with the parser of `prometheus_client` on the same page in the same run. "First" is a parser
  without known series. "Steady" is a parser that has parsed the page before, as in every scrape except the first.
- Remote write and OTLP: 5,440 series with one sample each, in steady state.

Each step runs in one thread for at least half a second of processor time, three times, and the best is reported.
"""

import zlib

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench_codec import best_seconds
from benchmarks.table import Table
from gpufleet.codecs.otlp.decode import decode_metrics
from gpufleet.codecs.otlp.encode import encode_metrics
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import Kind, OtlpMetric, ResourceMetrics
from gpufleet.codecs.otlp.records import OtlpPoint as OtlpPoint
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1, encode_2
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.readers.exporter.fetch import ScrapedPage
from gpufleet.readers.exporter.mapping import PageParser, samples_of

METRICS, DEVICES = 40, 8 * 17


def make_page(*, instants: int, scrape: int = 0) -> bytes:
    """Return a page with `instants` distinct timestamps. Values differ by scrape."""
    parts = []
    for metric in range(METRICS):
        name = f"DCGM_FI_DEV_METRIC_{metric}"
        parts.append(f"# HELP {name} Value of this metric (in its unit).\n# TYPE {name} gauge\n")
        for device in range(DEVICES):
            value = f"{metric * device / 7 + scrape:f}" if metric % 2 else str(metric * device + scrape)
            at = 1_790_000_000_123 + scrape * 15_000 + (metric * DEVICES + device) % max(instants, 1)
            parts.append(
                f'{name}{{gpu="{device}",UUID="GPU-5b4e07f6-3a86-4340-039d-{device:012x}",'
                f'pci_bus_id="00000000:00:07.0",device="nvidia{device}",modelName="NVIDIA H200",Hostname="node-17",'
                f'DCGM_FI_DRIVER_VERSION="595.58.03"}} {value}{f" {at}" if instants else ""}\n'
            )
    return "".join(parts).encode()


def remote_write() -> None:
    points = [
        WritePoint(dict(series.labels) | {"__name__": series.name}, value, 1_790_000_000_123_000_000)
        for page in [TextParser().parse(make_page(instants=0))]
        for series, value in zip(page.series, page.values, strict=True)
    ]
    table = Table("Remote write", "version", "step", "samples/s", "bytes/sample")
    decoder = WriteDecoder()
    for version, encode, decode in (("1.0", encode_1, decoder.decode_1), ("2.0", encode_2, decoder.decode_2)):
        body = encode(points)
        for what, step in (
            ("encode", lambda encode=encode: encode(points)),
            ("decode", lambda decode=decode, body=body: decode(body)),
        ):
            table.row(version, what, f"{len(points) / best_seconds(step):,.0f}", f"{len(body) / len(points):.1f}")
    table.print()


def otlp_resources() -> list[ResourceMetrics]:
    """Return 5,440 points of one node."""
    metrics = [
        OtlpMetric(
            f"gpufleet.metric.{metric}",
            Kind.COUNTER if metric % 4 == 0 else Kind.GAUGE,
            [
                OtlpPoint(
                    metric * device / 7 if metric % 2 else metric * device,
                    1_790_000_000_123_000_000,
                    0,
                    {
                        "hw.id": f"GPU-5b4e07f6-3a86-4340-039d-{device:012x}",
                        "hw.type": "gpu",
                        "hw.model": "NVIDIA H200",
                        "hw.vendor": "NVIDIA",
                        "hw.serial_number": f"{165_000_000 + device}",
                    },
                )
                for device in range(DEVICES)
            ],
            "W",
        )
        for metric in range(METRICS)
    ]
    return [ResourceMetrics({"host.name": "node-17"}, metrics, "gpufleet")]


def otlp() -> None:
    resources = otlp_resources()
    count = METRICS * DEVICES
    table = Table("OTLP metrics, 5 attributes per point", "content type", "step", "points/s", "bytes/point", "gzip 1")
    for content_type in (PROTOBUF, JSON):
        body = encode_metrics(resources, content_type)
        small = f"{len(zlib.compress(body, 1)) / count:.1f}"
        for what, step in (
            ("encode", lambda kind=content_type: encode_metrics(resources, kind)),
            ("decode", lambda kind=content_type, body=body: decode_metrics(body, kind)),
        ):
            table.row(content_type, what, f"{count / best_seconds(step):,.0f}", f"{len(body) / count:.1f}", small)
    table.print()


def page_import() -> None:
    """Measure the cost of an exporter's page: parsing, and mapping to samples in its dialect."""
    first, _, _ = make_page(instants=0).partition(b"# HELP DCGM_FI_DEV_METRIC_1 ")
    page = b"".join(first.replace(b"DCGM_FI_DEV_METRIC_0", name.encode()) for name in DCGM_EXPORTER.families)
    parser = PageParser()
    parsed = parser.parse(ScrapedPage(page, openmetrics=False))
    count = len(parsed.series)
    table = Table("Import of a page of dcgm-exporter", "step", "series", "ms", "series/s")
    for step, work in (
        ("parse, steady", lambda: parser.parse(ScrapedPage(page, openmetrics=False))),
        ("map to samples", lambda: samples_of(parsed, DCGM_EXPORTER, 1, reader="x", where="x")),
    ):
        seconds = best_seconds(work)
        table.row(step, f"{count:,}", f"{seconds * 1e3:.1f}", f"{count / seconds:,.0f}")
    table.print()


def main() -> None:
    table = Table("Prometheus text", "page", "parser", "samples/s", "MB/s", "times prometheus_client")
    for name, instants in (("values", 0), ("values with instants", 1)):
        page = make_page(instants=instants)
        text = page.decode()
        parser = TextParser()
        seconds = {
            "prometheus_client": best_seconds(lambda text=text: list(text_string_to_metric_families(text))),  # type: ignore[misc]
            "gpufleet, first": best_seconds(lambda page=page: TextParser().parse(page)),  # type: ignore[misc]
            "gpufleet, steady": best_seconds(lambda page=page, parser=parser: parser.parse(page)),  # type: ignore[misc]
        }
        for version, taken in seconds.items():
            ratio = f"{seconds['prometheus_client'] / taken:.1f}"
            table.row(name, version, f"{METRICS * DEVICES / taken:,.0f}", f"{len(page) / taken / 1e6:.0f}", ratio)
    table.print()
    page_import()
    remote_write()
    otlp()


if __name__ == "__main__":
    main()
