"""Present and past PCI slots of GPUs, and GPU pools, from the history of info texts."""

from collections.abc import Sequence
from typing import Any

from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS
from gpufleet.model.api.inventory import ChangeKind, ChangeQuery, GpuPool, SlotRow, StoredChange, StoredSlot
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import INDEX_KEY_PREFIX

MAX_BEGUN = 1000
"""Maximum number of times at which a view was first reported in a slot, besides the first and the newest one."""

_SLOTS = f"""
SELECT machine, view, text, arraySort(arrayDistinct(arrayConcat(
    [min(toUnixTimestamp64Nano(since)), max(toUnixTimestamp64Nano(since))],
    groupUniqArray({MAX_BEGUN})(toUnixTimestamp64Nano(since))))),
    arraySort(groupUniqArray({MAX_BEGUN})((reader, toUnixTimestamp64Nano(since), toUnixTimestamp64Nano(before))))
FROM info
WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}} AND metric = 'gpu_pci_address'
    AND ({{view:String}} = '' OR view = {{view:String}}) AND ({{address:String}} = '' OR text = {{address:String}})
GROUP BY machine, view, text ORDER BY machine, view, text
"""  # noqa: S608 - a constant; values are bound as parameters

_SEEN = """
SELECT machine, view, max(toUnixTimestamp64Nano(received_at)) FROM latest
WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)} AND view IN {views:Array(String)}
GROUP BY machine, view
"""

_NAMED = f"startsWith(view, 'gpu/') AND NOT startsWith(view, '{INDEX_KEY_PREFIX}')"

_CHANGES = f"""
WITH addresses AS (
    SELECT DISTINCT cluster, machine, view, text AS address, toUnixTimestamp64Nano(since) AS at FROM info
    WHERE metric = 'gpu_pci_address' AND {_NAMED}
        AND (cluster, machine, view) IN (SELECT cluster, machine, view FROM views FINAL WHERE side = 'host')),
changes AS (
    SELECT 'moved' AS kind, at, cluster, machine, address, view, lagInFrame([cluster, machine, address])
        OVER (PARTITION BY view ORDER BY at, cluster, machine, address
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS before,
        before != [cluster, machine, address] AS is_other
    FROM addresses
    UNION ALL
    SELECT 'replaced' AS kind, at, cluster, machine, address, view, lagInFrame([view])
        OVER (PARTITION BY cluster, machine, address ORDER BY at, view
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS before,
        before != [view] AS is_other
    FROM addresses)
SELECT cityHash64(kind, at, cluster, machine, address, view, before) AS id, at, kind, cluster, machine, address, view,
    before
FROM changes
WHERE is_other AND notEmpty(before) AND at >= {{start:Int64}} AND at < {{end:Int64}}
    AND ({{cluster:String}} = '' OR cluster = {{cluster:String}})
    AND ({{all:Bool}} OR machine IN {{machines:Array(String)}})
    AND ({{kind:String}} = '' OR kind = {{kind:String}})
    AND (at, id) < ({{before_at:Int64}}, {{before_id:UInt64}})
ORDER BY at DESC, id DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608 - names are constants; values are bound as parameters

_POOLS = f"""
WITH current AS (
    SELECT cluster, machine, view, reader, lane, info_set, side FROM (
        SELECT cluster, machine, view, reader, lane, info_set, toUnixTimestamp(received_at) AS at,
            max(at) OVER (PARTITION BY cluster, machine) AS newest
        FROM latest FINAL WHERE {{cluster:String}} = '' OR cluster = {{cluster:String}}) AS samples
    LEFT JOIN (
        SELECT cluster, machine, view, any(side) AS side FROM views FINAL GROUP BY cluster, machine, view) AS seen
        USING (cluster, machine, view)
    WHERE at >= newest - {REPORT_WINDOW_SECONDS}),
texts AS (
    SELECT cluster, machine, view, reader, lane, info_set, metric, text FROM info FINAL
    WHERE metric IN ('gpu_name', 'gpu_vbios_version', 'nvidia_driver_version')),
gpus AS (
    SELECT cluster, machine, view, any(side) AS side,
        anyIf(text, metric = 'gpu_name') AS name, anyIf(text, metric = 'gpu_vbios_version') AS vbios
    FROM current LEFT JOIN texts USING (cluster, machine, view, reader, lane, info_set)
    WHERE {_NAMED}
    GROUP BY cluster, machine, view),
drivers AS (
    SELECT cluster, machine, max(text) AS driver
    FROM current INNER JOIN texts USING (cluster, machine, view, reader, lane, info_set)
    WHERE metric = 'nvidia_driver_version'
    GROUP BY cluster, machine)
SELECT cluster, side, name, driver, vbios, count(), uniqExact(machine)
FROM gpus LEFT JOIN drivers USING (cluster, machine)
GROUP BY cluster, side, name, driver, vbios ORDER BY cluster, side, name, driver, vbios
"""  # noqa: S608 - as above


def fetch_slots(
    handle: Handle, cluster: str, machines: Sequence[str], view: str | None, address: str | None
) -> tuple[StoredSlot, ...]:
    """Return views by PCI slot; see `ports.HistoryStore.slots`."""
    parameters: dict[str, Any] = {"cluster": cluster, "machines": list(machines)}
    filters = {**parameters, "view": view or "", "address": address or ""}
    rows = handle.query(_SLOTS, parameters=filters).result_rows
    if not rows:
        return ()
    views = sorted({row[1] for row in rows})
    seen = {
        (machine, key): at
        for machine, key, at in handle.query(_SEEN, parameters={**parameters, "views": views}).result_rows
    }
    return tuple(
        StoredSlot(
            cluster=cluster,
            machine=machine,
            view=key,
            address=text,
            first=begun[0],
            newest=begun[-1],
            last_seen=seen.get((machine, key), 0),
            begun=tuple(begun),
            rows=tuple(SlotRow(*one) for one in of_readers),
        )
        for machine, key, text, begun, of_readers in rows
    )


def fetch_changes(handle: Handle, query: ChangeQuery) -> tuple[StoredChange, ...]:
    """Return moved and replaced GPUs; see `ports.HistoryStore.changes`."""
    before_at, before_id = query.before or (2**63 - 1, 2**64 - 1)
    parameters: dict[str, Any] = {
        "start": query.start,
        "end": query.end,
        "cluster": query.cluster or "",
        "all": query.machines is None,
        "machines": list(query.machines or ()),
        "kind": query.kind or "",
        "before_at": before_at,
        "before_id": before_id,
        "limit": query.limit,
    }
    return tuple(
        StoredChange(
            id=number,
            at=at,
            kind=ChangeKind(kind),
            cluster=cluster,
            machine=machine,
            address=address,
            view=view,
            before=tuple(before),
        )
        for number, at, kind, cluster, machine, address, view, before in handle.query(
            _CHANGES, parameters=parameters
        ).result_rows
    )


def fetch_pools(handle: Handle, cluster: str | None) -> tuple[GpuPool, ...]:
    """Return groups of equal GPUs; see `ports.FleetStore.pools`."""
    return tuple(
        GpuPool(
            cluster=of,
            side=side,
            name=name or None,
            driver=driver or None,
            vbios=vbios or None,
            gpus=gpus,
            machines=machines,
        )
        for of, side, name, driver, vbios, gpus, machines in handle.query(
            _POOLS, parameters={"cluster": cluster or ""}
        ).result_rows
    )
