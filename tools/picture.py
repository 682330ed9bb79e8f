"""Pictures of the web page for README.md and docs/web-page.md: real pages of a hub and an agent, in Chromium.

python -m tools.picture [FOLDER]

The hub has an hour of a simulated fleet and runs in a temporary folder. Values and times differ from run to run.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.command import gpufleet
from tests.support.peers import environment, find
from tests.support.processes import Gpufleet, free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"

MAX_BYTES = 250_000
"""Maximum size of a picture."""

WIDE, NORMAL, PHONE = (1680, 1040), (1280, 900), (390, 844)

CONFIG = 'clusters = ["sim-1", "sim-2"]'

SIZE = ["--clusters", "2", "--nodes", "60", "--no-incidents"]
PAST = ["--start", "1h", "--duration", "1h", "--interval", "60", "--speed", "1000000"]
FAULTS = ["--faults", "node-off@+1s:c2/n7,gpu-lost@+1s:c1/n3/g0"]

LIVE_SECONDS = 130
"""Time for which the fleet reports before the pictures are taken: the rules are evaluated each minute."""

CHART_SECONDS = 4
"""Time for the charts and tables that are loaded after the readings."""

COLOURING = "utilisation"

DARK_VM = "00000000-0000-0000-0000-000000000007"
"""Virtual machine that nothing reports."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Picture of a page.

    Attributes:
        name: name of the file.
        address: address of the page, after `/ui/`.
        size: width and height of the window.
        scheme: colour scheme.
        heading: heading to which the page is scrolled, or empty for its top.
    """

    name: str
    address: str
    size: tuple[int, int] = NORMAL
    scheme: Literal["light", "dark"] = "light"
    heading: str = ""


class Site:
    """Hub that is shown. Requests are sent without a token."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        """Return the document of a GET request."""
        with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310 - this hub
            return json.load(answer)

    def allocate(self, name: str, kind: str, **target: str) -> None:
        """Register an allocation in force for the last hour."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
        spec = {"kind": kind, "tenant": "acme", "target": {"cluster": "sim-1", **target}, "valid_from": since}
        request = urllib.request.Request(  # noqa: S310 - this hub
            f"{self.url}/v1/allocations/{name}",
            data=json.dumps(spec).encode(),
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()  # noqa: S310 - this hub


def pictures(site: Site) -> list[Picture]:
    """Register allocations; return the pictures of the pages of a hub."""
    nodes = [one["machine"] for one in site.get("/v1/nodes?cluster=sim-1")["items"]]
    machines = site.get("/v1/machines?cluster=sim-1")["items"]
    guest = next(one for one in machines if one["machine"].get("kind") == "guest" and one["gpus"])
    gpu = site.get(f"/v1/gpus?machine={nodes[0]['id']}")["items"][0]["device"]["id"]
    found = site.get("/v1/findings")["items"]
    lost = next((one for one in found if one["rule"] == "gpu.lost"), found[0])
    site.allocate("metal", "bare_metal", machine=nodes[0]["machine"]["name"])
    site.allocate("slice", "gpu_slice", vm_uuid=guest["machine"]["system_uuid"])
    site.allocate("dark", "gpu_slice", vm_uuid=DARK_VM)
    return [
        Picture(name="web-page", address="#/fleet", size=WIDE),
        Picture(name="fleet-dark", address="#/fleet", scheme="dark"),
        Picture(name="fleet-phone", address="#/fleet", size=PHONE),
        Picture(name="allocation", address="#/allocations/slice"),
        Picture(name="allocation-unavailable", address="#/allocations/dark", size=(1280, 520)),
        Picture(name="allocation-phone", address="#/allocations/metal", size=PHONE, scheme="dark", heading="History"),
        Picture(name="node", address=f"#/nodes/{nodes[0]['id']}"),
        Picture(name="topology", address=f"#/nodes/{nodes[0]['id']}", heading="Topology"),
        Picture(name="gpu", address=f"#/gpus/{quote(gpu, safe='')}", scheme="dark"),
        Picture(name="finding", address=f"#/findings/{lost['id']}"),
        Picture(name="contract", address="#/contract/sim-1"),
    ]


def take(browser: Browser, url: str, picture: Picture, folder: Path) -> None:
    """Take a picture. Raises SystemExit if it is too large, or the page is wider than its window."""
    width, height = picture.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=picture.scheme, locale="en-GB")
    page.goto(f"{url}/ui/{picture.address}")
    _complete(page, picture)
    page.mouse.move(0, 0)
    if picture.heading:
        heading = page.get_by_role("heading", name=picture.heading, exact=True)
        heading.evaluate("found => found.scrollIntoView()")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    file = folder / f"{picture.name}.png"
    page.screenshot(path=file)
    page.close()
    size = file.stat().st_size
    print(f"{file.name}: {size} bytes")  # noqa: T201 - a command's output
    if size > MAX_BYTES or overflow:
        raise SystemExit(f"{file} has {size} bytes, the limit is {MAX_BYTES}; the page is {overflow} pixels too wide")


def _complete(page: Page, picture: Picture) -> None:
    """Wait until a page shows its data."""
    expect(page.locator("#status")).to_contain_text("Refreshed", timeout=60_000)
    if picture.address == "#/fleet":
        page.get_by_label("Colour by").select_option(COLOURING)
        expect(page.get_by_text("GPUs and holders as of")).to_be_visible(timeout=60_000)
    page.wait_for_timeout(CHART_SECONDS * 1000)


@contextlib.contextmanager
def running_hub(folder: Path) -> Iterator[Site]:
    """Run a hub with an hour of a fleet that still reports."""
    port = free_port()
    site = Site(f"http://127.0.0.1:{port}")
    config = folder / "hub.toml"
    config.write_text(CONFIG)
    command = ["hub", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
    with Gpufleet(command, folder / "log", env={"GPUFLEET_HUB_STATE": str(folder)}) as process:
        process.wait_for(f"{site.url}/readyz")
        done = gpufleet("simulate", "fleet", "--hub", site.url, *SIZE, *PAST, seconds=300)
        if done.returncode:
            raise SystemExit(done.stderr)
        with Gpufleet(["simulate", "fleet", "--hub", site.url, *SIZE, *FAULTS], folder / "fleet"):
            time.sleep(LIVE_SECONDS)
            yield site


@contextlib.contextmanager
def running_agent(folder: Path) -> Iterator[str]:
    """Run the page of a simulated node; yield its URL."""
    url = f"http://127.0.0.1:{free_port()}"
    command = ["simulate", "exporter", "--gpus", "4", "--vgpus", "3", "--listen", url.removeprefix("http://")]
    with Gpufleet(command, folder / "exporter") as process:
        process.wait_for(f"{url}/readyz")
        yield url


def main() -> None:
    """Run a hub with a simulated fleet, and take the pictures."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    target.mkdir(parents=True, exist_ok=True)
    chromium = find("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: run `python tests/support/peers.py fetch chromium`")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], env={**os.environ, **environment("chromium")}
        )
        stack.callback(browser.close)
        take(browser, stack.enter_context(running_agent(folder)), Picture(name="agent", address=""), target)
        site = stack.enter_context(running_hub(folder))
        for picture in pictures(site):
            take(browser, site.url, picture, target)


if __name__ == "__main__":
    main()
