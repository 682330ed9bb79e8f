"""Conversion of a remote-write request to samples of machines. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.kube_state_metrics import KUBE_STATE_METRICS, is_of_gpus
from gpufleet.dialects.reading import SeriesMeaning, pod_of, read_series
from gpufleet.dialects.registry import CLUSTER_DIALECTS
from gpufleet.hub.imports.request import ImportedRequest, has_valid_names, is_valid_name
from gpufleet.model.holdings import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import FORWARDED, ImportedSeries

READER = "remote_write"
"""Prefix of the reader's name in written samples; the dialect follows, which keeps two exporters apart."""


def read_request(request: WriteRequest, reader: str = READER, *, plain_pods: bool = False) -> ImportedRequest:
    """Return the samples and holders of a request by machine.

    The machine's name is the exporter's own (dcgm-exporter's `Hostname`), or else the target's: `exported_node` or
    `exported_instance` (behind a federating Prometheus), then `node` or `instance` without the port.

    Args:
        request: as decoded.
        reader: prefix of the samples' reader; the dialect is appended.
        plain_pods: whether the labels `pod` and `namespace` are those of a workload, see `dialects.reading.pod_of`.
    """
    groups: dict[tuple[str, str], _SeriesGroup] = {}
    others: Counter[str] = Counter()
    unattributed = 0
    for number, series in enumerate(request.series):
        origin = series.origin
        if not isinstance(origin, SeriesOrigin):
            origin = series.origin = _origin_of(series)
        if origin.dialect is None:
            others[series.name] += 1
            continue
        group = groups.get((origin.dialect.name, origin.target))
        if group is None:
            group = groups[origin.dialect.name, origin.target] = _SeriesGroup(origin.dialect, origin.target, [])
        group.numbers.append(number)
    machines: dict[Machine, list[Sample]] = {}
    holders: dict[Machine, dict[tuple[str, int], frozenset[Holder]]] = {}
    drift: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for group in groups.values():
        found = _read_group(group, request, f"{reader}/{group.dialect.name}")
        unattributed += found.unattributed
        drift += found.drift
        labels += found.labels
        for own_name, samples in found.machines.items():
            machine = own_name or group.machine
            samples = [one for one in samples if has_valid_names(one)]
            if not is_valid_name(machine):
                unattributed += len(samples)
            elif samples:
                machines.setdefault(Machine(name=machine), []).extend(samples)
        if group.dialect is not DCGM_EXPORTER:
            continue  # a missing holder would look like a released device
        for own_name, at_views in _holders(request, group.numbers, plain=plain_pods).items():
            observed = Machine(name=own_name or group.machine)
            if observed in machines:
                holders.setdefault(observed, {}).update(at_views)
    return ImportedRequest(
        machines={machine: tuple(samples) for machine, samples in machines.items()},
        samples=len(request.values) + sum(request.problems.values()),
        drift=drift,
        others=others,
        unattributed=unattributed,
        holders=holders,
        labels=labels,
        problems={str(problem): count for problem, count in request.problems.items()},
        other_histograms=request.other_histograms,
        other_exemplars=request.other_exemplars,
    )


def is_known_metric(name: str) -> bool:
    """Return whether a metric name belongs to a known project."""
    return any(one.is_mine(name) for one in CLUSTER_DIALECTS)


def _holders(
    request: WriteRequest, numbers: list[int], *, plain: bool
) -> dict[str, dict[tuple[str, int], frozenset[Holder]]]:
    """Return the holders named by series, by machine name of the exporter and by view and instant."""
    ended = frozenset(request.stale)
    found: dict[str, dict[tuple[str, int], frozenset[Holder]]] = {}
    for number in numbers:
        series = request.series[number]
        meant = series.meaning
        if (
            number in ended
            or not isinstance(meant, SeriesMeaning)
            or meant.subject is None
            or meant.subject.view is None
            or meant.subject.guest
        ):
            continue
        origin = series.origin
        holder = (origin.plain_pod if plain else origin.pod) if isinstance(origin, SeriesOrigin) else None
        at_views = found.setdefault(meant.subject.machine, {})
        held = meant.subject.held or meant.subject.view
        place = held.key, request.times[number]
        before = at_views.get(place, frozenset())
        at_views[place] = before | {holder} if holder is not None else before
    return found


class SeriesOrigin(NamedTuple):
    """Origin of a series by its name and labels; cached, because writers repeat series.

    Attributes:
        dialect: its project; None if it is not imported.
        target: name of its target, or empty.
        pod, plain_pod: pod that holds its device, see `dialects.reading.pod_of`.
    """

    dialect: Dialect | None
    target: str = ""
    pod: Holder | None = None
    plain_pod: Holder | None = None


def _origin_of(series: ImportedSeries) -> SeriesOrigin:
    dialect = next((one for one in CLUSTER_DIALECTS if one.is_mine(series.name)), None)
    if dialect is None or FORWARDED in series.labels or (dialect is KUBE_STATE_METRICS and not is_of_gpus(series)):
        return SeriesOrigin(None)
    target = _target_of(series.labels)
    if dialect is not DCGM_EXPORTER:
        return SeriesOrigin(dialect, target)  # other exporters name no holders
    pod, plain_pod = pod_of(series.labels, plain=False), pod_of(series.labels, plain=True)
    return SeriesOrigin(dialect, target, pod, pod if pod == plain_pod else plain_pod)


def _target_of(labels: Mapping[str, str]) -> str:
    """Return the name of a series' target, or an empty text."""
    for prefix in ("exported_", ""):
        name = labels.get(f"{prefix}node") or host_of(labels.get(f"{prefix}instance", ""))
        if name:
            return name
    return ""


def host_of(instance: str) -> str:
    """Return the host of a target's `instance`, such as `node-1` of `node-1:9400`."""
    if instance.startswith("["):
        return instance[1:].partition("]")[0]
    host, colon, port = instance.rpartition(":")
    return host if colon and port.isascii() and port.isdigit() and ":" not in host else instance


class _SeriesGroup(NamedTuple):
    dialect: Dialect
    machine: str
    numbers: list[int]
    """Positions of its series in the request."""


class _GroupReading(msgspec.Struct, frozen=True):
    machines: Mapping[str, list[Sample]]
    drift: Counter[str]
    labels: Counter[str]
    unattributed: int


def _read_group(group: _SeriesGroup, request: WriteRequest, reader: str) -> _GroupReading:
    numbers = group.numbers
    series: list[ImportedSeries] = [request.series[number] for number in numbers]
    stale = frozenset(request.stale)
    read_ = read_series(
        group.dialect,
        series,
        [request.values[number] for number in numbers],
        {place: request.times[number] for place, number in enumerate(numbers)},
        0,
        reader=reader,
        ended=frozenset(place for place, number in enumerate(numbers) if number in stale),
    )
    drift = Counter(one.name for one in series if one.name in read_.unknown)
    unattributed = read_.unattributed + sum(map(len, read_.guests.values()))
    return _GroupReading(read_.machines, drift, read_.labels, unattributed)
