"""Reading a page of metrics beside `prometheus_client`'s own parser, on the same page, in the same run.

Method: a page as dcgm-exporter writes it: 40 metrics of 8 GPUs with 16 instances each, 7 labels a series. "First" is
a parser that never saw a series; "steady" one that saw the page before, as every scrape but the first. One thread,
at least half a second, three times; the best of the three is told.
"""

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench_codec import best_seconds
from benchmarks.table import Table
from gpufleet.codecs.prometheus_text.parser import TextParser

METRICS, DEVICES = 40, 8 * 17


def make_page(*, instants: bool) -> bytes:
    parts = []
    for metric in range(METRICS):
        name = f"DCGM_FI_DEV_METRIC_{metric}"
        parts.append(f"# HELP {name} What this one tells (in its unit).\n# TYPE {name} gauge\n")
        for device in range(DEVICES):
            value = f"{metric * device / 7:f}" if metric % 2 else str(metric * device)
            parts.append(
                f'{name}{{gpu="{device}",UUID="GPU-5b4e07f6-3a86-4340-039d-{device:012x}",'
                f'pci_bus_id="00000000:00:07.0",device="nvidia{device}",modelName="NVIDIA H200",Hostname="node-17",'
                f'DCGM_FI_DRIVER_VERSION="595.58.03"}} {value}{" 1790000000123" if instants else ""}\n'
            )
    return "".join(parts).encode()


def main() -> None:
    table = Table("Prometheus text", "page", "parser", "samples/s", "MB/s", "times prometheus_client")
    for name, instants in (("values", False), ("values with instants", True)):
        page = make_page(instants=instants)
        text = page.decode()
        parser = TextParser()
        seconds = {
            "prometheus_client": best_seconds(lambda text=text: list(text_string_to_metric_families(text))),  # type: ignore[misc]
            "gpufleet, first": best_seconds(lambda page=page: TextParser().parse(page)),  # type: ignore[misc]
            "gpufleet, steady": best_seconds(lambda page=page, parser=parser: parser.parse(page)),  # type: ignore[misc]
        }
        for who, taken in seconds.items():
            ratio = f"{seconds['prometheus_client'] / taken:.1f}"
            table.row(name, who, f"{METRICS * DEVICES / taken:,.0f}", f"{len(page) / taken / 1e6:.0f}", ratio)
    table.print()


if __name__ == "__main__":
    main()
