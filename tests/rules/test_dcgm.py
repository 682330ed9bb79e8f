"""Rules over dcgm-exporter's series: host names, holders, MIG, shares, virtual machines and gaps."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.rules.dcgm import dcgm_rules
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.promtool import Expected, RuleCase, labelled, run_cases

MIB = 1 << 20
FAMILIES = {
    # family: metric, operation, values of GPU a and b, factor
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_utilization_ratio", "avg", (50, 30), 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": ("gpu_sm_activity_ratio", "avg", (0.5, 0.25), 1),
    "DCGM_FI_DEV_FB_USED": ("gpu_memory_used_bytes", "sum", (10, 20), MIB),
    "DCGM_FI_DEV_FB_TOTAL": ("gpu_memory_total_bytes", "sum", (100, 100), MIB),
    "DCGM_FI_DEV_POWER_USAGE": ("gpu_power_watts", "sum", (100, 200), 1),
    "DCGM_FI_DEV_GPU_TEMP": ("gpu_temperature_celsius", "max", (50, 60), 1),
}
A, B = {"UUID": "GPU-a", "gpu": "0"}, {"UUID": "GPU-b", "gpu": "1"}
TARGET = {"job": "dcgm", "instance": "10.0.0.1:9400", "namespace": "gpu-operator", "pod": "dcgm-x", "container": "exp"}
POD = {"namespace": "ml", "pod": "web-1", "container": "main"}
EXPORTED = {f"exported_{name}": value for name, value in POD.items()}


def named(name: str, results: dict[str, float]) -> Expected:
    return Expected(name, {f"{name}{labels}": value for labels, value in results.items()})


def rollup_case() -> RuleCase:
    """Two exporters of one node: with `Hostname` and renamed labels, and with `hostname` and labels of its own."""
    series = {labelled("up", TARGET): "1x10"}
    expected = []
    for family, (metric, operation, values, factor) in FAMILIES.items():
        for device, value in zip((A, B), values, strict=True):
            holder = EXPORTED if device is A else {}
            first = {**device, **TARGET, **holder, "Hostname": "n1"}
            second = {**device, **(POD if device is A else {"hpc_job": "4711"}), "hostname": "n1", "job": "other"}
            series |= {labelled(family, one): f"{value}x10" for one in (first, second)}
        a, b = (value * factor for value in values)
        total = {"avg": (a + b) / 2, "sum": a + b, "max": max(a, b)}[operation]
        by_level = {
            "node": {'{node="n1"}': total},
            "cluster": {"{}": total},
            "pod": {labelled("", {"namespace": "ml", "pod": "web-1"}): a},
            "namespace": {'{namespace="ml"}': a},
            "job": {'{job_id="4711"}': b},
        }
        expected += [named(f"{level}:dcgm_{metric}:{operation}", results) for level, results in by_level.items()]
        devices = {labelled("", {"node": "n1", "uuid": uuid}): value for uuid, value in (("GPU-a", a), ("GPU-b", b))}
        expected.append(named(f"gpu:dcgm_{metric}:max", devices))
    ratios = {
        "node": {'{node="n1"}': 0.15},
        "cluster": {"{}": 0.15},
        "pod": {labelled("", {"namespace": "ml", "pod": "web-1"}): 0.1},
        "namespace": {'{namespace="ml"}': 0.1},
        "job": {'{job_id="4711"}': 0.2},
    }
    expected += [named(f"{level}:dcgm_gpu_memory_used:ratio", results) for level, results in ratios.items()]
    on_n1 = [{"node": "n1", "uuid": uuid} for uuid in ("GPU-a", "GPU-b")]
    held, of_job = {**on_n1[0], **POD}, {**on_n1[1], "job_id": "4711"}
    expected += [
        named("gpu:dcgm_holder:info", {labelled("", held): 1, labelled("", of_job): 1}),
        named("gpu:dcgm_present:info", {labelled("", device): 1 for device in on_n1}),
        named("node:dcgm_gpus:count", {'{node="n1"}': 2}),
        named("gpu:dcgm_idle_held:info", {}),
        Expected("sum (DCGM_FI_DEV_POWER_USAGE)", {"{}": 600}),  # counts each exporter
        Expected('sum by (pod) (DCGM_FI_DEV_POWER_USAGE{pod="dcgm-x"})', {'{pod="dcgm-x"}': 300}),
    ]
    return RuleCase("roll-ups", series, expected)


def target_case() -> RuleCase:
    """With `honor_labels`, an idle GPU has the labels of the exporter's own pod: they are those of `up`."""
    idle = {**A, **TARGET, "Hostname": "n1"}
    held = {**B, **TARGET, **POD, "Hostname": "n1"}
    series = {
        labelled("up", TARGET): "1x10",
        labelled("DCGM_FI_DEV_FB_USED", idle): "0x10",
        labelled("DCGM_FI_DEV_FB_USED", held): "0x10",
        labelled("DCGM_FI_DEV_GPU_UTIL", held): "0x10",
    }
    device = {"node": "n1", "uuid": "GPU-b"}
    return RuleCase(
        "labels of the target are no holder",
        series,
        [
            named("gpu:dcgm_holder:info", {labelled("", {**device, **POD}): 1}),
            named("gpu:dcgm_idle_held:info", {labelled("", device): 1}),
            Expected('count (DCGM_FI_DEV_FB_USED{pod!=""})', {"{}": 2}),
        ],
    )


def mig_cases() -> Iterator[RuleCase]:
    parts = [{**A, "Hostname": "n1", "GPU_I_ID": number} for number in ("1", "2")]
    series = {labelled("DCGM_FI_DEV_FB_USED", part): "10x10" for part in parts}
    series |= {labelled("DCGM_FI_DEV_POWER_USAGE", part): "100x10" for part in parts}
    expected = [
        named("node:dcgm_gpu_memory_used_bytes:sum", {'{node="n1"}': 20 * MIB}),
        named("node:dcgm_gpu_power_watts:sum", {'{node="n1"}': 100}),
        named("node:dcgm_gpus:count", {'{node="n1"}': 1}),
    ]
    naive = Expected("sum (DCGM_FI_DEV_POWER_USAGE)", {"{}": 200})
    yield RuleCase("parts of a GPU in MIG mode", series, [*expected, naive])
    whole = {**A, "Hostname": "n1"}
    of_whole = {
        labelled("DCGM_FI_DEV_FB_USED", whole): "20x10",
        labelled("DCGM_FI_DEV_POWER_USAGE", whole): "100x10",
    }
    yield RuleCase("parts and whole of a GPU", series | of_whole, expected)
    held = [{**one, **EXPORTED, **TARGET} for one in (*parts, {**B, "Hostname": "n1"})]
    use = {labelled("DCGM_FI_DEV_GPU_UTIL", one): f"{value}x10" for one, value in zip(held, (0, 40, 0), strict=True)}
    use |= {labelled("DCGM_FI_DEV_FB_USED", one): "1x10" for one in held}
    part, gpu = {"gpu_instance": "2", "node": "n1", "uuid": "GPU-a"}, {"node": "n1", "uuid": "GPU-b"}
    yield RuleCase(
        "a utilization of 0 of a part is no measurement",
        use,
        [
            named("gpu:dcgm_gpu_utilization_ratio:max", {labelled("", part): 0.4, labelled("", gpu): 0}),
            named("pod:dcgm_gpu_utilization_ratio:avg", {labelled("", {"namespace": "ml", "pod": "web-1"}): 0.2}),
            named("gpu:dcgm_idle_held:info", {labelled("", gpu): 1}),
        ],
    )
    board = {labelled(f"DCGM_FI_DEV_{name}", one): "100x10" for name in ("POWER_USAGE", "GPU_TEMP") for one in held}
    pod = labelled("", {"namespace": "ml", "pod": "web-1"})
    yield RuleCase(
        "power that parts repeat is not theirs",
        board,
        [
            named("node:dcgm_gpu_power_watts:sum", {'{node="n1"}': 200}),
            named("pod:dcgm_gpu_power_watts:sum", {pod: 100}),
            named("namespace:dcgm_gpu_power_watts:sum", {'{namespace="ml"}': 100}),
            named("pod:dcgm_gpu_temperature_celsius:max", {pod: 100}),
        ],
    )
    shares = {
        labelled("DCGM_FI_DEV_FB_USED", {**whole, "vgpu": vgpu, "namespace": "ml", "pod": f"p{vgpu}"}): "5x10"
        for vgpu in ("0", "1")
    }
    yield RuleCase(
        "shares of a device are not the device",
        shares,
        [
            named("node:dcgm_gpu_memory_used_bytes:sum", {}),
            named("node:dcgm_gpus:count", {'{node="n1"}': 1}),
        ],
    )


def unmeasured_cases() -> Iterator[RuleCase]:
    """Yield GPUs without a part of the memory readings."""
    sized = {**A, **EXPORTED, **TARGET, "Hostname": "n1"}
    default = {**B, **EXPORTED, **TARGET, "Hostname": "n2"}  # the exporter's default counters have no total
    series = {labelled("DCGM_FI_DEV_FB_USED", one): f"{used}x10" for one, used in ((sized, 10), (default, 80))}
    levels: dict[str, dict[str, str]] = {
        "node": {"node": "n1"},
        "cluster": {},
        "pod": {"namespace": "ml", "pod": "web-1"},
        "namespace": {"namespace": "ml"},
    }
    yield RuleCase(
        "memory whose total is not reported has no share",
        series | {labelled("DCGM_FI_DEV_FB_TOTAL", sized): "100x10"},
        [
            *(named(f"{level}:dcgm_gpu_memory_used:ratio", {labelled("", of): 0.1}) for level, of in levels.items()),
            named("cluster:dcgm_gpu_memory_used_bytes:sum", {"{}": 90 * MIB}),
        ],
    )
    device = {"node": "n1", "uuid": "GPU-a"}
    yield RuleCase(
        "a GPU without memory of its own is on the page",
        {labelled("DCGM_FI_DEV_GPU_TEMP", sized): "50x10"},
        [
            named("gpu:dcgm_present:info", {labelled("", device): 1}),
            named("gpu:dcgm_holder:info", {labelled("", {**device, **POD}): 1}),
            named("node:dcgm_gpus:count", {'{node="n1"}': 1}),
        ],
    )


def guest_cases() -> Iterator[RuleCase]:
    """Yield an exporter in a virtual machine, which reports the UUID only. Another input maps it to the machine."""
    outside = {"node": "n1", "uuid": "GPU-d", "kind": "gpu", "side": "guest", "namespace": "ml", "vm_name": "vm-0"}
    series = {labelled("gpufleet_gpu_info", {**outside, "name": name}): "1x10" for name in ("H200", "NVIDIA H200")}
    other = {"namespace": "ml", "name": "vm-1", "gpu_uuid": "GPU-e", "node": "n1"}
    series[labelled("kubevirt_vmi_gpu_memory_used_bytes", other)] = "1x10"
    expected = []
    for family, (metric, operation, (value, _), factor) in FAMILIES.items():
        for instance in ("a", "b"):
            for uuid in ("GPU-d", "GPU-e"):
                series[labelled(family, {"UUID": uuid, "gpu": "0", "instance": instance})] = f"{value}x10"
        machines = {labelled("", {"namespace": "ml", "name": name}): value * factor for name in ("vm-0", "vm-1")}
        expected.append(named(f"vmi:dcgm_{metric}:{operation}", machines))
    machines = {labelled("", {"namespace": "ml", "name": name}): 0.1 for name in ("vm-0", "vm-1")}
    expected.append(named("vmi:dcgm_gpu_memory_used:ratio", machines))
    yield RuleCase("UUID of a guest's exporter", series, expected)


def gap_case() -> RuleCase:
    def device(uuid: str, node: str = "n1") -> dict[str, str]:
        return {"UUID": uuid, "Hostname": node}

    series = {
        labelled("DCGM_FI_DEV_FB_USED", device("GPU-a")): "1x20",
        labelled("DCGM_FI_DEV_FB_USED", device("GPU-b")): "1x4 stale",
        labelled("DCGM_FI_DEV_FB_USED", device("GPU-c", "n2")): "1x4 stale",
    }
    gone, seen = {"node": "n1", "uuid": "GPU-b"}, {"node": "n1", "uuid": "GPU-a"}

    def at_end(name: str, results: dict[str, float]) -> Expected:
        return Expected(name, {f"{name}{labels}": value for labels, value in results.items()}, "15m")

    return RuleCase(
        "a device and a node leave",
        series,
        [
            at_end("gpu:dcgm_gap:timestamp_seconds", {labelled("", gone): 240}),
            at_end("node:dcgm_gap:timestamp_seconds", {'{node="n2"}': 240}),
            at_end("node:dcgm_seen:timestamp_seconds", {'{node="n1"}': 900, '{node="n2"}': 240}),
            at_end(
                "gpu:dcgm_seen:timestamp_seconds",
                {
                    labelled("", seen): 900,
                    labelled("", gone): 240,
                    labelled("", {"node": "n2", "uuid": "GPU-c"}): 240,
                },
            ),
        ],
    )


def cases() -> list[RuleCase]:
    return [rollup_case(), target_case(), *mig_cases(), *unmeasured_cases(), *guest_cases(), gap_case()]


@pytest.mark.system
def test_rules_give_the_expected_series(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups(list(RuleInput), alerts=False))
    run_cases(peer("promtool"), rules, cases(), tmp_path)


def test_machines_come_from_labels_without_another_input() -> None:
    alone = {rule.record: rule.expr for rule in dcgm_rules({RuleInput.DCGM})}
    both = {rule.record: rule.expr for rule in dcgm_rules({RuleInput.DCGM, RuleInput.NATIVE})}
    assert alone.keys() == both.keys()
    assert 'vm_name!=""' in alone["vmi:dcgm_gpu_power_watts:sum"]
    assert "gpu:gpufleet_vmi_uuid:info" in both["vmi:dcgm_gpu_power_watts:sum"]
