"""What happened to a machine and its devices, as requests of OTLP for logs: each event a record, told once."""

from collections.abc import Generator, Mapping, Sequence

from gpufleet import __version__
from gpufleet.codecs.otlp.encode import encode_logs
from gpufleet.codecs.otlp.records import LogRecord, ResourceLogs
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects import otel
from gpufleet.dialects.otel_names import OWN
from gpufleet.exporters.otlp_resource import SCOPE, packed, resource, texts
from gpufleet.exporters.severity import severity
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot


class OtlpLogs:
    """Gathers events for requests of logs."""

    def __init__(self, cluster: str, attributes: Mapping[str, str]) -> None:
        """Take the same as `OtlpMetrics`, but for the clock."""
        self._cluster = cluster
        self._more = attributes
        self._machine: Machine | None = None
        self._records: list[LogRecord] = []

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take whose events they are."""
        self._machine = snapshot.node
        yield

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Take events."""
        of_machine = texts(snapshot.host.readings)
        devices = {device.key: device for device in snapshot.devices}
        for event in events:
            attributes: dict[str, str | bool | int | float] = {}
            if event.view is not None:
                known = devices.get(event.view.key)
                own = texts(known.readings) if known else {}
                attributes |= otel.device_attributes(event.view, {**of_machine, **own})
            attributes |= {OWN + name: text for name, text in event.attributes.items()}
            if event.code:
                attributes[OWN + "code"] = event.code
            number, words = severity(event)
            self._records.append(LogRecord(event.at, event.at, number, f"{OWN}{event.kind}", words, attributes))

    def take(self) -> Draft | None:
        """Return everything gathered as one request, or None."""
        if not self._records or self._machine is None:
            return None
        records, self._records = self._records, []
        told = ResourceLogs(resource(self._machine, self._cluster, self._more), records, SCOPE, __version__)
        return Draft(len(records), lambda: packed(encode_logs([told])))
