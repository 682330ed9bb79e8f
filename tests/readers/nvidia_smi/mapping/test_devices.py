"""Readings of a device by its printed texts: alternatives of a path, and modes."""

import pytest

from gpufleet.codecs.nvidia_smi import DeviceRecord
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.readers.nvidia_smi.mapping.devices import ALL_METRICS, GpuModes, map_gpu, modes_of

LIMIT = "gpu_power_requested_limit_watts"


def value_of(metric: str, leaves: dict[str, str], fields: dict[str, str] | None = None) -> Value | Absent:
    record = DeviceRecord(name="x", leaves=leaves, fields=fields or {})
    return map_gpu(record, CATALOGUE[metric].lane, ALL_METRICS, modes_of(record))[0][metric]


@pytest.mark.parametrize(
    "path",
    [
        "power_readings/power_limit",
        "power_readings/requested_power_limit",
        "gpu_power_readings/requested_power_limit",
        "gpu_power_readings/gpu_ceiling_power_limit/requested_power_limit",
    ],
)
def test_requested_power_limit_of_each_dtd(path: str) -> None:
    assert value_of(LIMIT, {path: "250.00 W"}) == 250.0


def test_worst_of_several_absent_texts_counts() -> None:
    lost = Absent(Reason.GPU_LOST, "gpu_power_readings/instant_power_draw")
    texts = {"gpu_power_readings/average_power_draw": "N/A", "gpu_power_readings/instant_power_draw": "GPU is lost"}
    assert value_of("gpu_power_watts", texts) == lost
    assert value_of("gpu_power_watts", dict(reversed(texts.items()))) == lost


@pytest.mark.parametrize("text", ["Unknown Error", "GPU is lost", "Timeout"])
def test_value_beside_a_failed_reading_does_not_replace_it(text: str) -> None:
    texts = {"gpu_power_readings/average_power_draw": text, "gpu_power_readings/instant_power_draw": "71.20 W"}
    assert isinstance(value_of("gpu_power_watts", texts), Absent)
    assert value_of("gpu_power_watts", texts | {"gpu_power_readings/average_power_draw": "N/A"}) == 71.2


@pytest.mark.parametrize("name", ["remapped_row_corr_inactive", "inactive_correctable_error"])
def test_inactive_remaps_of_xml_and_text(name: str) -> None:
    record = DeviceRecord(name="x", leaves={f"remapped_rows/{name}": "3"})
    dims = map_gpu(record, CATALOGUE["gpu_remapped_rows_inactive"].lane, ALL_METRICS, GpuModes())[1]
    assert [dim.value for dim in dims if dim.metric == "gpu_remapped_rows_inactive"] == [3]


@pytest.mark.parametrize("text", ["[GPU is lost]", "[Unknown Error]", "[Invalid State]"])
def test_mode_that_cannot_be_read_does_not_change(text: str) -> None:
    before = GpuModes(mig=True, ecc=False, guest=True)
    record = DeviceRecord(
        name="x",
        fields={"mig.mode.current": text, "ecc.mode.current": text},
        leaves={"gpu_virtualization_mode/virtualization_mode": text},
    )
    assert modes_of(record, before) == before
    other = DeviceRecord(name="x", fields={"mig.mode.current": "[N/A]", "ecc.mode.current": "Enabled"})
    assert modes_of(other, before) == GpuModes(guest=True)


@pytest.mark.parametrize(("text", "reason"), [("[Timeout]", Reason.TIMEOUT), ("[Unknown Error]", Reason.DRIVER_ERROR)])
def test_zero_errors_with_an_unreadable_ecc_mode_are_no_values(text: str, reason: Reason) -> None:
    fields = {"ecc.errors.uncorrected.volatile.total": "0", "ecc.mode.current": text}
    name = "gpu_ecc_corrected_errors_total"
    for count, expected in (("0", Absent(reason, "ecc.mode.current")), ("3", 3)):
        record = DeviceRecord(name="x", fields=fields | {"ecc.errors.corrected.volatile.total": count})
        found = map_gpu(record, CATALOGUE[name].lane, ALL_METRICS, modes_of(record))[0]
        assert found[name] == expected
        other = found["gpu_ecc_uncorrected_errors_total"]
        assert other == (0 if count == "3" else expected)


def test_ecc_total_of_a_chip_that_counts_dram_only() -> None:
    texts = {"ecc_mode/current_ecc": "Enabled", "ecc_errors/volatile/sram_correctable": "N/A"}
    dram = "ecc_errors/volatile/dram_correctable"
    assert value_of("gpu_ecc_corrected_errors_total", {**texts, dram: "7"}) == 7
    lost = value_of("gpu_ecc_corrected_errors_total", {**texts, dram: "GPU is lost"})
    assert lost == Absent(Reason.GPU_LOST, dram)
