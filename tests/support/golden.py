"""Comparing with a kept file; `GPUFLEET_UPDATE_GOLDEN=1` writes it anew, for a person to read in the diff."""

import os
from pathlib import Path


def check_golden(file: Path, content: bytes) -> None:
    """Fail if `content` is not what the file holds."""
    if os.environ.get("GPUFLEET_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    assert content.decode() == file.read_bytes().decode(), (
        f"differs from {file.name}; GPUFLEET_UPDATE_GOLDEN=1 rewrites it"
    )
