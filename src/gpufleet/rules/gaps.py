"""Gap series: nodes, devices, pods and virtual machines that should have GPU data and have none."""

from collections.abc import Collection

from gpufleet.rules.devices import DEVICE, VM_NAME, device_series
from gpufleet.rules.promql import join_names, last_seen, max_by, regex
from gpufleet.rules.rollups import ROLLUPS
from gpufleet.rules.rule import RecordingRule, RuleInput

GAP_AFTER = 120
"""Seconds without a series after which it is missing."""

NODE_KEY = ("cluster", "node")
VMI_KEY = ("cluster", "namespace", "name")

INSIDE = 'name!=""'
"""Matcher of devices seen inside a virtual machine."""


def native_gaps() -> tuple[RecordingRule, ...]:
    """Return the gap series of gpufleet's own names."""
    held, physical = "gpu:gpufleet_holder:info", "gpu:gpufleet_physical:info"
    key = join_names(*NODE_KEY, "uuid", "pci_address")
    vms = max_by(VMI_KEY, f'{held}{{vm_name!=""}}', VM_NAME)
    return (
        *_seen_rules("node", "gpufleet", "node:gpufleet_gpus:count"),
        *_seen_rules("gpu", "gpufleet", f'max by ({key}) ({physical}{{side="host"}})'),
        RecordingRule(
            record="gpu:gpufleet_gap:timestamp_seconds",
            expr=f"({seen('gpu', 'gpufleet')} < time() - {GAP_AFTER})\n"
            "and on (cluster, node) node:gpufleet_gpus:count\n"
            f"unless on (cluster, node, pci_address) {physical}",
            help="GPUs that left the page of their node within a day; the value is the time of the last page with them",
        ),
        RecordingRule(
            record="pod:gpufleet_gap:info",
            expr=f'max by (cluster, node, namespace, pod) (\n  {held}{{pod!="",vm_name=""}}\n'
            f"  unless on ({join_names(*DEVICE)}) {read_devices()}\n)",
            help="Pods that hold a device without readings; always 1",
        ),
        RecordingRule(
            record="vmi:gpufleet_gap:info",
            expr=f"{vms}\nunless on ({join_names(*VMI_KEY)})\n{read_devices(INSIDE)}",
            help="Virtual machines that hold a device and have no readings from inside; always 1",
        ),
    )


def dcgm_gaps(gpus: str, per_node: str) -> tuple[RecordingRule, ...]:
    """Return the gap series of dcgm-exporter's names.

    Args:
        gpus: series of each GPU.
        per_node: series of each node.
    """
    return (
        *_seen_rules("node", "dcgm", per_node),
        *_seen_rules("gpu", "dcgm", f"max by (cluster, node, uuid) ({gpus})"),
        RecordingRule(
            record="gpu:dcgm_gap:timestamp_seconds",
            expr=f"({seen('gpu', 'dcgm')} < time() - {GAP_AFTER})\nand on (cluster, node) {per_node}",
            help="GPUs that left the page of their node within a day; the value is the time of the last page with them",
        ),
    )


def read_devices(*matchers: str) -> str:
    """Return the query of devices with any reading: integrated GPUs have no memory, GPUs in MIG mode no utilization."""
    names = f'__name__=~"{regex(map(device_series, ROLLUPS))}"'
    return f"{{{','.join((names, *matchers))}}}"


def seen(level: str, source: str) -> str:
    """Return the name of the series with the time at which a node or GPU was last seen."""
    return f"{level}:{source}_seen:timestamp_seconds"


def _seen_rules(level: str, source: str, present: str) -> tuple[RecordingRule, ...]:
    last = RecordingRule(
        record=seen(level, source),
        expr=last_seen(seen(level, source), present),
        help=f"When the {level} was last seen, within a day",
    )
    if level != "node":
        return (last,)
    gap = RecordingRule(
        record=f"node:{source}_gap:timestamp_seconds",
        expr=f"{last.record} < time() - {GAP_AFTER}",
        help="Nodes whose GPU data ended within a day; the value is the time of the last data",
    )
    return (last, gap)


def kubernetes_gaps(inputs: Collection[RuleInput]) -> tuple[RecordingRule, ...]:
    """Return the gap series of what Kubernetes and KubeVirt declare, against the GPU data of the other inputs."""
    nodes, pods = [], []
    vmis = ["gpu:kubevirt_gpu_memory_used_bytes:max"]
    if RuleInput.NATIVE in inputs:
        nodes.append("node:gpufleet_gpus:count")
        pods.append('gpu:gpufleet_holder:info{pod!=""}')
        vmis.append(read_devices(INSIDE))
    if RuleInput.DCGM in inputs:
        nodes.append("node:dcgm_gpus:count")
        pods.append("gpu:dcgm_holder:info")
        vmis.append("vmi:dcgm_gpu_memory_used_bytes:sum")
    expected = "vmi:kubevirt_gpu_expected:info"
    rules = [
        RecordingRule(
            record="vmi:kubevirt_gap:info",
            expr=f"{expected}\n" + "\n".join(f"unless on ({join_names(*VMI_KEY)}) {one}" for one in vmis),
            help="Running virtual machines with a GPU, and without GPU data from inside; always 1",
        )
    ]
    if nodes:
        rules += [
            RecordingRule(
                record="node:kube_gpu_gap:info",
                expr="(node:kube_gpu_capacity:sum > bool 0 == 1)\n"
                + "\n".join(f"unless on (cluster, node) {one}" for one in nodes),
                help="Nodes with GPUs in Kubernetes and without GPU data; always 1",
            ),
            RecordingRule(
                record="pod:kube_gpu_gap:info",
                expr='(pod:kube_gpu_requests:sum{pod!~"virt-launcher-.+"} > bool 0 == 1)\n'
                + "\n".join(f"unless on (cluster, namespace, pod) {one}" for one in pods),
                help="Running pods with a GPU request that hold no known device; always 1",
            ),
        ]
    return tuple(rules)
