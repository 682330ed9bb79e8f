"""A remote-write request as samples of machines. Pure."""

from collections import Counter
from collections.abc import Container, Mapping
from typing import NamedTuple

import msgspec

from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect
from gpufleet.dialects.known import OF_CLUSTERS
from gpufleet.dialects.kube_state_metrics import KUBE_STATE_METRICS, is_of_gpus
from gpufleet.dialects.reading import Meaning, pod_of, read
from gpufleet.hub.imports.request import Written, can_be_called, has_a_name
from gpufleet.model.holding import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import FORWARDED, Series

READER = "remote_write"
"""How a reader's name begins in samples that were written; the dialect follows, so that two exporters stay apart."""


def read_request(request: WriteRequest, reader: str = READER, *, plain_pods: bool = False) -> Written:
    """Return what a request says; `reader` and the dialect are the reader of its samples.

    A machine is called as the exporter calls it (dcgm-exporter's `Hostname`), or else as its target is (`node`, or
    `instance` without the port; before them `exported_node` and `exported_instance`, which stand behind a Prometheus
    that federates). `plain_pods` says that labels `pod` and `namespace` are a workload's, see `pods`.
    """
    targets: dict[tuple[str, str], _Target] = {}
    dialects: dict[str, Dialect | None] = {}
    others: Counter[str] = Counter()
    nameless = 0
    for number, series in enumerate(request.series):
        if series.name not in dialects:
            dialects[series.name] = next((one for one in OF_CLUSTERS if one.is_mine(series.name)), None)
        dialect = dialects[series.name]
        if dialect is None or FORWARDED in series.labels or (dialect is KUBE_STATE_METRICS and not is_of_gpus(series)):
            others[series.name] += 1
        else:
            machine = _target_of(series.labels)
            target = targets.get((dialect.name, machine))
            if target is None:
                target = targets[dialect.name, machine] = _Target(dialect, machine, [])
            target.numbers.append(number)
    machines: dict[Machine, list[Sample]] = {}
    holders: dict[Machine, dict[tuple[str, int], frozenset[Holder]]] = {}
    drift: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    for target in targets.values():
        found = _read_target(target, request, f"{reader}/{target.dialect.name}")
        nameless += found.nameless
        drift += found.drift
        labels += found.labels
        for told, samples in found.machines.items():
            machine = told or target.machine
            samples = [one for one in samples if has_a_name(one)]
            if not can_be_called(machine) or told in found.guests:
                nameless += len(samples)
            elif samples:
                machines.setdefault(Machine(name=machine), []).extend(samples)
        if target.dialect is not DCGM_EXPORTER:
            continue  # no other one names who holds a device, and what it does not name would look let go of
        for told, at_views in _holders(request, target.numbers, plain=plain_pods).items():
            observed = Machine(name=told or target.machine)
            if observed in machines and told not in found.guests:
                holders.setdefault(observed, {}).update(at_views)
    return Written(
        machines={machine: tuple(samples) for machine, samples in machines.items()},
        samples=len(request.values) + sum(request.problems.values()),
        drift=drift,
        others=others,
        nameless=nameless,
        holders=holders,
        labels=labels,
        problems={str(problem): count for problem, count in request.problems.items()},
        other_histograms=request.other_histograms,
        other_exemplars=request.other_exemplars,
    )


def is_wanted(name: str) -> bool:
    """Tell whether a metric is of a project that is known here."""
    return any(one.is_mine(name) for one in OF_CLUSTERS)


def _holders(
    request: WriteRequest, numbers: list[int], *, plain: bool
) -> dict[str, dict[tuple[str, int], frozenset[Holder]]]:
    """Return, by the machine that an exporter tells, who is named as holding its views, where anybody ever was."""
    ended = frozenset(request.stale)
    found: dict[str, dict[tuple[str, int], frozenset[Holder]]] = {}
    for number in numbers:
        series = request.series[number]
        meant = series.meaning
        if number in ended or not isinstance(meant, Meaning) or meant.whose is None or meant.whose.view is None:
            continue
        holder = pod_of(series.labels, plain=plain)
        at_views = found.setdefault(meant.whose.machine, {})
        place = meant.whose.view.key, request.times[number]
        before = at_views.get(place, frozenset())
        at_views[place] = before | {holder} if holder is not None else before
    return found


def _target_of(labels: Mapping[str, str]) -> str:
    """Return what the target of a series is called, or empty."""
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


class _Target(NamedTuple):
    dialect: Dialect
    machine: str
    numbers: list[int]
    """Of its series in the request."""


class _Found(msgspec.Struct, frozen=True):
    machines: Mapping[str, list[Sample]]
    drift: Counter[str]
    labels: Counter[str]
    nameless: int
    guests: Container[str]


def _read_target(target: _Target, request: WriteRequest, reader: str) -> _Found:
    numbers = target.numbers
    series: list[Series] = [request.series[number] for number in numbers]
    stale = frozenset(request.stale)
    read_ = read(
        target.dialect,
        series,
        [request.values[number] for number in numbers],
        {place: request.times[number] for place, number in enumerate(numbers)},
        0,
        reader=reader,
        ended=frozenset(place for place, number in enumerate(numbers) if number in stale),
    )
    drift = Counter(one.name for one in series if one.name in read_.unknown)
    return _Found(read_.machines, drift, read_.labels, read_.nameless, read_.guests)
