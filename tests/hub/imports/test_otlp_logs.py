"""OTLP logs requests as events: events of our own exporter are read completely."""

import pytest

from gpufleet.codecs.otlp.records import LogRecord, LogsRequest, ResourceLogs
from gpufleet.dialects.otel import device_attributes
from gpufleet.hub.imports.otlp import event_of, read_logs_request
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind

AT = 1_700_000_000_000_000_000
VIEW = View(
    kind=ViewKind.GPU,
    side=Side.HOST,
    uuid="GPU-00000000-0000-0000-0000-000000000001",
    pci_address="0000:1b:00.0",
)


def record(name: str, at: int = AT, **attributes: str | int) -> LogRecord:
    more = {key.replace("__", "."): value for key, value in attributes.items()}
    return LogRecord(at, at, 17, name, "body", {**device_attributes(VIEW, {}), **more})


def test_own_event_has_its_device_and_attributes() -> None:
    event = event_of(record("gpufleet.xid", gpufleet__code=79, gpufleet__advice="reset", other="x"))
    assert event == Event(
        view=event.view if event else None, kind="xid", code=79, at=AT, attributes={"advice": "reset"}
    )
    assert event is not None
    assert event.view is not None
    assert event.view.key == VIEW.key


@pytest.mark.parametrize("name", ["xid", "gpufleet.of_tomorrow", "", "l9gpu.gpu"])
def test_foreign_record_is_no_event(name: str) -> None:
    assert event_of(record(name)) is None


@pytest.mark.parametrize(
    ("value", "code"),
    [(79, 79), ("79", 79), ("-1", 0), ("²", 0), ("9" * 99, 0), (str(1 << 31), 0), ("x", 0), (True, 0)],
)
def test_code_may_be_text(value: str | int, code: int) -> None:
    event = event_of(record("gpufleet.xid", gpufleet__code=value))
    assert event is not None
    assert (event.code, event.attributes) == (code, {})


def test_event_needs_a_timestamp_and_bounded_attributes() -> None:
    assert event_of(record("gpufleet.xid", at=0)) is None
    hostile = event_of(record("gpufleet.xid", gpufleet__code=1 << 60, gpufleet__advice="x" * 5000))
    assert hostile is not None
    assert (hostile.code, len(hostile.attributes["advice"])) == (0, 1024)


def test_logs_request_counts_skipped_records() -> None:
    records = [record("gpufleet.xid", gpufleet__code=31), record("app.log")]
    found = read_logs_request(
        LogsRequest([ResourceLogs({"host.name": "node-1"}, records), ResourceLogs({}, [record("gpufleet.xid")])])
    )
    assert {machine: [one.code for one in events] for machine, events in found.events.items()} == {
        Machine(name="node-1"): [31]
    }
    assert (found.samples, dict(found.others), found.unattributed, found.accepted) == (3, {"app.log": 1}, 1, 1)


@pytest.mark.parametrize("attribute", ["gpufleet.hypervisor", "gpufleet.vm.name", "gpufleet.vm.uuid"])
def test_event_of_a_guest_is_not_of_the_node_of_its_name(attribute: str) -> None:
    resource = {"host.name": "node-b", attribute: "x"}
    found = read_logs_request(LogsRequest([ResourceLogs(resource, [record("gpufleet.xid")])]))
    assert (found.events, found.unattributed, found.accepted) == ({}, 1, 0)
