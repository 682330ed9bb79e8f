"""Alerts: each one fires on its cause, outlives a series that ended, and names its GPU, node and holder."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpufleet.model.xid import XIDS, XidClass
from gpufleet.rules.faults import DCGM_FAULTS, FAULTS
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import AlertRule, RuleInput
from gpufleet.rules.selection import rule_groups
from tests.support.promtool import Expected, RuleCase, firing, labelled, run_cases

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
HEADINGS = {line.removeprefix("## ").lower() for line in RUNBOOKS.read_text().splitlines() if line.startswith("## ")}

GPU = {"node": "n1", "uuid": "GPU-a", "pci_address": "0000:01:00.0", "kind": "gpu", "side": "host"}
PEER = {**GPU, "uuid": "GPU-b", "pci_address": "0000:02:00.0"}
DCGM = {"UUID": "GPU-a", "gpu": "0", "Hostname": "n1"}
VM = {"node": "n1", "namespace": "ml", "vm_name": "vm-0"}
NATIVE_FAULTS: dict[str, tuple[str, Mapping[str, str], int, int]] = {
    # fault: metric, labels, value with the fault, value without it
    "lost": ("gpu_state", {"state": "lost"}, 1, 0),
    "hung": ("gpu_state", {"state": "hung"}, 1, 0),
    "reset_required": ("gpu_state", {"state": "reset_required"}, 1, 0),
    "unreadable": ("gpu_state", {"state": "error"}, 1, 0),
    "recovery_action": ("gpu_recovery_action", {"state": "node_reboot"}, 1, 0),
    "row_remap_pending": ("gpu_row_remap_pending", {}, 1, 0),
    "row_remap_failed": ("gpu_row_remap_failed", {}, 1, 0),
    "fabric_unhealthy": ("gpu_fabric_health", {"condition": "route_unhealthy"}, 1, 0),
    "nvlink_down": ("gpu_nvlinks_active", {}, 17, 18),
    "license_lost": ("vgpu_license_state", {"state": "unlicensed_restricted"}, 1, 0),
}
DCGM_VALUES = {
    "row_remap_pending": "DCGM_FI_DEV_ROW_REMAP_PENDING",
    "row_remap_failed": "DCGM_FI_DEV_ROW_REMAP_FAILURE",
}


def all_alerts() -> list[AlertRule]:
    groups = rule_groups(list(RuleInput), recording=False)
    return [rule for group in groups for rule in group.rules if isinstance(rule, AlertRule)]


def fault_cases() -> Iterator[RuleCase]:
    """Yield a case with all faults for each of: they last, their series end, they are repaired."""
    tables = [
        (fault, "native", f"gpufleet_{NATIVE_FAULTS[fault.name][0]}", {**GPU, **NATIVE_FAULTS[fault.name][1]})
        for fault in FAULTS
    ]
    tables += [(fault, "dcgm-exporter", DCGM_VALUES[fault.name], DCGM) for fault in DCGM_FAULTS]
    alerts = [f"{fault.alert} {source}" for fault, source, _, _ in tables]
    of = "|".join(sorted({fault.alert for fault in FAULTS}))
    for end, values, at_end in (
        ("last", "{bad}x30", alerts),
        ("end with their series", "{bad}x12 stale", alerts),
        ("are repaired", "{bad}x12 {good}x12", []),
    ):
        # another reading without a fault does not hide the fault
        series = {labelled("gpufleet_gpu_fabric_health_status", {**GPU, "state": "unhealthy"}): "0x12 stale"}
        series |= {labelled("gpufleet_gpu_info", {**one, "name": "H100"}): "1x30" for one in (GPU, PEER)}
        for fault, source, family, labels in tables:
            _, _, bad, good = NATIVE_FAULTS[fault.name]
            series[labelled(family, labels)] = values.format(bad=bad, good=good)
            if source == "native":
                series[labelled(family, {**labels, **PEER})] = f"{good}x30"
        yield RuleCase(f"faults {end}", series, [firing(*alerts, at="12m", of=of), firing(*at_end, at="15m", of=of)])


def slot_cases() -> Iterator[RuleCase]:
    """Yield cases of a lost GPU after which another key is in its slot: the same GPU by its UUID, and another GPU."""
    info, state, slot = "gpufleet_gpu_info", "gpufleet_gpu_state", {**GPU, "uuid": ""}
    passed = {**slot, "side": "pci_only"}
    for name, lost, after, at_end in (
        ("a GPU without UUID recovers", slot, GPU, []),
        ("another GPU is in the slot", GPU, {**GPU, "uuid": "GPU-c"}, []),
        ("the agent starts while the GPU is lost", GPU, slot, ["GpuLost native"]),
        ("the GPU is passed to a guest", GPU, passed, ["GpuLost native"]),
    ):
        still = {labelled(state, {**slot, "state": "lost"}): "_x9 1x30"} if after is slot else {}
        works = {labelled(state, {**after, "state": "lost"}): "_x9 0x30"} if after.get("uuid") else {}
        series = {labelled(state, {**lost, "state": "lost"}): "1x9 stale", labelled(info, lost): "1x9 stale"}
        series |= {labelled(info, after): "_x9 1x30", **still, **works}
        checks = [firing("GpuLost native", at="8m", of="GpuLost"), firing(*at_end, at="15m", of="GpuLost")]
        yield RuleCase(name, series, checks)


def recovery_cases() -> Iterator[RuleCase]:
    """Yield cases of recoveries: by readings without a state, and by the state of another key without texts."""
    state, power, slot = "gpufleet_gpu_state", "gpufleet_gpu_power_watts", {**GPU, "uuid": ""}
    lost = {labelled(state, {**GPU, "state": "lost"}): "1x9 stale", labelled("gpufleet_gpu_info", GPU): "1x30"}
    stopped = {labelled(state, {**GPU, "state": "lost"}): "0x5 1x2 stale"}
    stopped |= {labelled("gpufleet_gpu_info", GPU): "1x8 stale"}
    forwarded = {labelled(state, {**slot, "state": "lost"}): "1x9 stale"}
    unnamed = dict(forwarded)
    forwarded |= {labelled(state, {**GPU, "state": name}): f"_x9 {name == 'ok':d}x30" for name in ("ok", "lost")}
    ended = {labelled(state, {**slot, "state": "lost"}): "_x6 1x2 stale", labelled(power, GPU): "300+1x8 stale"}
    guest = {**GPU, **VM, "side": "guest"}
    vgpu = {labelled(state, {**guest, "state": "lost"}): "1x9 stale"}
    used, share = (labelled(f"gpufleet_gpu_{name}", guest) for name in ("memory_used_bytes", "utilization_ratio"))
    for name, series, at_end in (
        ("a reader reports failures only", {**lost, labelled(power, GPU): "_x9 300+1x30"}, []),
        ("a reader repeats old values", {**lost, labelled(power, GPU): "300x40"}, ["GpuLost native"]),
        ("a reader reports nothing", lost, ["GpuLost native"]),
        ("its agent stops", {**stopped, labelled(power, GPU): "300+1x5 stale"}, ["GpuLost native"]),
        ("series that a hub forwards", forwarded, []),
        ("a GPU without UUID works, without a state", {**unnamed, labelled(power, GPU): "_x9 300+1x30"}, []),
        ("its readings are repeated", {**unnamed, labelled(power, GPU): "300x40"}, ["GpuLost native"]),
        ("readings end with the state of their slot", ended, ["GpuLost native"]),
        ("memory of a vGPU in a guest changes", {**vgpu, used: "_x9 300+1x30"}, []),
        ("utilization of a vGPU in a guest changes", {**vgpu, share: "_x9 0+0.01x30"}, []),
    ):
        checks = [firing("GpuLost native", at="8m", of="GpuLost"), firing(*at_end, at="18m", of="GpuLost")]
        yield RuleCase(name, series, checks)


def move_cases() -> Iterator[RuleCase]:
    """Yield cases of a GPU with a fault whose UUID is later reported under another key."""
    state, slot = "gpufleet_gpu_state", {"pci_address": "0000:02:00.0"}
    guest = {**GPU, **VM, "side": "guest"}
    lost = "GpuLost native"
    for name, before, after, at_end in (
        ("works in another slot", GPU, {**GPU, **slot}, []),
        ("works on another node", GPU, {**GPU, "node": "n2"}, []),
        ("works in another VM", guest, {**guest, "vm_name": "vm-1"}, []),
        ("works at the host, after a guest", guest, {**GPU, **slot}, []),
        ("works in a guest, after the host", GPU, {**guest, **slot}, []),
        ("is reported by a guest of another node", GPU, {**guest, "node": "n2"}, [lost]),
        ("is reported by another cluster", GPU, {**GPU, "node": "n2", "cluster": "c2"}, [lost]),
        ("is another one without UUID", {**GPU, "uuid": ""}, {**GPU, **slot, "uuid": ""}, [lost]),
    ):
        series = {labelled(state, {**before, "state": "lost"}): "1x9 stale"}
        series |= {labelled(state, {**after, "state": value}): f"_x9 {value == 'ok':d}x30" for value in ("ok", "lost")}
        checks = [firing(lost, at="8m", of="GpuLost"), firing(*at_end, at="18m", of="GpuLost")]
        yield RuleCase(f"a lost GPU {name}", series, checks)
    ended = {labelled(state, {**GPU, "state": "lost"}): "1x9 stale"}
    power = labelled("gpufleet_gpu_power_watts", {**GPU, **slot})
    for name, values, at_end in (
        ("readings under another address are repeated", "300+1x8 308x30", [lost]),
        ("readings under another address change", "300x9 300+1x30", []),
    ):
        yield RuleCase(name, {**ended, power: values}, [firing(*at_end, at="18m", of="GpuLost")])
    present = {labelled(state, {**GPU, "state": "lost"}): "1x30", labelled(state, {**guest, "state": "lost"}): "0x30"}
    yield RuleCase("a guest reports a lost GPU of its host", present, [firing(lost, at="18m", of="GpuLost")])
    where = 'group by (node) (ALERTS{alertname="GpuLost",alertstate="firing"})'
    still = {labelled(state, {**GPU, "node": "n2", "state": "lost"}): "_x9 1x30"}
    yield RuleCase("a lost GPU is lost elsewhere", ended | still, [Expected(where, {'{node="n2"}': 1}, "18m")])
    failed = {labelled("gpufleet_gpu_row_remap_failed", GPU): "1x9 stale"}
    failed |= {labelled(state, {**GPU, **slot, "state": "ok"}): "_x9 1x40"}
    unread = [firing("GpuRowRemapFailed native", at="40m", of="GpuRow.+")]
    yield RuleCase("a fault is not read at the new address", failed, unread)


def xid_case() -> RuleCase:
    codes = {
        f"GpuXid{row.cls.capitalize()}": code
        for code, row in sorted(XIDS.items(), reverse=True)
        if row.cls is not XidClass.NOTICE
    } | {"GpuXidUnknown": 9999}
    series: dict[str, str] = {}
    for code in codes.values():
        device = {**GPU, "uuid": f"GPU-{code}"}
        # the first occurrence: a series that begins with 1
        series |= {
            labelled("gpufleet_gpu_xid_errors_total", {**device, "xid": str(code)}): "_x4 1x40",
            labelled("gpufleet_gpu_last_xid_timestamp_seconds", device): "_x4 300x40",
            labelled("DCGM_EXP_XID_ERRORS_COUNT", {**DCGM, "UUID": device["uuid"], "xid": str(code)}): "_x4 1x14 0x40",
        }
    series |= {
        labelled("gpufleet_gpu_xid_errors_total", {**GPU, "xid": "79"}): "1x4 2x40",
        labelled("gpufleet_gpu_last_xid_timestamp_seconds", GPU): "-2000x4 300x40",
        labelled("DCGM_FI_DEV_XID_ERRORS", DCGM): "31x9 79x40",
        labelled("DCGM_FI_DEV_XID_ERRORS", {**DCGM, "UUID": "GPU-b"}): "79x50",  # it never resets
    }
    alerts = [f"{alert} {source}" for alert in codes for source in ("native", "dcgm-exporter")]
    return RuleCase(
        "XIDs",
        series,
        [
            firing(at="3m", of="GpuXid.+"),
            firing(*alerts, "GpuXidChanged dcgm-exporter", at="18m", of="GpuXid.+"),
            firing(at="26m", of="GpuXid.+"),
            Expected("count(increase(gpufleet_gpu_xid_errors_total[15m]) > 0)", {"{}": 1}, "18m"),
            Expected("count(DCGM_FI_DEV_XID_ERRORS > 0)", {"{}": 2}, "26m"),
        ],
    )


def reading_cases() -> Iterator[RuleCase]:
    count = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
    yield RuleCase(
        "throttling",
        {
            labelled("gpufleet_gpu_clock_event_active", {**GPU, "reason": "hw_thermal"}): "1x10",
            labelled("gpufleet_gpu_clock_event_active", {**GPU, "reason": "hw_power_brake"}): "1x10",
            labelled("gpufleet_gpu_clock_event_active", {**PEER, "reason": "sw_power_cap"}): "1x10",
            labelled(count, DCGM): f"{0x40 | 0x80 | 0x1}x10",
            labelled(count, {**DCGM, "UUID": "GPU-b"}): "1x10",  # idle: the mask is not 0
        },
        [
            firing(
                *(f"{alert} {source}" for alert in THROTTLING for source in ("native", "dcgm-exporter")),
                at="7m",
                of="Gpu.+Throttling",
            ),
            Expected(f"count({count} > 0)", {"{}": 2}),
        ],
    )
    yield RuleCase(
        "uncorrectable ECC errors",
        {
            labelled("gpufleet_gpu_ecc_uncorrected_errors_total", GPU): "3x4 4x10",
            labelled("gpufleet_gpu_ecc_uncorrected_errors_total", PEER): "3x14",
            labelled("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", DCGM): "0x4 1x10",
            labelled("kubevirt_vmi_gpu_ecc_errors_double_bit_total", {"name": "vm-0", "gpu_uuid": "GPU-c"}): "0x4 1x10",
        },
        [firing(*(f"GpuUncorrectableEcc {source}" for source in RuleInput), at="7m", of="GpuUncorrectableEcc")],
    )
    models = {"a": ("H100 NVL", 18), "b": ("H100 NVL", 17), "c": ("A100", 12), "d": ("A100", 12)}
    models |= {"e": ("", 6), "f": ("", 5)}
    boards = {key: {**GPU, "node": "links", "uuid": f"GPU-{key}"} for key in models}
    yield RuleCase(
        "links of two models",
        {labelled("gpufleet_gpu_nvlinks_active", boards[key]): f"{links}x15" for key, (_, links) in models.items()}
        | {labelled("gpufleet_gpu_info", {**boards[key], "name": name}): "1x15" for key, (name, _) in models.items()},
        [
            Expected(
                'group by (uuid) (ALERTS{alertname="GpuNvlinkDown",node="links",alertstate="firing"})',
                {'{uuid="GPU-b"}': 1, '{uuid="GPU-f"}': 1},
                "9m",
            )
        ],
    )
    held = {"state": "held"}
    pod = {"namespace": "ml", "pod": "web-1"}
    yield RuleCase(
        "idle while allocated",
        {
            labelled("gpufleet_gpu_utilization_ratio", GPU): "0x40",
            labelled("gpufleet_gpu_utilization_ratio", PEER): "0x40",
            labelled("gpufleet_gpu_holder_state", {**GPU, **held}): "1x40",
            labelled("gpufleet_gpu_holder_state", {**PEER, **held}): "0x40",
            labelled("DCGM_FI_DEV_GPU_UTIL", {**DCGM, **pod}): "0x40",
            labelled("DCGM_FI_DEV_FB_USED", {**DCGM, **pod}): "1x40",
        },
        [
            firing(at="25m", of="GpuIdle.+"),
            firing("GpuIdleWhileAllocated native", "GpuIdleWhileAllocated dcgm-exporter", at="35m", of="GpuIdle.+"),
        ],
    )


THROTTLING = ("GpuThermalThrottling", "GpuPowerThrottling")


def machine_cases() -> Iterator[RuleCase]:
    node = {"node": "n1"}
    bus = {"vendor": "0x10de", "driver": "nvidia"}
    yield RuleCase(
        "counts",
        {
            labelled("gpufleet_host_pci_display_devices", {**node, **bus}): "8x15",
            labelled("gpufleet_host_pci_display_devices", {**node, **bus, "driver": "vfio-pci"}): "4x15",
            labelled("gpufleet_nvidia_devices", node): "7x15",
            labelled("gpufleet_nvidia_driver_state", {**node, "state": "hung"}): "1x15",
            labelled("kube_node_status_capacity", {**node, "resource": "nvidia_com_gpu"}): "8x15",
            labelled("kube_node_status_allocatable", {**node, "resource": "nvidia_com_gpu"}): "7x15",
            labelled("gpufleet_host_pci_display_devices", {"node": "equal", **bus}): "8x15",
            labelled("gpufleet_nvidia_devices", {"node": "equal"}): "8x15",
            labelled("gpufleet_guest_gpus", VM): "1x15",
            labelled("gpufleet_guest_expected_gpus", VM): "2x15",
        },
        [
            firing(
                "GpuCountMismatch native",
                "GpuDriverFailed native",
                "GpuNotAllocatable kubevirt",
                at="14m",
                of="Gpu(Count|Driver|NotAll).+",
            ),
            Expected('count(ALERTS{alertname="GpuCountMismatch",alertstate="firing"})', {"{}": 2}, "14m"),
        ],
    )
    holder = {"holder_kind": "pod", "holder_name": "web-1", "verdict": "agreed", "namespace": "ml", "pod": "web-1"}
    launcher = {**holder, "pod": "virt-launcher-vm-0-x2x4z", "vm_name": "vm-0"}
    request = {"namespace": "ml", "pod": "web-2", "container": "main", "node": "n3", "resource": "nvidia_com_gpu"}
    running = {"namespace": "ml", "pod": "web-2", "phase": "Running"}
    machine = {"namespace": "ml", "name": "vm-2"}
    yield RuleCase(
        "gaps",
        {
            labelled("gpufleet_gpu_info", PEER): "1x30",
            labelled("gpufleet_gpu_info", GPU): "1x4 stale",
            labelled("gpufleet_gpu_info", {**GPU, "node": "n2"}): "1x4 stale",
            labelled("gpufleet_gpu_holder_info", {**PEER, "uuid": "GPU-e", **holder}): "1x30",
            labelled("gpufleet_gpu_holder_info", {**PEER, "side": "pci_only", **launcher}): "1x30",
            labelled("DCGM_FI_DEV_FB_USED", {**DCGM, "UUID": "GPU-b"}): "1x30",
            labelled("DCGM_FI_DEV_FB_USED", {**DCGM, "UUID": "GPU-z"}): "1x4 stale",
            labelled("DCGM_FI_DEV_FB_USED", {**DCGM, "Hostname": "n2"}): "1x4 stale",
            labelled("kube_node_status_capacity", {"node": "n3", "resource": "nvidia_com_gpu"}): "8x30",
            labelled("kube_pod_container_resource_requests", request): "1x30",
            labelled("kube_pod_status_phase", running): "1x30",
            labelled("kubevirt_vmi_info", {**machine, "phase": "running", "node": "n1"}): "1x30",
            labelled("kubevirt_vmi_gpu_info", {**machine, "uuid": "42"}): "1x30",
        },
        [
            firing(
                *(f"GpuMissing {source}" for source in ("native", "dcgm-exporter")),
                *(f"GpuNodeWithoutData {source}" for source in RuleInput),
                *(f"GpuVmWithoutData {source}" for source in ("native", "kubevirt")),
                *(f"GpuPodWithoutData {source}" for source in ("native", "kubevirt")),
                at="20m",
                of="Gpu(Missing|.+WithoutData)",
            )
        ],
    )


def other_case() -> RuleCase:
    """Return all other cases in one timeline, which saves most of the time."""
    one_by_one = [*reading_cases(), *machine_cases()]
    series = {name: values for case in one_by_one for name, values in case.series.items()}
    return RuleCase("readings and machines", series, [one for case in one_by_one for one in case.expected])


def cases() -> list[RuleCase]:
    return [*fault_cases(), *slot_cases(), *recovery_cases(), *move_cases(), xid_case(), other_case()]


@pytest.mark.system
def test_alerts_fire_and_end(peer: Callable[[str], Path], tmp_path: Path) -> None:
    run_cases(peer("promtool"), render_rules(rule_groups(list(RuleInput))), cases(), tmp_path)


@pytest.mark.system
def test_alerts_for_honored_labels_fire_too(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups(list(RuleInput), honor_labels=True))
    run_cases(peer("promtool"), rules, [other_case()], tmp_path)


def test_each_alert_has_a_case() -> None:
    queries = {text for case in cases() for one in case.expected for text in one.result}
    tested = {
        (alert.alert, alert.labels["input"])
        for alert in all_alerts()
        if labelled("", {"alertname": alert.alert, "input": alert.labels["input"]}) in queries
    }
    assert {(alert.alert, alert.labels["input"]) for alert in all_alerts()} - tested == set()


def test_each_alert_has_a_runbook() -> None:
    assert {alert.alert.lower() for alert in all_alerts()} ^ HEADINGS == set()


@pytest.mark.system
def test_summary_names_gpu_node_and_holder(peer: Callable[[str], Path], tmp_path: Path) -> None:
    rules = render_rules(rule_groups([RuleInput.NATIVE], honor_labels=True))
    (tmp_path / "rules.yml").write_text(rules)
    holder = {"holder_kind": "pod", "holder_name": 'we"b', "namespace": "ml", "pod": 'we"b', "verdict": "agreed"}
    job = {"holder_kind": "job", "holder_name": "bert", "job_id": "4711", "verdict": "agreed"}
    lost = {"state": "lost"}
    inside = {"node": "n1", "uuid": "GPU-d", "kind": "gpu", "side": "guest", "namespace": "ml", "vm_name": "vm-0"}
    series = {
        labelled("gpufleet_gpu_state", {**GPU, **lost}): "1x10",
        labelled("gpufleet_gpu_state", {**PEER, **lost}): "1x10",
        labelled("gpufleet_gpu_state", {**inside, **lost}): "1x10",
        labelled("gpufleet_gpu_holder_info", {**GPU, **holder}): "1x10",
        labelled("gpufleet_gpu_holder_info", {**PEER, **job}): "1x10",
    }
    runbook = {"runbook": "docs/runbooks.md#gpulost"}
    added = {"fault": "lost", "input": "native", "severity": "critical"}
    alerts = [
        ({**GPU, **added}, 'GPU GPU-a on n1 is lost. Holder: pod ml/we"b'),
        ({**PEER, **added}, "GPU GPU-b on n1 is lost. Holder: job 4711"),
        (
            {**inside, **added, "name": "vm-0", "vm_name": ""},
            "GPU GPU-d on n1 is lost. Holder: VM ml/vm-0",
        ),
    ]
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": "5m",
                        "alertname": "GpuLost",
                        "exp_alerts": [
                            {
                                "exp_labels": {key: value for key, value in labels.items() if value},
                                "exp_annotations": {"summary": summary, **runbook},
                            }
                            for labels, summary in alerts
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(document))
    command = [str(peer("promtool")), "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
