"""What builds of earlier versions wrote, and what they meant by it."""

import json
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.model.wire.batch import Batch

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = sorted(FIXTURES.glob("version-*"))


def expected(folder: Path) -> dict[str, Any]:
    """Return what each stored batch of a version means, by name."""
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return {name: in_order(batch) for name, batch in found.items()}


def plain(batch: Batch) -> Any:
    """Return a batch as it is written down in `expected.json`."""
    return in_order(json.loads(msgspec.json.encode(batch)))


def in_order(batch: Any) -> Any:
    """Sort what has no order on the wire."""
    for report in batch.get("reports", []):
        report.get("samples", []).sort(key=lambda one: json.dumps(one, sort_keys=True))
    return batch
