"""The snapshot as a Prometheus page, under gpufleet's own names.

- A metric of the catalogue is named `gpufleet_` plus its catalogue name.
- A reading without a value has no series. `gpufleet_reading_absent` names it, with the reason.
- A state has one series per possible state: 1 for the current state, 0 for the others.
- Texts that seldom change are labels of `gpufleet_gpu_info` and `gpufleet_host_info`, which are always 1.
- Series of a MIG device or vGPU instance also carry the UUID of their GPU (`gpu`) and labels of the instance.
- `gpufleet_measured_timestamp_seconds` is the time of measurement by subject, reader and lane, with `provenance`.
- `gpufleet_gpu_holder_info` names the pods, jobs and virtual machines that have a device, for joins by `uuid`.
  `gpufleet_gpu_holder_state` is `unknown` if they are not known.
- With `holder_labels`, all other series of a device with exactly one holder name it, in the labels of `series_labels`.
- Series of a virtual machine read from inside carry `namespace`, `vm_name` and `vm_uid`.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from gpufleet.dialects.native import INTERVAL, MEASURED
from gpufleet.exporters.exposition import FamilyHeader, MetricsPage, PageFormat, Section, format_labels, write_page
from gpufleet.exporters.holders import HOLDER_HELP, only_holder, series_labels
from gpufleet.exporters.subjects import ABSENT, FamilyBodies, SubjectLabels, SubjectSeries, catalogue_headers
from gpufleet.model.holdings import Holding
from gpufleet.model.snapshot import Device, Guest, Host, ReaderReport, Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.model.time import to_datetime
from gpufleet.model.view import ViewKind
from gpufleet.runtime import run_to_end

GPU_INFO, HOST_INFO = "gpufleet_gpu_info", "gpufleet_host_info"

_SUBJECT_HEADS = {
    family: FamilyHeader.of(family, "gauge", help_, unit)
    for family, help_, unit in (
        (GPU_INFO, "Texts of one device that seldom change; always 1", ""),
        (HOST_INFO, "Texts of the machine that seldom change; always 1", ""),
        (ABSENT, "1 for a reading without a value, with the reason", ""),
        *((family, help_, "") for family, help_ in HOLDER_HELP.items()),
        (MEASURED, "When the newest values of a reader's lane were measured, since 1970", "seconds"),
    )
}

DEVICE_LABEL_TEXTS = frozenset(
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
"""Info texts that are already labels of every series of a device, so `gpufleet_gpu_info` omits them."""


UNLABELLED_TEXTS = frozenset({"guest_problem"})
"""Info texts of a machine that are not labels, because their text differs with each problem."""

_INSTANCE_LABELS = {
    ViewKind.MIG: (
        ("profile", "mig_profile"),
        ("gpu_instance", "mig_gpu_instance"),
        ("compute_instance", "mig_compute_instance"),
    ),
    ViewKind.VGPU: (("profile", "vgpu_type"), ("vm_id", "vgpu_vm_id")),
}
"""Labels of an instance, and the info texts that they show."""


class PrometheusExporter:
    """Renders the page of one machine from one snapshot."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the page in the text format."""
        native = NativePage()
        run_to_end(native.update(snapshot))
        return write_page(native.sections(), PageFormat.TEXT)


class NativePage:
    """The page of one machine, updated incrementally: unchanged lines are reused."""

    def __init__(self, *, holder_labels: bool = False) -> None:
        """Create a page without series.

        Args:
            holder_labels: name the only holder of a device in the labels of its series.
        """
        self._holder_labels = holder_labels
        self._heads = {**catalogue_headers(), **_SUBJECT_HEADS}
        self._labels: list[SubjectLabels] = []
        self._subjects: list[SubjectSeries] = []
        self._families = FamilyBodies(self._heads, 0)
        self._rest: list[Section] = []

    def update(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Update the page from a snapshot, in small steps. The page is consistent after the last step."""
        shown: list[PageSubject] = []
        for subjects in subjects_of(snapshot, holder_labels=self._holder_labels):
            shown += subjects
            yield
        labels = [subject.labels for subject in shown]
        if labels != self._labels:
            self._labels = labels
            self._subjects = [
                SubjectSeries(subject.labels, GPU_INFO, DEVICE_LABEL_TEXTS)
                if isinstance(subject.of, Device)
                else SubjectSeries(subject.labels, HOST_INFO, UNLABELLED_TEXTS)
                for subject in shown
            ]
            self._families = FamilyBodies(self._heads, len(self._subjects))
        for place, (series, subject) in enumerate(zip(self._subjects, shown, strict=True)):
            yield
            one = subject.of
            holders = one.holders if isinstance(one, Device) else None
            self._families.put(place, series.update(one.readings, one.dimensions, one.sources, holders))
        yield from self._families.join()
        self._rest = _agent_sections(snapshot)

    def sections(self) -> list[Section]:
        """Return the families."""
        return [*self._families.sections(), *self._rest]


def guest_labels(guest: Guest) -> dict[str, str]:
    """Return the labels of every series of a virtual machine: its configured or discovered identity."""
    return {"namespace": guest.namespace, "vm_name": guest.name, "vm_uid": guest.vm_uuid}


class PageSubject(NamedTuple):
    """A device or machine, with the labels of its series."""

    labels: SubjectLabels
    of: Device | Host


def subjects_of(snapshot: Snapshot, *, holder_labels: bool) -> Iterator[list[PageSubject]]:
    """Yield the subjects of the node and of each virtual machine: its devices and the machine itself.

    Args:
        snapshot: their source.
        holder_labels: name the only holder of the node's devices in their labels.
    """
    node = format_labels({"node": snapshot.node.name})
    devices = [
        _device_subject(node, device, only_holder(device.holders) if holder_labels else None)
        for device in snapshot.devices
    ]
    yield [*devices, PageSubject(SubjectLabels(node, node), snapshot.host)]
    for guest in snapshot.guests:
        base = f"{node},{format_labels(guest_labels(guest))}"
        devices = [_device_subject(base, device, None) for device in guest.devices]
        yield [*devices, PageSubject(SubjectLabels(base, base), guest.host)]


def _device_subject(machine: str, device: Device, holding: Holding | None) -> PageSubject:
    identity = f"{machine},{format_labels(device_labels(device))}"
    labels = {} if holding is None else series_labels(holding)
    if holding is None or not labels:
        return PageSubject(SubjectLabels(identity, identity), device)
    base = f"{identity},{format_labels(labels)}"
    return PageSubject(SubjectLabels(base, identity, to_datetime(holding.since)), device)


def _agent_sections(snapshot: Snapshot) -> list[Section]:
    page = MetricsPage()
    add_agent(page, snapshot)
    return page.sections()


def add_agent(page: MetricsPage, snapshot: Snapshot) -> None:
    """Add the families of readers, capabilities and build of the agent."""
    node = {"node": snapshot.node.name}
    for family, help_ in _READER_FAMILIES:
        page.declare(family, "gauge", help_, "seconds")
    _add_readers(page, node, snapshot.readers)
    for guest in snapshot.guests:
        _add_readers(page, {**node, **guest_labels(guest)}, guest.readers)
    page.declare("gpufleet_capability", "gauge", "1 if the capability is available here, else 0")
    for name, status in snapshot.capabilities.items():
        page.add("gpufleet_capability", format_labels({**node, "capability": name}), int(status == "available"))
    if snapshot.unresolved is not None:
        family = "gpufleet_agent_unresolved_devices"
        page.declare(family, "gauge", "Device names of a holder source that identify no device of this machine")
        for source, count in snapshot.unresolved.counts.items():
            page.add(family, format_labels({**node, "source": source}), count)
    page.declare("gpufleet_build_info", "gauge", "Version of gpufleet and of its catalogue; always 1")
    page.add(
        "gpufleet_build_info",
        format_labels({**node, "version": snapshot.version, "catalogue": str(snapshot.catalogue)}),
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
    # If the driver reports no UUID, only the instance distinguishes devices of one board.
    return labels if device.uuid or not device.instance else {**labels, "device_instance": device.instance}


def _instance_labels(device: Device) -> dict[str, str]:
    """Return the labels of an instance: its GPU, and the part of the GPU."""
    labels = {"gpu": (device.parent or "").removeprefix(f"{ViewKind.GPU}/")}
    for label, metric in _INSTANCE_LABELS[device.kind]:
        reading = device.readings.get(metric)
        labels[label] = "" if reading is None or reading.value is None else str(reading.value)
    return labels


_READER_FAMILIES = (
    ("gpufleet_reader_success", "1 if the newest pass of this lane gave readings, 0 if it failed"),
    ("gpufleet_reader_partial", "1 if part of the newest pass failed, else 0"),
    ("gpufleet_reader_duration_seconds", "Duration of the newest pass"),
    (INTERVAL, "Configured interval of the lane"),
    ("gpufleet_reader_last_attempt_timestamp_seconds", "When the newest attempt to read began, since 1970"),
    ("gpufleet_reader_last_success_timestamp_seconds", "When a pass last gave readings, since 1970"),
    ("gpufleet_reader_consecutive_failures", "Consecutive failed passes"),
    ("gpufleet_reader_error", "1 if the newest pass of a lane failed or was partial, with the error class"),
)


def _add_readers(page: MetricsPage, node: dict[str, str], reports: Iterable[ReaderReport]) -> None:
    for report in reports:
        labels = format_labels({**node, "reader": report.reader, "lane": report.lane})
        if report.interval_seconds is not None:
            page.add(INTERVAL, labels, report.interval_seconds)
        if report.last_success is not None:
            page.add("gpufleet_reader_last_success_timestamp_seconds", labels, report.last_success.timestamp())
        if report.state is ReaderState.NEVER:
            continue
        page.add("gpufleet_reader_success", labels, int(report.state in (ReaderState.OK, ReaderState.PARTIAL)))
        page.add("gpufleet_reader_partial", labels, int(report.state is ReaderState.PARTIAL))
        if report.duration_seconds is not None:
            page.add("gpufleet_reader_duration_seconds", labels, report.duration_seconds)
        page.add("gpufleet_reader_consecutive_failures", labels, report.failures)
        if report.last_attempt is not None:
            page.add("gpufleet_reader_last_attempt_timestamp_seconds", labels, report.last_attempt.timestamp())
        if report.error_class and report.state is not ReaderState.OK:
            page.add("gpufleet_reader_error", f"{labels},{format_labels({'error_class': report.error_class})}", 1)
