"""Running `gpufleet` to its end, as a shell does."""

import os
import subprocess
import sys
from collections.abc import Mapping

Done = subprocess.CompletedProcess[str]


def gpufleet(*arguments: str, env: Mapping[str, str] | None = None, seconds: float = 60) -> Done:
    """Run the command and return its exit code and what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "gpufleet.cli.main", *arguments],
        env={**os.environ, "COLUMNS": "160", **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
