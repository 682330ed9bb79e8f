"""Queries for common questions, over the recorded series. The names in them are examples."""

import msgspec

from gpufleet.rules.devices import DEVICE, device_series
from gpufleet.rules.native import ambiguous_series, held_values
from gpufleet.rules.promql import join_names
from gpufleet.rules.rollups import UTILIZATION

OF_POD = 'pod!=""'
POD = "cluster, namespace, pod"
APP = 'topk by (cluster, namespace, pod) (1, kube_pod_labels{label_app!=""})'
"""Label `app` of each pod: once, also while a recreated pod has another value."""


class RuleQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Documented query.

    Attributes:
        name: short name.
        question: what it answers.
        expr: query.
        note: why a simpler query is wrong.
    """

    name: str
    question: str
    expr: str
    note: str


def _by_app(operation: str, recorded: str) -> str:
    """Return the aggregation of a recorded series over the GPUs of the pods of each app."""
    return (
        f"{operation} by (cluster, label_app) (\n"
        f"  max by (label_app, {join_names(*DEVICE)}) (\n"
        f"    ({held_values(recorded, OF_POD)})\n"
        f"    * on ({POD}) group_left (label_app) {APP}\n  )\n)"
    )


ATTRIBUTION_QUERIES = (
    RuleQuery(
        name="utilization by namespace",
        question="Utilization of the GPUs that each namespace holds",
        expr="namespace:gpufleet_gpu_utilization_ratio:avg",
        note="An average over series counts a GPU once for each scraper, container and sharer.",
    ),
    RuleQuery(
        name="top pods by memory",
        question="Pods with the most device memory in use, with their label `app`",
        expr=f"topk(10,\n  pod:gpufleet_gpu_memory_used_bytes:sum\n  * on ({POD}) group_left (label_app) {APP}\n)",
        note="`kube_pod_labels` has one series per replica of kube-state-metrics, and two while a pod of the same name "
        "is recreated: joined directly, the query fails. It needs `--metric-labels-allowlist=pods=[app]`.",
    ),
    RuleQuery(
        name="utilization by app",
        question="Utilization of the GPUs by the label `app` of their pods",
        expr=_by_app("avg", device_series(UTILIZATION)) + "\nunless\n" + _by_app("max", ambiguous_series(UTILIZATION)),
        note="Two pods of one app that share a GPU count it once. A mean without its idle GPUs would be too high.",
    ),
    RuleQuery(
        name="idle without holder",
        question="Idle GPUs without a holder",
        expr='gpu:gpufleet_idle_free:info{kind="gpu"}',
        note="`unless on (gpu_uuid) group_left () kube_pod_container_resource_requests` is invalid: set operators have "
        "no grouping, and kube-state-metrics has no UUID. A device with an unknown holder is not free.",
    ),
    RuleQuery(
        name="job",
        question="Utilization of the GPUs of a SLURM job, over all nodes",
        expr='job:gpufleet_gpu_utilization_ratio:avg{job_id="4711"}',
        note="The series of a device has the label `job_id` only with `[metrics] holder_labels`.",
    ),
    RuleQuery(
        name="Kubernetes Job by GPU",
        question="Utilization of each GPU of a Kubernetes Job",
        expr="max by (cluster, node, uuid) (\n  "
        + held_values(device_series(UTILIZATION), 'owner_kind="Job",owner_name="train"')
        + "\n)",
        note="An average by index merges GPUs of different nodes. The owner is the last of the chain: a Job of a "
        "CronJob is found by the CronJob.",
    ),
    RuleQuery(
        name="memory by Deployment",
        question="Share of device memory in use by each Deployment",
        expr='owner:gpufleet_gpu_memory_used:ratio{owner_kind="Deployment"}',
        note="An average of ratios weighs MIG devices like whole GPUs. This is used memory over all memory.",
    ),
    RuleQuery(
        name="utilization by StatefulSet",
        question="Utilization of the GPUs of each StatefulSet",
        expr='owner:gpufleet_gpu_utilization_ratio:avg{owner_kind="StatefulSet"}',
        note="Equal names in two namespaces are different owners.",
    ),
)

VGPU_QUERIES = (
    RuleQuery(
        name="utilization by virtual machine",
        question="GPU time of the vGPUs of each virtual machine, in GPUs",
        expr="vm:gpufleet_vgpu_utilization_ratio:sum",
        note="During a migration, both hosts report an instance. A plain sum counts the machine twice.",
    ),
    RuleQuery(
        name="framebuffer headroom",
        question="Free framebuffer of the vGPUs of each virtual machine",
        expr="vm:gpufleet_vgpu_memory_free_bytes:sum",
        note="The memory of a vGPU is that of its profile, not of the physical GPU.",
    ),
    RuleQuery(
        name="idle instances",
        question="vGPU instances without GPU time",
        expr="gpu:gpufleet_vgpu_idle:info",
        note="`gpufleet_vgpu_active == 0` needs accounting in the driver. The utilization of the physical GPU is not "
        "that of an instance.",
    ),
    RuleQuery(
        name="scheduler policy",
        question="Number of GPUs by scheduler policy",
        expr="count by (cluster, state) (gpu:gpufleet_vgpu_scheduler_policy:info)",
        note="A state has a series for each of its names: without `== 1`, every GPU counts for every policy.",
    ),
    RuleQuery(
        name="licence lost",
        question="vGPUs without a licence",
        expr='gpu:gpufleet_fault:timestamp_seconds{fault="license_lost"}',
        note='`state!="licensed"` includes `unknown` and the minute after boot.',
    ),
    RuleQuery(
        name="instances per GPU",
        question="vGPU instances on each physical GPU",
        expr="gpu:gpufleet_vgpu_instances:max",
        note="A count of series counts an instance once for each scraper, and shows no GPU without instances.",
    ),
)
