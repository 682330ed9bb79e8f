"""Pictures of the web page for README.md and docs/web-page.md: real pages of a hub and an agent, in Chromium.

python -m tools.picture            # record the pages of a new hub, then take the pictures
python -m tools.picture --again    # after a change of the page: take the pictures of the same recordings

The hub has an hour of a simulated fleet and runs in a temporary folder. Values and times differ from run to run. The
tests compare each page with its picture: look at every picture before it is committed.
"""

import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser

from tests.support.chromium import running_chromium
from tests.support.command import gpufleet
from tests.support.peers import find
from tests.support.processes import Gpufleet, free_port
from tests.web.page.states import IMAGES, PageState, Picture, load_states, record_state, take_picture

MAX_BYTES = 250_000
"""Maximum size of a picture."""

WIDE, PHONE = (1680, 1040), (390, 844)

CONFIG = 'clusters = ["sim-1", "sim-2"]'

SIZE = ["--clusters", "2", "--nodes", "60", "--no-incidents"]
PAST = ["--start", "1h", "--duration", "1h", "--interval", "60", "--speed", "1000000"]
FAULTS = ["--faults", "node-off@+1s:c2/n7,gpu-lost@+1s:c1/n3/g0"]

LIVE_SECONDS = 130
"""Time for which the fleet reports before the pictures are taken: the rules are evaluated each minute."""

DARK_VM = "00000000-0000-0000-0000-000000000007"
"""Virtual machine that nothing reports."""


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


def take(browser: Browser, state: PageState) -> None:
    """Take a picture. Raises SystemExit if it is too large."""
    content = take_picture(browser, state)
    file = IMAGES / f"{state.picture.name}.png"
    file.write_bytes(content)
    print(f"{file.name}: {len(content)} bytes")  # noqa: T201 - a command's output
    if len(content) > MAX_BYTES:
        raise SystemExit(f"{file} has {len(content)} bytes, the limit is {MAX_BYTES}")


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


def record(browser: Browser) -> None:
    """Run a hub with a simulated fleet and an agent, and record the states of their pages."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running_agent(folder))
        record_state(browser, url, Picture(name="agent", address="", site="agent")).save()
        site = stack.enter_context(running_hub(folder))
        for picture in pictures(site):
            record_state(browser, site.url, picture).save()


def main() -> None:
    """Record states unless `--again` is given, and take their pictures."""
    chromium = find("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: run `python tests/support/peers.py fetch chromium`")
    with running_chromium(chromium) as browser:
        if sys.argv[1:] != ["--again"]:
            record(browser)
        for state in load_states():
            take(browser, state)


if __name__ == "__main__":
    main()
