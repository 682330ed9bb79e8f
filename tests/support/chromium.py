"""Chromium for tests of pages."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support.peers import environment
from tests.support.waiting import PATIENCE


@contextlib.contextmanager
def running_chromium(program: Path) -> Iterator[Browser]:
    """Run a Chromium without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox"],  # tests also run as root
            env={**os.environ, **environment("chromium")},
            timeout=60_000 * PATIENCE,
        )
        yield started
        started.close()
