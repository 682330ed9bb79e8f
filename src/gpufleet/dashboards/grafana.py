"""Rendering of dashboards as Grafana JSON (classic model, schema version 39, Grafana 10 and 11)."""

import json
from collections.abc import Iterable
from typing import Any

from gpufleet.dashboards.panel import INSTANT, Dashboard, DashboardRow, DashboardVariable, Panel, PanelType

SCHEMA = 39
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

LABEL_TITLES = {"cluster": "Cluster", "node": "Node", "vm_name": "VM", "uuid": "UUID"}
"""Title of a table's column by label."""

_OPTIONS: dict[PanelType, dict[str, Any]] = {
    PanelType.SERIES: {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    PanelType.STAT: {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "textMode": "value_and_name"},
    PanelType.STATES: {"mergeValues": True, "showValue": "never", "legend": {"showLegend": False}},
    PanelType.BARS: {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "displayMode": "basic",
        "orientation": "horizontal",
        "valueMode": "text",
    },
    PanelType.TABLE: {"showHeader": True, "cellHeight": "sm"},
}


def render_grafana(dashboard: Dashboard) -> str:
    """Return the JSON document that Grafana imports."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.help,
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "tags": ["gpu", "gpufleet"],
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *(_variable(one) for one in dashboard.variables)]},
        "annotations": {"list": []},
        "panels": _rows(dashboard.rows),
    }
    return json.dumps(document, indent=2) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: DashboardVariable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",  # includes series without the label
        "current": {"text": "All", "value": "$__all"},
    }


def _rows(rows: Iterable[DashboardRow]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top, number = 0, 1
    for row in rows:
        placed, below = _place_panels(row.panels, top + bool(row.title), number + 1)
        if row.title:
            head = {"id": number, "type": "row", "title": row.title, "collapsed": row.collapsed, "panels": []}
            panels.append({**head, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        if row.title and row.collapsed:
            panels[-1]["panels"] = placed
            top += 1
        else:
            panels += placed
            top = below
        number += 1 + len(placed)
    return panels


def _place_panels(panels: Iterable[Panel], top: int, number: int) -> tuple[list[dict[str, Any]], int]:
    """Place panels from left to right and top to bottom; return them and the first row below."""
    found: list[dict[str, Any]] = []
    x, y, height = 0, top, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        found.append(_panel(panel, number + len(found), x, y))
        x, height = x + panel.width, max(height, panel.height)
    return found, y + height


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.low is not None:
        defaults["min"] = panel.low
    if panel.high is not None:
        defaults["max"] = panel.high
    if panel.type is PanelType.SERIES:
        # An absent reading is a gap, not a line between its neighbours.
        defaults["custom"] = {"drawStyle": "line", "fillOpacity": 0, "spanNulls": False}
    instant, is_table = panel.type in INSTANT, panel.type is PanelType.TABLE
    document = {
        "id": number,
        "type": panel.type.value,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": _columns(panel) if is_table else []},
        "options": _OPTIONS[panel.type],
        "targets": [
            {
                "refId": _reference(place),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "format": "table" if is_table else "time_series",
                "instant": instant,
                "range": not instant,
            }
            for place, query in enumerate(panel.queries)
        ],
    }
    if is_table:
        document["transformations"] = _transformations(panel)
    return document


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    """Return the steps that make one row of all queries' results with equal labels."""
    unused = [_value_column(panel, place) for place, query in enumerate(panel.queries) if query.label]
    titles = LABEL_TITLES | {query.label: query.legend for query in panel.queries if query.label}
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {"excludeByName": dict.fromkeys(["Time", *unused], True), "renameByName": titles},
        },
    ]


def _columns(panel: Panel) -> list[dict[str, Any]]:
    """Return title and unit of each column with values."""
    return [
        {
            "matcher": {"id": "byName", "options": _value_column(panel, place)},
            "properties": [
                {"id": "displayName", "value": query.legend},
                {"id": "unit", "value": query.unit or panel.unit},
            ],
        }
        for place, query in enumerate(panel.queries)
        if not query.label
    ]


def _value_column(panel: Panel, place: int) -> str:
    """Return the name that Grafana gives to the column of a query's values."""
    return f"Value #{_reference(place)}" if len(panel.queries) > 1 else "Value"


def _reference(place: int) -> str:
    """Return a query's id: A to Z, then A1, B1, and so on."""
    return chr(ord("A") + place % 26) + str(place // 26 or "")
