"""Numbers of GPUs by what is reported about them: origin of the readings, identity, use, condition, and age."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from gpufleet.fleet.facts.fleet import fleet_tables
from gpufleet.fleet.facts.gpu_reports import ReportedGpus
from gpufleet.fleet.facts.history import FactMemory
from gpufleet.fleet.facts.metrics import FACT_METRICS
from gpufleet.fleet.facts.supplied import ClusterInputs, MachineInputs
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.newest import newest_columns

NOW = 1_800_000_000 * NANOS
FULL: dict[str, Value | Absent] = {
    "gpu_utilization_ratio": 0.5,
    "gpu_memory_used_bytes": 1 << 30,
    "gpu_power_watts": 300.0,
    "gpu_temperature_celsius": 50.0,
}


def own(number: int = 0, **values: Value | Absent) -> Sample:
    return gpu_sample(gpu_view(number), NOW, **{**FULL, **values})


def of_exporter(one: Sample, reader: str = "dcgm_exporter") -> Sample:
    provenance = Provenance.HOST_NETDATA if reader == "netdata" else Provenance.IMPORTED
    return msgspec.structs.replace(one, reader=reader, provenance=provenance)


def driver(state: str) -> Sample:
    values: dict[str, Value | Absent] = {"nvidia_driver_state": state}
    return Sample(view=None, reader="nvml", lane=Lane.SLOW, measured_at=NOW, values=values)


def reports(samples: Sequence[Sample], age: float = 0.0) -> ReportedGpus:
    """Return the numbers of a machine with these samples, received `age` seconds ago."""
    stored = [StoredSample(sample=one, received_at=NOW - int(age * NANOS)) for one in samples]
    cluster = ClusterInputs(
        cluster="c",
        newest=newest_columns({"m": stored}, FACT_METRICS),
        machines=MachineInputs(machines=["m"], retired=[False], hypervisors=[None]),
    )
    return fleet_tables([cluster], FactMemory(), NOW, 120.0, cluster_rows={"c": 0}).gpu_reports["c"]


@pytest.mark.parametrize(
    ("samples", "is_own"),
    [
        ([own()], 1.0),
        ([of_exporter(own())], 0.0),
        ([of_exporter(own(), "netdata")], 0.0),
        ([own(), of_exporter(own())], 1.0),
        ([driver("error")], 1.0),
        ([driver("error"), of_exporter(own())], 0.0),
        ([], np.nan),
    ],
)
def test_origin_is_that_of_the_newest_readings(samples: list[Sample], is_own: float) -> None:
    for age in (0.0, 7200.0):
        np.testing.assert_equal(reports(samples, age).is_own[0], is_own)


def test_gpus_are_counted_by_identity_and_readings() -> None:
    unnamed = View(kind=ViewKind.GPU, side=Side.HOST, index=7)
    samples = [
        own(0),
        own(1, gpu_utilization_ratio=Absent(Reason.NOT_SUPPORTED), gpu_power_watts=Absent(Reason.TIMEOUT)),
        own(2, gpu_memory_used_bytes=Absent(Reason.NOT_PERMITTED)),
        own(3, gpu_temperature_celsius=Absent(Reason.INVALID_VALUE)),
    ]
    found = reports(samples)
    counts = (found.known, found.identified, found.use, found.condition, found.invalid, found.unattributed)
    assert [int(one[0]) for one in counts] == [4, 4, 3, 2, 1, 4]
    assert reports([msgspec.structs.replace(own(), view=unnamed)]).identified[0] == 0


@pytest.mark.parametrize("reason", [Reason.NOT_SUPPORTED, Reason.NOT_IN_MIG_MODE, Reason.NOT_IN_GUEST])
def test_gpu_whose_device_has_no_such_value_is_complete(reason: Reason) -> None:
    found = reports([own(0, gpu_power_watts=Absent(reason), gpu_temperature_celsius=Absent(reason))])
    assert found.condition[0] == 1


def test_gpu_that_all_smi_reports_as_idle_is_complete() -> None:
    found = reports([own(0, gpu_utilization_ratio=Absent(Reason.AMBIGUOUS_ZERO))])
    assert (found.use[0], found.condition[0]) == (1, 1)


def test_old_readings_leave_only_the_known_gpus() -> None:
    found = reports([own(0), own(1)], age=3600.0)
    assert (found.known[0], found.identified[0], found.use[0], found.unattributed[0]) == (2, 0, 0, 0)
    assert np.isnan(reports([]).known[0])
