"""Dialect of last9's l9gpu (`gpu.*` over OTLP, or on a page): full export, limited import over OTLP.

Names, units and attributes are from its source of 2026-04 (`metric_names.py` at 8179ee6), and from the queries of its
dashboards and alerts. It sends only gauges, also for counters, each with the maximum of a minute. For counters and
sizes this is the newest value; for other metrics it is not a measurement at an instant. Its power is in milliwatts with
the unit W; we export watts, as in its documentation, its monitors for other vendors and its dashboards. It does not
support MIG devices and vGPU instances. Its total memory is 0 where NVML does not return it (GH200).
"""

import msgspec

from gpufleet.dialects.otel_names import OtelRow
from gpufleet.model.absence import Reason

NAME = "l9gpu"
"""Name in configuration and output."""

UUID, INDEX, MODEL = "gpu.uuid", "gpu.index", "gpu.model"
"""Attributes of a GPU."""

HOST, CLUSTER, VENDOR, SERVICE = "host.name", "k8s.cluster.name", "gpu.vendor", "service.name"
"""Attributes of the resource; points repeat the first two."""

JOB = (
    ("job_id", "id"),
    ("job_name", "name"),
    ("username", "user"),
    ("partition", "queue"),
    ("account", "account"),
    ("qos", "qos"),
    ("array_job_id", "array_job"),
    ("array_task_id", "array_task"),
    ("num_nodes", "nodes"),
)
"""Attributes of a SLURM job, as written by its collector's processor, and the fields of `Holder`."""

MHZ = 1_000_000

_GREATEST = "the maximum of a minute, not a measurement at an instant"
_QUOTIENT = "a quotient of other series"
_OVER_GPUS = "over busy GPUs only; GPUs at zero are omitted"
_MONEY = "a price, not a measurement"
_OTHER_MAKER = "devices of other vendors"
_GUESS = "an assessment by its own rates"
_MILLIWATTS = "milliwatts with the unit W, or watts; ambiguous"
_BITS = "its bits have wrong names"
_ONE_LINK = "the counter of the first link, sent as a rate of all links"
_PAGES = "retired pages under another name, and 0 if the GPU has none"


def _row(
    metric: str,
    name: str,
    unit: str = "1",
    *fixed: tuple[str, str],
    labels: tuple[str, ...] = (),
    times: int = 1,
    over: int = 1,
    zero: Reason | None = None,
    unread: str = _GREATEST,
) -> OtelRow:
    return OtelRow(
        metric=metric,
        name=name,
        unit=unit,
        fixed=fixed,
        labels=labels,
        times=times,
        over=over,
        zero=zero,
        unread=unread,
    )


def _task(task: str) -> tuple[str, str]:
    return "gpu.task.type", task


def _link(kind: str, direction: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("gpu.interconnect.type", kind), ("gpu.interconnect.direction", direction)


def _throttle(reason: str, cause: str) -> OtelRow:
    fixed = ("gpu.throttle.cause", cause)
    return _row("gpu_clock_event_active", "gpu.throttle.reason", "{bool}", fixed, labels=(reason,), unread=_BITS)


def _ecc(kind: str) -> tuple[str, str]:
    return "gpu.ecc.error_type", kind


_VOLATILE = ("gpu.ecc.count_type", "volatile")

L9GPU: tuple[OtelRow, ...] = (
    _row("gpu_utilization_ratio", "gpu.utilization", "1", _task("compute")),
    _row("gpu_memory_activity_ratio", "gpu.memory.utilization", "1", _task("memory_controller")),
    _row("gpu_memory_used_bytes", "gpu.memory.used", "By"),
    _row("gpu_memory_total_bytes", "gpu.memory.total", "By", zero=Reason.NO_DATA, unread=""),
    _row("gpu_memory_free_bytes", "gpu.memory.free", "By"),
    _row("gpu_temperature_celsius", "gpu.temperature", "Cel", ("gpu.temperature.sensor", "edge")),
    _row("gpu_memory_temperature_celsius", "gpu.temperature", "Cel", ("gpu.temperature.sensor", "memory")),
    _row("gpu_power_watts", "gpu.power.draw", "W", unread=_MILLIWATTS),
    _row("gpu_performance_state", "gpu.power.state", "{state}"),
    _row("gpu_graphics_clock_hertz", "gpu.clock.frequency", "MHz", ("gpu.clock.type", "graphics"), times=MHZ),
    _row("gpu_memory_clock_hertz", "gpu.clock.frequency", "MHz", ("gpu.clock.type", "memory"), times=MHZ),
    _row("gpu_encoder_utilization_ratio", "gpu.encode.utilization", "1", _task("encoder")),
    _row("gpu_decoder_utilization_ratio", "gpu.decode.utilization", "1", _task("decoder")),
    _row("gpu_pcie_receive_bytes_per_second", "gpu.pcie.throughput", "By/s", *_link("pcie", "receive")),
    _row("gpu_pcie_transmit_bytes_per_second", "gpu.pcie.throughput", "By/s", *_link("pcie", "transmit")),
    _row("gpu_pcie_replays_total", "gpu.pcie.replay.count", "{event}", unread=""),
    _row(
        *("gpu_nvlink_receive_bytes_per_second", "gpu.interconnect.throughput", "By/s"),
        *_link("nvlink", "receive"),
        unread=_ONE_LINK,
    ),
    _row(
        *("gpu_nvlink_transmit_bytes_per_second", "gpu.interconnect.throughput", "By/s"),
        *_link("nvlink", "transmit"),
        unread=_ONE_LINK,
    ),
    _row("gpu_remapped_rows_correctable", "gpu.row_remap.count", "{row}", _ecc("correctable"), unread=_PAGES),
    _row("gpu_remapped_rows_uncorrectable", "gpu.row_remap.count", "{row}", _ecc("uncorrectable"), unread=_PAGES),
    _row("gpu_ecc_corrected_errors_total", "gpu.ecc.errors", "{error}", _ecc("correctable"), _VOLATILE, unread=""),
    _row("gpu_ecc_uncorrected_errors_total", "gpu.ecc.errors", "{error}", _ecc("uncorrectable"), _VOLATILE, unread=""),
    _row("gpu_ecc_uncorrected_errors_total", "gpu.ecc.dbe_total", "{error}"),
    _throttle("power_cap", "power_software"),
    _throttle("hw_thermal", "temp_hardware"),
    _throttle("sw_thermal", "temp_software"),
    _throttle("sync_boost", "syncboost"),
    _row(
        "gpu_last_xid", "gpu.xid.last_error_code", "{code}", unread="never set: it queries a field that does not exist"
    ),
    _row("gpu_energy_joules_total", "gpu.energy.consumption", "mJ", over=1000, unread=""),
    _row("gpu_sm_activity_ratio", "gpu.sm.active"),
    _row("gpu_sm_occupancy_ratio", "gpu.sm.occupancy"),
    _row("gpu_dram_activity_ratio", "gpu.dram.active"),
    _row("gpu_graphics_activity_ratio", "gpu.gr_engine.active"),
    _row("gpu_tensor_activity_ratio", "gpu.pipe.tensor.active"),
    _row("gpu_fp64_activity_ratio", "gpu.pipe.fp64.active"),
    _row("gpu_fp32_activity_ratio", "gpu.pipe.fp32.active"),
    _row("gpu_fp16_activity_ratio", "gpu.pipe.fp16.active"),
    _row("gpu_pcie_link_generation", "gpu.pcie.link.gen.current", "{gen}"),
    _row("gpu_pcie_link_width", "gpu.pcie.link.width.current", "{lanes}"),
)
"""Catalogue metrics with an l9gpu name. The raw reason mask, `gpu.throttle.reason` without a cause in l9gpu,
is not exported: its dashboards would add it to the causes."""


class Quotient(msgspec.Struct, frozen=True):
    """l9gpu metric that is a quotient of two catalogue metrics, times `times`, at the instant of the first."""

    name: str
    unit: str
    metric: str
    by: str
    times: int = 1


QUOTIENTS = (
    Quotient("gpu.memory.used.percent", "{percent}", "gpu_memory_used_bytes", "gpu_memory_total_bytes", times=100),
    Quotient("gpu.power.utilization", "1", "gpu_power_watts", "gpu_power_limit_watts"),
)


class Sum(msgspec.Struct, frozen=True):
    """l9gpu metric that is the sum of a catalogue metric over all dimensions."""

    name: str
    unit: str
    metric: str


SUM = Sum("gpu.xid.errors", "{error}", "gpu_xid_errors_total")

L9GPU_UNREAD: dict[str, str] = {
    "gpu.memory.used.percent": _QUOTIENT,
    "gpu.power.utilization": _QUOTIENT,
    "gpu.xid.errors": "an NVLink error counter under another name",
    "gpu.fan.speed": "all fans together, or the first; ours is by fan (`gpufleet_gpu_fan_speed_ratio`)",
    "gpu.row_remap.available": "a field that does not exist; ours is by bank (`gpufleet_gpu_row_remap_banks`)",
    "gpu.memory.unified.used": "memory of the machine, for GPUs without their own",
    "gpu.memory.unified.total": "memory of the machine, for GPUs without their own",
    "gpu.utilization.max": _OVER_GPUS,
    "gpu.utilization.min": _OVER_GPUS,
    "gpu.utilization.avg": _OVER_GPUS,
    "host.memory.utilization": "a quotient of other series (`gpufleet_host_memory_available_bytes`)",
    "gpu.row_remap.pending": _OTHER_MAKER,
    "gpu.xid.error_rate": _GUESS,
    "gpu.ecc.sbe_rate": _GUESS,
    "gpu.pcie.link.downtraining": "reported for every idle GPU",
    "gpu.thermal.ramp_rate": _GUESS,
    "gpu.health.score": _GUESS,
    "gpu.cost.per_gpu_hour": _MONEY,
    "gpu.cost.rate": _MONEY,
    "gpu.cost.per_prompt_token": _MONEY,
    "gpu.cost.per_generation_token": _MONEY,
    "gpu.cost.idle_rate": _MONEY,
    "gpu.idle": _GUESS,
    "gpu.efficiency.tokens_per_watt": "metric of an application",
    "gpu.efficiency.joules_per_token": "metric of an application",
    "gpu.energy.co2_intensity": "a configured number",
    "gpu.energy.co2_rate": "a configured number, times power",
}

L9GPU_PREFIXES = ("nccl.", "training.", "vllm.", "nim.", "triton.", "sglang.", "tgi.", "gen_ai.")
"""Prefixes of its application metrics."""
