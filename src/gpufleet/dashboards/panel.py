"""What a dashboard is, before it is anybody's JSON."""

import enum

import msgspec


class Look(enum.StrEnum):
    """How a panel shows its queries; the value is Grafana's name."""

    SERIES = "timeseries"
    STAT = "stat"  # the last value alone
    STATES = "state-timeline"


class Query(msgspec.Struct, frozen=True):
    """One query: PromQL with the dashboard's variables, and how its series are called."""

    expression: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One panel.

    Attributes:
        title: a few words.
        help: what it shows, in a sentence.
        unit: Grafana's name of it.
        queries: one or more.
        look: how they are shown.
        width, height: of 24 columns, and in its rows.
        low, high: ends of the axis, where the values have any.
    """

    title: str
    help: str
    unit: str
    queries: tuple[Query, ...]
    look: Look = Look.SERIES
    width: int = 12
    height: int = 8
    low: float | None = None
    high: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Panels under a title; a closed row asks nothing until it is opened. Without a title they stand at the top."""

    title: str
    panels: tuple[Panel, ...]
    closed: bool = True


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of the reader's: values of a label, all of them unless some are chosen."""

    name: str
    label: str
    query: str


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """One dashboard.

    Attributes:
        uid: its identity in Grafana: importing it again replaces it.
        title: its name.
        help: a sentence or two.
        variables: choices, beside the data source.
        rows: from top to bottom.
    """

    uid: str
    title: str
    help: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
