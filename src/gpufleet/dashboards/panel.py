"""Model of dashboards, independent of Grafana's JSON."""

import enum

import msgspec


class PanelType(enum.StrEnum):
    """Panel type; the value is Grafana's name."""

    SERIES = "timeseries"
    STAT = "stat"  # last value only
    STATES = "state-timeline"
    BARS = "bargauge"  # last value only, a bar for each series
    TABLE = "table"  # last value only, a row for each device or machine, a column for each query


INSTANT = frozenset({PanelType.STAT, PanelType.BARS, PanelType.TABLE})
"""Panel types that show only the last value."""


class PanelQuery(msgspec.Struct, frozen=True):
    """PromQL query with dashboard variables.

    Attributes:
        expression: the query.
        legend: legend of its series, or title of its column.
        unit: Grafana's name of the column's unit; empty for the panel's.
        label: label that a table shows as the column instead of the values; empty for the values.
    """

    expression: str
    legend: str = ""
    unit: str = ""
    label: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """Panel of a dashboard.

    Attributes:
        title: short title.
        help: description, a sentence.
        unit: Grafana's name of the unit.
        queries: at least one.
        type: panel type.
        width, height: in grid units; the grid has 24 columns.
        low, high: limits of the axis; None means automatic.
    """

    title: str
    help: str
    unit: str
    queries: tuple[PanelQuery, ...]
    type: PanelType = PanelType.SERIES
    width: int = 12
    height: int = 8
    low: float | None = None
    high: float | None = None


class DashboardRow(msgspec.Struct, frozen=True, kw_only=True):
    """Panels under a title; without a title they are at the top. A collapsed row runs no queries until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = True


class DashboardVariable(msgspec.Struct, frozen=True, kw_only=True):
    """Dashboard variable: selectable values of a label, by default all."""

    name: str
    label: str
    query: str


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """Dashboard.

    Attributes:
        uid: identity in Grafana; importing it again replaces the dashboard.
        title: name of the dashboard.
        help: description, one or two sentences.
        variables: variables besides the data source.
        rows: rows from top to bottom.
    """

    uid: str
    title: str
    help: str
    variables: tuple[DashboardVariable, ...]
    rows: tuple[DashboardRow, ...]
