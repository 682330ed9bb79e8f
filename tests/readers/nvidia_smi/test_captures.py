"""Captured nvidia-smi outputs: each value is read, absent for a reason, or skipped explicitly."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.nvidia_smi import DeviceRecord, Log, parse_capture, parse_csv, parse_text, parse_xml
from gpufleet.codecs.nvidia_smi.listing import Listing, parse_listing
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Sample, Value
from gpufleet.readers.nvidia_smi.mapping.account import READ_OF_CSV, READ_OF_GPU, report_unread
from gpufleet.readers.nvidia_smi.mapping.devices import (
    ALL_METRICS,
    RequestedMetrics,
    metrics_of_columns,
    metrics_of_log,
)
from gpufleet.readers.nvidia_smi.mapping.rows import (
    FAN,
    LANES,
    MIG_PATHS,
    MIG_PROFILE,
    PATHS,
    PROCESSES,
    QUERIES,
    SUMS,
    VGPU_MACHINE,
    VGPU_MACHINE_KIND,
    VGPU_PATHS,
)
from gpufleet.readers.nvidia_smi.mapping.unread_fields import UNREAD
from gpufleet.readers.nvidia_smi.samples import gpu_sample, instance_samples, modes_by_key
from gpufleet.readers.nvidia_smi.views import identify, rows_as_records
from tests.fakes.nvidia_smi.standin import DATA
from tests.support.golden import check_golden

GOLDEN = Path(__file__).parent / "golden"


class Output:
    """Captured output."""

    def __init__(
        self, name: str, devices: Iterable[DeviceRecord], requested: RequestedMetrics, log: Log | None = None
    ) -> None:
        self.name, self.devices, self.requested, self.log = name, list(devices), requested, log
        self.listing: Listing | None = None


def outputs() -> Iterator[Output]:
    for file in sorted(DATA.iterdir()):
        content, name = file.read_bytes(), file.name.removesuffix(".xml").removesuffix(".txt")
        if file.suffix == ".xml":
            log = parse_xml(content)
            yield Output(name, log.devices, metrics_of_log(log), log)
        elif file.suffix == ".txt" and file.name.startswith("text-"):
            log = parse_text(content)
            yield Output(name, log.devices, metrics_of_log(log), log)
        elif file.suffix == ".txt":
            listing = None
            for section in parse_capture(content):
                if section.arguments == "-L":
                    listing = parse_listing(section.body)
                elif section.arguments == "-q":
                    log = parse_text(section.body)
                    made = Output(f"{name}-{section.group}-q", log.devices, ALL_METRICS, log)
                    made.listing = listing
                    yield made
                elif section.arguments.startswith("--query-gpu="):
                    table = parse_csv(section.body)
                    requested = metrics_of_columns(table.columns)
                    yield Output(f"{name}-{section.group}-csv", rows_as_records(table.rows), requested)


OUTPUTS = list(outputs())


def test_captures_exist() -> None:
    assert len(OUTPUTS) >= 14


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.name)
def test_every_value_is_read_or_skipped_explicitly(output: Output) -> None:
    assert report_unread(output.devices, output.log.leaves if output.log else ()).unknown == []


def test_unknown_values_are_detected() -> None:
    mig = DeviceRecord(name="0", leaves={"index": "0", "new/mig": "1"})
    vgpu = DeviceRecord(name="1", leaves={"vgpu_id": "1", "new/vgpu": "1"})
    device = DeviceRecord(
        name="",
        leaves={"fb_memory_usage/total": "1 MiB", "new/value": "1", "new/value[1]": "2"},
        fields={"uuid": "GPU-1", "power.new": "1"},
        mig=(mig,),
        vgpus=(vgpu,),
        processes=({"type": "C", "new_leaf": "x"},),
    )
    found = report_unread([device], ["driver_version", "new_head"])
    assert found.unknown == ["new/mig", "new/value", "new/vgpu", "new_head", "new_leaf", "power.new"]


def test_no_value_is_both_read_and_skipped() -> None:
    # Read for a GPU, but not for a MIG device, a process or a vGPU instance.
    of_others = {"ecc_errors/volatile/sram_uncorrectable", "fb_memory_usage/free", "name"}
    assert UNREAD.keys() & (READ_OF_GPU | READ_OF_CSV) <= of_others


def test_every_skipped_name_occurs_in_a_capture() -> None:
    """The list of skipped names contains only reviewed names, without patterns."""
    printed: set[str] = set()
    for output in OUTPUTS:
        printed |= report_unread(output.devices, output.log.leaves if output.log else ()).unread.keys()
    assert set(UNREAD) == printed
    assert not [name for name in UNREAD if "*" in name]


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: output.name)
def test_captured_values_match_their_golden_file(output: Output) -> None:
    gpus, errors = identify(output.devices)
    modes = modes_by_key(gpus, {})
    lines = [f"! {error}" for error in (*errors, *(output.log.messages if output.log else ()))]
    samples: list[Sample] = []
    for lane in LANES:
        samples += [gpu_sample(gpu, lane, output.requested, modes[gpu.view.key], 1) for gpu in gpus]
        parts, messages = instance_samples(gpus, output.listing, lane, 1)
        samples += parts
        lines += [f"! {message}" for message in messages if lane is Lane.FAST]
    for sample in samples:
        assert sample.view is not None
        for name, value in sample.values.items():
            lines.append(line(sample.view.key, name, value))
            in_range(name, value)
        for dim in sample.dims:
            lines.append(line(sample.view.key, f"{dim.metric}{{{','.join(dim.labels)}}}", dim.value))
            in_range(dim.metric, dim.value)
    check_golden(GOLDEN / f"{output.name}.txt", ("\n".join(sorted(lines)) + "\n").encode())


def line(key: str, name: str, value: Value | Absent) -> str:
    shown = f"absent {value.reason} ({value.detail})" if isinstance(value, Absent) else repr(value)
    return f"{key} {name} = {shown}"


def in_range(name: str, value: Value | Absent) -> None:
    metric = CATALOGUE[name]
    if isinstance(value, int | float):
        assert metric.low is None or value >= metric.low
        assert metric.high is None or value <= metric.high
    elif isinstance(value, str) and metric.states:
        assert value in metric.states


def test_csv_and_text_of_one_idle_gpu_agree() -> None:
    """Two formats of one idle GPU: values that cannot change in between are equal."""
    by_name = {output.name: output for output in OUTPUTS}
    steady = {
        *("gpu_memory_total_bytes", "gpu_memory_reserved_bytes", "gpu_sm_clock_max_hertz", "gpu_vbios_version"),
        *("gpu_power_limit_watts", "gpu_power_default_limit_watts", "gpu_serial", "gpu_name", "gpu_pci_address"),
        *("gpu_ecc_uncorrected_lifetime_errors_total", "gpu_ecc_mode", "gpu_compute_mode", "gpu_persistence_mode"),
        *("gpu_remapped_rows_correctable", "gpu_row_remap_pending", "gpu_recovery_action", "gpu_mig_mode"),
        *("gpu_temperature_celsius", "gpu_temperature_margin_celsius", "gpu_performance_state"),
    }
    found: list[dict[str, Value | Absent]] = []
    for kind in ("q", "csv"):
        output = by_name[f"capture-h200__590.48.01-idle-{kind}"]
        (gpu,), _ = identify(output.devices)
        modes = modes_by_key([gpu], {})[gpu.view.key]
        values = [gpu_sample(gpu, lane, output.requested, modes, 1).values for lane in LANES]
        found.append({name: value for one in values for name, value in one.items() if name in steady})
    assert found[0].keys() == found[1].keys() == steady
    assert found[0] == found[1]


def test_metrics_of_each_table_fit_its_subject() -> None:
    for subject, tables in (
        (Subject.GPU, (*PATHS, *SUMS, *QUERIES)),
        (Subject.MIG, (*MIG_PATHS, PROCESSES, MIG_PROFILE)),
        (Subject.VGPU, (*VGPU_PATHS, VGPU_MACHINE, VGPU_MACHINE_KIND)),
    ):
        assert [name for name in tables if subject not in CATALOGUE[name].subjects] == []


def test_every_metric_with_a_query_name_is_queried() -> None:
    named = {metric.name for metric in CATALOGUE.values() if metric.nvidia_smi}
    assert {name for name in named if not CATALOGUE[name].dims} == set(QUERIES)
    assert FAN in named
