"""Rules over the series of kube-state-metrics and KubeVirt: replicas, migrations, expected and missing GPU data."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.promtool import Expected, RuleCase, Series, labelled, run_cases

PAGES = Path(__file__).parents[1] / "data" / "kubernetes"
VM_0 = {"namespace": "ml", "name": "vm-0"}
WEB = {"namespace": "ml", "pod": "web-1"}
LAUNCHER = {"namespace": "ml", "pod": "virt-launcher-vm-0-x2x4z"}


def named(name: str, results: dict[str, float]) -> Expected:
    return Expected(name, {f"{name}{labels}": value for labels, value in results.items()})


def replicated(page: str) -> dict[str, str]:
    """Return a page as two replicas of its exporter report it."""
    lines = [line for line in (PAGES / page).read_text().splitlines() if not line.startswith("#")]
    split = [line.rpartition(" ") for line in lines]
    return {
        series.replace("{", f'{{instance="{instance}",'): f"{value}x10"
        for series, _, value in split
        for instance in "ab"
    }


def expected_case() -> RuleCase:
    """Nothing reports GPU data: everything that holds a device is missing."""
    series = replicated("kube-state-metrics.txt") | replicated("kubevirt-metrics.txt")
    running = {**VM_0, "node": "n1", "vmi_pod": LAUNCHER["pod"]}
    return RuleCase(
        "expected and missing",
        series,
        [
            named(
                "pod:kube_gpu_requests:sum",
                {labelled("", {**WEB, "node": "n1"}): 2, labelled("", {**LAUNCHER, "node": "n1"}): 1},
            ),
            named("namespace:kube_gpu_requests:sum", {'{namespace="ml"}': 3}),
            named(
                "owner:kube_gpu_requests:sum",
                {
                    labelled("", {"namespace": "ml", "owner_kind": "StatefulSet", "owner_name": "web"}): 2,
                    labelled("", {"namespace": "ml", "owner_kind": "VirtualMachineInstance", "owner_name": "vm-0"}): 1,
                },
            ),
            named("node:kube_gpu_capacity:sum", {'{node="n1"}': 12}),
            named("node:kube_gpu_allocatable:sum", {'{node="n1"}': 11}),
            named("vmi:kubevirt_running:info", {labelled("", running): 1}),
            named("vmi:kubevirt_gpu_expected:info", {labelled("", VM_0): 1}),
            named("vmi:kubevirt_gap:info", {labelled("", VM_0): 1}),
            named("node:kube_gpu_gap:info", {'{node="n1"}': 1}),
            named("pod:kube_gpu_gap:info", {labelled("", {**WEB, "node": "n1"}): 1}),
            # replicas count twice, and the phase of KubeVirt is in lower case
            Expected('sum(kube_pod_container_resource_requests{resource=~"nvidia_com_.+"})', {"{}": 6}),
            Expected('count(kubevirt_vmi_info{phase="Running"})', {}),
        ],
    )


def known_case() -> RuleCase:
    """GPU data of an agent closes the gaps, also where a scrape renamed the labels of the exporter."""
    device = {"node": "n1", "uuid": "GPU-a", "kind": "gpu", "side": "host"}
    inside = {"node": "n1", "uuid": "GPU-d", "kind": "gpu", "side": "guest", "namespace": "ml", "vm_name": "vm-0"}
    holder = {"holder_kind": "pod", "holder_name": "web-1", "verdict": "agreed", **WEB}
    renamed = {"namespace": "kubevirt", "exported_namespace": "ml", "name": "vm-0", "node": "n1", "phase": "running"}
    request = {"namespace": "monitoring", "pod": "ksm", "container": "ksm", "node": "n1", "resource": "nvidia_com_gpu"}
    exported = {"exported_namespace": "ml", "exported_pod": LAUNCHER["pod"], "exported_container": "compute"}
    series = {
        labelled("kubevirt_vmi_info", {**renamed, "vmi_pod": LAUNCHER["pod"]}): "1x10",
        labelled("kube_pod_container_resource_requests", {**request, **exported}): "1x10",
        labelled("kube_pod_status_phase", {**request, **exported, "phase": "Running"}): "1x10",
        labelled("gpufleet_gpu_info", device): "1x10",
        labelled("gpufleet_gpu_holder_info", {**device, **holder}): "1x10",
        labelled("gpufleet_gpu_memory_used_bytes", inside): "1x10",
    }
    return RuleCase(
        "known",
        series,
        [
            named("vmi:kubevirt_gpu_expected:info", {labelled("", VM_0): 1}),
            named("vmi:kubevirt_gap:info", {}),
            named("node:kube_gpu_gap:info", {}),
            named("pod:kube_gpu_gap:info", {}),
        ],
    )


READINGS = {
    # metric: family, operation, value of one GPU, factor
    "gpu_utilization_ratio": ("utilization_percent", "avg", 50, 0.01),
    "gpu_memory_used_bytes": ("memory_used_bytes", "sum", 40, 1),
    "gpu_memory_total_bytes": ("memory_total_bytes", "sum", 100, 1),
    "gpu_power_watts": ("power_usage_milliwatts", "sum", 250_000, 0.001),
    "gpu_temperature_celsius": ("temperature_celsius", "max", 65, 1),
}


def guest_cases() -> Iterator[RuleCase]:
    series: dict[str, str] = {}
    expected = []
    both = {**VM_0, "gpu_uuid": "GPU-a", "gpu_index": "0"}, {**VM_0, "gpu_uuid": "GPU-b", "gpu_index": "1"}
    for metric, (family, operation, value, factor) in READINGS.items():
        name = f"kubevirt_vmi_gpu_{family}"
        for gpu in both:  # the core and its successor both emit each series
            series |= {labelled(name, {**gpu, "node": "n1", "job": job}): f"{value}x10" for job in ("core", "new")}
        series[labelled(name, {**both[0], "node": "n2"})] = f"{value}x10"  # the target of a migration
        total = value * factor * (2 if operation == "sum" else 1)
        expected.append(named(f"vmi:kubevirt_{metric}:{operation}", {labelled("", VM_0): total}))
        devices = {
            labelled("", {**VM_0, "node": node, "gpu_uuid": uuid}): value * factor
            for node, uuid in (("n1", "GPU-a"), ("n1", "GPU-b"), ("n2", "GPU-a"))
        }
        expected.append(named(f"gpu:kubevirt_{metric}:max", devices))
    for family in ("temperature_celsius", "power_usage_milliwatts"):  # what a vGPU cannot read is 0
        vgpu = {**VM_0, "name": "vm-1", "gpu_uuid": "GPU-c", "gpu_index": "0"}
        series[labelled(f"kubevirt_vmi_gpu_{family}", {**vgpu, "node": "n1"})] = "0x10"
    expected += [
        named("vmi:kubevirt_gpu_memory_used:ratio", {labelled("", VM_0): 0.4}),
        named("gpu:kubevirt_vmi_uuid:info", {labelled("", {**VM_0, "uuid": uuid}): 1 for uuid in ("GPU-a", "GPU-b")}),
        Expected("sum by (namespace, name) (kubevirt_vmi_gpu_memory_used_bytes)", {labelled("", VM_0): 200}),
    ]
    yield RuleCase("duplicates and a migration", series, expected)
    claim: Series = {
        labelled("kubevirt_vmi_gpu_memory_used_bytes", {"namespace": "ml", "name": name, "gpu_uuid": "GPU-a"}): "1x10"
        for name in ("vm-0", "vm-1")
    }
    yield RuleCase("two machines claim a UUID", claim, [named("gpu:kubevirt_vmi_uuid:info", {})])


def other_devices_case() -> RuleCase:
    """Network cards of NVIDIA's Network Operator are no GPUs, and a LimitRange can set a request of 0."""
    card = {"node": "n1", "resource": "nvidia_com_hostdev"}
    pods = [("nfs-0", card, 1), ("virt-launcher-vm-0-x2x4z", {**card, "resource": "nvidia_com_gpu"}, 0)]
    series = {labelled(f"kube_node_status_{name}", card): "8x10" for name in ("capacity", "allocatable")}
    for pod, resource, count in pods:
        request = {"namespace": "ml", "pod": pod, "container": "c", **resource}
        series[labelled("kube_pod_container_resource_requests", request)] = f"{count}x10"
        series[labelled("kube_pod_status_phase", {"namespace": "ml", "pod": pod, "phase": "Running"})] = "1x10"
    for name, launcher in (("vm-0", LAUNCHER["pod"]), ("vm-1", "virt-launcher-vm-1-x2x4z")):
        running = {"namespace": "ml", "name": name, "node": "n1", "phase": "running", "vmi_pod": launcher}
        series[labelled("kubevirt_vmi_info", running)] = "1x10"
    series[labelled("kubevirt_vmi_gpu_info", {"namespace": "ml", "name": "vm-1", "resource": "nvidia.com/hostdev"})] = (
        "1x10"
    )
    names = ("node:kube_gpu_capacity:sum", "node:kube_gpu_gap:info", "pod:kube_gpu_gap:info")
    return RuleCase(
        "devices that are no GPUs",
        series,
        [named(name, {}) for name in (*names, "vmi:kubevirt_gpu_expected:info", "vmi:kubevirt_gap:info")],
    )


def cases() -> list[RuleCase]:
    return [expected_case(), known_case(), other_devices_case(), *guest_cases()]


@pytest.mark.system
def test_rules_give_the_expected_series(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups((RuleInput.NATIVE, RuleInput.KUBEVIRT), alerts=False))
    run_cases(peer("promtool"), rules, cases(), tmp_path)
