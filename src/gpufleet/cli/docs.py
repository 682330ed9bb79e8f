"""Generator of the reference pages: `python -m gpufleet.cli.docs [FOLDER]`."""

import json
import sys
from pathlib import Path

from gpufleet.codecs.snapshot_json import snapshot_schema
from gpufleet.exporters.reference import render_dialects_reference, render_events_reference, render_metrics_reference
from gpufleet.stores.clickhouse.sql.reference import render_sql_reference


def reference_pages() -> dict[str, str]:
    """Return the content of each page by file name."""
    return {
        "metrics.md": render_metrics_reference(),
        "events.md": render_events_reference(),
        "sql.md": render_sql_reference(),
        "dialects.md": render_dialects_reference(),
        "snapshot.schema.json": json.dumps(snapshot_schema(), indent=2) + "\n",
    }


def main() -> None:
    """Write the pages to the folder given as argument; the default is `docs/reference`."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in reference_pages().items():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
