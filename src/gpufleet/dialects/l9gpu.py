"""last9's l9gpu (`gpu.*` over OTLP): read only, and little of it.

Names, units and attributes were read in its source as of 2026-04. Everything that it sends is the greatest value of a
minute, whatever it is: of a counter or a size that is the newest, of everything else it is nothing that was measured
at an instant. Its power is in milliwatts under the unit W. It is no convention: ours are sent as `hw.*`.
"""

from gpufleet.dialects.otel_row import Instrument, OtelRow

UUID = "gpu.uuid"
"""The attribute that names a GPU."""


def _ecc(metric: str, kind: str) -> OtelRow:
    return OtelRow(
        metric=metric,
        name="gpu.ecc.errors",
        unit="{error}",
        instrument=Instrument.COUNTER,
        fixed=(("gpu.ecc.error_type", kind), ("gpu.ecc.count_type", "volatile")),
    )


L9GPU: tuple[OtelRow, ...] = (
    OtelRow(metric="gpu_memory_total_bytes", name="gpu.memory.total", unit="By"),
    OtelRow(metric="gpu_energy_joules_total", name="gpu.energy.consumption", unit="mJ", over=1000),
    OtelRow(metric="gpu_pcie_replays_total", name="gpu.pcie.replay.count", unit="{event}"),
    _ecc("gpu_ecc_corrected_errors_total", "correctable"),
    _ecc("gpu_ecc_uncorrected_errors_total", "uncorrectable"),
)

_GREATEST = "the greatest of a minute, not what was measured at an instant"
_QUOTIENT = "a quotient of other series"
_MONEY = "a price, not a measurement"
_OTHER_MAKER = "of other makers' devices"
_GUESS = "a judgement by rates of its own"

OURS = {
    "gpu.utilization": "gpu_utilization_ratio",
    "gpu.memory.utilization": "gpu_memory_activity_ratio",
    "gpu.memory.used": "gpu_memory_used_bytes",
    "gpu.memory.free": "gpu_memory_free_bytes",
    "gpu.temperature": "gpu_temperature_celsius",
    "gpu.power.state": "gpu_performance_state",
    "gpu.fan.speed": "gpu_fan_speed_ratio",
    "gpu.clock.frequency": "gpu_graphics_clock_hertz",
    "gpu.encode.utilization": "gpu_encoder_utilization_ratio",
    "gpu.decode.utilization": "gpu_decoder_utilization_ratio",
    "gpu.pcie.throughput": "gpu_pcie_transmit_bytes_per_second",
    "gpu.throttle.reason": "gpu_clock_event_active",
    "gpu.sm.active": "gpu_sm_activity_ratio",
    "gpu.sm.occupancy": "gpu_sm_occupancy_ratio",
    "gpu.dram.active": "gpu_dram_activity_ratio",
    "gpu.gr_engine.active": "gpu_graphics_activity_ratio",
    "gpu.pipe.tensor.active": "gpu_tensor_activity_ratio",
    "gpu.pipe.fp64.active": "gpu_fp64_activity_ratio",
    "gpu.pipe.fp32.active": "gpu_fp32_activity_ratio",
    "gpu.pipe.fp16.active": "gpu_fp16_activity_ratio",
    "gpu.power.draw": "gpu_power_watts",
    "gpu.row_remap.count": "gpu_retired_pages",
    "gpu.row_remap.available": "gpu_row_remap_banks",
    "gpu.xid.errors": "gpu_xid_errors_total",
    "gpu.xid.last_error_code": "gpu_last_xid",
    "gpu.interconnect.throughput": "gpu_nvlink_transmit_bytes_total",
    "gpu.ecc.dbe_total": "gpu_ecc_uncorrected_errors_total",
    "gpu.pcie.link.gen.current": "gpu_pcie_link_generation",
    "gpu.pcie.link.width.current": "gpu_pcie_link_width",
    "host.memory.utilization": "host_memory_available_bytes",
}
"""Theirs that are not believed, and what of ours is measured."""

L9GPU_UNREAD: dict[str, str] = {
    **dict.fromkeys(OURS, _GREATEST),
    "gpu.power.draw": "milliwatts under the unit W, or watts: it does not tell which",
    "gpu.row_remap.count": "retired pages under another name, and 0 where there are none to ask of",
    "gpu.row_remap.available": "read from a field that does not exist",
    "gpu.xid.errors": "an NVLink error counter under another name",
    "gpu.xid.last_error_code": "never set: it asks for a constant that does not exist",
    "gpu.interconnect.throughput": "a counter of the first link, sent as a rate of all",
    "gpu.throttle.reason": "its bits are named wrongly",
    "gpu.memory.used.percent": _QUOTIENT,
    "gpu.memory.unified.used": "the machine's memory, where the GPU has none of its own",
    "gpu.memory.unified.total": "the machine's memory, where the GPU has none of its own",
    "gpu.power.utilization": _QUOTIENT,
    "gpu.utilization.max": _QUOTIENT,
    "gpu.utilization.min": _QUOTIENT,
    "gpu.utilization.avg": _QUOTIENT,
    "host.memory.utilization": _QUOTIENT,
    "gpu.row_remap.pending": _OTHER_MAKER,
    "gpu.xid.error_rate": _GUESS,
    "gpu.ecc.sbe_rate": _GUESS,
    "gpu.pcie.link.downtraining": "said of every idle GPU",
    "gpu.thermal.ramp_rate": _GUESS,
    "gpu.health.score": _GUESS,
    "gpu.cost.per_gpu_hour": _MONEY,
    "gpu.cost.rate": _MONEY,
    "gpu.cost.per_prompt_token": _MONEY,
    "gpu.cost.per_generation_token": _MONEY,
    "gpu.cost.idle_rate": _MONEY,
    "gpu.idle": _GUESS,
    "gpu.efficiency.tokens_per_watt": "of an application",
    "gpu.efficiency.joules_per_token": "of an application",
    "gpu.energy.co2_intensity": "a figure of its configuration",
    "gpu.energy.co2_rate": "a figure of its configuration, times power",
}

L9GPU_PREFIXES = ("nccl.", "training.", "vllm.", "nim.", "triton.", "sglang.", "tgi.", "gen_ai.")
"""How its names of applications begin."""
