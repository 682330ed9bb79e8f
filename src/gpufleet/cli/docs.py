"""Renders the reference pages that come from the code: `python -m gpufleet.cli.docs [FOLDER]`."""

import json
import sys
from pathlib import Path

from gpufleet.codecs.snapshot_json import snapshot_schema
from gpufleet.exporters.reference import render_metrics_reference
from gpufleet.exporters.reference_dialects import render_dialects_reference
from gpufleet.exporters.reference_events import render_events_reference
from gpufleet.stores.clickhouse.sql.reference import render_sql_reference


def reference_pages() -> dict[str, str]:
    """Return file name to content of every page."""
    return {
        "metrics.md": render_metrics_reference(),
        "events.md": render_events_reference(),
        "sql.md": render_sql_reference(),
        "dialects.md": render_dialects_reference(),
        "snapshot.schema.json": json.dumps(snapshot_schema(), indent=2) + "\n",
    }


def main() -> None:
    """Write the pages into a folder, `docs/reference` unless another is given."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_pages().items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
