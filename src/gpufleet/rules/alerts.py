"""Alerts about GPUs. An alert about an absence reads a gap series; a persistent fault outlives its readings."""

from collections.abc import Iterable

from gpufleet.dialects.dcgm_exporter import XID_COUNT
from gpufleet.dialects.native import PREFIX
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.xid import XIDS, Xid, XidAction, XidClass
from gpufleet.rules import dcgm, native
from gpufleet.rules.devices import VM_NAME, AgentSeries
from gpufleet.rules.faults import DCGM_FAULTS, FAULTS, Fault
from gpufleet.rules.promql import max_by, regex, scraped
from gpufleet.rules.rule import AlertRule, AlertSeverity, RuleInput

THERMAL, POWER = ("sw_thermal", "hw_thermal"), ("hw_power_brake", "hw_slowdown")
"""Reasons of throttling. The software power cap is normal under load."""

FAILED_DRIVER = 'state=~"mismatch|hung|error"'
ECC = "gpu_ecc_uncorrected_errors_total"

_SEVERE = frozenset({XidAction.RESET_GPU, XidAction.REBOOT_NODE, XidAction.CHECK_HARDWARE, XidAction.CONTACT_VENDOR})
_HARMLESS = frozenset({XidAction.NONE, XidAction.RESTART_APP})

_VM = "VM {{ with $labels.namespace }}{{ . }}/{{ end }}{{ $labels.name }}"


def _holders(record: str, *labels: str) -> str:
    """Return a template that lists the holders of the device of an alert."""
    matchers = ",".join(f"{label}=%q" for label in ("cluster", "node", *labels))
    values = " ".join(f"$labels.{label}" for label in ("cluster", "node", *labels))
    return (
        f'{{{{ with printf "{record}{{{matchers}}}" {values} | query }}}}'
        "{{ range $i, $one := . }}{{ if $i }}, {{ end }}"
        "{{ with $one.Labels.job_id }}job {{ . }}{{ else }}"
        "{{ with $one.Labels.pod }}pod {{ $one.Labels.namespace }}/{{ . }}{{ else }}"
        "{{ $one.Labels.holder_kind }} {{ $one.Labels.holder_name }}{{ end }}{{ end }}{{ end }}"
        "{{ else }}unknown{{ end }}"
    )


_NATIVE_HOLDER = (
    f"{{{{ if $labels.name }}}}{_VM}{{{{ else }}}}{_holders(native.HELD, 'uuid', 'pci_address')}{{{{ end }}}}"
)
_DCGM_HOLDER = _holders(dcgm.HELD, "uuid", "gpu_instance")
_GPU = "GPU {{ if $labels.uuid }}{{ $labels.uuid }}{{ else }}{{ $labels.pci_address }}{{ end }} on {{ $labels.node }}"
_DCGM_GPU = "GPU {{ $labels.uuid }}{{ with $labels.gpu_instance }}/{{ . }}{{ end }} on {{ $labels.node }}"


def native_alerts(series: AgentSeries) -> tuple[AlertRule, ...]:
    """Return the alerts over gpufleet's own series."""

    def of_gpu(alert: str, expr: str, wait: str, severity: AlertSeverity, text: str) -> AlertRule:
        return _alert(RuleInput.NATIVE, alert, expr, wait, severity, f"{_GPU} {text}. Holder: {_NATIVE_HOLDER}")

    return (
        *(
            of_gpu(one.alert, f'{native.FAULT}{{fault="{one.name}"}}', one.wait, one.severity, one.help)
            for one in FAULTS
        ),
        of_gpu(
            "GpuMissing",
            "gpu:gpufleet_gap:timestamp_seconds",
            "5m",
            AlertSeverity.CRITICAL,
            "left the page of its node",
        ),
        of_gpu(
            "GpuUncorrectableEcc",
            f"({series.per_device(PREFIX + ECC, window='1h', function='increase')}) > 0",
            "",
            AlertSeverity.CRITICAL,
            "had uncorrectable ECC errors within an hour",
        ),
        *(
            of_gpu(name, f"{native.XID}{{{codes}}}", "", severity, f"reported XID {{{{ $labels.xid }}}} ({text})")
            for name, severity, codes, text in _xid_classes()
        ),
        *(
            of_gpu(
                name,
                f"({series.metric_per_device('gpu_clock_event_active', _one_of('reason', reasons), 'reason')}) == 1",
                "5m",
                AlertSeverity.WARNING,
                "is throttled: {{ $labels.reason }}",
            )
            for name, reasons in (("GpuThermalThrottling", THERMAL), ("GpuPowerThrottling", POWER))
        ),
        of_gpu(
            "GpuIdleWhileAllocated",
            "gpu:gpufleet_idle_held:info",
            "30m",
            AlertSeverity.INFO,
            "is held and idle for 30 minutes",
        ),
        *_native_machine_alerts(series),
    )


def _native_machine_alerts(series: AgentSeries) -> tuple[AlertRule, ...]:
    def per_machine(metric: str) -> str:
        machine = ("cluster", "node", "namespace", "name")
        names = series.scraped("node", "namespace") | VM_NAME
        return max_by(machine, f'{PREFIX}{metric}{{vm_name!=""}}', names)

    def per_node(metric: str, matchers: str = "", *labels: str) -> str:
        selector = ",".join(filter(None, ('vm_name=""', matchers)))
        return max_by(("cluster", "node", *labels), f"{PREFIX}{metric}{{{selector}}}", series.scraped("node"))

    bound = per_node("host_pci_display_devices", 'vendor="0x10de",driver="nvidia"')
    return (
        _node_alert(RuleInput.NATIVE, "node:gpufleet_gap:timestamp_seconds"),
        _alert(
            RuleInput.NATIVE,
            "GpuDriverFailed",
            f"{per_node('nvidia_driver_state', FAILED_DRIVER, 'state')} == 1",
            "5m",
            AlertSeverity.CRITICAL,
            "The GPU driver of {{ $labels.node }} fails: {{ $labels.state }}. Its GPUs and holders have no readings",
        ),
        _alert(
            RuleInput.NATIVE,
            "GpuCountMismatch",
            f"{bound}\n> {per_node('nvidia_devices')}\nunless on (cluster, node) gpu:gpufleet_vgpu_instances:max",
            "10m",
            AlertSeverity.CRITICAL,
            "{{ $labels.node }} has {{ $value }} GPUs on the PCI bus, and its driver lists fewer",
        ),
        _alert(
            RuleInput.NATIVE,
            "GpuCountMismatch",
            f"{per_machine('guest_gpus')}\n!= {per_machine('guest_expected_gpus')}",
            "10m",
            AlertSeverity.WARNING,
            f"{_VM} on {{{{ $labels.node }}}} sees {{{{ $value }}}} GPUs, which is not the expected number",
        ),
        _vm_alert(RuleInput.NATIVE, "vmi:gpufleet_gap:info"),
        _pod_alert(RuleInput.NATIVE, "pod:gpufleet_gap:info", "holds a GPU without readings"),
    )


def dcgm_alerts() -> tuple[AlertRule, ...]:
    """Return the alerts over dcgm-exporter's series."""

    def of_gpu(alert: str, expr: str, wait: str, severity: AlertSeverity, text: str) -> AlertRule:
        return _alert(RuleInput.DCGM, alert, expr, wait, severity, f"{_DCGM_GPU} {text}. Holder: {_DCGM_HOLDER}")

    def fault(one: Fault) -> AlertRule:
        return of_gpu(one.alert, f'{dcgm.FAULT}{{fault="{one.name}"}}', one.wait, one.severity, one.help)

    mask = dcgm.per_device(dcgm.dcgm_family("gpu_clock_event_reasons_mask"))
    return (
        *map(fault, DCGM_FAULTS),
        of_gpu(
            "GpuMissing", "gpu:dcgm_gap:timestamp_seconds", "5m", AlertSeverity.CRITICAL, "left the page of its node"
        ),
        of_gpu(
            "GpuUncorrectableEcc",
            f"{dcgm.per_device(dcgm.dcgm_family(ECC), window='1h')} > 0",
            "",
            AlertSeverity.CRITICAL,
            "had uncorrectable ECC errors within an hour",
        ),
        *(
            of_gpu(
                name,
                f"{dcgm.per_device(XID_COUNT, codes, 'xid')} > 0",
                "",
                severity,
                f"reported XID {{{{ $labels.xid }}}} ({text})",
            )
            for name, severity, codes, text in _xid_classes()
        ),
        of_gpu(
            "GpuXidChanged",
            f"({dcgm.LAST_XID} > 0)\nand ({dcgm.LAST_XID} != {dcgm.LAST_XID} offset {native.XID_WINDOW})",
            "",
            AlertSeverity.WARNING,
            "reported XID {{ $value }}",
        ),
        *(
            of_gpu(name, _any_bit(mask, reasons), "5m", AlertSeverity.WARNING, "is throttled")
            for name, reasons in (("GpuThermalThrottling", THERMAL), ("GpuPowerThrottling", POWER))
        ),
        of_gpu(
            "GpuIdleWhileAllocated",
            "gpu:dcgm_idle_held:info",
            "30m",
            AlertSeverity.INFO,
            "is held and idle for 30 minutes",
        ),
        _node_alert(RuleInput.DCGM, "node:dcgm_gap:timestamp_seconds"),
    )


def kubevirt_alerts(*, with_gpu_data: bool) -> tuple[AlertRule, ...]:
    """Return the alerts over the series of Kubernetes and KubeVirt.

    Args:
        with_gpu_data: whether another input has the GPU data of nodes and pods.
    """
    errors = max_by(
        ("cluster", "node", "namespace", "name", "gpu_uuid"),
        "increase(kubevirt_vmi_gpu_ecc_errors_double_bit_total[1h])",
        scraped("node", "namespace"),
    )
    alerts = (
        _vm_alert(RuleInput.KUBEVIRT, "vmi:kubevirt_gap:info"),
        _alert(
            RuleInput.KUBEVIRT,
            "GpuUncorrectableEcc",
            f"{errors} > 0",
            "",
            AlertSeverity.CRITICAL,
            f"GPU {{{{ $labels.gpu_uuid }}}} on {{{{ $labels.node }}}} had uncorrectable ECC errors within an hour. "
            f"Holder: {_VM}",
        ),
        _alert(
            RuleInput.KUBEVIRT,
            "GpuNotAllocatable",
            "node:kube_gpu_capacity:sum - node:kube_gpu_allocatable:sum > 0",
            "10m",
            AlertSeverity.WARNING,
            "{{ $value }} NVIDIA GPUs of {{ $labels.node }} cannot be allocated to a holder",
        ),
    )
    if not with_gpu_data:
        return alerts
    return (
        *alerts,
        _node_alert(RuleInput.KUBEVIRT, "node:kube_gpu_gap:info"),
        _pod_alert(RuleInput.KUBEVIRT, "pod:kube_gpu_gap:info", "requests a GPU and holds no known device"),
    )


def _alert(source: RuleInput, alert: str, expr: str, wait: str, severity: AlertSeverity, summary: str) -> AlertRule:
    return AlertRule(
        alert=alert, expr=expr, wait=wait, severity=severity, summary=summary, labels={"input": str(source)}
    )


def _node_alert(source: RuleInput, gap: str) -> AlertRule:
    text = "GPU data of {{ $labels.node }} is missing; its GPUs and their holders are unknown"
    return _alert(source, "GpuNodeWithoutData", gap, "5m", AlertSeverity.CRITICAL, text)


def _vm_alert(source: RuleInput, gap: str) -> AlertRule:
    return _alert(
        source, "GpuVmWithoutData", gap, "15m", AlertSeverity.WARNING, f"{_VM} has a GPU and no GPU data from inside"
    )


def _pod_alert(source: RuleInput, gap: str, text: str) -> AlertRule:
    pod = "Pod {{ $labels.namespace }}/{{ $labels.pod }} on {{ $labels.node }}"
    return _alert(source, "GpuPodWithoutData", gap, "15m", AlertSeverity.WARNING, f"{pod} {text}")


def _one_of(label: str, values: Iterable[object]) -> str:
    return f'{label}=~"{regex(values)}"'


def _any_bit(mask: str, reasons: Iterable[str]) -> str:
    """Return the query of masks with at least one bit of the reasons."""
    bits = dict(CLOCK_EVENT_REASONS)
    return "\nor\n".join(f"floor({mask} / {bits[reason]}) % 2 == 1" for reason in reasons)


def _severity(row: Xid) -> AlertSeverity:
    if row.action in _SEVERE:
        return AlertSeverity.CRITICAL
    return AlertSeverity.INFO if row.action in _HARMLESS else AlertSeverity.WARNING


def _xid_classes() -> list[tuple[str, AlertSeverity, str, str]]:
    """Return the alerts of XIDs: name, severity, matcher of the codes, text. Notices have none."""
    found: dict[tuple[XidClass, AlertSeverity], list[int]] = {}
    for code, row in sorted(XIDS.items()):
        if row.cls is not XidClass.NOTICE:
            found.setdefault((row.cls, _severity(row)), []).append(code)
    alerts = [
        (f"GpuXid{cls.capitalize()}", severity, _one_of("xid", codes), str(cls))
        for (cls, severity), codes in sorted(found.items())
    ]
    unknown = f'xid!="",xid!~"{regex(sorted(XIDS))}"'
    return [*alerts, ("GpuXidUnknown", AlertSeverity.WARNING, unknown, "not in the table of XIDs")]
