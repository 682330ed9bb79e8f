"""Documented queries: each one is right where the simple query is wrong."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.rules.queries import ATTRIBUTION_QUERIES, VGPU_QUERIES
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.promtool import Expected, RuleCase, labelled, run_cases

QUERIES = {query.name: query.expr for query in (*ATTRIBUTION_QUERIES, *VGPU_QUERIES)}
UTIL, USED, TOTAL = (
    "gpufleet_gpu_utilization_ratio",
    "gpufleet_gpu_memory_used_bytes",
    "gpufleet_gpu_memory_total_bytes",
)
BOTH = ({"job": "a"}, {"job": "b"})


def gpu(letter: str, node: str = "n1") -> dict[str, str]:
    return {"node": node, "uuid": f"GPU-{letter}", "kind": "gpu", "side": "host"}


def held(pod: str, kind: str, name: str) -> dict[str, str]:
    of = {"holder_kind": "pod", "holder_name": pod, "namespace": "ml", "pod": pod, "container": "main"}
    return {**of, "owner_kind": kind, "owner_name": name, "share": "exclusive", "verdict": "agreed"}


def twice(series: dict[str, str], name: str, labels: dict[str, str], value: float) -> None:
    """Add a series as two scrapers store it."""
    for target in BOTH:
        series[labelled(name, {**labels, **target})] = f"{value}x10"


def attribution_case() -> RuleCase:
    """Return a fleet with sharers, a Job on two nodes, equal owners, recreated pods, replicas, and an idle free GPU."""
    series: dict[str, str] = {}
    for device, util, used in (
        (gpu("a"), 0.75, 10),  # shared by two pods of the StatefulSet
        (gpu("b"), 0.25, 30),
        (gpu("b", "n2"), 0.5, 50),
        (gpu("c"), 0, 0),
        (gpu("d"), 0.125, 70),
    ):
        twice(series, UTIL, device, util)
        twice(series, USED, device, used)
        twice(series, TOTAL, device, 100)
    job = {"holder_kind": "job", "holder_name": "bert", "job_id": "4711", "verdict": "agreed"}
    for device, holder in (
        (gpu("a"), held("infer-0", "StatefulSet", "infer")),
        (gpu("a"), held("infer-1", "StatefulSet", "infer")),
        (gpu("b"), held("train-0", "Job", "train")),
        (gpu("b", "n2"), held("train-1", "Job", "train")),
        (gpu("d"), job),
        (gpu("e"), held("web-1", "Deployment", "web")),
    ):
        twice(series, "gpufleet_gpu_holder_info", {**device, **holder}, 1)
    twice(series, USED, gpu("e"), 20)
    twice(series, TOTAL, gpu("e"), 80)
    twice(series, "gpufleet_gpu_holder_state", {**gpu("c"), "state": "free"}, 1)
    for pod, app in (("infer-0", "llm"), ("infer-1", "llm"), ("train-0", "bert"), ("train-1", "bert")):
        labels = {"namespace": "ml", "pod": pod, "label_app": app}
        twice(series, "kube_pod_labels", {**labels, "uid": "1"}, 1)
    series[labelled("kube_pod_labels", {"namespace": "ml", "pod": "infer-0", "uid": "0", "label_app": "old"})] = "0x10"
    pods = {"train-1": 50, "train-0": 30, "web-1": 20, "infer-0": 10, "infer-1": 10}
    apps = {"train-1": "bert", "train-0": "bert", "infer-0": "llm", "infer-1": "llm"}
    mean = (0.75 + 0.25 + 0.5) / 3
    return RuleCase(
        "attribution",
        series,
        [
            Expected(
                QUERIES["utilization by namespace"],
                {'namespace:gpufleet_gpu_utilization_ratio:avg{namespace="ml"}': mean},
            ),
            Expected(
                QUERIES["top pods by memory"],
                {
                    labelled("", {"namespace": "ml", "pod": pod, "share": "exclusive", "label_app": app}): pods[pod]
                    for pod, app in apps.items()
                },
            ),
            Expected(QUERIES["utilization by app"], {'{label_app="llm"}': 0.75, '{label_app="bert"}': 0.375}),
            Expected(QUERIES["idle without holder"], {labelled("gpu:gpufleet_idle_free:info", gpu("c")): 1}),
            Expected("gpu:gpufleet_free:info", {labelled("gpu:gpufleet_free:info", gpu("c")): 1}),
            Expected(QUERIES["job"], {'job:gpufleet_gpu_utilization_ratio:avg{job_id="4711"}': 0.125}),
            Expected(
                QUERIES["Kubernetes Job by GPU"],
                {'{node="n1",uuid="GPU-b"}': 0.25, '{node="n2",uuid="GPU-b"}': 0.5},
            ),
            Expected(
                QUERIES["memory by Deployment"],
                {
                    labelled(
                        "owner:gpufleet_gpu_memory_used:ratio",
                        {"namespace": "ml", "owner_kind": "Deployment", "owner_name": "web"},
                    ): 0.25
                },
            ),
            Expected(
                QUERIES["utilization by StatefulSet"],
                {
                    labelled(
                        "owner:gpufleet_gpu_utilization_ratio:avg",
                        {"namespace": "ml", "owner_kind": "StatefulSet", "owner_name": "infer"},
                    ): 0.75
                },
            ),
            # The same questions in simple form: sharers, replicas and nodes are counted wrongly. Rounded, because the
            # last digit of a mean depends on the order of the series.
            Expected(
                f'round(avg by (namespace) (gpufleet_gpu_holder_info{{pod!=""}} * on (node, uuid, job) group_left () '
                f"{UTIL}), 0.0001)",
                {'{namespace="ml"}': 0.5625},
            ),
            Expected(f"count ({UTIL} == 0)", {"{}": 2}),
            Expected(f'avg by (job_id) ({UTIL}{{job_id="4711"}})', {}),
            Expected(f'avg by (uuid) ({UTIL}{{uuid="GPU-b"}})', {'{uuid="GPU-b"}': 0.375}),
        ],
    )


def ambiguous_case() -> RuleCase:
    """Return two apps: a GPU of one is idle by a source that reports 0 for failed queries, too."""
    series: dict[str, str] = {}
    for device, pod, app in ((gpu("a"), "infer-0", "llm"), (gpu("b"), "infer-1", "llm"), (gpu("c"), "train-0", "bert")):
        twice(series, "gpufleet_gpu_holder_info", {**device, **held(pod, "Job", app)}, 1)
        twice(series, "kube_pod_labels", {"namespace": "ml", "pod": pod, "label_app": app}, 1)
    for letter in "ac":
        twice(series, UTIL, gpu(letter), 0.5)
    absent = {"metric": "gpu_utilization_ratio", "reason": "ambiguous_zero"}
    twice(series, "gpufleet_reading_absent", {**gpu("b"), **absent}, 1)
    return RuleCase(
        "idle GPUs without a value", series, [Expected(QUERIES["utilization by app"], {'{label_app="bert"}': 0.5})]
    )


def vgpu_case() -> RuleCase:
    """Return a virtual machine in migration, an idle one, and their GPUs; each series twice."""
    series: dict[str, str] = {}

    def instance(number: str, vm: str, node: str = "n1") -> dict[str, str]:
        kind = {"kind": "vgpu", "side": "vgpu_host", "gpu": "GPU-a", "profile": "A100-20C"}
        return {"node": node, "uuid": f"vgpu-{number}", **kind, "vm_id": vm}

    for one, util, used in (
        (instance("1", "vm-a"), 0.5, 10),
        (instance("2", "vm-a", "n2"), 0.25, 5),  # the target of the migration
        (instance("3", "vm-b"), 0, 0),
    ):
        twice(series, UTIL, one, util)
        twice(series, USED, one, used)
        twice(series, TOTAL, one, 20)
    for state in ("best_effort", "equal_share", "fixed_share"):
        labels = {**gpu("a"), "state": state}
        twice(series, "gpufleet_gpu_vgpu_scheduler_policy", labels, int(state == "equal_share"))
    for state in ("unknown", "licensed", "unlicensed"):
        lost = {**instance("1", "vm-a"), "state": state}
        unknown = {**instance("3", "vm-b"), "state": state}
        twice(series, "gpufleet_vgpu_license_state", lost, int(state == "unlicensed"))
        twice(series, "gpufleet_vgpu_license_state", unknown, int(state == "unknown"))
    twice(series, "gpufleet_gpu_vgpu_instances", gpu("a"), 2)
    twice(series, "gpufleet_gpu_vgpu_instances", gpu("b"), 0)
    device = {"node": "n1", "kind": "vgpu", "side": "vgpu_host"}
    fault = {**device, "uuid": "vgpu-1", "fault": "license_lost"}
    policy = "gpu:gpufleet_vgpu_scheduler_policy:info"
    instances = "gpu:gpufleet_vgpu_instances:max"
    return RuleCase(
        "vGPUs",
        series,
        [
            Expected(
                QUERIES["utilization by virtual machine"],
                {f'vm:gpufleet_vgpu_utilization_ratio:sum{{vm_id="{vm}"}}': value for vm, value in VM_UTIL.items()},
            ),
            Expected(
                QUERIES["framebuffer headroom"],
                {f'vm:gpufleet_vgpu_memory_free_bytes:sum{{vm_id="{vm}"}}': free for vm, free in VM_FREE.items()},
            ),
            Expected(
                QUERIES["idle instances"], {labelled("gpu:gpufleet_vgpu_idle:info", {**device, "uuid": "vgpu-3"}): 1}
            ),
            Expected(
                "vm:gpufleet_vgpu_memory_used_bytes:sum",
                {f'vm:gpufleet_vgpu_memory_used_bytes:sum{{vm_id="{vm}"}}': 20 - VM_FREE[vm] for vm in VM_FREE},
            ),
            Expected(QUERIES["scheduler policy"], {'{state="equal_share"}': 1}),
            Expected(policy, {labelled(policy, {**gpu("a"), "state": "equal_share"}): 1}),
            Expected(QUERIES["licence lost"], {labelled("gpu:gpufleet_fault:timestamp_seconds", fault): 300}),
            Expected(
                QUERIES["instances per GPU"], {labelled(instances, gpu("a")): 2, labelled(instances, gpu("b")): 0}
            ),
            Expected(f'sum by (vm_id) ({UTIL}{{vm_id="vm-a"}})', {'{vm_id="vm-a"}': 1.5}),
            Expected("count (gpufleet_gpu_vgpu_scheduler_policy)", {"{}": 6}),
            Expected('count (gpufleet_vgpu_license_state{state!="licensed"} == 1)', {"{}": 4}),
            Expected(f'count by (gpu) ({UTIL}{{kind="vgpu",node="n1"}})', {'{gpu="GPU-a"}': 4}),
        ],
    )


VM_UTIL = {"vm-a": 0.5, "vm-b": 0.0}
VM_FREE = {"vm-a": 10, "vm-b": 20}


def cases() -> Iterator[RuleCase]:
    yield attribution_case()
    yield ambiguous_case()
    yield vgpu_case()


@pytest.mark.system
def test_queries_give_the_expected_results(peer: Callable[[str], Path], tmp_path: Path) -> None:
    run_cases(peer("promtool"), render_rules(rule_groups([RuleInput.NATIVE], alerts=False)), cases(), tmp_path)


def test_each_query_has_a_case() -> None:
    tested = {one.query for case in cases() for one in case.expected}
    assert {name for name, query in QUERIES.items() if query not in tested} == set()
    assert (len(ATTRIBUTION_QUERIES), len(VGPU_QUERIES)) == (8, 6)


@pytest.mark.system
def test_idle_query_as_published_is_invalid(peer: Callable[[str], Path], tmp_path: Path) -> None:
    published = (
        'gpu_utilization == 0 unless on (gpu_uuid) group_left () kube_pod_container_resource_requests{resource="x"}'
    )
    (tmp_path / "rules.yml").write_text(f"groups: [{{name: a, rules: [{{record: b, expr: '{published}'}}]}}]")
    done = subprocess.run(
        [peer("promtool"), "check", "rules", tmp_path / "rules.yml"], capture_output=True, check=False
    )
    assert done.returncode != 0
