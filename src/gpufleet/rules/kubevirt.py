"""Recording rules over the series of kube-state-metrics and KubeVirt.

The kubelet's device ids in `kubevirt_vmi_gpu_info` are PCI addresses, mediated devices or IOMMU groups, and never UUIDs
of GPUs: they prove that a virtual machine has a device, and join with nothing.
"""

from collections.abc import Collection

from gpufleet.dialects.kubevirt import FAMILIES
from gpufleet.fleet.gpu_resources import OTHER_DEVICES
from gpufleet.rules.gaps import kubernetes_gaps
from gpufleet.rules.native import VMI
from gpufleet.rules.promql import join_names, max_by, of_both, scraped
from gpufleet.rules.rollups import USED, Rollup, foreign_rollups, memory_share
from gpufleet.rules.rule import RecordingRule, RuleInput

_OTHER = "|".join(OTHER_DEVICES).replace("-", "[-_]")
GPUS = f'resource!~"(?i).*({_OTHER}).*"'
NVIDIA = f'resource=~"nvidia_com_.+",{GPUS}'
NAMED = '{name!=""}'
POD = ("cluster", "namespace", "pod")
REQUESTS = "pod:kube_gpu_requests:sum"


def kubevirt_rules(inputs: Collection[RuleInput]) -> tuple[RecordingRule, ...]:
    """Return the rules in order of evaluation; `inputs` are all inputs of the same Prometheus."""
    rollups = foreign_rollups(FAMILIES)
    return (
        *_kubernetes_rules(),
        *(
            RecordingRule(
                record=_device_series(one.metric.name),
                expr=one.convert(
                    max_by(("node", *VMI, "gpu_uuid"), f"{one.series}{NAMED}", scraped("node", "namespace"))
                ),
                help=f"By GPU of a virtual machine: {one.metric.help}",
            )
            for one in rollups
        ),
        *_machine_rules(),
        *(_vmi_rule(one) for one in rollups),
        RecordingRule(
            record="vmi:kubevirt_gpu_memory_used:ratio",
            expr=memory_share(lambda one, other: _over_vmi("sum", of_both(_device_series(one), _device_series(other)))),
            help="Share of the device memory of the virtual machine that is in use",
        ),
        *kubernetes_gaps(inputs),
    )


def _device_series(metric: str) -> str:
    return f"gpu:kubevirt_{metric}:max"


def _kubernetes_rules() -> tuple[RecordingRule, ...]:
    pod, pods = join_names(*POD), scraped("namespace", "pod")
    requests = max_by(
        (*POD, "node", "container", "resource"),
        f"kube_pod_container_resource_requests{{{NVIDIA}}}",
        scraped("node", "namespace", "pod", "container"),
    )
    running = max_by(POD, 'kube_pod_status_phase{phase="Running"}', pods)
    owners = max_by((*POD, "owner_kind", "owner_name"), 'kube_pod_owner{owner_is_controller="true"}', pods)
    nodes = {
        name: max_by(("cluster", "node", "resource"), f"kube_node_status_{name}{{{NVIDIA}}}", scraped("node"))
        for name in ("capacity", "allocatable")
    }
    return (
        RecordingRule(
            record=REQUESTS,
            expr=f"sum by ({pod}, node) (\n  {requests}\n)\nand on ({pod}) ({running} == 1)",
            help="NVIDIA GPUs that a running pod requests; MIG devices, vGPUs and shares count as GPUs",
        ),
        RecordingRule(
            record="namespace:kube_gpu_requests:sum",
            expr=f"sum by (cluster, namespace) ({REQUESTS})",
            help="NVIDIA GPUs that running pods of the namespace request",
        ),
        RecordingRule(
            record="owner:kube_gpu_requests:sum",
            expr=f"sum by (cluster, namespace, owner_kind, owner_name) (\n  {REQUESTS}\n  * on ({pod}) "
            f"group_left (owner_kind, owner_name) topk by ({pod}) (1, {owners})\n)",
            help="NVIDIA GPUs that running pods of a controller request",
        ),
        *(
            RecordingRule(
                record=f"node:kube_gpu_{name}:sum",
                expr=f"sum by (cluster, node) ({series})",
                help=f"NVIDIA GPUs of the node in Kubernetes, {name}",
            )
            for name, series in nodes.items()
        ),
    )


def _machine_rules() -> tuple[RecordingRule, ...]:
    vmi = join_names(*VMI)
    running = "vmi:kubevirt_running:info"
    info = 'kubevirt_vmi_info{phase="running",name!=""}'
    named = scraped("node", "namespace")
    devices = max_by(VMI, f'kubevirt_vmi_gpu_info{{name!="",{GPUS}}}', scraped("namespace"))
    series = f'gpu:kubevirt_{USED}:max{{gpu_uuid!=""}}'
    uuids = max_by(("cluster", "uuid", "namespace", "name"), series, {"uuid": ("gpu_uuid",)})
    launchers = f'label_replace({REQUESTS}{{pod=~"virt-launcher-.+"}} > bool 0 == 1, "vmi_pod", "$1", "pod", "(.+)")'
    return (
        RecordingRule(
            record=running,
            expr=f"{max_by((*VMI, 'node', 'vmi_pod'), info, named)} * 0 + 1",
            help="Running virtual machines, from any number of controllers; always 1",
        ),
        RecordingRule(
            record="gpu:kubevirt_vmi_uuid:info",
            expr=f"({uuids} * 0 + 1)\nand on (cluster, uuid)\n(count by (cluster, uuid) ({uuids}) == 1)",
            help="Virtual machine of each UUID; a UUID that two machines report has none; always 1",
        ),
        RecordingRule(
            record="vmi:kubevirt_gpu_expected:info",
            expr=f"(\n  {devices}\n  or\n  max by ({vmi}) (\n    {launchers}\n"
            "    * on (cluster, namespace, vmi_pod) group_left (name)\n"
            f"    max by (cluster, namespace, vmi_pod, name) ({running})\n  )\n)\n"
            f"and on ({vmi}) {running}",
            help="Running virtual machines with an NVIDIA device, by KubeVirt or by their launcher pod; always 1",
        ),
    )


def _vmi_rule(one: Rollup) -> RecordingRule:
    return RecordingRule(
        record=f"vmi:kubevirt_{one.metric.name}:{one.operation}",
        expr=_over_vmi(one.operation, _device_series(one.metric.name)),
        help=f"Over the GPUs of the virtual machine, on one node: {one.metric.help}",
    )


def _over_vmi(operation: str, values: str) -> str:
    return f"max by ({join_names(*VMI)}) (\n  {operation} by ({join_names('node', *VMI)}) ({values})\n)"
