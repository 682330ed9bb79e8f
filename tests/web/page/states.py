"""States of pages: recorded responses of a hub or an agent, and the pictures of docs/images that show them.

A state is shown at the time of its recording, without a server. So it always looks the same, until the page changes.
"""

import datetime as dt
import gzip
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from gpufleet.web.page.files import MEDIA_TYPES, ROOT, VOCABULARY, PageFiles
from gpufleet.web.page.vocabulary import vocabulary
from tests.support.waiting import PATIENCE, wait_until

STATES = Path(__file__).parents[2] / "data" / "pages"
IMAGES = Path(__file__).parents[3] / "docs" / "images"

SERVER = "http://recorded.example"
"""Origin of a page that is shown from a recording. No request is sent to it."""

COLOURING = "utilisation"

INSTANTS = frozenset({"start", "end", "since", "until"})
"""Parameters that depend on the time of a request."""

LEVELS = 48
"""Largest difference of a colour channel that is not seen as a change."""


class Picture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Picture of a page.

    Attributes:
        name: name of the file.
        address: address of the page, after `/ui/`.
        size: width and height of the window.
        scheme: colour scheme.
        heading: heading to which the page is scrolled, or empty for its top.
        site: what serves the page.
    """

    name: str
    address: str
    size: tuple[int, int] = (1280, 900)
    scheme: Literal["light", "dark"] = "light"
    heading: str = ""
    site: Literal["hub", "agent"] = "hub"


class RecordedResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Response of the API: its JSON document, and the header `Link` of a list."""

    document: msgspec.Raw
    link: str = ""


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """Picture with all responses that its page needs.

    Attributes:
        picture: the page.
        at: time of the recording, seconds since 1970.
        responses: by path and query without instants.
    """

    picture: Picture
    at: float
    responses: dict[str, RecordedResponse]

    def save(self) -> None:
        """Write the file of the state."""
        STATES.mkdir(parents=True, exist_ok=True)
        (STATES / f"{self.picture.name}.json.gz").write_bytes(gzip.compress(msgspec.json.encode(self), mtime=0))


def load_states() -> list[PageState]:
    """Read all states, in the order of their names."""
    files = sorted(STATES.glob("*.json.gz"))
    return [msgspec.json.decode(gzip.decompress(file.read_bytes()), type=PageState) for file in files]


def record_state(browser: Browser, url: str, picture: Picture) -> PageState:
    """Open a page of a running hub or agent, and record the responses."""
    responses: dict[str, RecordedResponse] = {}

    def keep(route: Route) -> None:
        if _refuses_stream(route):
            return
        answer = route.fetch()
        responses[_key(route.request.url)] = RecordedResponse(
            msgspec.Raw(answer.body()), answer.headers.get("link", "")
        )
        route.fulfill(response=answer)

    context = _context(browser, picture)
    context.route("**/v1/**", keep)
    page = context.new_page()
    page.goto(f"{url}{ROOT}/{picture.address}")
    _complete(page, picture)
    at = dt.datetime.now(dt.UTC).timestamp()
    context.close()
    return PageState(picture=picture, at=at, responses=responses)


def take_picture(browser: Browser, state: PageState, change: Callable[[Page], object] | None = None) -> bytes:
    """Show a state and return its picture. Raises AssertionError if the page needs other responses, or is too wide.

    `change` is applied to the page before.
    """
    picture = state.picture
    missing: list[str] = []
    at = dt.datetime.fromtimestamp(state.at, dt.UTC)

    def answer(route: Route) -> None:
        if _refuses_stream(route):
            return
        found = state.responses.get(_key(route.request.url))
        if found is None:
            missing.append(route.request.url)
            route.fulfill(status=404, json={"error": "not_found", "detail": "not recorded"})
            return
        headers = {"content-type": "application/json", "date": f"{at:%a, %d %b %Y %H:%M:%S GMT}", "link": found.link}
        route.fulfill(body=bytes(found.document), headers=headers)

    context = _context(browser, picture)
    context.route(f"{SERVER}/**", _page_files(picture))
    context.route(f"{SERVER}/v1/**", answer)
    page = context.new_page()
    page.clock.set_fixed_time(at)
    page.goto(f"{SERVER}{ROOT}/{picture.address}")
    _complete(page, picture)
    if change is not None:
        change(page)
    page.mouse.move(0, 0)
    if picture.heading:
        heading = page.get_by_role("heading", name=picture.heading, exact=True)
        heading.evaluate("found => found.scrollIntoView()")
    shots = [page.screenshot()]

    def settled() -> bool:
        shots.append(page.screenshot())
        return shots[-1] == shots[-2]

    wait_until(settled, what="the page to be complete")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    context.close()
    assert missing == []
    assert overflow == 0
    return shots[-1]


def difference(browser: Browser, one: bytes, other: bytes) -> float:
    """Return the share of the pixels of two pictures that differ visibly; 1 if their sizes differ."""
    page = browser.new_page()
    found: float = page.evaluate(
        """async ([one, other, levels]) => {
        const pixels = async (bytes) => {
            const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)], { type: "image/png" }));
            const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
            canvas.getContext("2d").drawImage(bitmap, 0, 0);
            return canvas.getContext("2d").getImageData(0, 0, bitmap.width, bitmap.height);
        };
        const [a, b] = await Promise.all([pixels(one), pixels(other)]);
        if (a.width !== b.width || a.height !== b.height) return 1;
        let changed = 0;
        for (let at = 0; at < a.data.length; at += 4) {
            const channels = [0, 1, 2].map((part) => Math.abs(a.data[at + part] - b.data[at + part]));
            if (Math.max(...channels) > levels) changed += 1;
        }
        return changed / (a.width * a.height);
    }""",
        [list(one), list(other), LEVELS],
    )
    page.close()
    return found


def _context(browser: Browser, picture: Picture) -> BrowserContext:
    width, height = picture.size
    return browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        locale="en-GB",
        timezone_id="UTC",
        service_workers="block",
    )


def _complete(page: Page, picture: Picture) -> None:
    """Wait until a page has loaded its data."""
    expect(page.locator("#status")).to_contain_text("Refreshed", timeout=60_000 * PATIENCE)
    if picture.address == "#/fleet":
        page.get_by_label("Colour by").select_option(COLOURING)
        expect(page.get_by_text("GPUs and holders as of")).to_be_visible(timeout=60_000 * PATIENCE)


def _page_files(picture: Picture) -> Callable[[Route], None]:
    """Return a handler that serves the files of the page."""
    files = PageFiles(requires_token=False, site=picture.site)
    static = resources.files("gpufleet.web.page").joinpath("static")

    def serve(route: Route) -> None:
        name = urlsplit(route.request.url).path.rpartition("/")[2]
        content = files.document if name == "" else _content(name)
        media_type = MEDIA_TYPES[name.rpartition(".")[2] or "html"]
        route.fulfill(body=content, headers={"content-type": media_type})

    def _content(name: str) -> bytes:
        return msgspec.json.encode(vocabulary()) if name == VOCABULARY else static.joinpath(name).read_bytes()

    return serve


def _refuses_stream(route: Route) -> bool:
    """Refuse a request for live updates; return whether it is one."""
    is_stream = urlsplit(route.request.url).path.endswith("/v1/updates")
    if is_stream:
        route.fulfill(status=403, json={"error": "forbidden", "detail": "a recording has no updates"})
    return is_stream


def _key(url: str) -> str:
    parts = urlsplit(url)
    query = sorted((name, value) for name, value in parse_qsl(parts.query) if name not in INSTANTS)
    return "?".join([parts.path, "&".join(f"{name}={value}" for name, value in query)])
