"""Rows of the table of findings' transitions. Pure."""

from collections.abc import Sequence

from gpufleet.model.stored.findings import NumberedTransition, cluster_of
from gpufleet.stores.clickhouse.schema.columns import Columns, RowBuffer
from gpufleet.stores.clickhouse.schema.tables import FINDING_TRANSITIONS


def transition_columns(transitions: Sequence[NumberedTransition]) -> Columns:
    """Return transitions as columns; a finding of the hub itself has an empty cluster."""
    names = (column.name for column in FINDING_TRANSITIONS.columns)
    rows = RowBuffer(names)
    for numbered in transitions:
        transition, finding = numbered.transition, numbered.transition.finding
        evidence = sorted(finding.evidence.items())
        rows.add(
            cluster_of(finding.scope) or "",
            transition.at,
            finding.id,
            finding.scope,
            transition.kind.value,
            transition.reason.value,
            finding.rule,
            finding.severity.value,
            finding.state.value,
            finding.hidden_by,
            [name for name, _ in evidence],
            [text for _, text in evidence],
            finding.first,
            finding.last,
            finding.opened_at,
            finding.closed_at,
            finding.openings,
            numbered.number,
        )
    return rows.columns
