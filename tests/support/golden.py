"""Comparison with golden files. `GPUFLEET_UPDATE_GOLDEN=1` writes them again; review the difference."""

import os
from pathlib import Path


def check_golden(file: Path, content: bytes) -> None:
    """Fail if `content` differs from the file."""
    if os.environ.get("GPUFLEET_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    assert content.decode() == file.read_bytes().decode(), (
        f"differs from {file.name}; GPUFLEET_UPDATE_GOLDEN=1 rewrites it"
    )
