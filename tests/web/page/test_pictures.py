"""The pictures of docs/images are references: a page that looks different from its picture fails."""

import pytest
from playwright.sync_api import Browser, Page

from tests.web.page.states import IMAGES, PageState, difference, load_states, take_picture

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

LIMIT = 0.002
"""Largest share of different pixels. Other versions of Chromium draw the edges of letters differently."""

STATES = load_states()


@pytest.mark.parametrize("state", STATES, ids=[one.picture.name for one in STATES])
def test_page_looks_like_its_picture(browser: Browser, state: PageState) -> None:
    """After an intended change: `python -m tools.picture --again`, look at each changed picture, and commit it."""
    found = take_picture(browser, state)
    assert difference(browser, found, (IMAGES / f"{state.picture.name}.png").read_bytes()) <= LIMIT


def test_every_page_has_a_picture() -> None:
    names = {one.picture.name for one in STATES}
    assert names == {file.stem for file in IMAGES.glob("*.png")}
    assert len(names) >= 10


def test_visible_change_of_a_page_is_found(browser: Browser) -> None:
    state = next(one for one in STATES if one.picture.name == "allocation")

    def hide(page: Page) -> None:
        page.locator(".source").first.evaluate("found => { found.hidden = true }")

    changed = take_picture(browser, state, hide)
    assert difference(browser, changed, (IMAGES / "allocation.png").read_bytes()) > LIMIT
