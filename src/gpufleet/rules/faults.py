"""Faults of devices that persist until a repair: the only copy of their conditions.

An absent reading does not end a fault. The rules keep the last known state until a reading shows that the fault is
gone, or another GPU is in the slot, for at most a day after the last reading with the fault. A GPU that was lost before
its agent started has no UUID until it recovers: its key is then another one. A moved GPU has
another key, too: a reading under any key of its UUID replaces the last known state.
"""

from collections.abc import Callable, Iterable

import msgspec

from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.model.device_state import ERROR, HUNG, LOST, PROVING_READINGS, RESET_REQUIRED, UNREADABLE
from gpufleet.rules.devices import SUBJECT, AgentSeries, device_series
from gpufleet.rules.promql import DAY_SECONDS, join_names, regex
from gpufleet.rules.rollups import ROLLUPS, UTILIZATION
from gpufleet.rules.rule import AlertSeverity, RecordingRule

NVLINKS = "gpu_nvlinks_active"
STATED = "gpu:gpufleet_gpu_state:info"
"""Recorded series of GPUs with a state."""

WORKING = "gpu:gpufleet_gpu_working:info"
"""Recorded series of GPUs without a state that work by their readings."""

_CHANGING = tuple(name for name in ROLLUPS if name in PROVING_READINGS or name == UTILIZATION)
"""Readings whose change proves that a GPU works. MIG mode hides the utilization, but a change of it was measured."""

MODEL = "gpu:gpufleet_gpu_model:info"
"""Recorded series with the label `model`, the name of the product."""

UNHEALTHY_FABRIC = ("degraded_bandwidth", "route_unhealthy", "fabric_manager_disconnected")
NO_FAULT_OF_CONFIGURATION = ("not_reported", "none")

Signal = Callable[[AgentSeries], str]
"""Query with 1 for each device with a fault and 0 for each one without it."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Fault of a device.

    Attributes:
        name: value of the label `fault`.
        alert: name of its alert.
        severity, wait: of the alert.
        help: completes "the GPU ...".
        signal: query of the devices with and without the fault.
        metric: the catalogue's metric, if it is the whole signal.
    """

    name: str
    alert: str
    severity: AlertSeverity
    wait: str
    help: str
    signal: Signal
    metric: str = ""


def _metric(metric: str, matchers: str = "") -> Signal:
    return lambda series: series.metric_per_device(metric, matchers)


def _state(*states: str) -> Signal:
    """Return the signal of some states. A GPU that works by its readings has none of them."""
    in_states = _metric("gpu_state", f'state=~"{regex(states)}"')
    return lambda series: f"{in_states(series)}\nor on ({join_names(*SUBJECT)})\n0 * {WORKING}"


def working_rule() -> RecordingRule:
    """Return the rule of GPUs that work by their readings.

    Such a GPU has had no state for 6 minutes, and neither had another key in its slot or of its UUID: a lost GPU can be
    known by its address only, and exporters write addresses in several ways. Its readings changed in the last 5
    minutes: some exporters report failures only, and others repeat the values from before a failure. The record of
    states can be a minute late.
    """
    subject = join_names(*SUBJECT)
    changes = "\n  or\n  ".join(f'changes({device_series(name)}{{kind="gpu"}}[5m]) > 0' for name in _CHANGING)
    return RecordingRule(
        record=WORKING,
        expr="\n".join(
            (
                f"group by ({subject}) (\n  {changes}\n)",
                f"unless on ({subject}) last_over_time({STATED}[6m])",
                f'unless on ({_slot_of(SUBJECT)}) last_over_time({STATED}{{pci_address!=""}}[6m])',
                *_unless_of_uuid(lambda matchers: f"last_over_time({STATED}{{{matchers}}}[6m])"),
            )
        ),
        help="GPUs without a state whose readings changed within 5 minutes; always 1",
    )


def _slot_of(subject: tuple[str, ...]) -> str:
    """Return the labels of the slot of a device."""
    return join_names(*(label for label in subject if label != "uuid"))


def _unless_of_uuid(select: Callable[[str], str]) -> tuple[str, ...]:
    """Return the clauses that remove the GPUs whose UUID has a series, under any key.

    A guest can report any UUID: its series count for GPUs of its node only.

    Args:
        select: query of the series with some matchers.
    """
    trusted, guests = (select(f'uuid!="",side{operator}"guest"') for operator in ("!=", "="))
    return f"unless on (cluster, uuid) {trusted}", f"unless on (cluster, node, uuid) {guests}"


def _union(signals: Iterable[str]) -> str:
    """Return the greatest of several signals for each device."""
    parts = [f'label_replace(({signal}), "part", "{number}", "", "")' for number, signal in enumerate(signals)]
    return f"max by ({join_names(*SUBJECT)}) (\n" + "\nor\n".join(parts) + "\n)"


def _fabric_signal(series: AgentSeries) -> str:
    configured = f'state!~"{regex(NO_FAULT_OF_CONFIGURATION)}"'
    return _union(
        (
            series.metric_per_device("gpu_fabric_health_status", 'state=~"unhealthy|limited_capacity"'),
            series.metric_per_device("gpu_fabric_health", f'condition=~"{regex(UNHEALTHY_FABRIC)}"'),
            series.metric_per_device("gpu_fabric_incorrect_configuration", configured),
        )
    )


def _nvlink_signal(_series: AgentSeries) -> str:
    """Compare the number of active links with the node's other GPUs of its model and with the day before.

    A GPU without active links is not compared with others: boards without a bridge have none. GPUs without a known
    model count as one model: series that a hub forwards have no texts.
    """
    active, peer = device_series(NVLINKS), "cluster, node, namespace, name, model"
    subject = join_names(*SUBJECT)
    of_model = f"({MODEL} * on ({subject}) group_left () {active} or on ({subject}) {active})"
    peers = f"({of_model} > 0) < bool on ({peer}) group_left () max by ({peer}) {of_model}"
    return _union((peers, f"{active} < bool ({active} offset 1d)"))


def _gauge(metric: str, alert: str, severity: AlertSeverity, text: str) -> Fault:
    return Fault(
        name=metric.removeprefix("gpu_"),
        alert=alert,
        severity=severity,
        wait="5m",
        help=text,
        signal=_metric(metric),
        metric=metric,
    )


FAULTS = (
    Fault(name=LOST, alert="GpuLost", severity=AlertSeverity.CRITICAL, wait="1m", help="is lost", signal=_state(LOST)),
    Fault(name=HUNG, alert="GpuHung", severity=AlertSeverity.CRITICAL, wait="2m", help="hangs", signal=_state(HUNG)),
    Fault(
        name=RESET_REQUIRED,
        alert="GpuResetRequired",
        severity=AlertSeverity.CRITICAL,
        wait="1m",
        help="requires a reset",
        signal=_state(RESET_REQUIRED),
    ),
    Fault(
        name=UNREADABLE,
        alert="GpuUnreadable",
        severity=AlertSeverity.WARNING,
        wait="10m",
        help="cannot be read",
        signal=_state(UNREADABLE, ERROR),
    ),
    Fault(
        name="recovery_action",
        alert="GpuRecoveryActionNeeded",
        severity=AlertSeverity.WARNING,
        wait="5m",
        help="needs the recovery action that its driver recommends",
        signal=_metric("gpu_recovery_action", 'state!="none"'),
    ),
    _gauge(
        "gpu_row_remap_pending", "GpuRowRemapPending", AlertSeverity.WARNING, "has a row remap pending until its reset"
    ),
    _gauge("gpu_row_remap_failed", "GpuRowRemapFailed", AlertSeverity.CRITICAL, "failed to remap a memory row"),
    Fault(
        name="fabric_unhealthy",
        alert="GpuFabricUnhealthy",
        severity=AlertSeverity.CRITICAL,
        wait="5m",
        help="is unhealthy in its NVLink fabric",
        signal=_fabric_signal,
    ),
    Fault(
        name="nvlink_down",
        alert="GpuNvlinkDown",
        severity=AlertSeverity.CRITICAL,
        wait="5m",
        help="has fewer active NVLinks than the node's other GPUs of its model, or than a day before",
        signal=_nvlink_signal,
    ),
    Fault(
        name="license_lost",
        alert="GpuVgpuLicenseLost",
        severity=AlertSeverity.CRITICAL,
        wait="10m",
        help="is a vGPU without a licence",
        signal=_metric("vgpu_license_state", 'state=~"unlicensed.*"'),
    ),
)

DCGM_FAULTS = tuple(fault for fault in FAULTS if fault.metric in {f.metric for f in DCGM_EXPORTER.families.values()})
"""Faults that a page of dcgm-exporter shows."""


def fault_rule(fault: Fault, record: str, signal: str, subject: tuple[str, ...], *ended: str) -> RecordingRule:
    """Return the rule that keeps the last known state of a fault.

    Args:
        fault: the fault.
        record: name of the series.
        signal: query with 1 for each device with the fault and 0 for each one without it.
        subject: labels of the signal.
        ended: clauses that remove ended faults; by default, those of devices with a reading without the fault.
    """
    labels = join_names(*subject)
    clauses = ended or (f"unless on ({labels})\n  (({signal}) == 0)",)
    last_known = "\n  ".join((f"({_of_fault(fault, record)} > time() - {DAY_SECONDS})", *clauses))
    return RecordingRule(
        record=record,
        expr=f"0 * (({signal}) == 1) + time()\nor on ({labels})\n(\n  {last_known}\n)",
        help="Devices with a fault, now or by their last reading; the value is the time of that reading",
        labels={"fault": fault.name},
    )


def moving_fault_rules(
    fault: Fault, record: str, readings: str, signal: str, subject: tuple[str, ...], slots: str
) -> tuple[RecordingRule, RecordingRule]:
    """Return the rules of a fault of GPUs that are replaced in their slots and move to others, in order of evaluation.

    The readings that can end a fault are recorded: to evaluate the signal again for each clause is expensive.

    Args:
        fault, record, signal, subject: as of `fault_rule`.
        readings: name of the series of these readings.
        slots: query of the GPUs in slots, with the labels of the signal.
    """
    labels, known = join_names(*subject), _of_fault(fault, record)
    healthy = f"unless on ({labels}) ({_of_fault(fault, readings)} == 0)"
    replaced = f"unless on ({_slot_of(subject)}) ({slots} unless on ({labels}) {known})"
    moved = _unless_of_uuid(lambda matchers: _of_fault(fault, readings, matchers))
    return (
        RecordingRule(
            record=readings,
            expr=f"({signal})\nand on (cluster, uuid) {known}",
            help="Readings of a known fault, under any key of the GPU's UUID: 1 with the fault, 0 without it",
            labels={"fault": fault.name},
        ),
        fault_rule(fault, record, signal, subject, healthy, replaced, *moved),
    )


def _of_fault(fault: Fault, record: str, matchers: str = "") -> str:
    """Return the recorded series of a fault."""
    own = f'fault="{fault.name}"'
    return f"{record}{{{','.join(filter(None, (own, matchers)))}}}"
