"""Our own page of metrics, read back: what `exporters/prometheus` writes, from the catalogue both times."""

from collections.abc import Iterable, Iterator

from gpufleet.dialects.dialect import Dialect, Family, Subject, table
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.reading import Value
from gpufleet.model.series import Series
from gpufleet.model.view import Side, View, ViewKind

PREFIX = "gpufleet_"

FAMILIES = table(
    *(
        Family(name=PREFIX + metric.name, metric=metric.name, dims=metric.dims)
        for metric in CATALOGUE.values()
        if metric.kind in (MetricKind.GAUGE, MetricKind.COUNTER)
    )
)

_KINDS, _SIDES, _REASONS = set(ViewKind), set(Side), set(Reason)


def subject(series: Series) -> Subject | None:
    """Read who it is; series without a kind of device are the machine's."""
    labels = series.labels
    machine = labels.get("node", "")
    kind, side = labels.get("kind"), labels.get("side")
    if not kind:
        return Subject(machine=machine, view=None)
    uuid, pci, instance = labels.get("uuid"), labels.get("pci_address"), labels.get("device_instance")
    if kind not in _KINDS or side not in _SIDES or not (uuid or pci or instance):
        return None
    parent = labels.get("gpu")
    view = View(
        kind=ViewKind(kind),
        side=Side(side),
        uuid=uuid or None,
        pci_address=pci or None,
        instance=instance or None,
        parent=f"{ViewKind.GPU}/{parent}" if parent else None,
    )
    return Subject(machine=machine, view=view, name=labels.get("name", ""))


def _state(series: Series, value: float) -> Iterator[tuple[str, Value | Absent]]:
    """Read a state: of its series, one for each name, the one that is 1."""
    name = series.name.removeprefix(PREFIX)
    state = series.labels.get("state", "")
    if value == 1:
        known = state in CATALOGUE[name].states
        yield name, state if known else Absent(Reason.INVALID_VALUE, f"{name}: a state without a name")


def _absent(series: Series, _: float) -> Iterator[tuple[str, Value | Absent]]:
    metric, reason = series.labels.get("metric", ""), series.labels.get("reason", "")
    known = CATALOGUE.get(metric)
    if known is not None and not known.dims:
        yield metric, Absent(Reason(reason) if reason in _REASONS else Reason.UNKNOWN)


def _info(series: Series, _: float) -> Iterable[tuple[str, Value | Absent]]:
    """Read the texts that `*_info` carries as labels."""
    prefix = series.name.removeprefix(PREFIX).removesuffix("info")
    for label, text in series.labels.items():
        known = CATALOGUE.get(prefix + label) or CATALOGUE.get(label)
        if text and known is not None and known.kind is MetricKind.INFO:
            yield known.name, text


NATIVE = Dialect(
    name="gpufleet",
    prefixes=(PREFIX,),
    families=FAMILIES,
    unread={
        PREFIX + name: "the agent's word about itself"
        for name in (
            *("build_info", "capability", "reader_success", "reader_partial", "reader_duration_seconds"),
            *("reader_interval_seconds", "reader_last_attempt_timestamp_seconds", "reader_error"),
            *("reader_last_success_timestamp_seconds", "reader_consecutive_failures"),
        )
    },
    subject=subject,
    special={
        **{PREFIX + metric.name: _state for metric in CATALOGUE.values() if metric.kind is MetricKind.STATE},
        "gpufleet_reading_absent": _absent,
        "gpufleet_gpu_info": _info,
        "gpufleet_host_info": _info,
    },
)
