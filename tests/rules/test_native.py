"""Rules over gpufleet's own series: roll-ups of every level, inventory, vGPUs and gaps."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpufleet.rules.render import render_rules
from gpufleet.rules.rollups import ROLLUPS, rollup
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.promtool import Expected, RuleCase, labelled, run_cases

VALUES = "x10"
READINGS = {
    # metric: values of GPU a, b, c and of GPU d in a virtual machine
    "gpu_utilization_ratio": (0.5, 0.25, 0.0, 0.75),
    "gpu_sm_activity_ratio": (0.5, 0.25, 0.0, 0.75),
    "gpu_memory_used_bytes": (10, 20, 30, 40),
    "gpu_memory_total_bytes": (100, 100, 100, 100),
    "gpu_power_watts": (100, 200, 300, 400),
    "gpu_temperature_celsius": (50, 60, 70, 80),
}
SCRAPERS = ({"job": "agents", "instance": "n1:9470"}, {"job": "remote_write", "instance": "n1"})
"""Targets of the same agent: a database has each of its series twice."""


def gpu(number: int) -> dict[str, str]:
    letter = "abc"[number]
    return {
        "node": "n1",
        "uuid": f"GPU-{letter}",
        "pci_address": f"0000:0{number + 1}:00.0",
        "kind": "gpu",
        "side": "host",
    }


PASSED = {"node": "n1", "pci_address": "0000:04:00.0", "kind": "gpu", "side": "pci_only"}
INSIDE = {"node": "n1", "uuid": "GPU-d", "pci_address": "0000:00:07.0", "kind": "gpu", "side": "guest"}
VM_LABELS = {"namespace": "ml", "vm_name": "vm-0"}
VM = {"namespace": "ml", "name": "vm-0"}


def pod(name: str, share: str = "exclusive", **labels: str) -> dict[str, str]:
    return {
        "holder_kind": "pod",
        "holder_name": name,
        "namespace": "ml",
        "pod": name,
        "container": "main",
        "share": share,
        "verdict": "agreed",
        **labels,
    }


WEB = {"owner_kind": "Deployment", "owner_name": "web"}
INFER = {"owner_kind": "StatefulSet", "owner_name": "infer"}
JOB = {"job_id": "4711", "job_name": "bert", "user": "ada", "account": "lab", "partition": "gpu"}
JOB_HOLDER = {"holder_kind": "job", "holder_name": "bert", "share": "exclusive", "verdict": "agreed", **JOB}
HOLDERS = (
    (gpu(0), pod("web-1", **WEB)),
    (gpu(0), pod("web-1", **WEB, container="sidecar")),
    (gpu(0), pod("gone", verdict="unknown")),
    (gpu(1), pod("infer-a", "timeslice", **INFER)),
    (gpu(1), pod("infer-b", "timeslice", **INFER)),
    (gpu(2), JOB_HOLDER),
    (PASSED, pod("virt-launcher-vm-0-x2x4z", vm_name="vm-0")),
)


def scraped(name: str, labels: Mapping[str, str], value: object) -> Iterator[tuple[str, str]]:
    """Yield a series as two scrapers store it."""
    for target in SCRAPERS:
        yield labelled(name, {**labels, **target, "name": labels.get("name", "NVIDIA H200")}), f"{value}{VALUES}"


def node_series() -> dict[str, str]:
    """Return the series of a node with two exclusive GPUs, a shared one, and a virtual machine with a fourth."""
    series: dict[str, str] = {}
    for metric, values in READINGS.items():
        for number in range(3):
            series |= scraped(f"gpufleet_{metric}", gpu(number), values[number])
        series |= scraped(f"gpufleet_{metric}", {**INSIDE, **VM_LABELS}, values[3])
    for device in (gpu(0), gpu(1), gpu(2), PASSED, {**INSIDE, **VM_LABELS}):
        series |= scraped("gpufleet_gpu_info", device, 1)
    for device in (gpu(0), gpu(1), gpu(2), PASSED):
        for state in ("held", "free", "unknown"):
            series |= scraped("gpufleet_gpu_holder_state", {**device, "state": state}, int(state == "held"))
    for device, holder in HOLDERS:
        series |= scraped("gpufleet_gpu_holder_info", {**device, **holder}, 1)
    return series


def of_level(metric: str) -> dict[str, dict[str, float]]:
    """Return the expected value of a metric by level and labels."""
    a, b, c, d = READINGS[metric]
    operation = rollup(metric, "").operation
    over: Callable[..., float] = {
        "sum": lambda *values: sum(values),
        "avg": lambda *values: sum(values) / len(values),
        "max": lambda *values: max(values),
    }[operation]
    owners = {"Deployment": ({"namespace": "ml", **WEB}, a), "StatefulSet": ({"namespace": "ml", **INFER}, b)}
    return {
        "node": {labelled("", {"node": "n1"}): over(a, b, c, d)},
        "cluster": {"{}": over(a, b, c, d)},
        "pod": {
            labelled("", {"namespace": "ml", "pod": "web-1", "share": "exclusive"}): a,
            labelled("", {"namespace": "ml", "pod": "infer-a", "share": "timeslice"}): b,
            labelled("", {"namespace": "ml", "pod": "infer-b", "share": "timeslice"}): b,
        },
        "namespace": {labelled("", {"namespace": "ml"}): over(a, b)},
        "owner": {labelled("", labels): value for labels, value in owners.values()},
        "job": {labelled("", JOB): c},
        "vmi": {labelled("", VM): d},
    }


def named(name: str, results: Mapping[str, float]) -> Expected:
    return Expected(name, {f"{name}{labels}": value for labels, value in results.items()})


def rollup_cases() -> RuleCase:
    expected = []
    for metric in ROLLUPS:
        operation = rollup(metric, "").operation
        expected += [
            named(f"{level}:gpufleet_{metric}:{operation}", results) for level, results in of_level(metric).items()
        ]
        devices = {labelled("", gpu(number)): READINGS[metric][number] for number in range(3)}
        devices[labelled("", {**INSIDE, **VM})] = READINGS[metric][3]
        expected.append(named(f"gpu:gpufleet_{metric}:max", devices))
    used, total = of_level("gpu_memory_used_bytes"), of_level("gpu_memory_total_bytes")
    for level, values in used.items():
        ratios = {labels: value / total[level][labels] for labels, value in values.items()}
        expected.append(named(f"{level}:gpufleet_gpu_memory_used:ratio", ratios))
    return RuleCase("roll-ups", node_series(), [*expected, *NAIVE])


NAIVE = (
    # Two scrapers, three containers and sharers: a plain join with the holders counts GPUs several times.
    Expected("sum by (node) (gpufleet_gpu_power_watts)", {'{node="n1"}': 2000.0}),
    Expected(
        'sum by (namespace) (gpufleet_gpu_holder_info{pod!=""} * on (node, uuid, job) group_left () '
        "gpufleet_gpu_power_watts)",
        {'{namespace="ml"}': 1400.0},
    ),
)


def inventory_case() -> RuleCase:
    held_by = [
        ({**gpu(0)}, pod("web-1", **WEB)),
        ({**gpu(0)}, pod("web-1", **WEB, container="sidecar")),
        ({**gpu(1)}, pod("infer-a", "timeslice", **INFER)),
        ({**gpu(1)}, pod("infer-b", "timeslice", **INFER)),
        ({**gpu(2)}, JOB_HOLDER),
        (PASSED, pod("virt-launcher-vm-0-x2x4z", vm_name="vm-0")),
    ]
    holders = {labelled("", {**device, **holder, "verdict": ""}): 1.0 for device, holder in held_by}
    inside = {"node": "n1", "uuid": "GPU-d", "pci_address": "0000:00:07.0", "side": "guest", **VM}
    passed = {"node": "n1", "pci_address": "0000:04:00.0", "side": "pci_only", **VM}
    everything = [gpu(0), gpu(1), gpu(2), PASSED, {**INSIDE, **VM}]
    held = {labelled("", device): 1.0 for device in everything[:4]}
    return RuleCase(
        "inventory",
        node_series(),
        [
            named("gpu:gpufleet_holder:info", holders),
            named("gpu:gpufleet_physical:info", {labelled("", device): 1.0 for device in everything}),
            named("node:gpufleet_gpus:count", {'{node="n1"}': 4}),
            named("gpu:gpufleet_vmi:info", {labelled("", inside): 1, labelled("", passed): 1}),
            named("gpu:gpufleet_vmi_uuid:info", {labelled("", {"uuid": "GPU-d", **VM}): 1}),
            named("node:gpufleet_gpu_holder_state:count", {labelled("", {"node": "n1", "state": "held"}): 4}),
            named("gpu:gpufleet_held:info", held),
            named("gpu:gpufleet_free:info", {}),
            named("gpu:gpufleet_idle_held:info", {labelled("", gpu(2)): 1}),
            named("gpu:gpufleet_idle_free:info", {}),
            named("pod:gpufleet_gap:info", {}),
            named("vmi:gpufleet_gap:info", {}),
        ],
    )


def exported_case() -> RuleCase:
    """Return a scrape without `honor_labels`: labels of holders are renamed, and those of the agent's pod are added."""
    target = {"namespace": "monitoring", "pod": "agent-x", "container": "agent", "job": "a", "instance": "i"}
    exported = {"exported_namespace": "ml", "exported_pod": "web-1", "exported_container": "main"}
    holder = {"holder_kind": "pod", "holder_name": "web-1", "share": "exclusive", "verdict": "agreed"}
    renamed = {**gpu(0), "node": "target-node", "exported_node": "n1"}
    series = {
        labelled("gpufleet_gpu_holder_info", {**renamed, **holder, **target, **exported}): f"1{VALUES}",
        labelled("gpufleet_gpu_holder_info", {**gpu(1), **JOB_HOLDER, **target}): f"1{VALUES}",
        labelled("gpufleet_gpu_power_watts", {**renamed, **target}): f"100{VALUES}",
        labelled("gpufleet_gpu_power_watts", {**gpu(1), **target}): f"200{VALUES}",
        labelled("gpufleet_gpu_power_watts", {**INSIDE, **target, "exported_namespace": "ml", "vm_name": "vm-0"}): (
            f"300{VALUES}"
        ),
    }
    naive = "sum by (pod) (gpufleet_gpu_holder_info * on (uuid) group_left () gpufleet_gpu_power_watts)"
    return RuleCase(
        "exported labels",
        series,
        [
            named("namespace:gpufleet_gpu_power_watts:sum", {'{namespace="ml"}': 100}),
            named("job:gpufleet_gpu_power_watts:sum", {labelled("", JOB): 200}),
            named("vmi:gpufleet_gpu_power_watts:sum", {labelled("", VM): 300}),
            Expected(naive, {'{pod="agent-x"}': 300}),
        ],
    )


def honored_case() -> RuleCase:
    """Return a scrape with `honor_labels`: labels of the agent's pod are on the series that have none of their own."""
    target = {"namespace": "monitoring", "pod": "agent-x", "container": "agent", "job": "a", "instance": "i"}
    devices = (gpu(0), gpu(1), {**INSIDE, **VM_LABELS})
    series = {
        labelled("gpufleet_gpu_power_watts", {**target, **device}): f"{value}{VALUES}"
        for device, value in zip(devices, (100, 200, 300), strict=True)
    }
    for device, holder in ((gpu(0), pod("web-1")), (gpu(1), JOB_HOLDER)):
        series[labelled("gpufleet_gpu_holder_info", {**target, **device, **holder})] = f"1{VALUES}"
    naive = 'sum by (pod) (gpufleet_gpu_power_watts{pod!=""})'
    return RuleCase(
        "honored labels",
        series,
        [
            named("namespace:gpufleet_gpu_power_watts:sum", {'{namespace="ml"}': 100}),
            named("job:gpufleet_gpu_power_watts:sum", {labelled("", JOB): 200}),
            named("vmi:gpufleet_gpu_power_watts:sum", {labelled("", VM): 300}),
            Expected(naive, {'{pod="agent-x"}': 600}),
        ],
    )


def guest_cases() -> Iterator[RuleCase]:
    used, info = "gpufleet_gpu_memory_used_bytes", "gpufleet_gpu_info"
    source = {**INSIDE, **VM_LABELS}
    target = {**source, "node": "n2", "uuid": "GPU-e"}
    migration = {labelled(name, one): f"40{VALUES}" for name in (used, info) for one in (source, target)}
    yield RuleCase(
        "migration: two nodes report the virtual machine",
        migration,
        [
            named("vmi:gpufleet_gpu_memory_used_bytes:sum", {labelled("", VM): 40}),
            Expected(f"sum by (namespace, vm_name) ({used})", {labelled("", VM_LABELS): 80}),
        ],
    )
    other = {**INSIDE, "node": "n2", "namespace": "team-b", "vm_name": "clone"}
    clone = {labelled(info, one): f"1{VALUES}" for one in (source, other)}
    yield RuleCase(
        "two virtual machines report one UUID",
        clone | {labelled("DCGM_FI_DEV_FB_USED", {"UUID": "GPU-d"}): f"1{VALUES}"},
        [named("gpu:gpufleet_vmi_uuid:info", {}), named("vmi:dcgm_gpu_memory_used_bytes:sum", {})],
    )
    mode = {"state": "vgpu_guest"}
    vgpu = {
        labelled(info, gpu(0)): f"1{VALUES}",
        labelled(info, source): f"1{VALUES}",
        labelled("gpufleet_gpu_virtualization_mode", {**source, **mode}): f"1{VALUES}",
        labelled(used, gpu(0)): f"100{VALUES}",
        labelled(used, source): f"40{VALUES}",
    }
    yield RuleCase(
        "a vGPU in a guest is a part of the node's GPU",
        vgpu,
        [
            named("node:gpufleet_gpu_memory_used_bytes:sum", {'{node="n1"}': 100}),
            named("gpu:gpufleet_physical:info", {labelled("", gpu(0)): 1}),
            named("vmi:gpufleet_gpu_memory_used_bytes:sum", {labelled("", VM): 40}),
        ],
    )


def unmeasured_cases() -> Iterator[RuleCase]:
    """Return devices without a part of the memory readings."""
    used, total, web = "gpufleet_gpu_memory_used_bytes", "gpufleet_gpu_memory_total_bytes", pod("web-1", **WEB)
    by_page = {**gpu(0), "node": "n2", "uuid": "GPU-f"}  # a page of dcgm-exporter has no total in its default form
    other_inside = {**INSIDE, "uuid": "GPU-g", "pci_address": "0000:00:08.0"}
    instances = [
        {"node": "n1", "uuid": f"vgpu-{number}", "kind": "vgpu", "side": "vgpu_host", "vm_id": "vm-a"}
        for number in range(2)
    ]
    sized = (gpu(0), {**INSIDE, **VM_LABELS}, instances[0])
    series = {
        **{labelled(used, one): f"10{VALUES}" for one in sized},
        **{labelled(total, one): f"100{VALUES}" for one in (*sized, instances[1])},
        **{labelled(used, one): f"80{VALUES}" for one in (by_page, {**other_inside, **VM_LABELS})},
        **{labelled("gpufleet_gpu_info", one): f"1{VALUES}" for one in (gpu(0), by_page)},
        **{labelled("gpufleet_gpu_holder_info", {**one, **web}): f"1{VALUES}" for one in (gpu(0), by_page)},
    }
    levels = {"node": {"node": "n1"}, "cluster": {}, "namespace": {"namespace": "ml"}, "vmi": VM}
    shares = [named(f"{level}:gpufleet_gpu_memory_used:ratio", {labelled("", of): 0.1}) for level, of in levels.items()]
    yield RuleCase(
        "memory whose total is not reported has no share",
        series,
        [
            *shares,
            named("cluster:gpufleet_gpu_memory_used_bytes:sum", {"{}": 90}),
            named("vm:gpufleet_vgpu_memory_free_bytes:sum", {'{vm_id="vm-a"}': 90}),
        ],
    )
    integrated = {
        labelled("gpufleet_gpu_holder_info", {**gpu(1), **pod("web-1")}): f"1{VALUES}",
        labelled("gpufleet_gpu_temperature_celsius", gpu(1)): f"50{VALUES}",
    }
    yield RuleCase("a GPU without memory of its own has readings", integrated, [named("pod:gpufleet_gap:info", {})])


def ambiguous_case() -> RuleCase:
    """Return a busy and an idle GPU of a source that reports 0 for failed queries, too, and one of another source."""
    util, used, total = (
        "gpufleet_gpu_utilization_ratio",
        "gpufleet_gpu_memory_used_bytes",
        "gpufleet_gpu_memory_total_bytes",
    )
    other = {**gpu(2), "node": "n2"}
    inside = {**INSIDE, "uuid": "GPU-g", "pci_address": "0000:00:08.0"}
    series: dict[str, str] = {}
    for device, holder in ((gpu(0), pod("web-1", **WEB)), (gpu(1), pod("web-2", **WEB)), (other, JOB_HOLDER)):
        series |= {labelled("gpufleet_gpu_info", device): f"1{VALUES}"}
        series |= {labelled("gpufleet_gpu_holder_info", {**device, **holder}): f"1{VALUES}"}
    for device in (gpu(0), other, {**INSIDE, **VM_LABELS}):
        series |= {labelled(util, device): f"0.5{VALUES}", labelled(used, device): f"40{VALUES}"}
    for device in (gpu(0), gpu(1), other, {**INSIDE, **VM_LABELS}, {**inside, **VM_LABELS}):
        series |= {labelled(total, device): f"100{VALUES}"}
    for device in (gpu(1), {**inside, **VM_LABELS}, {**other, "reader": "exporter"}):  # another reader has the last
        for metric in ("gpu_utilization_ratio", "gpu_memory_used_bytes"):
            absent = {**device, "metric": metric, "reason": "ambiguous_zero"}
            series |= {labelled("gpufleet_reading_absent", absent): f"1{VALUES}"}
    vgpus = [
        {"node": "n1", "uuid": f"vgpu-{number}", "kind": "vgpu", "side": "vgpu_host", "vm_id": vm}
        for number, vm in enumerate(("vm-a", "vm-a", "vm-b"))
    ]
    for vgpu, number in ((vgpus[0], 40), (vgpus[2], 30)):
        series |= {labelled(used, vgpu): f"{number}{VALUES}"}
    for vgpu in (vgpus[1], {**vgpus[2], "reader": "exporter"}):
        absent = {**vgpu, "metric": "gpu_memory_used_bytes", "reason": "ambiguous_zero"}
        series |= {labelled("gpufleet_reading_absent", absent): f"1{VALUES}"}
    series |= {labelled(total, vgpu): f"100{VALUES}" for vgpu in vgpus}
    instance = {label: text for label, text in vgpus[1].items() if label != "vm_id"}
    means = {"util": "gpufleet_gpu_utilization_ratio:avg", "memory": "gpufleet_gpu_memory_used:ratio"}
    none = [
        named(f"{level}:{mean}", {}) for level in ("cluster", "namespace", "owner", "vmi") for mean in means.values()
    ]
    web = {labelled("", {"namespace": "ml", "pod": "web-1", "share": "exclusive"}): 0.5}
    return RuleCase(
        "no mean without the devices that are idle",
        series,
        [
            *none,
            named("node:gpufleet_gpu_utilization_ratio:avg", {'{node="n2"}': 0.5}),
            named("node:gpufleet_gpu_memory_used:ratio", {'{node="n2"}': 0.4}),
            named("pod:gpufleet_gpu_utilization_ratio:avg", web),
            named("job:gpufleet_gpu_utilization_ratio:avg", {labelled("", JOB): 0.5}),
            named("cluster:gpufleet_gpu_memory_used_bytes:sum", {"{}": 80}),
            named("vm:gpufleet_vgpu_memory_used_bytes:sum", {'{vm_id="vm-a"}': 40, '{vm_id="vm-b"}': 30}),
            named("vm:gpufleet_vgpu_memory_free_bytes:sum", {'{vm_id="vm-b"}': 70}),
            *(
                named(
                    f"gpu:gpufleet_{metric}:ambiguous_zero",
                    dict.fromkeys((labelled("", one) for one in (gpu(1), {**inside, **VM}, *instances)), 1),
                )
                for metric, instances in (("gpu_utilization_ratio", ()), ("gpu_memory_used_bytes", (instance,)))
            ),
        ],
    )


def gap_cases() -> Iterator[RuleCase]:
    device, missing = {**gpu(0)}, {**gpu(1)}
    series = {
        labelled("gpufleet_gpu_info", device): "1x20",
        labelled("gpufleet_gpu_info", missing): "1x4 stale",
        labelled("gpufleet_gpu_info", {**gpu(2), "node": "n2"}): "1x4 stale",
    }
    key = {"node": "n1", "uuid": missing["uuid"], "pci_address": missing["pci_address"]}
    other = {"node": "n2", "uuid": gpu(2)["uuid"], "pci_address": gpu(2)["pci_address"]}
    yield RuleCase(
        "a device and a node leave",
        series,
        [
            Expected("gpu:gpufleet_gap:timestamp_seconds", {}, "4m"),
            Expected(
                "gpu:gpufleet_gap:timestamp_seconds",
                {labelled("gpu:gpufleet_gap:timestamp_seconds", key): 240},
                "15m",
            ),
            Expected(
                "node:gpufleet_gap:timestamp_seconds",
                {labelled("node:gpufleet_gap:timestamp_seconds", {"node": "n2"}): 240},
                "15m",
            ),
            Expected(
                "node:gpufleet_seen:timestamp_seconds",
                {
                    labelled("node:gpufleet_seen:timestamp_seconds", {"node": "n1"}): 900,
                    labelled("node:gpufleet_seen:timestamp_seconds", {"node": "n2"}): 240,
                },
                "15m",
            ),
            Expected(
                'gpu:gpufleet_seen:timestamp_seconds{node="n2"}',
                {labelled("gpu:gpufleet_seen:timestamp_seconds", other): 240},
                "15m",
            ),
        ],
    )
    held = pod("web-1")
    launcher = pod("virt-launcher-vm-0-x2x4z", vm_name="vm-0")
    yield RuleCase(
        "holders without readings",
        {
            labelled("gpufleet_gpu_holder_info", {**gpu(0), **held}): f"1{VALUES}",
            labelled("gpufleet_gpu_holder_info", {**PASSED, **launcher}): f"1{VALUES}",
        },
        [
            named("pod:gpufleet_gap:info", {labelled("", {"node": "n1", "namespace": "ml", "pod": "web-1"}): 1}),
            named("vmi:gpufleet_gap:info", {labelled("", VM): 1}),
        ],
    )
    to_guest = {labelled("gpufleet_gpu_info", device): "1x4 stale"} | {
        labelled("gpufleet_gpu_info", {**device, "uuid": "", "side": "pci_only"}): "_x4 1x20"
    }
    yield RuleCase(
        "a device that is passed to a guest is not missing",
        to_guest,
        [Expected("gpu:gpufleet_gap:timestamp_seconds", {}, "15m")],
    )


def node_case() -> RuleCase:
    """Return roll-ups and inventory in one timeline, which saves most of the time."""
    rollups, inventory = rollup_cases(), inventory_case()
    return RuleCase("roll-ups and inventory", rollups.series, [*rollups.expected, *inventory.expected])


def honored_cases() -> list[RuleCase]:
    """Return cases whose series have no `exported_*` labels."""
    return [node_case(), honored_case(), *guest_cases(), *unmeasured_cases()]


def cases() -> list[RuleCase]:
    return [*honored_cases(), exported_case(), ambiguous_case(), *gap_cases()]


@pytest.mark.system
def test_rules_give_the_expected_series(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups(list(RuleInput), alerts=False))
    run_cases(peer("promtool"), rules, cases(), tmp_path)


@pytest.mark.system
def test_rules_for_honored_labels_give_the_same_series(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups([RuleInput.NATIVE], alerts=False, honor_labels=True))
    run_cases(peer("promtool"), rules, honored_cases(), tmp_path)
