"""Conversion of batch parts (views, events, status, holdings, holder states, inventory) to rows. Pure."""

import math
from collections.abc import Iterator

from gpufleet.model.machine import PciFunction
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import View, ViewList
from gpufleet.model.wire.batch import DimBlock, SampleBlock, WireBatch
from gpufleet.stores.clickhouse.machines.holder_states import holder_state_cells
from gpufleet.stores.clickhouse.machines.holdings import holding_cells, newest_holdings
from gpufleet.stores.clickhouse.samples.keys import MACHINE_VIEW
from gpufleet.stores.clickhouse.schema.columns import RowBuffer
from gpufleet.stores.clickhouse.schema.sets import WriteCache, inventory_set_id
from gpufleet.stores.clickhouse.schema.tables import EVENTS, HOLDER_STATES, HOLDINGS, INVENTORY, READER_STATUS, VIEWS


def reported_views(accepted: AcceptedBatch) -> Iterator[tuple[str, View, str]]:
    """Yield (machine, view, reader) of every reported view, once each.

    An event comes from a machine, not from a named reader: its reader is an empty text.
    """
    batch = accepted.batch
    pairs: set[tuple[int, int, str]] = set()
    blocks: list[SampleBlock | DimBlock] = [*batch.samples, *batch.dims]
    for block in blocks:
        subjects = set(zip(block.machine, block.view, strict=True))
        pairs.update((machine, view, block.reader) for machine, view in subjects)
    for machine, view, reader in sorted(pairs):
        if view >= 0:
            yield accepted.machine_ids[machine], batch.views[view], reader
    for part in batch.parts:
        for listed in part.processes:
            yield accepted.machine_ids[part.machine], batch.views[listed.view], listed.reader
        for event in part.events:
            if event.view is not None:
                yield accepted.machine_ids[part.machine], event.view, ""


def _view_list_key(accepted: AcceptedBatch) -> tuple[str, str] | None:
    """Return (cluster, machine) of a batch that reports views of a kept list in its samples only; otherwise None."""
    batch = accepted.batch
    if len(accepted.machine_ids) != 1 or batch.dims or not isinstance(batch.views, ViewList):
        return None
    if any(part.processes or part.events for part in batch.parts):
        return None
    return batch.cluster, accepted.machine_ids[0]


def _reported_pairs(batch: WireBatch) -> int:
    """Return this process's hash of the (reader, views) pairs that a batch reports."""
    return hash(tuple([(block.reader, *block.view) for block in batch.samples]))


def _known(number: float | None) -> float:
    return math.nan if number is None else number


class PartRows:
    """Rows of events, reader status, holdings, holder states, inventory and views from many batches."""

    def __init__(self, known: WriteCache) -> None:
        self._known = known
        self.tables = {
            table.name: RowBuffer(column.name for column in table.columns)
            for table in (VIEWS, READER_STATUS, EVENTS, HOLDINGS, HOLDER_STATES, INVENTORY)
        }

    def add(self, accepted: AcceptedBatch) -> None:
        """Add a batch."""
        batch = accepted.batch
        self._add_views(accepted)
        for part in batch.parts:
            machine = accepted.machine_ids[part.machine]
            for status in part.readers:
                self.tables["reader_status"].add(
                    batch.cluster,
                    machine,
                    status.reader,
                    status.lane.value,
                    status.state.value,
                    _known(status.interval_seconds),
                    status.last_attempt,
                    status.last_success,
                    _known(status.duration_seconds),
                    status.failures,
                    status.error_class,
                    status.last_error,
                    accepted.reported_at,
                    accepted.received_at,
                )
            for event in part.events:
                attributes = sorted(event.attributes.items())
                self.tables["events"].add(
                    batch.cluster,
                    machine,
                    event.view.key if event.view else MACHINE_VIEW,
                    event.at,
                    event.kind,
                    event.code,
                    [name for name, _ in attributes],
                    [text for _, text in attributes],
                    accepted.received_at,
                )
            for holding in newest_holdings(part.holdings):
                self.tables["holdings"].add(*holding_cells(accepted, machine, holding))
            if part.device_holders is not None:
                cells = holder_state_cells(accepted, machine, part.device_holders, part.unresolved)
                self.tables["holder_states"].add(*cells)
            if part.inventory is not None:
                self._add_inventory(accepted, machine, part.inventory)

    def _add_views(self, accepted: AcceptedBatch) -> None:
        """Add new or changed views. A sender mostly repeats the views of an unchanged list."""
        key, batch = _view_list_key(accepted), accepted.batch
        if key is not None:
            sent = self._known.view_lists.get(key)
            if sent is not None and sent[0] is batch.views and sent[1] == _reported_pairs(batch):
                return
        are_known = [self._add_view(accepted, *seen) for seen in reported_views(accepted)]
        if key is not None and all(are_known):
            self._known.view_lists[key] = batch.views, _reported_pairs(batch)

    def _add_view(self, accepted: AcceptedBatch, machine: str, view: View, reader: str) -> bool:
        """Add a view if it is new or changed; return whether the store has this description now."""
        batch = accepted.batch
        subject = (batch.cluster, machine, view.key, reader)
        attributes = hash(view)
        at = accepted.reported_at
        last, last_at = self._known.views.get(subject, (None, at))
        if last == attributes or last_at > at:
            return last == attributes
        self._known.views[subject] = (attributes, at)
        self._known.view_lists.pop((batch.cluster, machine), None)
        self.tables["views"].add(
            *subject,
            view.kind.value,
            view.side.value,
            view.uuid,
            view.pci_address,
            view.instance,
            view.parent,
            view.index,
            at,
        )
        return True

    def _add_inventory(self, accepted: AcceptedBatch, machine: str, functions: list[PciFunction]) -> None:
        batch = accepted.batch
        subject = (batch.cluster, machine)
        number, at = inventory_set_id(functions), accepted.reported_at
        newest, newest_at = self._known.inventory.get(subject, (None, at))
        if at < newest_at:
            return  # the newest list has no row of that time if it is equal to the list before it
        self._known.inventory[subject] = (number, at)
        if number == newest:
            return
        self.tables["inventory"].add(
            *subject,
            accepted.reported_at,
            accepted.received_at,
            number,
            [function.address for function in functions],
            [function.vendor for function in functions],
            [function.device for function in functions],
            [function.class_code for function in functions],
            [function.driver for function in functions],
            [function.numa_node for function in functions],
            [function.physical_function for function in functions],
        )
