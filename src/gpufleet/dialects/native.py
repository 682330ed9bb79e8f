"""Native dialect: import of the page that `exporters/prometheus` renders from the catalogue."""

from collections.abc import Iterator

from gpufleet.dialects.dialect import Dialect, FamilyMapping, MappedValue, SeriesSubject, guest_name, table
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import Side, View, ViewKind

PREFIX = "gpufleet_"
MEASURED = "gpufleet_measured_timestamp_seconds"
INTERVAL = "gpufleet_reader_interval_seconds"

FAMILIES = table(
    *(
        FamilyMapping(name=PREFIX + metric.name, metric=metric.name, dims=metric.dims)
        for metric in CATALOGUE.values()
        if metric.kind in (MetricKind.GAUGE, MetricKind.COUNTER)
    )
)

_JOINED: dict[str, dict[str, str]] = {
    ViewKind.MIG: {
        "profile": "mig_profile",
        "gpu_instance": "mig_gpu_instance",
        "compute_instance": "mig_compute_instance",
    },
    ViewKind.VGPU: {"profile": "vgpu_type", "vm_id": "vgpu_vm_id"},
}
"""Labels on every series of an instance, to info metrics."""

_KINDS, _SIDES, _REASONS = set(ViewKind), set(Side), set(Reason)


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the subject of a series; a series without a device kind is about the machine."""
    labels = series.labels
    guest = guest_name(labels)
    machine = guest or labels.get("exported_node") or labels.get("node", "")
    kind, side = labels.get("kind"), labels.get("side")
    if not kind:
        return SeriesSubject(machine=machine, view=None, guest=bool(guest))
    uuid, pci, instance = labels.get("uuid"), labels.get("pci_address"), labels.get("device_instance")
    if kind not in _KINDS or side not in _SIDES or not (uuid or pci or instance):
        return None
    if kind == ViewKind.MIG and not instance and labels.get("gpu_instance") and labels.get("compute_instance"):
        instance = f"{labels['gpu_instance']}/{labels['compute_instance']}"
    parent = labels.get("gpu")
    view = View(
        kind=ViewKind(kind),
        side=Side(side),
        uuid=uuid or None,
        pci_address=pci or None,
        instance=instance or None,
        parent=f"{ViewKind.GPU}/{parent}" if parent else None,
    )
    return SeriesSubject(machine=machine, view=view, name=labels.get("name", ""), guest=bool(guest))


def _state(series: ImportedSeries, value: float) -> Iterator[MappedValue]:
    """Return a state from the series with value 1; there is one series per state name."""
    name = series.name.removeprefix(PREFIX)
    state = series.labels.get("state", "")
    if value == 1:
        known = state in CATALOGUE[name].states
        labels = tuple(series.labels.get(dim, "") for dim in CATALOGUE[name].dims)
        yield name, labels, state if known else Absent(Reason.INVALID_VALUE, f"{name}: unknown state")


def _absent(series: ImportedSeries, _: float) -> Iterator[MappedValue]:
    metric, reason = series.labels.get("metric", ""), series.labels.get("reason", "")
    known = CATALOGUE.get(metric)
    if known is not None:
        labels = tuple(series.labels.get(f"dim_{dim}", "") for dim in known.dims)
        yield metric, labels, Absent(Reason(reason) if reason in _REASONS else Reason.UNKNOWN)


def _info(series: ImportedSeries, _: float) -> Iterator[MappedValue]:
    """Return the texts in the labels of `*_info`, with the address, which all series of a device have."""
    address, side = series.labels.get("pci_address"), series.labels.get("side")
    if address and series.labels.get("kind") == ViewKind.GPU and side != Side.PCI_ONLY:
        yield "gpu_pci_address", (), address
    prefix = series.name.removeprefix(PREFIX).removesuffix("info")
    joined = _JOINED.get(series.labels.get("kind", ""), {})
    for label, text in series.labels.items():
        known = CATALOGUE.get(joined.get(label, prefix + label)) or CATALOGUE.get(label)
        if text and known is not None and known.kind is MetricKind.INFO:
            yield known.name, (), text


NATIVE = Dialect(
    name="gpufleet",
    prefixes=(PREFIX,),
    families=FAMILIES,
    unread={
        PREFIX + "findings": "findings of a hub about its own fleet",
        PREFIX + "contract_items": "verdicts of a hub about its own clusters",
    },
    identify=identify,
    self_prefixes=tuple(
        PREFIX + name
        for name in (
            *("agent_", "batches_", "build_info", "capability", "epoch_", "export_", "hub_", "otlp_", "push_"),
            *("reader_", "relay_", "remote_write_", "spool_"),
        )
    ),
    measured=MEASURED,
    intervals=INTERVAL,
    special={
        **{PREFIX + metric.name: _state for metric in CATALOGUE.values() if metric.kind is MetricKind.STATE},
        "gpufleet_reading_absent": _absent,
        "gpufleet_gpu_info": _info,
        "gpufleet_host_info": _info,
    },
)
