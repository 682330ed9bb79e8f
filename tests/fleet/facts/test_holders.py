import numpy as np

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.fleet.facts.holders import GpuHolders, holder_columns, machine_holdings, views_of
from gpufleet.model.holdings import (
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Method,
)
from gpufleet.model.stored.holdings import StoredHolderStates, StoredHolding
from gpufleet.model.time import NANOS

NOW = 1_700_000_000 * NANOS
FREE, HELD, UNKNOWN = HolderState.FREE, HolderState.HELD, HolderState.UNKNOWN


def held(
    view: str, verdict: HoldingVerdict = HoldingVerdict.AGREED, *, since: int = 10, method: Method = Method.KUBELET
) -> StoredHolding:
    kind = HolderKind.JOB if method is Method.SCHEDULER else HolderKind.POD
    holder = Holder(kind=kind, id=f"holder of {view}")
    one = Holding(view=view, holder=holder, since=since, methods=(method,), verdict=verdict)
    return StoredHolding(cluster="c", machine="m", holding=one, reported_at=NOW)


def states(**of_view: HolderState) -> StoredHolderStates:
    devices = tuple(DeviceState(view=view.replace("_", "/"), state=state) for view, state in of_view.items())
    return StoredHolderStates(sender="s", reported_at=NOW, sent_at=NOW, devices=devices, unresolved=())


def test_gpu_is_held_by_the_holder_of_a_part() -> None:
    holdings = [held("gpu/a"), held("mig/x", since=5), held("mig/y", since=9), held("gpu/c", HoldingVerdict.CONFLICT)]
    found = machine_holdings(holdings, [states(gpu_a=HELD, gpu_d=FREE)], {"mig/x": "gpu/b", "mig/y": "gpu/b"}, NOW)
    assert found.gpus == (
        GpuHolders("gpu/a", 1, 10, False),
        GpuHolders("gpu/b", 1, 9, False),
        GpuHolders("gpu/c", 1, 10, True),
        GpuHolders("gpu/d", 0, 0, False),
    )
    assert (found.pods, found.jobs) == (4, 0)


def test_gpu_is_free_only_if_all_parts_are() -> None:
    reported = [states(gpu_a=FREE, mig_x=FREE, gpu_b=FREE, mig_y=UNKNOWN, mig_z=FREE)]
    found = machine_holdings([], reported, {"mig/x": "gpu/a", "mig/y": "gpu/b", "mig/z": "gpu/c"}, NOW)
    assert [(one.view, one.held) for one in found.gpus if one.held == 0] == [("gpu/a", 0), ("gpu/c", 0)]
    assert [one.view for one in found.gpus if np.isnan(one.held)] == ["gpu/b"]


def test_no_gpu_is_free_while_a_held_part_is_unknown() -> None:
    found = machine_holdings([held("mig/x")], [states(gpu_a=FREE)], {}, NOW)
    assert [one.view for one in found.gpus] == ["gpu/a"]
    assert np.isnan(found.gpus[0].held)


def test_uncertain_holder_makes_a_gpu_unknown() -> None:
    found = machine_holdings([held("gpu/a", HoldingVerdict.UNKNOWN)], [], {}, NOW)
    assert np.isnan(found.gpus[0].held)


def test_old_reports_show_no_holders() -> None:
    later = NOW + HOLDING_TTL_NS + 1
    assert machine_holdings([held("gpu/a")], [states(gpu_a=HELD)], {}, later).gpus == ()


def test_devices_of_jobs_are_counted_apart() -> None:
    found = machine_holdings([held("gpu/a", method=Method.SCHEDULER), held("mig/x")], [], {"mig/x": "gpu/b"}, NOW)
    assert (found.pods, found.jobs) == (1, 1)
    assert views_of([held("gpu/a")], [states(mig_x=FREE)]) == {"gpu/a", "mig/x"}


def test_columns_have_a_row_per_gpu() -> None:
    columns = holder_columns([("m", (GpuHolders("gpu/a", 1, 7, True),)), ("n", ())])
    assert (columns.machine, columns.view, columns.held, columns.since, columns.conflict) == (
        ["m"],
        ["gpu/a"],
        [1],
        [7],
        [True],
    )
