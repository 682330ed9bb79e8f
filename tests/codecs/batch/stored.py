"""Stored bodies of format version 1, and their content."""

import json
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.model.wire.batch import Batch

STORED = Path(__file__).parent / "fixtures" / "version-1"


def expected() -> dict[str, Any]:
    """Return the content of each stored batch, by name."""
    found: dict[str, Any] = json.loads((STORED / "expected.json").read_text())
    return {name: in_order(batch) for name, batch in found.items()}


def plain(batch: Batch) -> Any:
    """Return a batch in the form of `expected.json`."""
    return in_order(json.loads(msgspec.json.encode(batch)))


def in_order(batch: Any) -> Any:
    """Sort the samples, which have no order on the wire."""
    for report in batch.get("reports", []):
        report.get("samples", []).sort(key=lambda one: json.dumps(one, sort_keys=True))
    return batch
