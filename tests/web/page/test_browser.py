"""Web page in a real Chromium, against a hub with tokens and a simulated fleet."""

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, expect

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import HubConfig
from gpufleet.model.access import Role
from gpufleet.model.finding import Severity
from gpufleet.model.machine import Machine
from gpufleet.model.stored.findings import FindingsState
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SqlFindings
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.fakes.batches import body, gpu_sample, gpu_view
from tests.security.daemons import create_tokens
from tests.security.guarded import exchange
from tests.support.command import gpufleet
from tests.support.findings import make_finding, transitions_of
from tests.support.processes import Gpufleet, free_port
from tests.support.store_folders import copy_empty_store
from tests.support.waiting import PATIENCE, wait_until
from tests.web.page.accessibility import violations

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

CLUSTER = "sim-1"
FLEET = Fleet(FleetSpec(clusters=1, nodes=8, gpus=2))
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>\u202egnp\u2066'
SHOWN = HOSTILE.replace("\u202e", "?").replace("\u2066", "?")
DARK_VM = str(uuid.UUID(int=7))
PHONE = {"width": 360, "height": 740}


class Hub(msgspec.Struct):
    """Running hub with a token of each role."""

    port: int
    tokens: dict[Role, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, path: str, method: str = "GET", document: object = None, role: Role = Role.ADMIN) -> Any:
        """Send a request with the token of a role and return the document."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}", "Content-Type": "application/json"}
        reply = exchange(self.port, method, path, headers, None if document is None else msgspec.json.encode(document))
        assert reply.status in (200, 201), reply.body
        return reply.document

    def allocate(self, name: str, kind: str, tenant: str, **target: str) -> None:
        """Register an allocation in force for the last hour."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
        spec = {"kind": kind, "target": {"cluster": CLUSTER, **target}, "tenant": tenant, "valid_from": since}
        self.request(f"/v1/allocations/{name}", "PUT", {**spec, "team": HOSTILE})


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("page")
    bound: dict[Role, dict[str, Any]] = {
        Role.SENDER: {"cluster": CLUSTER},
        Role.TENANT: {"tenant": "acme"},
        Role.OPERATOR: {},
        Role.ADMIN: {},
    }
    copy_empty_store(folder / "state" / "hub" / "store")
    registry = Database.open(HubConfig(state=str(folder / "state")).registry_dsn)
    registry.migrate()
    registry.close()
    site = Hub(free_port(), create_tokens(folder / "state", bound))
    for role, secret in site.tokens.items():
        (folder / f"{role}.token").write_text(secret)
    config = folder / "hub.toml"
    config.write_text(f'listen = "127.0.0.1:{site.port}"\nstate = "{folder}/state"\nauth = "tokens"\n')
    with Gpufleet(["hub", "--config", str(config)], folder / "log") as process:
        process.wait_for(f"{site.url}/healthz", 100)
        fill(site, folder)
        yield site
        assert process.stop(60) == 0
    assert "Traceback" not in (folder / "log").read_text()


def fill(site: Hub, folder: Path) -> None:
    """Send twenty minutes of the fleet and a machine with a hostile name, and register allocations."""
    past = ["--start", "20m", "--duration", "20m", "--speed", "1000000", "--interval", "60", "--no-incidents"]
    size = ["--clusters", "1", "--nodes", "8", "--gpus", "2"]
    tokens = ["--token-file", str(folder / "sender.token"), "--admin-token-file", str(folder / "admin.token")]
    done = gpufleet("simulate", "fleet", "--hub", site.url, *past, *size, *tokens, seconds=100)
    assert done.returncode == 0, done.stderr
    at = time.time_ns()
    machine = Machine(name=HOSTILE, machine_id="e" * 32, system_uuid=str(uuid.UUID(int=9)), boot_id="b")
    sample = gpu_sample(gpu_view(1), at, gpu_name=HOSTILE, gpu_power_watts=5.0)
    batch = body(1, at, cluster=CLUSTER, sender="hostile", machine=machine, samples=(sample,), last_error=HOSTILE)
    headers = {"Authorization": f"Bearer {site.tokens[Role.SENDER]}", "Content-Type": CONTENT_TYPE}
    assert exchange(site.port, "POST", "/v1/batches", headers, batch).status == 200
    wait_until(lambda: len(site.request("/v1/nodes")["items"]) == 9, what="the nodes to be known")
    wait_until(lambda: pod_of(site), what="a pod to be known")
    guest = FLEET.node(1, 5).guests[0].machine.system_uuid
    assert guest is not None
    spec = site.request(f"/v1/clusters/{CLUSTER}")["cluster"]["spec"]
    site.request(f"/v1/clusters/{CLUSTER}", "PUT", {**spec, "netdata_url": "http://{node}:19999/"})
    site.allocate("metal", "bare_metal", "acme", machine=FLEET.node(1, 1).name)
    site.allocate("slice", "gpu_slice", "acme", vm_uuid=guest)
    site.allocate("dark", "gpu_slice", "acme", vm_uuid=DARK_VM)
    site.allocate("pod", "kubernetes_pod", "acme", pod_uid=pod_of(site))
    site.allocate("rivals", "bare_metal", "rival", machine=FLEET.node(1, 2).name)
    save_findings(site, folder)


def save_findings(site: Hub, folder: Path) -> None:
    """Store findings about a machine with a hostile name, about allocations, and a closed one."""
    at, machine = time.time_ns() - 3600 * 10**9, hostile_machine(site)
    evidence = {"lost": "1", "xid_codes": HOSTILE}
    gpu = f"{CLUSTER}/{machine}/gpu/GPU-1"
    database = Database.open(HubConfig(state=str(folder / "state")).registry_dsn)
    try:
        for one in (
            make_finding("gpu.lost", gpu, at, severity=Severity.CRITICAL, evidence=evidence),
            make_finding("gpu.replaced", gpu, at + 1, severity=Severity.INFO),
            make_finding("node.missing", f"{CLUSTER}/{machine}", at + 2, closed_at=at + 60 * 10**9),
            make_finding("allocation.partial", f"{CLUSTER}/metal", at + 3, evidence={"devices": "1"}),
            make_finding("allocation.partial", f"{CLUSTER}/rivals", at + 4, evidence={"devices": "1"}),
        ):
            SqlFindings(database).save_findings(FindingsState(), transitions_of(one))
    finally:
        database.close()


def finding_of(site: Hub, rule: str) -> str:
    """Return the id of the oldest finding of a rule."""
    found: str = site.request(f"/v1/findings?rule={rule}")["items"][-1]["id"]
    return found


def hostile_machine(site: Hub) -> str:
    """Return the id of the machine with a hostile name."""
    found: str = next(
        one["machine"]["id"]
        for one in site.request("/v1/nodes")["items"]
        if "script" in one["machine"]["machine"]["name"]
    )
    return found


def pod_of(site: Hub) -> str:
    """Return the UID of a present pod, or an empty text."""
    items = site.request("/v1/holders?kind=pod")["items"]
    found: str = items[0]["holder"]["id"] if items else ""
    return found


class Visit:
    """Page in a context of its own. Its requests, errors and console messages are recorded."""

    def __init__(self, context: BrowserContext, hub: Hub, root: str = "") -> None:
        self.hub = hub
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._finished: list[Request] = []
        self._root = f"{hub.url}{root}/ui/"
        self.page: Page = context.new_page()
        self.page.set_default_timeout(20_000 * PATIENCE)
        self.page.on("request", self._on_request)
        self.page.on("requestfinished", self._on_finished)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._on_console)

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_finished(self, request: Request) -> None:
        self._finished.append(request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, role: Role, target: str = "") -> Page:
        """Open the page and sign in."""
        self.page.goto(f"{self._root}{target}")
        self.page.get_by_label("Token of this hub").fill(self.hub.tokens[role])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("button", name="Sign out")).to_be_visible()
        return self.page

    def go(self, target: str, heading: str) -> Page:
        """Go to another page within the session, and wait until it is refreshed."""
        self.page.evaluate("target => { location.hash = target }", target)
        expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        expect(self.page.locator("p.lead").first).to_be_visible()
        return self.page

    @property
    def received(self) -> str:
        """Text of all API responses."""
        texts = [request.response() for request in self._finished if "/v1/" in request.url]
        return "\n".join(one.text() for one in texts if one is not None)


@pytest.fixture
def visit(browser: Browser, hub: Hub) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    made = Visit(context, hub)
    yield made
    assert made.errors == []
    assert {f"{urlsplit(one).scheme}://{urlsplit(one).netloc}" for one in made.requests} == {hub.url}
    context.close()


def text_of(page: Page) -> str:
    found: str = page.locator("body").inner_text()
    return found


def test_sign_in_keeps_the_token_in_memory_only(visit: Visit, hub: Hub) -> None:
    page = visit.page
    page.goto(f"{hub.url}/ui/")
    page.get_by_label("Token of this hub").fill("gpf_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("form .error")).to_be_visible()
    assert len(visit.errors) == 1  # Chromium's own message about the status 401
    visit.errors.clear()
    page = visit.open(Role.TENANT)
    expect(page.get_by_role("link", name="metal")).to_be_visible()
    secret = hub.tokens[Role.TENANT]
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert kept == msgspec.json.encode([{}, {}, "", page.url]).decode()
    assert all(secret not in one for one in visit.requests)
    assert secret not in page.content()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token of this hub")).to_be_visible()
    assert "metal" not in text_of(page)


@pytest.mark.parametrize(
    ("name", "source", "gpus"),
    [
        ("metal", "host_local_probe", "2 of 2 report"),
        ("slice", "slice_guest", "1 of 1 report"),
        ("pod", "host_local_probe", "1 of 1 report"),
    ],
)
def test_allocation_shows_source_devices_and_ages(visit: Visit, name: str, source: str, gpus: str) -> None:
    page = visit.open(Role.TENANT, f"#/allocations/{name}")
    expect(page.locator(".source strong").first).to_have_text(source)
    expect(page.locator("dl.facts").first).to_contain_text(gpus)
    rows = page.get_by_role("region", name="GPUs", exact=True).locator("tbody tr")
    expect(rows).to_have_count(int(gpus[0]))
    assert rows.first.locator(".value").count() >= 5
    assert rows.first.locator(".age").first.inner_text().endswith("ago")
    page.locator("details summary").first.click()
    expect(page.locator("details table").first).to_contain_text("gpu_utilization_ratio")


def test_charts_draw_gaps_and_follow_the_range(visit: Visit) -> None:
    page = visit.open(Role.TENANT, "#/allocations/metal")
    chart = page.locator("figure").filter(has_text="GPU utilisation")
    expect(chart.locator("polyline")).to_have_count(2)
    expect(chart.locator("rect.gap").first).to_be_attached()  # nothing was measured in the first forty minutes
    assert chart.locator("svg svg polyline").count() == 2  # a step that begins before the range is clipped
    left = chart.locator(".grid").first.get_attribute("x1")
    assert chart.locator("svg svg").get_attribute("x") == left
    assert page.locator("figure").count() >= 5
    chart.locator("svg[role=img]").focus()
    page.keyboard.press("Home")
    expect(chart.locator("tbody td").first).to_have_text("no measurement")
    expect(chart.locator(".gap-text")).to_contain_text("No measurement")
    page.keyboard.press("PageDown")
    expect(chart.locator(".gap-text")).to_contain_text("No sample is stored for this time")
    page.keyboard.press("End")
    chart.locator("svg[role=img]").hover(position={"x": 80, "y": 60})
    expect(chart.locator(".gap-text")).to_contain_text("No measurement")
    with page.expect_response(lambda answer: "/series" in answer.url and "step=300s" in answer.url) as found:
        page.get_by_role("button", name="24 h").click()
    assert found.value.status == 200
    page.get_by_role("button", name="Calculate usage of the range").click()
    expect(page.locator("section").filter(has_text="Usage").locator("dl")).to_contain_text("GPU-hours")


def test_unavailable_allocation_shows_its_reason_and_no_value(visit: Visit) -> None:
    page = visit.open(Role.TENANT, "#/allocations/dark")
    expect(page.locator(".source strong").nth(1)).to_have_text("guest_not_collected")
    expect(page.locator("#status")).to_contain_text("Refreshed")
    assert page.locator(".value").count() == 0
    assert page.locator("polyline").count() == 0
    page.get_by_role("button", name="Calculate usage of the range").click()
    expect(page.locator("section").filter(has_text="Usage")).to_contain_text("missing or not confirmed: unknown")


def test_tenant_receives_nothing_of_other_tenants(visit: Visit) -> None:
    page = visit.open(Role.TENANT)
    for name in ("metal", "slice", "dark", "pod"):
        visit.go(f"#/allocations/{name}", "Allocation")
        expect(page.locator("#status")).to_contain_text("Refreshed")
    page.evaluate("location.hash = '#/nodes/' + encodeURIComponent('x')")  # an operator's page
    expect(page.get_by_role("heading", level=1)).to_have_text("Allocations")
    paths = {urlsplit(one).path for one in visit.requests if "/v1/" in one}
    allowed = {
        f"/v1/allocations/{name}/{part}" for name in ("metal", "slice", "dark", "pod") for part in ("metrics", "series")
    }
    assert paths <= {"/v1/access", "/v1/allocations", "/v1/events", "/v1/findings", "/v1/updates", *allowed}
    foreign = [FLEET.node(1, 2).name, "rival", *(str(gpu.view.uuid) for gpu in FLEET.node(1, 2).gpus)]
    for text in foreign:
        assert text not in visit.received
        assert text not in text_of(page)


def test_hostile_names_are_text(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR, "#/allocations/metal")
    expect(page.locator("dl.facts").first).to_contain_text(SHOWN)
    visit.go(f"#/nodes/{quote(hostile_machine(visit.hub))}", "Node")
    expect(page.locator("p.lead")).to_contain_text("<script>")
    page.get_by_role("region", name="GPUs", exact=True).locator("a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("GPU")
    expect(page.locator("p.lead")).to_contain_text("<script>")
    assert page.title().startswith("GPU")
    assert page.locator("main script, main img").count() == 0
    assert "\u202e" not in text_of(page)
    assert "\u2066" not in text_of(page)


def test_operator_filters_and_acknowledges_findings(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)
    expect(page.locator("dl.facts").first).to_contain_text("Open findings")
    page.locator("dl.facts").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Findings")
    rows = page.get_by_role("region", name="Findings", exact=True).locator("tbody tr")
    page.get_by_label("Severity").select_option("info")
    page.get_by_label("Rule").select_option("gpu.replaced")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="gpu.replaced").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Finding")
    expect(page.get_by_role("region", name="Timeline").locator("tbody tr")).to_have_count(1)
    page.get_by_label("For").select_option("1 day")
    page.get_by_label("Note").fill(HOSTILE)
    page.get_by_role("button", name="Acknowledge", exact=True).click()
    expect(page.get_by_text("Acknowledged.")).to_be_visible()
    expect(page.locator("dl.facts")).to_contain_text(SHOWN)
    visit.go("#/findings", "Findings")
    page.get_by_label("Rule").select_option("gpu.replaced")
    expect(rows).to_have_count(0)
    page.get_by_label("Show").select_option("acknowledged")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="gpu.replaced").click()
    page.get_by_role("button", name="End acknowledgement").click()
    expect(page.get_by_text("Not acknowledged.")).to_be_visible()
    expect(page.get_by_role("button", name="End acknowledgement")).to_be_hidden()
    visit.go("#/findings", "Findings")
    page.get_by_label("Show").select_option("closed")
    page.get_by_label("Rule").select_option("node.missing")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("closed")


def test_fleet_leads_to_the_contract_of_a_cluster(visit: Visit, hub: Hub) -> None:
    report = hub.request(f"/v1/clusters/{CLUSTER}/contract")
    page = visit.open(Role.OPERATOR, "#/fleet")
    page.get_by_role("region", name="Clusters", exact=True).locator(f"a[href='#/contract/{CLUSTER}']").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Contract")
    expect(page.locator("dl.facts").first).to_contain_text(CLUSTER)
    hidden = page.get_by_role("region", name="Not visible", exact=True)
    expect(hidden).to_contain_text(report["not_visible"][0]["item"])
    items = page.get_by_role("region", name="Items", exact=True)
    first = items.locator("tbody tr").first
    expect(first).to_contain_text("MUST")
    expect(first).to_contain_text("not met")
    expect(page.get_by_text(re.compile(r"^Judged .* ago\.$|^Not judged yet"))).to_be_visible()
    expect(items).to_contain_text("ownership.team")
    assert page.locator("main script, main img").count() == 0


def test_finding_with_hostile_texts_is_text(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR, "#/findings")
    page.get_by_label("Rule").select_option("gpu.lost")
    row = page.get_by_role("region", name="Findings", exact=True).locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text(f"xid_codes {SHOWN}")
    row.get_by_role("link", name="gpu.lost").click()
    expect(page.get_by_role("region", name="Evidence")).to_contain_text(SHOWN)
    assert page.title().startswith("Finding")
    assert page.locator("main script, main img").count() == 0
    assert "\u202e" not in text_of(page)


def test_tenant_sees_findings_of_its_allocation(visit: Visit, hub: Hub) -> None:
    page = visit.open(Role.TENANT, "#/allocations/metal")
    rows = page.get_by_role("region", name="Findings", exact=True).locator("tbody tr")
    expect(rows.filter(has_text="allocation.partial")).to_contain_text("devices 1")
    rows.get_by_role("link", name="allocation.partial").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Finding")
    expect(page.locator("p.lead")).to_contain_text("allocation.partial")
    assert page.get_by_role("button", name="Acknowledge").count() == 0
    page.evaluate("location.hash = '#/findings'")  # an operator's page
    expect(page.get_by_role("heading", level=1)).to_have_text("Allocations")
    assert "rivals" not in visit.received
    assert finding_of(hub, "gpu.lost") not in visit.received


def test_operator_reaches_every_reading_of_a_gpu_by_keyboard(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)
    expect(page.get_by_role("region", name="Clusters")).to_contain_text(CLUSTER)
    expect(page.get_by_role("region", name="Nodes", exact=True).locator("tbody tr")).to_have_count(9)
    page.get_by_label("Node", exact=True).fill(FLEET.node(1, 1).name)
    expect(page.get_by_role("region", name="Nodes", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Show GPUs, nodes: 1").click()
    expect(page.get_by_text("GPUs: 2, nodes: 1, as of")).to_be_visible()
    page.get_by_label("Colour GPUs by").select_option("temperature")
    page.get_by_label("Map of GPUs").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout").last).to_contain_text(str(FLEET.node(1, 1).gpus[0].view.uuid))
    page.get_by_label("Map of nodes").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout").first).to_contain_text("2 of 2 GPUs report")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Node")
    link = page.get_by_role("link", name="Open Netdata")
    expect(link).to_have_attribute("href", f"http://{FLEET.node(1, 1).name}:19999/")
    power = page.locator("figure").filter(has_text="Power")
    expect(power.locator("svg polyline, svg circle").first).to_be_attached()
    expect(power.locator(".swatch")).to_have_count(2)
    link = page.get_by_role("region", name="GPUs", exact=True).locator("a").first
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("figure").filter(has_text="GPU utilisation")).to_have_count(1)
    expect(page.locator("figure").filter(has_text="CPU utilisation")).to_have_count(0)
    row = page.locator("tr").filter(has_text="gpu_power_watts").first
    expect(row.locator("td").nth(2)).to_have_text("nvml")
    expect(row.locator("td").nth(3)).to_contain_text("ago")
    divided = FLEET.node(1, 4).gpus[0].view.uuid  # its GPUs are in MIG mode
    visit.go(f"#/gpus/{divided}", "GPU")
    expect(page.locator("section").filter(has_text="Holders of the range")).to_contain_text("held in parts")
    row = page.locator("tr").filter(has_text="gpu_utilization_ratio")
    expect(row.locator(".absent")).to_have_text("not_in_mig_mode")


def test_node_page_lists_parts_after_their_gpu(visit: Visit) -> None:
    visit.open(Role.OPERATOR)
    page = visit.go(f"#/nodes/{FLEET.node(1, 4).name}", "Node")  # its GPUs are in MIG mode
    kinds = page.get_by_role("region", name="GPUs", exact=True).locator("tbody td:nth-of-type(1)")
    expect(kinds).to_have_count(6)
    assert [text.split()[0] for text in kinds.all_inner_texts()] == ["gpu", "mig", "mig"] * 2


def test_both_views_of_a_passed_through_gpu_are_linked(visit: Visit, hub: Hub) -> None:
    host, guest = FLEET.node(1, 5), FLEET.node(1, 5).guests[0].machine
    page = visit.open(Role.OPERATOR)

    def pair(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        document["device"]["passthrough"] = {"known": True, "views": [f"{CLUSTER}/x/gpu/GPU-x"], "detail": "paired"}
        route.fulfill(response=answer, json=document)

    page.route("**/v1/gpus/**", pair)
    outside = hub.request(f"/v1/gpus?machine={host.name}")["items"][0]["device"]["id"]
    visit.go(f"#/gpus/{quote(outside, safe='')}", "GPU")
    expect(page.locator("dl.facts")).to_contain_text("paired")
    link = page.locator("dl.facts").get_by_role("link", name=f"{CLUSTER}/x/gpu/GPU-x")
    expect(link).to_have_attribute("href", f"#/gpus/{quote(f'{CLUSTER}/x/gpu/GPU-x', safe='')}")
    visit.go(f"#/nodes/{quote(guest.name, safe='')}", "Node")
    page.locator("dl.facts").get_by_role("link", name=host.name).click()
    expect(page.locator("p.lead")).to_contain_text(f"{host.name} in")


def test_page_of_nothing_shows_the_error_only(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)
    page.evaluate("location.hash = '#/nodes/none-such'")
    expect(page.locator("#notice .error")).to_contain_text("none-such")
    expect(page.locator("#status")).to_have_text("")
    expect(page.locator("main h2").first).to_be_hidden()
    assert len(visit.errors) == 1  # Chromium's own message about the status 404
    visit.errors.clear()


def test_gpu_page_lists_the_holders_of_the_range(visit: Visit, hub: Hub) -> None:
    held = hub.request("/v1/holders?kind=pod")["items"][0]
    visit.open(Role.OPERATOR)
    page = visit.go(f"#/gpus/{quote(held['device'], safe='')}", "GPU")
    rows = page.get_by_role("region", name="Holders of the range").locator("tbody tr")
    present = rows.filter(has_text="now")  # an earlier pod can be listed, too
    expect(present).to_have_count(1)
    expect(present).to_contain_text(held["holder"]["name"])


def test_every_gap_has_the_reason_of_its_samples(visit: Visit) -> None:
    page = visit.open(Role.TENANT)

    def fail_early(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        for one in document["series"]:
            one["points"][-15] = {"at": one["points"][-15]["at"], "value": None, "absent": "gpu_lost"}
        route.fulfill(response=answer, json=document)

    page.route("**/series?*", fail_early)
    visit.go("#/allocations/metal", "Allocation")
    chart = page.locator("figure").filter(has_text="GPU utilisation")
    chart.locator("svg[role=img]").focus()
    page.keyboard.press("End")
    for _ in range(3):
        page.keyboard.press("PageUp")
        if "gpu_lost" in chart.locator(".gap-text").inner_text():
            break
    expect(chart.locator(".gap-text")).to_contain_text("gpu_lost. The GPU")


def test_topology_shows_links_and_parts(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)

    def degrade(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        gpu = document["items"][0]["device"]
        gpu["name"] = HOSTILE
        gpu["readings"]["gpu_nvlinks_active"] = {"value": 17}
        gpu["dimensions"] = [{"metric": "gpu_nvlink_up", "labels": {"link": "3"}, "value": 0}]
        route.fulfill(response=answer, json=document)

    page.route("**/v1/gpus?machine=*", degrade)
    visit.go(f"#/nodes/{FLEET.node(1, 1).name}", "Node")
    picture = page.get_by_role("img", name="Topology of 2 GPUs")
    expect(picture.locator(".link-degraded")).to_have_count(1)
    expect(picture).to_contain_text("18 to NVSwitch")
    page.get_by_text("Topology as a table").click()
    rows = page.get_by_role("region", name="Topology", exact=True).locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="17 of 18 up; down: 3")).to_contain_text(SHOWN)
    page.unroute("**/v1/gpus?machine=*")

    def bridge(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        devices = [one["device"] for one in document["items"]]
        for device, other in zip(devices, reversed(devices), strict=True):
            device["readings"] |= {"gpu_nvlinks": {"value": 4}, "gpu_nvlinks_active": {"value": 4}}
            device["readings"].pop("gpu_nvswitch_links")
            slot = other["pci_address"] or other["readings"]["gpu_pci_address"]["value"]
            device["dimensions"] = [
                {"metric": "gpu_nvlink_peers", "labels": {"peer": "gpu"}, "value": 4},
                {"metric": "gpu_nvlink_gpu_links", "labels": {"peer_pci_address": slot}, "value": 4},
            ]
        route.fulfill(response=answer, json=document)

    page.route("**/v1/gpus?machine=*", bridge)
    visit.go(f"#/nodes/{FLEET.node(1, 2).name}", "Node")
    expect(picture.locator(".arc")).to_have_count(1)
    expect(picture.locator(".bar")).to_have_count(0)
    expect(picture).to_contain_text("4 to GPU 1")
    page.unroute("**/v1/gpus?machine=*")
    visit.go(f"#/nodes/{FLEET.node(1, 4).name}", "Node")  # its GPUs are in MIG mode
    expect(page.get_by_role("img", name="Topology of 2 GPUs")).to_contain_text("3g.71gb · 1/0")
    assert page.locator("main script, main img").count() == 0


def test_fleet_states_how_many_gpus_a_value_includes(visit: Visit) -> None:
    """Of the two GPUs of each node, one reports no utilisation."""

    def drop(route: Route) -> None:
        document = route.fetch().json()
        items = [{**one, "utilization_gpus": 1} for one in document["items"]]
        route.fulfill(json={**document, "items": items})

    visit.page.route("**/v1/nodes/gpus?*", drop)
    page = visit.open(Role.OPERATOR)
    page.get_by_label("Node", exact=True).fill(FLEET.node(1, 3).name)
    top = page.get_by_role("region", name="Top nodes").locator("tbody td")
    expect(top.nth(1)).to_contain_text("1 of 2 GPUs")
    expect(top.nth(2)).not_to_contain_text("GPUs")  # all report power
    nodes = page.get_by_role("region", name="Nodes", exact=True).locator("tbody")
    expect(nodes).to_contain_text("1 of 2 GPUs, at")


def test_fleet_lists_the_highest_values(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)
    nodes = page.get_by_role("region", name="Top nodes").locator("tbody tr")
    expect(nodes.first).to_contain_text("W")
    page.get_by_label("Node", exact=True).fill(FLEET.node(1, 3).name)
    expect(nodes).to_have_count(1)
    page.get_by_role("button", name="Show GPUs, nodes: 1").click()
    page.get_by_label("Top GPUs by").select_option("Temperature")
    cells = page.get_by_role("region", name="Top GPUs").locator("tbody tr td:nth-of-type(5)")
    expect(cells).to_have_count(2)
    hot = [float(text.removesuffix(" °C")) for text in cells.all_inner_texts()]
    assert hot == sorted(hot, reverse=True)


def test_fleet_shows_usage_by_team_and_namespace(visit: Visit) -> None:
    page = visit.open(Role.OPERATOR)
    usage = page.get_by_role("region", name="Usage")
    for group, name in (("team", SHOWN), ("namespace", "notebooks")):
        page.get_by_label("Usage by").select_option(group)
        page.get_by_role("button", name="Calculate usage").click()
        expect(usage.locator("thead th").first).to_have_text(group)
        row = usage.locator("tbody tr").filter(has_text=name).first
        assert float(row.locator("td").nth(1).inner_text()) > 0  # hours held
        expect(usage.locator("tbody tr").last).to_contain_text("total")
        expect(usage.locator("tbody tr").last).to_contain_text("known for")  # energy


def test_page_works_below_a_path_prefix(browser: Browser, hub: Hub) -> None:
    context = browser.new_context()
    prefix = "/cloud/gpu"

    def forward(route: Route) -> None:
        url = route.request.url.replace(prefix, "", 1)
        assert url != route.request.url, "a request left the prefix"
        if "/v1/updates?" in url:  # a response without an end
            route.fulfill(body=": open\n\n", content_type="text/event-stream")
            return
        route.fulfill(response=route.fetch(url=url))

    context.route("**/*", forward)
    made = Visit(context, hub, prefix)
    page = made.open(Role.OPERATOR)
    expect(page.get_by_role("region", name="Clusters")).to_contain_text(CLUSTER)
    expect(page.get_by_text("GPUs and holders as of")).to_be_visible()  # no request is in flight
    expect(page.locator("#status")).to_contain_text("Refreshed")
    assert made.errors == []
    context.close()


def pages_of(hub: Hub) -> list[tuple[str, str]]:
    """Return address and heading of a page of each kind; node and GPU have hostile names."""
    node = hostile_machine(hub)
    return [
        ("#/fleet", "Fleet"),
        ("#/allocations/metal", "Allocation"),
        (f"#/nodes/{quote(node)}", "Node"),
        (f"#/gpus/{quote(f'{CLUSTER}/{node}/gpu/GPU-1', safe='')}", "GPU"),
        ("#/findings", "Findings"),
        (f"#/contract/{CLUSTER}", "Contract"),
        (f"#/findings/{finding_of(hub, 'gpu.lost')}", "Finding"),
    ]


def test_pages_have_no_accessibility_violations(browser: Browser, hub: Hub) -> None:
    context = browser.new_context(bypass_csp=True)  # the policy blocks the checker
    made = Visit(context, hub)
    page = made.page
    page.goto(f"{hub.url}/ui/")
    expect(page.get_by_label("Token of this hub")).to_be_visible()
    assert violations(page) == []
    made.open(Role.OPERATOR)
    for target, heading in pages_of(hub):
        made.go(target, heading)
        expect(page.locator("#status")).to_contain_text("Refreshed")
        if heading == "Allocation":
            page.locator("details summary").last.click()  # readings of the machine
        if heading == "Node":
            page.get_by_text("Topology as a table").click()
        assert violations(page) == [], target
    context.close()


def test_pages_fit_a_phone_and_follow_the_colour_scheme(browser: Browser, hub: Hub) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme="dark")  # type: ignore[arg-type]  # a typed dictionary
    made = Visit(context, hub)
    made.open(Role.OPERATOR)
    for target, heading in pages_of(hub):
        page = made.go(target, heading)
        expect(page.locator("#status")).to_contain_text("Refreshed")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], target
    assert made.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    context.close()


def test_failed_refresh_marks_values_as_outdated(visit: Visit) -> None:
    page = visit.open(Role.TENANT, "#/allocations/metal")
    expect(page.locator("#status")).to_contain_text("Refreshed")
    refresh = "document.dispatchEvent(new Event('visibilitychange'))"
    page.route("**/metrics", lambda route: route.abort())
    page.evaluate(refresh)
    expect(page.locator("#notice .error")).to_be_visible()
    expect(page.locator("main.outdated .value").first).to_be_attached()
    page.unroute("**/metrics")
    page.evaluate(refresh)
    expect(page.locator("#notice .error")).to_have_count(0)
    page.route("**/metrics", lambda route: route.fulfill(status=401, json={"error": "revoked_token", "detail": "x"}))
    page.evaluate(refresh)
    expect(page.get_by_label("Token of this hub")).to_be_visible()
    assert page.locator(".value").count() == 0
    assert len(visit.errors) == 2  # Chromium's own messages about the two failures
    visit.errors.clear()


def test_new_data_appears_without_reload(visit: Visit) -> None:
    """The period of a page with a stream is a minute: the mark of the hub caused the refresh."""
    hub = visit.hub
    gpu = f"{CLUSTER}/{hostile_machine(hub)}/gpu/GPU-1"
    with visit.page.expect_response(lambda answer: "/v1/updates?topic=machine" in answer.url) as stream:
        page = visit.open(Role.OPERATOR, f"#/gpus/{quote(gpu, safe='')}")
    assert stream.value.status == 200
    row = page.locator("tr").filter(has_text="gpu_power_watts")
    expect(row).to_contain_text("5 W")
    at = time.time_ns()
    machine = Machine(name=HOSTILE, machine_id="e" * 32, system_uuid=str(uuid.UUID(int=9)), boot_id="b")
    sample = gpu_sample(gpu_view(1), at, gpu_name=HOSTILE, gpu_power_watts=77.0)
    batch = body(2, at, cluster=CLUSTER, sender="hostile", machine=machine, samples=(sample,), last_error=HOSTILE)
    headers = {"Authorization": f"Bearer {hub.tokens[Role.SENDER]}", "Content-Type": CONTENT_TYPE}
    assert exchange(hub.port, "POST", "/v1/batches", headers, batch).status == 200
    expect(row).to_contain_text("77 W", timeout=30_000)


def test_page_is_refreshed_soon_after_its_hub_is_back(visit: Visit) -> None:
    page, down = visit.page, False

    def stream(route: Route) -> None:
        route.abort() if down else route.fulfill(body=": open\n\n", content_type="text/event-stream")

    page.clock.install()
    page.route("**/v1/updates?*", stream)
    visit.open(Role.TENANT, "#/allocations/metal")
    expect(page.locator("#status")).to_contain_text("Refreshed")
    down = True
    page.route("**/metrics", lambda route: route.abort())
    for _ in range(4):  # the next attempt without a stream is after 4 minutes
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/metrics")):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("#notice .error")).to_be_visible()
    down = False
    page.unroute("**/metrics")
    with page.expect_response(lambda answer: answer.url.endswith("/metrics")):
        page.clock.fast_forward(20_000)
    expect(page.locator("#notice .error")).to_have_count(0)
    visit.errors.clear()


def test_page_is_refreshed_at_intervals_without_a_stream(visit: Visit) -> None:
    page = visit.page
    page.clock.install()
    page.route("**/v1/updates?*", lambda route: route.fulfill(status=429, json={"error": "too_many_streams"}))
    visit.open(Role.TENANT, "#/allocations/metal")
    expect(page.locator("#status")).to_contain_text("Refreshed")
    for _ in range(2):
        with page.expect_response(lambda answer: answer.url.endswith("/metrics")):
            page.clock.fast_forward(17_000)
    assert {one for one in visit.errors if "429" not in one} == set()
    visit.errors.clear()


def test_pauses_between_attempts_to_open_a_stream_grow(visit: Visit, hub: Hub) -> None:
    page = visit.page
    page.goto(f"{hub.url}/ui/")
    pauses = page.evaluate(
        """async () => {
        const root = document.querySelector('script').src.replace('app.js', '');
        const { UpdateStream } = await import(root + 'updates.js');
        const pauses = [];
        const end = new AbortController();
        const client = { async *events() { throw new Error('closed'); } };
        const wait = window.setTimeout;
        window.setTimeout = (done, ms) => {
            pauses.push(ms);
            if (pauses.length === 10) end.abort();
            return wait(done, 0);
        };
        await new UpdateStream(client, () => {}, () => {}).follow({}, end.signal);
        return pauses;
    }"""
    )
    assert len(pauses) == 10
    for failures, pause in enumerate(pauses):
        assert 0.5 <= pause / min(300_000, 2_000 * 2**failures) <= 1.5


def test_policy_blocks_inline_code_and_html(visit: Visit, hub: Hub) -> None:
    page = visit.page
    page.goto(f"{hub.url}/ui/")
    assert (
        page.evaluate(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'ran' } catch { return 'blocked' } })()"
        )
        == "blocked"
    )
    page.evaluate(
        "(() => { const one = document.createElement('style'); one.textContent = 'body{color:red}';"
        " document.head.append(one) })()"
    )
    assert page.evaluate("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    assert len(visit.errors) == 2
    visit.errors.clear()


def test_series_share_a_grid_and_topology_names_what_is_unknown(visit: Visit, hub: Hub) -> None:
    page = visit.page
    page.goto(f"{hub.url}/ui/")
    found = page.evaluate(
        """async () => {
        const root = document.querySelector('script').src.replace('app.js', '');
        const scale = await import(root + 'scale.js');
        const topology = await import(root + 'topology.js');
        const data = await import(root + 'fleet_data.js');
        const [one, other] = scale.alignSeries(
            [{points: [[20, 1], [30, null, 'timeout'], [50, 2]]}, {points: [[34, 3]]}], 5, 65, 10);
        const summaries = scale.alignSeries(
            [{points: [[0, 1], [10, 3], [20, null, 'timeout']]}, {points: [[0, 1], [10, null, 'ambiguous_zero']]},
             {points: [[0, null, 'timeout']]}], 0, 30, 10).map(scale.summary);
        const gpu = (id, readings, dimensions) => ({device: {id: 'c/m/gpu/' + id, kind: 'gpu', readings, dimensions}});
        const value = (one) => ({value: one});
        const peers = [{metric: 'gpu_nvlink_peers', labels: {peer: 'gpu'}, value: 4}];
        const known = topology.topologyOf([
            gpu('b', {gpu_nvlinks: value(4), gpu_nvlinks_active: value(0),
                      gpu_pci_address: value('0001:02:00.0')}, peers),
            gpu('a', {gpu_nvlinks: {absent: 'not_supported'}, gpu_pci_address: value('0000:01:00.0'),
                      gpu_pcie_link_width: value(8), gpu_pcie_link_width_max: value(16)}),
            gpu('c', {gpu_pci_address: value('0001:03:00.0')}, [
                {metric: 'gpu_nvlink_peers', labels: {peer: 'gpu'}, value: 3},
                {metric: 'gpu_nvlink_gpu_links', labels: {peer_pci_address: '0001:02:00.0'}, value: 2},
                {metric: 'gpu_nvlink_gpu_links', labels: {peer_pci_address: '0009:00:00.0'}, value: 1},
                {metric: 'gpu_nvlink_gpu_links', labels: {peer_pci_address: '0001:03:00.0'}, value: 9},
                {metric: 'gpu_nvlink_up', labels: {link: '0'}, value: 1},
                {metric: 'gpu_nvlink_up', labels: {link: '1'}, absent: 'driver_error'}]),
            {device: {id: 'c/m/mig/1', kind: 'mig', parent: 'gpu/a', readings: {}}},
            {device: {id: 'c/m/mig/2', kind: 'mig', parent: 'gpu/none', readings: {}}},
        ]);
        return {
            one: one.points, other: other.points, covers: [30, 40].map(one.covers),
            absences: [20, 30, 40].map(one.absence), summaries,
            gpus: known.gpus.map((one) => [one.pcie.state, one.nvlink.state, one.nvlink.text, one.parts.length]),
            pairs: topology.linkedPairs(known.gpus).map(([one, other, count]) => [one.id, other.id, count]),
            rest: known.gpus[2].nvlink.ends,
            ends: topology.linkEnds(known.gpus), orphans: known.orphans.length,
            unknown: topology.unknownParts(known).length,
            top: data.topOf([{v: 1}, {v: null}, {v: 3}, {v: 0}], 'v', 2),
        };
    }"""
    )
    assert found["one"] == [[0, None], [10, None], [20, 1], [30, None], [40, None], [50, 2], [60, None]]
    assert found["other"] == [[0, None], [10, None], [20, None], [30, 3], [40, None], [50, None], [60, None]]
    assert found["covers"] == [True, False]
    assert found["absences"] == [None, "timeout", None]
    assert found["summaries"] == [
        {"lowest": 1, "mean": 2, "highest": 3},
        {"lowest": None, "mean": None, "highest": 1},
        {"lowest": None, "mean": None, "highest": None},
    ]
    assert found["gpus"] == [
        ["degraded", "unknown", "unknown: not_supported", 1],
        ["unknown", "down", "0 of 4 up", 0],
        ["unknown", "unknown", "? of 2 up", 0],
    ]
    assert (found["ends"], found["orphans"], found["unknown"]) == (["another GPU"], 1, 4)
    assert found["pairs"] == [["c/m/gpu/b", "c/m/gpu/c", 2]]  # no pair with an unknown address or with itself
    assert found["rest"] == [["another GPU", 1]]
    assert found["top"] == {"known": 3, "found": [{"v": 3}, {"v": 1}]}


def test_scales_texts_and_map_places_of_many_nodes(visit: Visit, hub: Hub) -> None:
    page = visit.page
    page.goto(f"{hub.url}/ui/")
    found = page.evaluate(
        """async () => {
        const root = document.querySelector('script').src.replace('app.js', '');
        const scale = await import(root + 'scale.js');
        const data = await import(root + 'fleet_data.js');
        const cells = await import(root + 'cells.js');
        const format = await import(root + 'format.js');
        const dom = await import(root + 'dom.js');
        const labels = await import(root + 'labels.js');
        const events = await import(root + 'events.js');
        const node = (state, utilization_ratio, holder_states) => data.makeNode(
            {machine: {machine: {name: 'n'}, liveness: {state}}}, {utilization_ratio, holder_states}, new Map());
        const gpu = (state, value) => data.makeGpu(
            {device: {readings: {gpu_temperature_celsius: {value}}}, liveness: {state}});
        const nodes = Array.from({length: 10000}, (_, index) => ({group: 'c' + Math.floor(index / 3000)}));
        const layout = cells.placeCells(nodes, 1200, cells.cellSize(nodes.length), 20);
        const wrong = nodes.filter((_, index) => {
            const [x, y] = cells.cornerOf(layout, index);
            return cells.cellAt(layout, x + 1, y + 1) !== index;
        });
        return {
            runs: scale.runs([[0, 1], [1, null], [2, 0], [3, 4]]),
            gaps: scale.commonGaps(
                [{points: [[0, null], [1, 1], [2, null]]}, {points: [[0, null], [1, null], [2, 3]]}]),
            bytes: scale.ticks('bytes', 0, 80 * 1024 ** 3, 4),
            groups: layout.groups.length, wrong: wrong.length, height: layout.height,
            lost: data.nodeClass(node('lost', 0.5, {held: 1}), 'utilisation'),
            zero: data.nodeClass(node('live', 0, {}), 'utilisation'),
            hot: data.gpuClass(gpu('live', 84.9), 'temperature'),
            old: data.gpuClass(gpu('stale', 84.9), 'temperature'),
            mixed: data.nodeClass(node('live', 0, {held: 1, unknown: 1}), 'holders'),
            texts: [
                format.valueText('bytes', 0), format.valueText('ratio', 0), format.valueText('ratio', 1e-12),
                format.valueText('watts', 71.25)],
            long: dom.printable('x'.repeat(10000)).length,
            shares: [{}, {replicas: 2}, {replicas: 2, total_replicas: 4}].map(
                (one) => labels.shareText({share: 'timeslice', ...one})).concat(labels.shareText({})),
            holders: [{kind: 'job', id: '12', name: 'train'}, {kind: 'job', id: '12'},
                {kind: 'pod', id: 'u', name: 'p', namespace: 'ml'}].map((holder) => labels.holderName({holder})),
            events: [['xid', 79], ['gpu_recovered', 0], ['gpu_recovered', 40], ['gpu_reset', 40]].map(
                ([kind, code]) => events.eventText({kind, code})),
        };
    }"""
    )
    assert found["runs"] == [[[0, 1]], [[2, 0], [3, 4]]]
    assert found["gaps"] == [[0, 0]]
    assert found["bytes"] == [one * 20 * 1024**3 for one in range(5)]
    assert (found["groups"], found["wrong"]) == (4, 0)
    assert found["height"] < 2000
    assert (found["lost"], found["zero"], found["mixed"]) == ("unknown", "0-10 %", "unknown")
    assert (found["hot"], found["old"]) == ("75-85 °C", "unknown")
    assert found["texts"] == ["0 B", "0 %", "1e-10 %", "71.25 W"]
    assert found["long"] == 240
    assert found["shares"] == ["timeslice", "timeslice x2", "timeslice 2/4", "exclusive"]
    assert found["holders"] == ["job 12 train", "job 12", "pod ml/p"]
    assert found["events"] == ["xid 79", "gpu_recovered", "gpu_recovered (reset)", "gpu_reset"]
