"""Picture of the web page at the top of README.md: the real page of a hub with a simulated fleet, in Chromium.

python -m tools.picture [FILE]

The hub runs in a temporary folder. Values and times differ from run to run.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from tests.support.peers import environment, find
from tests.support.processes import Gpufleet, free_port

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "web-page.png"

MAX_BYTES = 200_000
"""Maximum size of the picture."""

SIZE = (1680, 1040)

CONFIG = 'clusters = ["sim-1", "sim-2"]'

FLEET = ["--clusters", "2", "--nodes", "60", "--faults", "node-off@+1s:c2/n7,gpu-lost@+1s:c1/n3/g0", "--no-incidents"]

LIVE_SECONDS = 100
"""Time for which the fleet reports before the picture is taken: the rules are evaluated each minute."""

COLOURING = "utilisation"


def take(hub: str, file: Path) -> None:
    """Take a picture of the fleet page, in light colours.

    Raises:
        SystemExit: if Chromium is missing.
    """
    chromium = find("chromium")
    if chromium is None:
        raise SystemExit("Chromium is missing: run `python tests/support/peers.py fetch chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], env={**os.environ, **environment("chromium")}
        )
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light", locale="en-GB")
        page.goto(f"{hub}/ui/#/fleet")
        expect(page.locator("#status")).to_contain_text("Refreshed", timeout=60_000)
        page.get_by_label("Colour by").select_option(COLOURING)
        expect(page.get_by_text("GPUs and holders as of")).to_be_visible(timeout=60_000)
        page.mouse.move(0, 0)
        page.screenshot(path=file)
        browser.close()


def main() -> None:
    """Run a hub with a simulated fleet, and take the picture."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        hub = f"http://127.0.0.1:{port}"
        env = {"GPUFLEET_HUB_STATE": folder}
        config = Path(folder) / "hub.toml"
        config.write_text(CONFIG)
        command = ["hub", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
        with Gpufleet(command, Path(folder) / "log", env=env) as process:
            process.wait_for(f"{hub}/readyz")
            with Gpufleet(["simulate", "fleet", "--hub", hub, *FLEET], Path(folder) / "fleet"):
                time.sleep(LIVE_SECONDS)
                take(hub, file)
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{file} has {size} bytes, more than {MAX_BYTES}")
    print(f"{file}: {size} bytes")  # noqa: T201 - a command's output


if __name__ == "__main__":
    main()
