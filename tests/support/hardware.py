"""Renders docs/hardware.md: for each GPU metric, the devices and drivers on which a value was seen.

The evidence is the output of the nvidia-smi reader for captured outputs (`tests/readers/nvidia_smi/golden/`), the
columns of captured CSV that the catalogue names, and the table `NVML_SEEN` for readings through NVML from a real
driver.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpufleet.codecs.nvidia_smi import parse_capture, parse_csv
from gpufleet.model.catalogue import CATALOGUE, Metric, Subject
from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.catalogue.gpu import GPU_METRICS
from gpufleet.model.catalogue.gpu_activity import ACTIVITY_METRICS
from gpufleet.model.catalogue.gpu_board import BOARD_METRICS
from gpufleet.model.catalogue.gpu_errors import ERROR_METRICS
from gpufleet.model.catalogue.gpu_links import LINK_METRICS
from gpufleet.model.catalogue.instances import INSTANCE_METRICS
from gpufleet.model.driver_texts import text_reason

GOLDEN = Path(__file__).parents[1] / "readers" / "nvidia_smi" / "golden"
DATA = Path(__file__).parents[1] / "data" / "nvidia_smi"

CAPTURES = (
    ("T4", "xml-t4", "T4, driver 595.91.07"),
    ("A100 MIG", "xml-a100-mig-v12", "A100 80 GB in MIG mode, driver 535.54.03"),
    ("L40S", "xml-l40s", "L40S, driver 595.91.07"),
    ("H100", "xml-h100", "H100 80 GB, driver 580.105.08"),
    ("H200", "capture-h200__590.48.01-", "H200, driver 590.48.01, idle and under load"),
    ("H200 MIG", "capture-h200-mig__590.48.01-", "H200 in MIG mode, driver 590.48.01, idle and under load"),
    ("vGPU guest", "text-vgpu-guest-a6000-24q", "RTX A6000-24Q in its guest, driver 535.183.06"),
)
"""Column, prefix of the golden files, and description. Outputs edited by hand are not evidence."""

NVML_SEEN: dict[str, tuple[str, ...]] = {}
"""Devices and drivers on which the metric was read through NVML, by metric. Empty: no real driver was tested yet."""

GROUPS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("Use, memory, heat, power, clocks, identity", GPU_METRICS),
    ("Activity of the chip's parts, processes", ACTIVITY_METRICS),
    ("Limits, modes, place", BOARD_METRICS),
    ("Memory errors by place", ERROR_METRICS),
    ("Links and fabric", LINK_METRICS),
    ("MIG devices, vGPU instances, and their GPUs", INSTANCE_METRICS),
    ("Events", EVENT_METRICS),
)

_LINE = re.compile(r"^\S+ (?P<metric>\w+)(?:\{.*?\})? = (?P<value>.*)$")

PREFACE = """# Hardware and drivers seen

For each GPU metric: the NVML call, and the devices on which a value was seen. The page is rendered from the catalogue
and from captured outputs of `nvidia-smi`, which queries the same driver; a test compares it with them.

| cell | meaning |
|---|---|
| `yes` | a value |
| `no` | an absence that the driver reported |
| empty | not in the output of `nvidia-smi`, or not read from it |
| `never` | not yet read by gpufleet through NVML from a real driver |

**gpufleet has not yet read a real driver through NVML.** Its NVML reader is proven against the fake driver of
`tests/fakes/nvml/`, through NVIDIA's own binding.

## Assumptions

| subject | assumption | effect if wrong |
|---|---|---|
| unit of FI 74 to 81 and 269 to 271 | nanoseconds, as in nvml.h | `gpu_clock_event_seconds_total` is off by 1,000 |
| ids of three of them in drivers 575.0 to 580.81 | unknown, so not queried | none |
| an unknown field id | fails its entry or the whole call; both are handled | the entry is a `driver_error` |
| FI 197 and 198 | bytes over PCIe since a start; can wrap | a rate over a wrap is wrong |
| FI 138 and 139 with all links as scope | KiB over all links together | the totals are absent, or those of one link |
| scope 1 of FI 185 to 190 and 192 | NOT_SUPPORTED without a module | the GPU's power is reported as its module's |
| scope 2 of FI 185 and 186 | NOT_SUPPORTED without a sensor | the GPU's power is reported as its memory's |
| FI 91 | number of NVLinks of the board, 0 or NOT_SUPPORTED without NVLink | NVLink metrics are absent |
| two samples of GPM, 100 ms apart, one thread at a time | needs no privileges | `not_permitted` |
| response of a hung or lost GPU | hangs, or GPU_IS_LOST | the state of the device is `unreadable` |
| cost of a pass on a real driver | 50 to 500 µs a call | the slow lane is slower |
"""


def render() -> str:
    """Return the page."""
    seen = {column: _evidence(prefix) for column, prefix, _ in CAPTURES}
    lines = [PREFACE, "## Captures", ""]
    lines += [f"- **{column}**: {description}" for column, _, description in CAPTURES]
    for title, metrics in GROUPS:
        rows = [metric for metric in metrics if set(metric.subjects) & {Subject.GPU, Subject.MIG, Subject.VGPU}]
        lines += ["", f"## {title}", "", *_table(rows, seen)]
    never = [name for name, metric in CATALOGUE.items() if _is_device(metric) and not _anywhere(name, seen)]
    lines += ["", "## Without any evidence from real hardware", ""]
    lines += [", ".join(f"`{name}`" for name in never) + "."]
    return "\n".join(lines) + "\n"


def _table(metrics: Iterable[Metric], seen: dict[str, dict[str, bool]]) -> list[str]:
    head = ["metric", "NVML", "gpufleet, through NVML", *seen]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for metric in metrics:
        cells = [{True: "yes", False: "no", None: ""}[of.get(metric.name)] for of in seen.values()]
        ours = "; ".join(NVML_SEEN.get(metric.name, ())) or "never"
        lines.append("| " + " | ".join([f"`{metric.name}`", ", ".join(metric.nvml), ours, *cells]) + " |")
    return lines


def _evidence(prefix: str) -> dict[str, bool]:
    """Return for each metric whether the captures have a value (True) or only absences (False)."""
    files = sorted(GOLDEN.glob(f"{prefix}*.txt"))
    assert files, f"no capture has the prefix {prefix}"
    seen: dict[str, bool] = {}
    for file in files:
        for line in file.read_text().splitlines():
            found = _LINE.match(line)
            if found is not None and found["metric"] in CATALOGUE:
                value = not found["value"].startswith("absent ")
                seen[found["metric"]] = seen.get(found["metric"], False) or value
    printed: dict[str, bool] = {}
    for name, value in _columns(prefix):
        printed[name] = printed.get(name, False) or value
    return printed | seen  # a printed text is no value where the board lacks what it belongs to


def _columns(prefix: str) -> Iterator[tuple[str, bool]]:
    """Yield each metric with a column in captured CSV, and whether there is a value."""
    of_column = {column: metric.name for metric in CATALOGUE.values() for column in metric.nvidia_smi}
    for file in sorted(DATA.glob(f"{prefix.rstrip('-')}.txt")) if prefix.startswith("capture-") else ():
        for section in parse_capture(file.read_bytes()):
            if section.arguments.startswith("--query-gpu="):
                for device in parse_csv(section.body).rows:
                    present = {name: text_reason(text) is None for name, text in device.items()}
                    yield from ((of_column[name], value) for name, value in present.items() if name in of_column)


def _is_device(metric: Metric) -> bool:
    return bool(metric.nvml) and Subject.MACHINE not in metric.subjects


def _anywhere(name: str, seen: dict[str, dict[str, bool]]) -> bool:
    return name in NVML_SEEN or any(of.get(name) for of in seen.values())
