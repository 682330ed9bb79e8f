"""Backlogs of a writer: states and events are those of the scrapes, in however many requests they arrive."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.hub.imports.row_cache import RowCache
from gpufleet.hub.imports.state_events import ImportedStates
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.time import NANOS

T0 = 1_700_000_000 * NANOS
INTERVAL = 15 * NANOS
UUID = "GPU-aaaaaaaa-1111-2222-3333-444444444444"

Points = list[tuple[str, dict[str, str], float]]


def exporter_scrape(kind: str) -> Points:
    """Return a scrape of nvidia_gpu_exporter, which reports failures only."""
    device = {"uuid": UUID.removeprefix("GPU-"), "pci_bus_id": "00000000:3B:00.0"}
    serial = "[GPU is lost]" if kind == "lost" else "7"
    points: Points = [
        ("nvidia_smi_gpu_info", {**device, "name": "NVIDIA H200", "serial": serial}, 1),
        ("nvidia_smi_pstate", device, 0),
        ("nvidia_smi_reset_status_reset_required", device, float(kind == "reset_required")),
    ]
    return points if kind == "lost" else [*points, ("nvidia_smi_temperature_gpu", device, 40)]


def agent_scrape(kind: str) -> Points:
    """Return a scrape of an agent."""
    device = {"uuid": UUID, "kind": "gpu", "side": "host"}
    shown = "ok" if kind == "lost_by_cell" else kind
    states = ("ok", "lost", "reset_required")
    points: Points = [("gpufleet_gpu_state", {**device, "state": one}, float(one == shown)) for one in states]
    if kind == "lost_by_cell":
        absent = {**device, "metric": "gpu_temperature_celsius", "reason": "gpu_lost"}
        return [*points, ("gpufleet_reading_absent", absent, 1)]
    return [*points, ("gpufleet_gpu_temperature_celsius", device, 40)]


SCRAPES = {
    "exporter": (exporter_scrape, ("ok", "lost", "reset_required")),
    "agent": (agent_scrape, ("ok", "lost", "reset_required", "lost_by_cell")),
}


def request(scrapes: Iterable[tuple[int, Points]]) -> WriteRequest:
    points = [(one, at) for at, scrape in scrapes for one in scrape]
    return WriteRequest(
        series=[ImportedSeries(name, {"instance": "node-1:9835", **labels}) for (name, labels, _), _ in points],
        values=[value for (_, _, value), _ in points],
        times=[at for _, at in points],
        stale=[],
        types={},
        problems={},
    )


def received(requests: Sequence[Sequence[tuple[int, Points]]]) -> tuple[dict[int, object], list[tuple[str, int]]]:
    """Return the state at each time, and the events, as a hub receives them."""
    cache, states = RowCache(), ImportedStates()
    shown: dict[int, object] = {}
    events: list[tuple[str, int]] = []
    for scrapes in requests:
        for machine, samples in read_request(request(scrapes)).machines.items():
            rows = cache.merge(machine, samples)
            shown |= {row.measured_at: row.values["gpu_state"] for row in rows if "gpu_state" in row.values}
            changes = states.changes(machine, rows, T0 + 1000 * INTERVAL)
            states.keep(changes)
            cache.keep(machine, rows, 0.0)
            events += [(event.kind, event.at) for event in changes.events]
    return shown, events


@pytest.mark.parametrize("source", SCRAPES)
@given(data=st.data())
def test_any_number_of_scrapes_in_a_request_has_the_same_states(source: str, data: st.DataObject) -> None:
    scrape, kinds = SCRAPES[source]
    order = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=10))
    scrapes = [(T0 + number * INTERVAL, scrape(kind)) for number, kind in enumerate(order)]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(scrapes)))) | {0, len(scrapes)})
    backlog = [scrapes[begin:end] for begin, end in pairwise(cuts)]
    assert received(backlog) == received([[one] for one in scrapes])
