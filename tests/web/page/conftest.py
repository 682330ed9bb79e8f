"""Chromium for the tests of the pages of hub and agent."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.peers import environment
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def browser(peer: Callable[[str], Path]) -> Iterator[Browser]:
    program = peer("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox"],  # tests also run as root
            env={**os.environ, **environment("chromium")},
            timeout=60_000 * PATIENCE,
        )
        yield started
        started.close()
