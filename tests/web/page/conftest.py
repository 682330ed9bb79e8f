"""Chromium for the tests of the pages of hub and agent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.chromium import running_chromium


@pytest.fixture(scope="module")
def browser(peer: Callable[[str], Path]) -> Iterator[Browser]:
    with running_chromium(peer("chromium")) as started:
        yield started
