"""Recording rules over dcgm-exporter's series, and over the agent's dcgm dialect.

- A device is a GPU, or the part `gpu_instance` of a GPU in MIG mode.
- The label `pod` names the holder only if it is not a label of the scraped target.
- Families that are shares of one pod (`OF_SHARERS` with the label `vgpu`) are not about the device and are left out.
- Zeros of families that a part does not have (`NOT_OF_MIG`) are left out: dcgm-exporter 3 writes them at any load.
"""

from collections.abc import Collection, Mapping

from gpufleet.dialects.dcgm_exporter import FAMILIES, OF_SHARERS, PRESENT
from gpufleet.fleet.board import NOT_OF_MIG
from gpufleet.rules.devices import VM_NAME
from gpufleet.rules.faults import DCGM_FAULTS, fault_rule
from gpufleet.rules.gaps import dcgm_gaps
from gpufleet.rules.native import VMI, VMI_OF_UUID
from gpufleet.rules.promql import join_names, max_by, of_both, regex, scraped
from gpufleet.rules.rollups import TOTAL, USED, UTILIZATION, Rollup, foreign_rollups, memory_share
from gpufleet.rules.rule import RecordingRule, RuleInput

DEVICE = ("cluster", "node", "uuid", "gpu_instance")
UUID = {"uuid": ("UUID", "uuid")}
IDENTITY = {
    "node": ("exported_node", "node", "Hostname", "hostname"),
    "gpu_instance": ("GPU_I_ID",),
    **UUID,
}
"""Sources of the labels of `DEVICE`, in the exporter's releases and by its scrapers."""

WHOLE = 'gpu_instance=""'
HELD, FAULT = "gpu:dcgm_holder:info", "gpu:dcgm_fault:timestamp_seconds"
LEVELS = {"pod": ("cluster", "namespace", "pod"), "namespace": ("cluster", "namespace"), "job": ("cluster", "job_id")}
LAST_XID = "gpu:dcgm_last_xid:max"


def dcgm_rules(inputs: Collection[RuleInput]) -> tuple[RecordingRule, ...]:
    """Return the rules in order of evaluation; `inputs` are the other inputs of the same Prometheus."""
    rollups = foreign_rollups(FAMILIES)
    by_name = {one.metric.name: one for one in rollups}
    by_memory = (*("node", "cluster"), *LEVELS, "vmi") if {USED, TOTAL} <= by_name.keys() else ()
    return (
        *(
            RecordingRule(
                record=device_series(one),
                expr=one.convert(per_device(one.series)),
                help=f"By device: {one.metric.help}",
            )
            for one in rollups
        ),
        *_inventory_rules(),
        *(_machine_rule(level, one) for level in ("node", "cluster") for one in rollups),
        *(_held_rule(level, one) for level in LEVELS for one in rollups),
        *(_vmi_rule(one, inputs) for one in rollups),
        *(_memory_rule(level, by_name, inputs) for level in by_memory),
        *(fault_rule(fault, FAULT, per_device(dcgm_family(fault.metric)), DEVICE) for fault in DCGM_FAULTS),
        *dcgm_gaps("gpu:dcgm_present:info", "node:dcgm_gpus:count"),
    )


def per_device(family: str, matchers: str = "", *labels: str, window: str = "") -> str:
    """Return the greatest value of a family for each device of the nodes.

    Args:
        family: name of the family.
        matchers: further matchers of the selector.
        labels: further labels of the result.
        window: range of an increase; empty for present values.
    """
    selected = ",".join(filter(None, ('vm_name=""', 'vgpu=""' if family in OF_SHARERS else "", matchers)))
    selector = f"{family}{{{selected}}}"
    if family in FAMILIES and FAMILIES[family].metric in NOT_OF_MIG:
        selector = f'({selector} != 0 or {family}{{{selected},GPU_I_ID=""}})'
    return max_by((*DEVICE, *labels), f"increase({selector}[{window}])" if window else selector, IDENTITY)


def device_series(one: Rollup) -> str:
    """Return the name of the recorded series of each device."""
    return f"gpu:dcgm_{one.metric.name}:max"


def dcgm_family(metric: str) -> str:
    """Return the family of a metric of the catalogue."""
    return next(family.name for family in FAMILIES.values() if family.metric == metric and family.written)


def _inventory_rules() -> tuple[RecordingRule, ...]:
    present = f'__name__=~"{regex(PRESENT)}",vm_name=""'
    renamed = f'{{{present},exported_pod!=""}}'
    kept = f'{{{present},exported_pod="",pod!=""}}\nunless on (cluster, job, instance, namespace, pod) up'
    pod = ("namespace", "pod", "container")
    holders = (
        *(max_by((*DEVICE, *pod), one, IDENTITY | scraped(*pod)) for one in (renamed, f"({kept})")),
        max_by((*DEVICE, "job_id"), f'{{{present},hpc_job!=""}}', {**IDENTITY, "job_id": ("hpc_job",)}),
    )
    device = join_names(*DEVICE)
    return (
        RecordingRule(
            record="gpu:dcgm_present:info",
            expr=f"{max_by(DEVICE, f'{{{present}}}', IDENTITY)} * 0 + 1",
            help="Devices on a page of dcgm-exporter; always 1",
        ),
        RecordingRule(
            record="node:dcgm_gpus:count",
            expr="count by (cluster, node) (max by (cluster, node, uuid) (gpu:dcgm_present:info))",
            help="GPUs of the node",
        ),
        RecordingRule(
            record=HELD,
            expr="\nor\n".join(f"{one} * 0 + 1" for one in holders),
            help="Pods and jobs of each device; always 1",
        ),
        RecordingRule(record=LAST_XID, expr=per_device(dcgm_family("gpu_last_xid")), help="By device: newest XID"),
        RecordingRule(
            record="gpu:dcgm_idle_held:info",
            expr=f"(gpu:dcgm_{UTILIZATION}:max == bool 0 == 1)\nand on ({device})\n{HELD}",
            help="Idle devices with a pod or job; always 1",
        ),
    )


def _values(one: Rollup, matchers: str = "", beside: Rollup | None = None) -> str:
    """Return the values of devices; with `beside`, of those that also have a value of that metric."""
    values = f"{device_series(one)}{{{matchers}}}" if matchers else device_series(one)
    return of_both(values, device_series(beside)) if beside else values


def _machine_rule(level: str, one: Rollup) -> RecordingRule:
    return RecordingRule(
        record=f"{level}:dcgm_{one.metric.name}:{one.operation}",
        expr=_over_machine(level, one),
        help=f"Over the GPUs of the {level}: {one.metric.help}",
    )


def _over_machine(level: str, one: Rollup, beside: Rollup | None = None) -> str:
    """Return the roll-up of a node, or of a cluster, where a GPU with several host names counts once.

    Pages of one node show a GPU in MIG mode as a whole, by its parts, or both. The whole is preferred. Parts repeat
    the temperature and power of their GPU, and their activity is not a share of the GPU.
    """
    key = ("cluster", "node", "uuid") if level == "node" else ("cluster", "uuid")
    labels, gpu, series = join_names(*key[:-1]), join_names(*key), _values(one, beside=beside)
    whole = f"max by ({gpu}) ({_values(one, WHOLE, beside)})"
    values = {
        "ratio": whole,
        "bytes": f"{whole}\n  or\n  sum by ({gpu}) (max by ({gpu}, gpu_instance) ({series}))",
    }.get(one.metric.unit, f"max by ({gpu}) ({series})")
    return f"{one.operation} by ({labels}) (\n  {values}\n)"


def _held_rule(level: str, one: Rollup) -> RecordingRule:
    return RecordingRule(
        record=f"{level}:dcgm_{one.metric.name}:{one.operation}",
        expr=_over_held(level, one),
        help=f"Over the devices of the {level}, each once: {one.metric.help}",
    )


def _over_held(level: str, one: Rollup, beside: Rollup | None = None) -> str:
    """Return the roll-up of holders. A part repeats the power of its GPU, which is not that of its holder."""
    labels = LEVELS[level]
    matchers = 'job_id!=""' if level == "job" else 'pod!=""'
    values = _values(one, WHOLE if one.metric.unit == "watts" else "", beside)
    once = (*labels, *(label for label in DEVICE if label not in labels))
    return (
        f"{one.operation} by ({join_names(*labels)}) (\n  max by ({join_names(*once)}) (\n"
        f"    {HELD}{{{matchers}}} * on ({join_names(*DEVICE)}) group_left () {values}\n  )\n)"
    )


def _vmi_rule(one: Rollup, inputs: Collection[RuleInput]) -> RecordingRule:
    return RecordingRule(
        record=f"vmi:dcgm_{one.metric.name}:{one.operation}",
        expr=_over_vmi(inputs, one),
        help=f"Over the GPUs seen inside the virtual machine: {one.metric.help}",
    )


def _over_vmi(inputs: Collection[RuleInput], one: Rollup, beside: Rollup | None = None) -> str:
    """Return the roll-up of a virtual machine.

    With another input that knows the machines, series of an exporter in a guest are matched by the UUID of the GPU.
    Otherwise only series of agents have the machine, in `vm_name`.
    """
    mappings = {RuleInput.NATIVE: VMI_OF_UUID, RuleInput.KUBEVIRT: "gpu:kubevirt_vmi_uuid:info"}
    known = [name for source, name in mappings.items() if source in inputs]

    def inside(each: Rollup) -> str:
        whole = 'GPU_I_ID="",vgpu=""' if each.series in OF_SHARERS else 'GPU_I_ID=""'
        if known:
            return each.convert(max_by(("cluster", "uuid"), f"{each.series}{{{whole}}}", UUID))
        selected = f'{each.series}{{vm_name!="",{whole}}}'
        return each.convert(max_by((*VMI, "uuid"), selected, scraped("namespace") | VM_NAME | UUID))

    values = of_both(inside(one), inside(beside)) if beside else inside(one)
    if known:
        mapping = known[0] if len(known) == 1 else f"({known[0]} or on (cluster, uuid) {known[1]})"
        values = f"({values})\n  * on (cluster, uuid) group_left (namespace, name) {mapping}"
    return f"{one.operation} by ({join_names(*VMI)}) (\n  {values}\n)"


def _memory_rule(level: str, by_name: Mapping[str, Rollup], inputs: Collection[RuleInput]) -> RecordingRule:
    def sums(metric: str, other: str) -> str:
        one, beside = by_name[metric], by_name[other]
        if level == "vmi":
            return _over_vmi(inputs, one, beside)
        return _over_held(level, one, beside) if level in LEVELS else _over_machine(level, one, beside)

    return RecordingRule(
        record=f"{level}:dcgm_gpu_memory_used:ratio",
        expr=memory_share(sums),
        help=f"Share of the device memory of the {level} that is in use",
    )
