"""Node of a simulated exporter: its devices, their memory, and its faults."""

import pytest

from gpufleet.model.holdings import HolderKind
from gpufleet.model.reading import Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.simulate.fleet.faults import FaultError, FaultKind, parse_faults
from gpufleet.simulate.fleet.hardware import MIB
from gpufleet.simulate.fleet.single_node import WITHOUT_EFFECT, holders_of, node_report, single_node

START = 1_795_000_000 * NANOS
USED, TOTAL, RESERVED = "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes"


def samples(report: MachineReport, kind: ViewKind) -> list[Sample]:
    """Return the samples of views of a kind with memory readings."""
    return [one for one in report.samples if one.view is not None and one.view.kind is kind and TOTAL in one.values]


def number(sample: Sample, metric: str) -> int:
    value = sample.values[metric]
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize(("seed", "vgpus", "seconds"), [(0, 1, 0), (1, 4, 86_400), (2, 7, 1_234_567), (3, 32, 40_000)])
def test_instance_memory_sums_to_the_used_memory_of_the_gpu(seed: int, vgpus: int, seconds: int) -> None:
    report = node_report(single_node(seed=seed, gpus=2, vgpus=vgpus), START + seconds * NANOS, 10)
    instances = samples(report, ViewKind.VGPU)
    assert len(instances) == 2 * vgpus
    assert len({one.view.uuid for one in instances if one.view}) == 2 * vgpus
    for gpu in samples(report, ViewKind.GPU):
        assert gpu.view is not None
        own = [one for one in instances if one.view and one.view.parent == gpu.view.key]
        assert sum(number(one, TOTAL) for one in own) == number(gpu, USED)
        rest = number(gpu, TOTAL) - number(gpu, RESERVED) - number(gpu, USED)
        assert 0 <= rest < (vgpus + 1) * MIB
        assert all(0 < number(one, USED) <= number(one, TOTAL) for one in own)


def test_first_gpu_is_divided_and_the_others_have_vgpus() -> None:
    fleet = single_node(gpus=3, vgpus=4, mig=True)
    kinds = [{part.view.kind for part in gpu.parts} for gpu in fleet.node(1, 1).gpus]
    assert kinds == [{ViewKind.MIG}, {ViewKind.VGPU}, {ViewKind.VGPU}]


def test_whole_gpus_have_pods() -> None:
    report = node_report(single_node(gpus=2), START, 10)
    assert samples(report, ViewKind.VGPU) == samples(report, ViewKind.MIG) == []
    holders = [holding.holder.kind for one in holders_of(report).values() for holding in one.holdings]
    assert holders == [HolderKind.POD] * 2


def test_seed_and_time_determine_the_report() -> None:
    def report(seed: int, seconds: int) -> MachineReport:
        return node_report(single_node(seed=seed, gpus=2, vgpus=2, mig=True), START + seconds * NANOS, 10)

    assert report(1, 20) == report(1, 20)
    assert report(1, 20).samples != report(2, 20).samples
    assert [one.values for one in report(1, 20).samples] != [one.values for one in report(1, 30).samples]


@pytest.mark.parametrize("text", ["gpu-lost@+5s:c1/n1/g2", "gpu-lost@+5s:c1/n2", "gpu-lost@+5s:c2"])
def test_fault_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(FaultError):
        single_node(gpus=2, faults=parse_faults(text, START))


@pytest.mark.parametrize("kind", sorted(WITHOUT_EFFECT))
def test_fault_without_effect_is_refused(kind: FaultKind) -> None:
    with pytest.raises(FaultError):
        single_node(faults=parse_faults(f"{kind}@+5s", START))


def test_model_without_mig_is_refused() -> None:
    assert [_has_mig(seed) for seed in range(4)] == [True, True, True, False]


def _has_mig(seed: int) -> bool:
    try:
        return bool(single_node(seed=seed, mig=True))
    except ValueError:
        return False


def test_faults_change_events_and_end() -> None:
    faults = parse_faults("gpu-lost@+1m/1m:c1/n1/g1", START)
    fleet = single_node(gpus=2, faults=faults)
    states = []
    for seconds in (30, 90, 150):
        report = node_report(fleet, START + seconds * NANOS, 10)
        states.append([one.values.get("gpu_state") for one in samples(report, ViewKind.GPU)])
    assert states == [["ok", "ok"], ["ok", "lost"], ["ok", "ok"]]
    assert [event.kind for event in report.events] == ["xid", "gpu_lost", "gpu_recovered"]
