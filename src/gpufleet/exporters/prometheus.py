"""The snapshot as a Prometheus page, under gpufleet's own names.

Every metric of the catalogue is `gpufleet_` and its name. A reading without a value has no series;
`gpufleet_reading_absent` says which those are, and why. A state has one series for each of its names, 1 for the
one it is in and 0 for the others. Texts that seldom change are labels of `gpufleet_gpu_info` and
`gpufleet_host_info`, which are always 1. Series of a MIG device or vGPU instance also carry the UUID of its GPU (`gpu`)
and which part of it they are about. `gpufleet_measured_timestamp_seconds` says of each subject, reader and lane when it
was measured, and by whom (`provenance`). Series of a virtual machine that is read from inside carry its namespace, name
and UUID (`namespace`, `vm_name`, `vm_uid`).
"""

from collections.abc import Generator, Iterable

from gpufleet.dialects.native import MEASURED
from gpufleet.exporters.exposition import Head, Page, Section, Syntax, labelled, write_page
from gpufleet.exporters.subjects import ABSENT, Families, Subject, catalogue_heads
from gpufleet.model.snapshot import Device, Guest, Host, ReaderReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.view import ViewKind
from gpufleet.runtime import at_once

GPU_INFO, HOST_INFO = "gpufleet_gpu_info", "gpufleet_host_info"

_SUBJECT_HEADS = {
    family: Head.of(family, "gauge", words, unit)
    for family, words, unit in (
        (GPU_INFO, "Texts that seldom change of one device; always 1", ""),
        (HOST_INFO, "Texts that seldom change of the machine; always 1", ""),
        (ABSENT, "1 for a reading that has no value, with the reason", ""),
        (MEASURED, "When the newest values of a reader's lane were measured, since 1970", "seconds"),
    )
}

JOINED_ELSEWHERE = frozenset(
    {
        "gpu_name",
        "gpu_pci_address",
        "mig_profile",
        "mig_gpu_instance",
        "mig_compute_instance",
        "vgpu_type",
        "vgpu_vm_id",
    }
)
"""Info texts that every series of a device already carries as labels."""


OWN_FAMILY = frozenset({"guest_problem"})
"""Info texts of a machine that are no labels: words that are others with every trouble."""

_INSTANCE_LABELS = {
    ViewKind.MIG: (
        ("profile", "mig_profile"),
        ("gpu_instance", "mig_gpu_instance"),
        ("compute_instance", "mig_compute_instance"),
    ),
    ViewKind.VGPU: (("profile", "vgpu_type"), ("vm_id", "vgpu_vm_id")),
}
"""Labels of an instance, and the texts they show."""


class PrometheusExporter:
    """Renders the page of one machine, once."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the whole page."""
        native = NativePage()
        at_once(native.update(snapshot))
        return write_page(native.sections(), Syntax.TEXT)


class NativePage:
    """The page of one machine, brought up to date again and again: what has not changed is not written anew."""

    def __init__(self) -> None:
        """Start without series."""
        self._heads = {**catalogue_heads(), **_SUBJECT_HEADS}
        self._bases: list[str] = []
        self._subjects: list[Subject] = []
        self._families = Families(self._heads, 0)
        self._rest: list[Section] = []

    def update(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Take in everything a snapshot knows, in small steps; the page is whole when they are done."""
        node = labelled({"node": snapshot.node.name})
        shown = subjects_of(node, snapshot.devices, snapshot.host)
        for guest in snapshot.guests:
            shown += subjects_of(f"{node},{labelled(guest_labels(guest))}", guest.devices, guest.host)
            yield
        bases = [base for base, _ in shown]
        if bases != self._bases:
            self._bases = bases
            self._subjects = [
                Subject(base, GPU_INFO, JOINED_ELSEWHERE)
                if isinstance(one, Device)
                else Subject(base, HOST_INFO, OWN_FAMILY)
                for base, one in shown
            ]
            self._families = Families(self._heads, len(self._subjects))
        for place, (subject, (_, one)) in enumerate(zip(self._subjects, shown, strict=True)):
            yield
            self._families.put(place, subject.update(one.readings, one.dimensions, one.sources))
        yield from self._families.join()
        self._rest = _of_the_agent(snapshot)

    def sections(self) -> list[Section]:
        """Return the families."""
        return [*self._families.sections(), *self._rest]


def guest_labels(guest: Guest) -> dict[str, str]:
    """Return what every series of a virtual machine bears: who it is, as the agent was told."""
    return {"namespace": guest.namespace, "vm_name": guest.name, "vm_uid": guest.vm_uuid}


def subjects_of(base: str, devices: Iterable[Device], host: Host) -> list[tuple[str, Device | Host]]:
    """Return what series are about, each with its labels: devices, and the machine itself."""
    found: list[tuple[str, Device | Host]] = [(f"{base},{labelled(device_labels(one))}", one) for one in devices]
    return [*found, (base, host)]


def _of_the_agent(snapshot: Snapshot) -> list[Section]:
    page = Page()
    add_agent(page, snapshot)
    return page.sections()


def add_agent(page: Page, snapshot: Snapshot) -> None:
    """Add the families about readers and what the agent can do."""
    node = {"node": snapshot.node.name}
    for family, words in _READER_FAMILIES:
        page.declare(family, "gauge", words, "seconds")
    _readers(page, node, snapshot.readers)
    for guest in snapshot.guests:
        _readers(page, {**node, **guest_labels(guest)}, guest.readers)
    page.declare("gpufleet_capability", "gauge", "1 if this agent can do it here, else 0")
    for name, word in snapshot.capabilities.items():
        page.add("gpufleet_capability", labelled({**node, "capability": name}), int(word == "available"))
    page.declare("gpufleet_build_info", "gauge", "Version of gpufleet and of its catalogue; always 1")
    page.add(
        "gpufleet_build_info",
        labelled({**node, "version": snapshot.version, "catalogue": str(snapshot.catalogue)}),
        1,
    )


def device_labels(device: Device) -> dict[str, str]:
    """Return the labels of each series of a device."""
    labels = {
        "uuid": device.uuid or "",
        "pci_address": device.pci_address or "",
        "kind": str(device.kind),
        "side": str(device.side),
        "name": device.name or "",
    }
    if device.kind is not ViewKind.GPU:
        labels |= _instance_labels(device)
    # Where no driver tells a UUID, only the instance tells two devices of one board apart.
    return labels if device.uuid or not device.instance else {**labels, "device_instance": device.instance}


def _instance_labels(device: Device) -> dict[str, str]:
    """Return what tells which GPU an instance is cut from, and which part of it that is."""
    labels = {"gpu": (device.parent or "").removeprefix(f"{ViewKind.GPU}/")}
    for label, metric in _INSTANCE_LABELS[device.kind]:
        reading = device.readings.get(metric)
        labels[label] = "" if reading is None or reading.value is None else str(reading.value)
    return labels


_READER_FAMILIES = (
    ("gpufleet_reader_success", "1 if the newest pass of this reader's lane gave anything, 0 if it failed"),
    ("gpufleet_reader_partial", "1 if part of the newest pass stayed without values, else 0"),
    ("gpufleet_reader_duration_seconds", "How long the newest pass took"),
    ("gpufleet_reader_interval_seconds", "How often the lane is meant to be read"),
    ("gpufleet_reader_last_attempt_timestamp_seconds", "When the newest pass began, since 1970"),
    ("gpufleet_reader_last_success_timestamp_seconds", "When a pass last gave anything, since 1970"),
    ("gpufleet_reader_consecutive_failures", "Passes in a row that failed"),
    ("gpufleet_reader_error", "1 for a lane whose newest pass failed or was partial, with the class of its error"),
)


def _readers(page: Page, node: dict[str, str], reports: Iterable[ReaderReport]) -> None:
    for report in reports:
        labels = labelled({**node, "reader": report.reader, "lane": report.lane})
        page.add("gpufleet_reader_interval_seconds", labels, report.interval_seconds)
        if report.last_success is not None:
            page.add("gpufleet_reader_last_success_timestamp_seconds", labels, report.last_success.timestamp())
        if report.state is ReaderState.NEVER:
            continue
        page.add("gpufleet_reader_success", labels, int(report.state in (ReaderState.OK, ReaderState.PARTIAL)))
        page.add("gpufleet_reader_partial", labels, int(report.state is ReaderState.PARTIAL))
        page.add("gpufleet_reader_duration_seconds", labels, report.duration_seconds)
        page.add("gpufleet_reader_consecutive_failures", labels, report.failures)
        if report.last_attempt is not None:
            page.add("gpufleet_reader_last_attempt_timestamp_seconds", labels, report.last_attempt.timestamp())
        if report.error_class:
            page.add("gpufleet_reader_error", f"{labels},{labelled({'error_class': report.error_class})}", 1)
