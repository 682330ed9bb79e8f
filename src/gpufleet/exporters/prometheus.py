"""The snapshot as a Prometheus page, under gpufleet's own names.

- A metric of the catalogue is named `gpufleet_` plus its catalogue name.
- A reading without a value has no series. `gpufleet_reading_absent` names it, with the reason.
- A state has one series per possible state: 1 for the current state, 0 for the others.
- Texts that seldom change are labels of `gpufleet_gpu_info` and `gpufleet_host_info`, which are always 1.
- Series of a MIG device or vGPU instance also carry the UUID of their GPU (`gpu`) and labels of the instance.
- `gpufleet_measured_timestamp_seconds` is the time of measurement by subject, reader and lane, with `provenance`.
- `gpufleet_gpu_holder_info` names the pods, jobs and virtual machines that have a device, for joins by `uuid`.
  `gpufleet_gpu_holder_state` is `unknown` if they are not known.
- Series of a virtual machine read from inside carry `namespace`, `vm_name` and `vm_uid`.
"""

from collections.abc import Generator, Iterable

from gpufleet.dialects.native import MEASURED
from gpufleet.exporters.exposition import FamilyHeader, MetricsPage, PageFormat, Section, format_labels, write_page
from gpufleet.exporters.holders import HOLDER_HELP
from gpufleet.exporters.subjects import ABSENT, FamilyBodies, SubjectSeries, catalogue_headers
from gpufleet.model.snapshot import Device, Guest, Host, ReaderReport, Snapshot
from gpufleet.model.status import ReaderState
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

    def __init__(self) -> None:
        """Create a page without series."""
        self._heads = {**catalogue_headers(), **_SUBJECT_HEADS}
        self._bases: list[str] = []
        self._subjects: list[SubjectSeries] = []
        self._families = FamilyBodies(self._heads, 0)
        self._rest: list[Section] = []

    def update(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Update the page from a snapshot, in small steps. The page is consistent after the last step."""
        node = format_labels({"node": snapshot.node.name})
        shown = subjects_of(node, snapshot.devices, snapshot.host)
        for guest in snapshot.guests:
            shown += subjects_of(f"{node},{format_labels(guest_labels(guest))}", guest.devices, guest.host)
            yield
        bases = [base for base, _ in shown]
        if bases != self._bases:
            self._bases = bases
            self._subjects = [
                SubjectSeries(base, GPU_INFO, DEVICE_LABEL_TEXTS)
                if isinstance(one, Device)
                else SubjectSeries(base, HOST_INFO, UNLABELLED_TEXTS)
                for base, one in shown
            ]
            self._families = FamilyBodies(self._heads, len(self._subjects))
        for place, (subject, (_, one)) in enumerate(zip(self._subjects, shown, strict=True)):
            yield
            holders = one.holders if isinstance(one, Device) else None
            self._families.put(place, subject.update(one.readings, one.dimensions, one.sources, holders))
        yield from self._families.join()
        self._rest = _agent_sections(snapshot)

    def sections(self) -> list[Section]:
        """Return the families."""
        return [*self._families.sections(), *self._rest]


def guest_labels(guest: Guest) -> dict[str, str]:
    """Return the labels of every series of a virtual machine: its configured or discovered identity."""
    return {"namespace": guest.namespace, "vm_name": guest.name, "vm_uid": guest.vm_uuid}


def subjects_of(base: str, devices: Iterable[Device], host: Host) -> list[tuple[str, Device | Host]]:
    """Return the devices and the machine itself, each with the labels of its series."""
    found: list[tuple[str, Device | Host]] = [(f"{base},{format_labels(device_labels(one))}", one) for one in devices]
    return [*found, (base, host)]


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
    ("gpufleet_reader_interval_seconds", "Configured interval of the lane"),
    ("gpufleet_reader_last_attempt_timestamp_seconds", "When the newest pass began, since 1970"),
    ("gpufleet_reader_last_success_timestamp_seconds", "When a pass last gave readings, since 1970"),
    ("gpufleet_reader_consecutive_failures", "Consecutive failed passes"),
    ("gpufleet_reader_error", "1 if the newest pass of a lane failed or was partial, with the error class"),
)


def _add_readers(page: MetricsPage, node: dict[str, str], reports: Iterable[ReaderReport]) -> None:
    for report in reports:
        labels = format_labels({**node, "reader": report.reader, "lane": report.lane})
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
        if report.error_class and report.state is not ReaderState.OK:
            page.add("gpufleet_reader_error", f"{labels},{format_labels({'error_class': report.error_class})}", 1)
