"""Runs `gpufleet` commands to their end, as a shell does."""

import os
import subprocess
import tempfile
from collections.abc import Mapping

from tests.support.processes import fork_server
from tests.support.waiting import PATIENCE

Done = subprocess.CompletedProcess[str]


def gpufleet(*arguments: str, env: Mapping[str, str] | None = None, seconds: float = 60) -> Done:
    """Run the command and return its exit code and output."""
    environment = {**os.environ, "COLUMNS": "160", **(env or {})}
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        code = fork_server().run(arguments, environment, stdout, stderr, seconds * PATIENCE)
        stdout.seek(0)
        stderr.seek(0)
        return Done(["gpufleet", *arguments], code, stdout.read(), stderr.read())
