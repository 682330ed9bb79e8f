"""OTLP log requests: one record per event of a machine and its devices, exported once."""

from collections.abc import Generator, Mapping, Sequence

from gpufleet import __version__
from gpufleet.codecs.otlp.encode import encode_logs
from gpufleet.codecs.otlp.records import LogRecord, ResourceLogs
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects import otel
from gpufleet.dialects.otel_names import OWN
from gpufleet.exporters.otlp_resource import SCOPE, compress_body, info_texts, node_resource
from gpufleet.exporters.severity import severity
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot


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
