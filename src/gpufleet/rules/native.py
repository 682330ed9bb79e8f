"""Recording rules over gpufleet's own series.

The rules read a device once into `gpu:` series, and build all other levels on these.
"""

from functools import partial

from gpufleet.dialects.all_smi import AMBIGUOUS
from gpufleet.dialects.native import PREFIX
from gpufleet.exporters.holders import HOLDER_INFO, HOLDER_STATE
from gpufleet.exporters.prometheus import GPU_INFO
from gpufleet.exporters.subjects import ABSENT
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.events import XID_ERRORS, XID_LAST_AT
from gpufleet.model.holdings import HolderKind, HolderState, HoldingVerdict
from gpufleet.rules.devices import DEVICE, SUBJECT, VM_NAME, AgentSeries, device_series
from gpufleet.rules.faults import FAULTS, MODEL, NVLINKS, STATED, WORKING, moving_fault_rules, working_rule
from gpufleet.rules.gaps import native_gaps
from gpufleet.rules.promql import join_names, max_by, of_both, regex
from gpufleet.rules.rollups import ROLLUPS, TOTAL, USED, UTILIZATION, Rollup, memory_share, rollup
from gpufleet.rules.rule import RecordingRule

VMI = ("cluster", "namespace", "name")
POD_HOLDER = ("namespace", "pod", "container", "owner_kind", "owner_name", "vm_name")
OTHER_HOLDER = ("job_id", "slurm_cluster", "job_name", "user", "account", "partition", "vm_name")
ANY_HOLDER = ("holder_kind", "holder_name", "share")

LEVELS = {
    "pod": ("cluster", "namespace", "pod", "share"),
    "namespace": ("cluster", "namespace"),
    "owner": ("cluster", "namespace", "owner_kind", "owner_name"),
    "job": ("cluster", "slurm_cluster", "job_id", "job_name", "user", "account", "partition"),
}
"""Levels of holders, to their labels."""

_HELD_BY = {"pod": 'pod!=""', "namespace": 'pod!=""', "owner": 'pod!="",owner_name!=""', "job": 'job_id!=""'}
"""Matchers of the holders of each level."""

IDLE_BELOW = 0.01
"""Utilization below which a device is idle."""

HELD = "gpu:gpufleet_holder:info"
PHYSICAL = "gpu:gpufleet_physical:info"
VMI_INFO, VMI_OF_UUID = "gpu:gpufleet_vmi:info", "gpu:gpufleet_vmi_uuid:info"
XID, XID_WINDOW, XID_SECONDS = "gpu:gpufleet_xid:max", "15m", 900
FAULT, FAULT_READING = "gpu:gpufleet_fault:timestamp_seconds", "gpu:gpufleet_fault_reading:max"
SLOTS = (
    f'({PHYSICAL}{{pci_address!=""}} or {STATED}{{pci_address!="",uuid!=""}} or {WORKING}{{pci_address!="",uuid!=""}})'
)
"""GPUs in slots. Series that a hub forwards have no texts: their GPUs are known by their states or readings."""
NO_PROOF = regex((HoldingVerdict.UNKNOWN, HoldingVerdict.CONFLICT))
GPU = 'kind="gpu"'
GUEST_GPU = f'{GPU},side="guest"'
GUEST_VGPU = 'side="guest",state="vgpu_guest"'
STATE_IS = {state: f'state="{state}"' for state in (HolderState.HELD, HolderState.FREE)}
"""Recorded states of holders, to their matchers."""


def native_rules(series: AgentSeries) -> tuple[RecordingRule, ...]:
    """Return the rules in order of evaluation."""
    rollups = tuple(rollup(name, PREFIX + name) for name in ROLLUPS)
    return (
        *(_device_rule(series, one) for one in rollups),
        *(_ambiguity_rule(series, one.metric.name) for one in rollups if one.metric.name in AMBIGUOUS),
        *_inventory_rules(series),
        *_holder_rules(series),
        *(_level_rule(level, one) for level in ("node", "cluster", *LEVELS, "vmi") for one in rollups),
        *(_memory_rule(level) for level in ("node", "cluster", *LEVELS, "vmi")),
        *_vgpu_rules(series),
        *(
            rule
            for fault in FAULTS
            for rule in moving_fault_rules(fault, FAULT, FAULT_READING, fault.signal(series), SUBJECT, SLOTS)
        ),
        _xid_rule(series),
        *native_gaps(),
    )


def held_values(recorded: str, matchers: str, beside: str = "") -> str:
    """Return the values of held devices, with the labels of device and holder; arguments as in `_values`."""
    values = _values(recorded, 'name=""', beside)
    return f"{HELD}{{{matchers}}} * on ({join_names(*DEVICE)}) group_left () {values}"


def _values(recorded: str, matchers: str, beside: str) -> str:
    """Return the values of a recorded series of devices; with `beside`, of those that have that series, too."""
    values = f"{recorded}{{{matchers}}}"
    return of_both(values, beside) if beside else values


def ambiguous_series(metric: str) -> str:
    """Return the name of the recorded series of devices without a value because it is 0."""
    return f"gpu:{PREFIX}{metric}:{Reason.AMBIGUOUS_ZERO}"


def _device_rule(series: AgentSeries, one: Rollup) -> RecordingRule:
    return RecordingRule(
        record=device_series(one.metric.name), expr=series.per_device(one.series), help=f"By device: {one.metric.help}"
    )


def _ambiguity_rule(series: AgentSeries, metric: str) -> RecordingRule:
    return RecordingRule(
        record=ambiguous_series(metric),
        expr=f"({series.per_device(ABSENT, _ambiguous_zero(metric))})\nunless\n{device_series(metric)}",
        help=f"Devices without `{metric}`, whose source reports 0, as it does if it cannot read the value; always 1",
    )


def _ambiguous_zero(metric: str) -> str:
    return f'metric="{metric}",reason="{Reason.AMBIGUOUS_ZERO}"'


def _inventory_rules(series: AgentSeries) -> tuple[RecordingRule, ...]:
    vgpu_guests = f"({series.metric_per_device('gpu_virtualization_mode', GUEST_VGPU)}) == 1"
    return (
        RecordingRule(
            record=PHYSICAL,
            expr=f"({series.per_device(GPU_INFO, GPU)})\nunless on ({join_names(*SUBJECT)})\n({vgpu_guests})",
            help="GPUs, without those that guests see as vGPU; always 1",
        ),
        RecordingRule(
            record="node:gpufleet_gpus:count",
            expr=f'count by (cluster, node) ({PHYSICAL}{{side!="guest"}})',
            help="GPUs of the node, including those passed through to guests",
        ),
        RecordingRule(
            record=STATED,
            expr=f"1 + 0 * ({series.metric_per_device('gpu_state', GPU)})",
            help="GPUs with a state; always 1",
        ),
        working_rule(),
        RecordingRule(
            record=MODEL,
            expr=series.per_device(GPU_INFO, f'{GPU},name!=""', "model", sources={"model": ("name",)}),
            help="Models of GPUs; always 1",
        ),
        RecordingRule(
            record=f"gpu:{PREFIX}{NVLINKS}:max",
            expr=series.metric_per_device(NVLINKS),
            help="By device: active NVLinks",
        ),
    )


def _holder_rules(series: AgentSeries) -> tuple[RecordingRule, ...]:
    proven = f'verdict!~"{NO_PROOF}"'
    pods = max_by(
        (*DEVICE, *ANY_HOLDER, *POD_HOLDER),
        f'{HOLDER_INFO}{{holder_kind="{HolderKind.POD}",{proven}}}',
        series.scraped("node", "namespace", "pod", "container"),
    )
    others = max_by(
        (*DEVICE, *ANY_HOLDER, *OTHER_HOLDER),
        f'{HOLDER_INFO}{{holder_kind!="{HolderKind.POD}",{proven}}}',
        series.scraped("node"),
    )
    vmi = ("cluster", "node", "namespace", "name", "uuid", "pci_address", "side")
    passed = max_by(vmi, f'{HELD}{{vm_name!=""}}', VM_NAME)
    inside = f'max by (cluster, uuid, namespace, name) ({VMI_INFO}{{side="guest",uuid!=""}})'
    return (
        RecordingRule(
            record=HELD,
            expr=f"{pods}\nor\n{others}",
            help="Holders of each device, without the verdicts unknown and conflict; always 1",
        ),
        RecordingRule(
            record="node:gpufleet_gpu_holder_state:count",
            expr=f"count by (cluster, node, state) (({series.per_device(HOLDER_STATE, GPU, 'state')}) == 1)",
            help="GPUs of the node by state of their holders",
        ),
        *(
            RecordingRule(
                record=f"gpu:gpufleet_{state}:info",
                expr=f"({series.per_device(HOLDER_STATE, STATE_IS[state])}) == 1",
                help=f"Devices with the holder state {state}; always 1",
            )
            for state in STATE_IS
        ),
        *(
            RecordingRule(
                record=f"gpu:gpufleet_idle_{state}:info",
                expr=f'({device_series(UTILIZATION)}{{name=""}} < bool {IDLE_BELOW} == 1)\n'
                f"and on ({join_names(*DEVICE)})\ngpu:gpufleet_{state}:info",
                help=f"Idle devices with the holder state {state}; always 1",
            )
            for state in STATE_IS
        ),
        RecordingRule(
            record=VMI_INFO,
            expr=f"max by ({join_names(*vmi)}) (\n{series.per_device(GPU_INFO, GUEST_GPU)}\n)\nor\n{passed}",
            help="GPUs of each virtual machine: those seen inside, and the node's devices that it holds; always 1",
        ),
        RecordingRule(
            record=VMI_OF_UUID,
            expr=f"{inside}\nand on (cluster, uuid)\n(count by (cluster, uuid) ({inside}) == 1)",
            help="Virtual machine of each UUID; a UUID that two machines report has none; always 1",
        ),
    )


def _level_rule(level: str, one: Rollup) -> RecordingRule:
    name = one.metric.name
    expr = _over_level(level, one.operation, device_series(name))
    return RecordingRule(
        record=f"{level}:{PREFIX}{name}:{one.operation}",
        expr=_unless_ambiguous(level, name, expr) if one.operation == "avg" else expr,
        help=f"{_devices_of(level)}: {one.metric.help}",
    )


def _devices_of(level: str) -> str:
    if level == "vmi":
        return "Over the GPUs seen inside the virtual machine, on one node"
    return f"Over the devices of the {level}, each once" if level in LEVELS else f"Over the GPUs of the {level}"


def _unless_ambiguous(level: str, metric: str, expr: str) -> str:
    """Return a mean or share of a level; it has none while a device has no value because it is 0."""
    if metric not in AMBIGUOUS:
        return expr
    return f"{expr}\nunless\n{_over_level(level, 'max', ambiguous_series(metric))}"


def _over_level(level: str, operation: str, recorded: str, beside: str = "") -> str:
    """Return the aggregation of a recorded series over the devices of a level; `beside` as in `_values`."""
    if level == "vmi":
        inside = _values(recorded, f'name!="",{GPU}', beside)
        return f"max by ({join_names(*VMI)}) (\n  {operation} by ({join_names('node', *VMI)}) ({inside})\n)"
    if level not in LEVELS:
        labels = "cluster, node" if level == "node" else "cluster"
        gpus = _values(recorded, GPU, beside)
        return f"{operation} by ({labels}) (\n  {gpus}\n  and on ({join_names(*SUBJECT)}) {PHYSICAL}\n)"
    holder = LEVELS[level]
    once = (*holder, *(label for label in DEVICE if label not in holder))
    return (
        f"{operation} by ({join_names(*holder)}) (\n  max by ({join_names(*once)}) (\n"
        f"    {held_values(recorded, _HELD_BY[level], beside)}\n  )\n)"
    )


def _memory_rule(level: str) -> RecordingRule:
    def sums(metric: str, beside: str) -> str:
        return _over_level(level, "sum", device_series(metric), device_series(beside))

    return RecordingRule(
        record=f"{level}:{PREFIX}gpu_memory_used:ratio",
        expr=_unless_ambiguous(level, USED, memory_share(sums)),
        help=f"Share of the device memory of the {level} that is in use",
    )


def _xid_rule(series: AgentSeries) -> RecordingRule:
    """Return the rule of XIDs within the window.

    A number has no series before its first occurrence, so that an increase does not show it. A series that began
    within the window counts too, if the GPU had an XID within the window.
    """
    counted = partial(series.per_device, PREFIX + XID_ERRORS, "", "xid")
    subject = join_names(*SUBJECT)
    return RecordingRule(
        record=XID,
        expr=f"(\n  (({counted(window=XID_WINDOW, function='increase')}) > 0)\n  or\n"
        f"  (({counted()})\n  unless on ({subject}, xid) ({counted(offset=XID_WINDOW)}))\n)\n"
        f"and on ({subject}) (({series.metric_per_device(XID_LAST_AT)}) > time() - {XID_SECONDS})",
        help="XIDs of a device within 15 minutes, by number",
    )


def _vgpu_rules(series: AgentSeries) -> tuple[RecordingRule, ...]:
    """Return the rules about vGPU instances as their host sees them, by the virtual machine's id."""

    each = ("cluster", "node", "vm_id", "uuid", "device_instance")

    def instances(metric: str, matchers: str = "") -> str:
        return max_by(each, f'{PREFIX}{metric}{{kind="vgpu",vm_id!=""{matchers}}}', series.scraped("node"))

    def by_vm(once: str) -> str:
        return f"max by (cluster, vm_id) (\n  sum by (cluster, node, vm_id) ({once})\n)"

    used, total = instances(USED), instances(TOTAL)
    absent = instances(ABSENT.removeprefix(PREFIX), f",{_ambiguous_zero(USED)}")
    return (
        RecordingRule(
            record="vm:gpufleet_vgpu_utilization_ratio:sum",
            expr=by_vm(instances(UTILIZATION)),
            help="GPU time of a virtual machine's vGPUs on one node, in GPUs",
        ),
        RecordingRule(
            record="vm:gpufleet_vgpu_memory_used_bytes:sum",
            expr=by_vm(used),
            help="Framebuffer of a virtual machine's vGPUs in use",
        ),
        RecordingRule(
            record="vm:gpufleet_vgpu_memory_free_bytes:sum",
            expr=f"{by_vm(of_both(total, used))}\n- {by_vm(of_both(used, total))}\n"
            f"unless on (cluster, vm_id) (\n  {absent}\n  unless on ({join_names(*each)}) {used}\n)",
            help="Framebuffer headroom of a virtual machine's vGPUs",
        ),
        RecordingRule(
            record="gpu:gpufleet_vgpu_idle:info",
            expr=f'{device_series(UTILIZATION)}{{kind="vgpu"}} < bool {IDLE_BELOW} == 1',
            help="Idle vGPU instances; always 1",
        ),
        RecordingRule(
            record="gpu:gpufleet_vgpu_scheduler_policy:info",
            expr=f"({series.metric_per_device('gpu_vgpu_scheduler_policy', '', 'state')}) == 1",
            help="Scheduler policy of each GPU with vGPUs, in the label `state`; always 1",
        ),
        RecordingRule(
            record="gpu:gpufleet_vgpu_instances:max",
            expr=series.metric_per_device("gpu_vgpu_instances"),
            help="By GPU: active vGPU instances",
        ),
    )
