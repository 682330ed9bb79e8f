"""Page of an agent in a real Chromium: its machine, with guests, holders and processes."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from gpufleet.agent.publish.pages import PageForm
from gpufleet.model.absence import Reason
from gpufleet.model.snapshot import Snapshot
from gpufleet.web.agent import AgentApp
from gpufleet.web.server import serve
from tests.support.snapshots import example_guest, held_snapshot
from tests.support.waiting import PATIENCE
from tests.web.page.accessibility import violations

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

HOSTILE = "<script>document.title='owned'</script>\u202egnp"
TOKEN = "agent-token"


class Source:
    """Prepared pages of an agent whose first GPU has a hostile name."""

    missing: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.document = with_guest(held_snapshot())

    async def snapshot(self) -> Snapshot:
        return self.document

    async def page(self, form: PageForm) -> bytes:
        raise AssertionError(f"the page requested metrics: {form}")


def with_guest(snapshot: Snapshot) -> Snapshot:
    """Add a virtual machine, and replace the name of the first GPU."""
    first, *others = snapshot.devices
    devices = (msgspec.structs.replace(first, name=HOSTILE), *others)
    return msgspec.structs.replace(snapshot, devices=devices, guests=(example_guest(),))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the agent's pages, with a token, on a thread."""
    ports: queue.Queue[tuple[int, Callable[[], object]]] = queue.Queue()

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        app = AgentApp(Source(), lambda: TOKEN)
        async with serve(app, "127.0.0.1", 0, connections=64, stop_seconds=2) as port:
            ports.put((port, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    port, stop = ports.get(timeout=20 * PATIENCE)
    yield f"http://127.0.0.1:{port}"
    stop()
    thread.join()


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    context = browser.new_context(bypass_csp=True)  # the policy blocks the checker of accessibility
    made = context.new_page()
    made.set_default_timeout(20_000 * PATIENCE)
    errors: list[str] = []
    requests: set[str] = set()
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("request", lambda request: requests.add(request.url))
    made.goto(f"{url}/ui/")
    made.get_by_label("Token of this agent").fill(TOKEN)
    made.get_by_role("button", name="Sign in").click()
    expect(made.get_by_role("heading", level=1)).to_have_text("Node")
    yield made
    assert errors == []
    assert {one for one in requests if "/v1/" in one} == {f"{url}/v1/snapshot"}  # the agent's public API only
    context.close()


def test_node_page_shows_everything_of_the_snapshot(page: Page) -> None:
    snapshot = Source().document
    expect(page.locator("p.lead")).to_contain_text(snapshot.aggregate.coverage)
    rows = page.get_by_role("region", name="GPUs", exact=True).locator("tbody tr")
    expect(rows).to_have_count(len(snapshot.devices))
    expect(rows.first).to_contain_text("<script>document.title='owned'</script>?gnp")
    expect(rows.first).to_contain_text("pod ml/tr")
    assert page.title() == "Node · gpufleet"
    gpus = [one for one in snapshot.devices if one.kind == "gpu"]
    expect(page.get_by_role("img", name=f"Topology of {len(gpus)} GPUs")).to_be_visible()
    expect(page.get_by_role("region", name="Readers", exact=True)).to_contain_text("nvml, fast")
    guests = page.locator("section").filter(has=page.get_by_role("heading", name="Virtual machines"))
    expect(guests).to_contain_text("ml/train-0")
    expect(guests.locator(".unavailable")).to_contain_text("gpu_lost The GPU has fallen off the bus.")
    page.get_by_text("All readings of the machine").click()
    expect(page.locator("details", has_text="All readings")).to_contain_text("host_load_1m")
    assert violations(page) == []


def test_device_page_shows_every_reading_with_its_reason(page: Page) -> None:
    rows = page.get_by_role("region", name="GPUs", exact=True).locator("tbody tr")
    place, device = next(
        (place, one)
        for place, one in enumerate(Source().document.devices)
        if any(reading.absent == Reason.TIMEOUT for reading in one.readings.values())
    )
    rows.nth(place).locator("a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU")
    expect(page.locator("main table tbody tr")).to_have_count(len(device.readings) + len(device.dimensions))
    row = page.locator("tr").filter(has_text="gpu_power_watts")
    expect(row).to_contain_text("timeoutThe call did not return in time. Detail: nvmlDeviceGetTemperatureV")
    expect(row.locator("td").nth(2)).to_have_text("nvml")
    assert violations(page) == []
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token of this agent")).to_be_visible()
    assert page.locator(".value").count() == 0
