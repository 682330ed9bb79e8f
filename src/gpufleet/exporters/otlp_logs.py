"""OTLP log requests: one record per event of a machine and its devices, exported once.

Each record has a severity and a one-line message. An event of a device has the attributes of the device's holder if the
device has exactly one, which had it at the time of the event.
"""

from collections.abc import Generator, Mapping, Sequence

from gpufleet import __version__
from gpufleet.codecs.otlp.encode import encode_logs
from gpufleet.codecs.otlp.records import LogRecord, ResourceLogs
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects import otel, otel_holders
from gpufleet.dialects.otel_names import OWN
from gpufleet.exporters.holders import holder_at
from gpufleet.exporters.otlp_resource import SCOPE, compress_body, info_texts, node_resource
from gpufleet.model.event import EVENT_KINDS, Event, EventKind
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.xid import XidClass

INFO, WARN, ERROR = 9, 13, 17
"""Values of OTLP's SeverityNumber."""

_K = EventKind
_ERRORS = frozenset(
    {_K.SXID, _K.GPU_LOST, _K.GPU_RESET_REQUIRED, _K.GPU_FAILED, _K.GPU_INIT_FAILED, _K.VGPU_FAILED, _K.HANG_STARTED}
    | {_K.DRIVER_MISMATCH, _K.DRIVER_FAILED, _K.ECC_UNCORRECTED, _K.ROW_REMAP_FAILED}
)
_WARNINGS = frozenset({_K.GPU_REMOVED, _K.THROTTLE_STARTED, _K.ROW_REMAP_PENDING, _K.RECOVERY_ACTION_CHANGED})
_MILD = {XidClass.APPLICATION: WARN, XidClass.NOTICE: INFO}


def severity(event: Event) -> tuple[int, str]:
    """Return the OTLP severity number and a message.

    An XID is an error, unless its class is in `_MILD`.
    """
    row = EVENT_KINDS.get(event.kind)
    message = row.help if row is not None else event.kind
    if event.kind == _K.XID:
        name = event.attributes.get("name", "")
        message = f"XID {event.code}: {name}" if name else f"XID {event.code}"
        return next((level for cls, level in _MILD.items() if event.attributes.get("class") == cls), ERROR), message
    level = ERROR if event.kind in _ERRORS else WARN if event.kind in _WARNINGS else INFO
    return level, message


class OtlpLogs:
    """Collector of events for log requests."""

    def __init__(self, cluster: str, attributes: Mapping[str, str]) -> None:
        """Create an empty collector; arguments as in `OtlpMetrics`."""
        self._cluster = cluster
        self._more = attributes
        self._machine: Machine | None = None
        self._records: list[LogRecord] = []

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Record the machine that the events belong to."""
        self._machine = snapshot.node
        yield

    def add_events(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Add a log record for each event."""
        of_machine = info_texts(snapshot.host.readings)
        devices = {device.key: device for device in snapshot.devices}
        for event in events:
            attributes: dict[str, str | bool | int | float] = {}
            if event.view is not None:
                known = devices.get(event.view.key)
                own = info_texts(known.readings) if known else {}
                holding = holder_at(known.holders, event.at) if known else None
                if holding is not None:
                    attributes |= otel_holders.holder_attributes(holding)
                attributes |= otel.device_attributes(event.view, {**of_machine, **own})
            attributes |= {OWN + name: text for name, text in event.attributes.items()}
            if event.code:
                attributes[OWN + "code"] = event.code
            number, message = severity(event)
            self._records.append(LogRecord(event.at, event.at, number, f"{OWN}{event.kind}", message, attributes))

    def take(self) -> Draft | None:
        """Return all collected records as one request, or None if there are none."""
        if not self._records or self._machine is None:
            return None
        records, self._records = self._records, []
        logs = ResourceLogs(node_resource(self._machine, self._cluster, self._more), records, SCOPE, __version__)
        return Draft(len(records), lambda: compress_body(encode_logs([logs])))
