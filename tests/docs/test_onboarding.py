"""docs/onboarding/: steps and commands run against real parts, from a fresh state folder to the promised tier."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh
import pytest
import yaml
from aiohttp import web
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from gpufleet.channels.stream.dialers import HybridVsockDialer
from gpufleet.fleet.contract.starting_points import STARTING_POINTS, StartingPointName
from gpufleet.model.contract import Tier
from tests.fakes.kube_api import ADMIN, BUILT_IN, FakeKind, FakeKubeApi, ResourceKey
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.fakes.vsock_api import FakeVsockApi
from tests.holders.kubevirt.objects import A10, vmi_object
from tests.support.command import gpufleet
from tests.support.helm import Rendered, container_of, environment_of
from tests.support.hub_state import prepare_state
from tests.support.kube_objects import NODE_KEY, gpu_node
from tests.support.processes import Gpufleet, free_port
from tests.support.slurm import Node, slurm
from tests.support.waiting import wait_until
from tests.support.walkthrough import FAST, PAGE_CLUSTER, PAGES, Block, Hub, Walk, blocks_of, commands_of, steps_of
from tests.vm.machine import VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("onboarding")]

Peer = Callable[[str], Path]

TEXTS = {page.stem: page.read_text() for page in sorted(PAGES.glob("*.md"))}
FOLLOWED = {name: text for name, text in TEXTS.items() if name != "README"}
NODE = "gpu-17"
VIRTUAL_MACHINE_INSTANCES_KEY = ("kubevirt.io", "v1", "virtualmachineinstances")
KUBERNETES_STEPS = 6
"""Steps of the page of Kubernetes that reach tier 1."""

NODE_STEPS = 7
"""Steps of the page of bare metal on the first node."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Yield a hub that was set up by `hub init`, with the files of the index beside its own."""
    place = tmp_path_factory.mktemp("hub")
    conf, port = place / "conf", free_port()
    prepare_state(place / "state")
    listen = ["--listen", f"127.0.0.1:{port}", "--state", str(place / "state")]
    done = gpufleet("hub", "init", "--folder", str(conf), "--name", "127.0.0.1", *listen)
    assert done.returncode == 0, done.stderr
    config = str(conf / "hub.toml")
    token = gpufleet("token", "create", "--role", "operator", "--config", config)
    (conf / "operator.token").write_text(token.stdout)
    url = f"https://127.0.0.1:{port}"
    faster = {"GPUFLEET_HUB_FINDINGS__INTERVAL_SECONDS": "10"}
    with Gpufleet(["hub", "--config", config], place / "log", faster) as process:
        access = ["--hub", url, "--token-file", str(conf / "operator.token"), "--ca", str(conf / "ca.crt")]

        def is_ready() -> bool:
            assert process.process.poll() is None, (place / "log").read_text()
            return gpufleet("query", "fleet", *access).returncode == 0

        wait_until(is_ready, seconds=60, what="the hub")
        yield Hub(conf, url)


def body(name: str, first: int = 1, last: int | None = None) -> str:
    """Return the steps of a page from `first` to `last`, and the section `Check` if `last` is None."""
    text = TEXTS[name]
    steps = "".join(steps_of(text)[first - 1 : last])
    return steps if last is not None else steps + text.partition("\n## Check")[2]


def without_verdict(text: str) -> str:
    """Return a text without the query of the verdict: the hub judges at intervals, so all verdicts are queried last."""
    return re.sub(r"^.*gpufleet query contract .*\n", "", text, flags=re.MULTILINE)


@contextlib.contextmanager
def exporter(dialect: str, folder: Path) -> Iterator[str]:
    """Run an exporter of eight simulated GPUs; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ["simulate", "exporter", "--dialect", dialect, "--gpus", "8", "--listen", address, "--interval", "1"]
    with Gpufleet(arguments, folder / "exporter.log") as process:
        process.wait_for(f"http://{address}/metrics")
        yield address


@contextlib.contextmanager
def program(command: list[str], log: Path) -> Iterator[None]:
    """Run a program until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait(20)


def scrape(address: str) -> str:
    """Return the configuration that a Prometheus has before it joins."""
    return (
        "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: dcgm\n"
        f'    static_configs: [{{targets: ["{address}"], labels: {{node: {NODE}}}}}]\n'
    )


def check_config(promtool: Path, config: Path, address: str, arguments: list[str]) -> str:
    """Check the documented block in the configuration of a Prometheus that scrapes an exporter."""
    block = config.read_text()
    if "scrape_configs" not in block:
        faster = "    queue_config: {batch_send_deadline: 200ms}\n"
        config.write_text(scrape(address) + block + faster)
    return subprocess.run([promtool, *arguments], capture_output=True, text=True, check=True).stdout


class Parts(NamedTuple):
    """Parts of all walks.

    Attributes:
        stack: what runs until the verdicts were queried.
        vm: virtual machine, which is not running yet.
    """

    stack: contextlib.ExitStack
    peer: Peer
    vm: VirtualMachine


def follow_index(walk: Walk, _parts: Parts) -> None:
    (walk.folder / "operator.token").unlink()
    walk.execute(f"gpufleet cluster put {walk.cluster} --token-file admin.token --hub {walk.hub.url}")
    before, _, after = TEXTS["README"].partition("## Prepare")
    walk.follow(after)
    walk.follow(before)


def follow_prometheus(walk: Walk, site: Parts) -> None:
    config = walk.root / "etc/prometheus/prometheus.yml"
    address = site.stack.enter_context(exporter("dcgm", walk.folder))

    def reload() -> None:
        options = [f"--config.file={config}", f"--storage.tsdb.path={walk.folder}/tsdb"]
        listen = f"--web.listen-address=127.0.0.1:{free_port()}"
        site.stack.enter_context(program([str(site.peer("prometheus")), *options, listen], walk.folder / "writer.log"))

    walk.handlers |= {
        "promtool": lambda arguments: check_config(site.peer("promtool"), config, address, arguments),
        "vmagent": lambda _: "",
    }
    walk.units["prometheus"] = reload
    walk.follow(without_verdict(body("prometheus")))


def follow_vmagent(walk: Walk, site: Parts) -> None:
    address = site.stack.enter_context(exporter("dcgm", walk.folder))

    def start(arguments: list[str]) -> str:
        (walk.root / "etc/prometheus/prometheus.yml").write_text(scrape(address))
        own = [f"-remoteWrite.tmpDataPath={walk.folder}/queue", f"-httpListenAddr=127.0.0.1:{free_port()}"]
        site.stack.enter_context(program([str(site.peer("vmagent")), *arguments, *own], walk.folder / "writer.log"))
        return ""

    walk.handlers["vmagent"] = start
    walk.follow(body("prometheus", 1, 3))
    (command,) = commands_of(blocks_of(body("prometheus", 5, 5))[1])
    walk.run(command)
    walk.follow(without_verdict(body("prometheus", 6)))


def follow_opentelemetry(walk: Walk, site: Parts) -> None:
    """Send with the documented endpoint, header and authority by OpenTelemetry's SDK, in place of a Collector."""

    def restart() -> None:
        document = yaml.safe_load((walk.root / "etc/otelcol/config.yaml").read_text())
        settings = document["exporters"][document["service"]["pipelines"]["metrics"]["exporters"][0]]
        header = settings["headers"]["Authorization"]
        headers = {"Authorization": re.sub(r"\$\{file:(.*?)\}", lambda found: Path(found[1]).read_text(), header)}
        authority = settings["tls"]["ca_file"]
        sender = OTLPMetricExporter(f"{settings['endpoint']}/v1/metrics", certificate_file=authority, headers=headers)
        reader = PeriodicExportingMetricReader(sender, export_interval_millis=1000)
        provider = MeterProvider([reader], Resource({"host.name": NODE}))
        meter = provider.get_meter("test")
        for name, unit, value in OTEL_VALUES:
            meter.create_observable_gauge(name, [observer(value)], unit=unit)
        site.stack.callback(provider.shutdown)

    walk.units["otelcol"] = restart
    walk.follow(without_verdict(body("opentelemetry")))


OTEL_VALUES = (
    ("hw.power", "W", 300.0),
    ("hw.gpu.utilization", "1", 0.5),
    ("hw.gpu.memory.usage", "By", 1e9),
    ("hw.temperature", "Cel", 50.0),
)
"""Metrics, units and values of each GPU of the Collector."""


def observer(value: float) -> Callable[[CallbackOptions], Iterator[Observation]]:
    """Return the callback of a metric of eight GPUs."""

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for number in range(8):
            yield Observation(value, {"hw.id": f"GPU-{number:08x}-0000-0000-0000-000000000000", "hw.type": "gpu"})

    return observe


class ClusterOfPage:
    """Kubernetes cluster of a walk: the API is a fake; pods are processes with the configuration that helm renders."""

    def __init__(self, walk: Walk, site: Parts, exporter_address: str = "", api: FakeKubeApi | None = None) -> None:
        self.walk, self.peer, self.exporter = walk, site.peer, exporter_address
        self._api = site.stack.enter_context(api_server(api or FakeKubeApi()))
        self.kubeconfig = self._api.api.kubeconfig(walk.folder)
        walk.handlers |= {"helm": self.helm, "kubectl": self.kubectl}

    def put(self, key: ResourceKey, content: dict[str, Any]) -> None:
        """Create an object."""
        self._api.loop.call_soon_threadsafe(self._api.api.put, key, content)

    def helm(self, arguments: list[str]) -> str:
        """Render the chart, and run one pod of each component."""
        rest = [one for one in arguments[1:] if one != "--install"]
        command = [str(self.peer("helm")), "template", *rest, "--kube-version", "1.30.0"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.walk.folder, timeout=120)
        assert done.returncode == 0, done.stderr
        rendered = Rendered(done.stdout)
        for name, pod in rendered.pods().items():
            self._run(name, pod, rendered)
        return done.stdout

    def _run(self, name: str, pod: dict[str, object], rendered: Rendered) -> None:
        folder = self.walk.folder
        environment = environment_of(pod)
        for key, value in environment.items():
            environment[key] = {"spec.nodeName": NODE, "metadata.name": "gpufleet-cluster-agent-0"}.get(value, value)
        prefix = "GPUFLEET_CLUSTER_AGENT_" if name == "cluster-agent" else "GPUFLEET_AGENT_"
        environment |= {
            f"{prefix}HUB__TOKEN_FILE": str(folder / f"{self.walk.cluster}.token"),
            f"{prefix}HUB__CA": str(folder / "ca.crt"),
            f"{prefix}STATE": str(folder / f"state-{name}"),
            f"{prefix}LISTEN": f"127.0.0.1:{free_port()}",
            "GPUFLEET_AGENT_KUBEVIRT__KUBECONFIG": str(self.kubeconfig),
            "GPUFLEET_AGENT_READERS__HOST__K8S_NODE_NAME": NODE,  # NODE_NAME counts in a pod only
            "GPUFLEET_AGENT_READERS__HOST__ENABLED": "false",  # the PCI bus here lacks the GPUs of the driver
        }
        arguments = list(container_of(pod)["args"])
        if name == "cluster-agent":
            arguments += ["--kubeconfig", str(self.kubeconfig)]
            self.walk.environment = environment  # of commands in the pod
        else:
            environment["GPUFLEET_AGENT_LISTEN"] = self.walk.agent_url.removeprefix("http://")
        if "--config" in arguments:
            toml = rendered.of("ConfigMap")["agent"]["data"]["agent.toml"]
            file = folder / "agent.toml"
            file.write_text(
                re.sub(r'^url = ".*"$', f'url = "http://{self.exporter}/metrics"', toml, flags=re.MULTILINE)
            )
            arguments[arguments.index("--config") + 1] = str(file)
        self.walk.start(name, arguments, {**self.walk.driver.environment, **FAST, **environment})

    def kubectl(self, arguments: list[str]) -> str:
        """Check commands that create objects; run commands of pods here."""
        if "create" in arguments:
            command = [str(self.peer("kubectl")), *arguments, "--dry-run=client", "--output", "name"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=self.walk.folder, timeout=60)
            assert done.returncode == 0, done.stderr
        if "exec" in arguments and arguments[-2:] == ["doctor", "cluster-agent"]:
            inside = arguments[arguments.index("--") + 2 :]
            return self.walk.handlers["gpufleet"]([*inside, "--kubeconfig", str(self.kubeconfig)])
        return ""


def follow_kubernetes(walk: Walk, site: Parts) -> None:
    ClusterOfPage(walk, site)
    walk.follow(without_verdict(body("kubernetes")))


def follow_exporter(name: str, dialect: str) -> Callable[[Walk, Parts], None]:
    """Return the walk of a page about an exporter, after tier 1."""

    def follow(walk: Walk, site: Parts) -> None:
        address = site.stack.enter_context(exporter(dialect, walk.folder))
        walk.replaced = {"127.0.0.1:9400": address, "127.0.0.1:9090": address}
        ClusterOfPage(walk, site, address)
        walk.follow(body("kubernetes", 1, KUBERNETES_STEPS) + without_verdict(body(name)))

    return follow


def follow_bare_metal(walk: Walk, _parts: Parts) -> None:
    walk.follow(without_verdict(body("bare-metal")))


def follow_slurm(walk: Walk, site: Parts) -> None:
    node = Node("n1", "gpu:h100:8", ("Name=gpu Type=h100 File={dev}/nvidia[0-7]",))
    jobs = site.stack.enter_context(slurm(walk.folder / "slurm", site.peer("slurmctld"), [node]))
    libraries = f"{walk.driver.environment['LD_LIBRARY_PATH']}:{jobs.environment['LD_LIBRARY_PATH']}"
    added = {name: value for name, value in jobs.environment.items() if os.environ.get(name) != value}
    walk.environment = {**added, "LD_LIBRARY_PATH": libraries, "GPUFLEET_AGENT_HOLDERS__SLURM__NODES": "n1"}
    walk.handlers["sbatch"] = lambda arguments: jobs.run("sbatch", "-o", f"{walk.folder}/job.out", *arguments)
    walk.follow(body("bare-metal", 1, NODE_STEPS))
    walk.follow(without_verdict(body("slurm", 2)))


def follow_slices(walk: Walk, site: Parts) -> None:
    """Follow the page with a real virtual machine, whose image gets the documented account, script and line."""
    script = "usr/local/libexec/gpufleet-guest"
    line = "home/gpufleet/.ssh/authorized_keys"

    def keygen(arguments: list[str]) -> str:
        target = Path(arguments[arguments.index("-f") + 1])
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(target)
        target.chmod(0o600)
        key.write_public_key(f"{target}.pub")
        return ""

    def restart() -> None:
        """Boot the image, and restart the agent."""
        vm, account = site.vm, b"gpufleet:x:998:998::/home/gpufleet:/bin/sh\n"
        vm.files["etc/passwd"] = (0o644, vm.files["etc/passwd"][1] + account)
        vm.files["etc/group"] = (0o644, vm.files["etc/group"][1] + b"gpufleet:x:998:\n")
        vm.files[script] = (0o755, (walk.root / script).read_bytes())
        vm.files[line] = (0o644, (walk.root / line).read_bytes().replace(str(walk.root).encode(), b""))
        vm.start()
        walk.start_agent()

    walk.handlers["ssh-keygen"] = keygen
    walk.replaced = {"10.0.3.7:22": f"127.0.0.1:{site.vm.ssh_port}"}
    walk.follow(body("bare-metal", 1, NODE_STEPS))
    walk.units["gpufleet-agent"] = restart
    walk.follow(without_verdict(body("slices", 2)))


def follow_kubevirt(walk: Walk, site: Parts) -> None:
    """Follow the page with the engine of a real virtual machine behind the API's VSOCK. KubeVirt itself is a fake."""
    api = KubevirtApi(site.vm)
    cluster = ClusterOfPage(walk, site, api=api)
    kubectl = walk.handlers["kubectl"]

    def run(arguments: list[str]) -> str:
        """Create the machine as KubeVirt does from its template; run commands of the agent's pod here."""
        if "virtualmachine" in arguments and "patch" in arguments:
            template = yaml.safe_load((walk.folder / "vm.yaml").read_text())["spec"]["template"]
            consent = template["metadata"]["annotations"]["kubevirt.io/gpu-metrics-collector"]
            is_attached = template["spec"]["domain"]["devices"]["autoattachVSOCK"]
            machine = vmi_object(annotation=consent, vsock=is_attached, node=NODE, gpus=(A10,) * site.vm.gpus)
            cluster.put(VIRTUAL_MACHINE_INSTANCES_KEY, machine)
        if "exec" in arguments and "daemonset/gpufleet-agent" in arguments:
            return walk.handlers["gpufleet"](arguments[arguments.index("--") + 2 :])
        return kubectl(arguments)

    walk.handlers["kubectl"] = run
    walk.follow(body("kubernetes", 1, KUBERNETES_STEPS))
    if not site.vm.is_running:
        site.vm.start()
    walk.follow(without_verdict(body("kubevirt")))


WALKS: Mapping[str, tuple[str, Callable[[Walk, Parts], None]]] = {
    "index": ("README", follow_index),
    "prometheus": ("prometheus", follow_prometheus),
    "vmagent": ("prometheus", follow_vmagent),
    "opentelemetry": ("opentelemetry", follow_opentelemetry),
    "kubernetes": ("kubernetes", follow_kubernetes),
    "dcgm-exporter": ("dcgm-exporter", follow_exporter("dcgm-exporter", "dcgm")),
    "all-smi": ("all-smi", follow_exporter("all-smi", "all-smi")),
    "bare-metal": ("bare-metal", follow_bare_metal),
    "slurm": ("slurm", follow_slurm),
    "slices": ("slices", follow_slices),
    "kubevirt": ("kubevirt", follow_kubevirt),
}
"""Cluster to its page and its walk."""


class KubevirtApi(FakeKubeApi):
    """API server with KubeVirt's resource and its subresource `vsock`, which leads to a virtual machine."""

    def __init__(self, vm: VirtualMachine) -> None:
        super().__init__((*BUILT_IN, FakeKind(*VIRTUAL_MACHINE_INSTANCES_KEY, "VirtualMachineInstance")))
        self._vsock = FakeVsockApi()
        self._vsock.guest, self._vsock.token = partial(HybridVsockDialer, vm.vsock), ADMIN

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/apis/subresources.kubevirt.io/"):
            return await self._vsock.handle(request)
        return await super()._handle(request)


class RunningApi(NamedTuple):
    """API server, and the loop of its thread."""

    api: FakeKubeApi
    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def api_server(api: FakeKubeApi) -> Iterator[RunningApi]:
    """Run an API server with one GPU node in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(api.start(), loop).result(20)
    api.put(NODE_KEY, gpu_node(NODE))
    try:
        yield RunningApi(api, loop)
    finally:
        asyncio.run_coroutine_threadsafe(api.stop(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


class Outcome(NamedTuple):
    """Walk, and why it failed."""

    walk: Walk
    error: Exception | None


@pytest.fixture(scope="module")
def outcomes(hub: Hub, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Yield the outcome of every walk. What they started runs until the end of the tests."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # they have priority over the SDK's own setting
            patch.delenv(name, raising=False)
        for part in ("qemu-system-x86_64", "vmlinuz", "dropbear"):
            peer(part)
        machine = VirtualMachine()
        stack.callback(machine.close)
        site, found = Parts(stack, peer, machine), {}
        for name, (_, follow) in WALKS.items():
            folder = tmp_path_factory.mktemp(name)
            walk = Walk(folder, name, hub, FakeNvml(folder, Scenario.healthy(8)), free_port())
            stack.callback(walk.stop)
            patch.chdir(folder)
            error: Exception | None = None
            try:
                follow(walk, site)
            except Exception as failure:  # noqa: BLE001 - each page has a test of its own, which raises it
                error = failure
            found[name] = Outcome(walk, error)
        yield found


@pytest.mark.parametrize("name", WALKS)
def test_page_leads_to_its_tier(outcomes: dict[str, Outcome], name: str) -> None:
    """The walk of a page ends with the hub's verdict that the cluster has reached the promised tier."""
    walk, error = outcomes[name]
    if error is not None:
        raise error
    verdicts = [
        line for line in TEXTS[WALKS[name][0]].splitlines() if re.match(r"gpufleet query contract .*# check", line)
    ]
    assert len(verdicts) == (name != "index")
    for line in verdicts:
        (command,) = commands_of(Block("sh", line))
        walk.run(command)


TROUBLESHOOTING = (PAGES.parent / "operations" / "troubleshooting.md").read_text()
FAQ = (PAGES.parent / "faq.md").read_text()
EXPOSITION = Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt"


@pytest.fixture
def site(outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch) -> Walk:
    """Return the machine of the slices, on which commands without an address query its hub."""
    walk, error = outcomes["slices"]
    if error is not None:
        raise error
    monkeypatch.chdir(walk.folder)
    (walk.folder / "page.txt").write_text(EXPOSITION.read_text())
    own = walk.handlers["gpufleet"]
    admin = ["--hub", walk.hub.url, "--token-file", str(walk.folder / "admin.token")]

    def run(arguments: list[str]) -> str:
        if arguments[:2] in (["doctor", "hub"], ["config", "validate"]):
            return own([*arguments, "--config", str(walk.hub.folder / "hub.toml")])
        if arguments[0] in ("cluster", "machine"):
            return own([*arguments, *admin])
        return own([*arguments, "--hub", walk.hub.url] if arguments[0] == "query" else arguments)

    monkeypatch.setitem(walk.handlers, "gpufleet", run)
    return walk


def test_commands_of_troubleshooting_run(site: Walk) -> None:
    table = TROUBLESHOOTING.partition("\n## ")[0]
    commands = set(re.findall(r"`(gpufleet [^`]*)`", "\n".join(re.findall(r"^\| .*", table, re.MULTILINE))))
    assert len(commands) > 5
    for command in sorted(commands):
        line = command.replace("DEVICE", "0").replace("CLUSTER", PAGE_CLUSTER).replace("ID", "slice-17")
        assert site.execute(site.moved(line)), command


def test_commands_of_the_faq_run(site: Walk) -> None:
    """The last commands release the GPUs, retire the machine and close the cluster."""
    nodes = json.loads(site.execute(f"gpufleet query nodes --cluster {site.cluster} --json"))
    machine = nodes["items"][0]["machine"]["id"]
    site.follow(FAQ.replace("machine retire ID", f"machine retire {machine}"))
    assert "closed_at" in site.execute(f"gpufleet cluster get {site.cluster}")


@pytest.mark.parametrize("name", FOLLOWED)
def test_page_has_few_steps_that_are_checked(name: str) -> None:
    steps = steps_of(FOLLOWED[name])
    assert 5 <= len(steps) <= 10
    assert [step.partition(".")[0] for step in steps] == [str(number) for number in range(1, len(steps) + 1)]
    for step in steps:
        lines = [line for block in blocks_of(step) if block.language == "sh" for line in block.text.splitlines()]
        assert lines, step
        assert any("  # " in line for line in lines) or "query usage" in step or "kubectl" in step, step


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_options_of_the_page_exist(name: str) -> None:
    commands = re.findall(r"(?:^ *|sudo |/lib |-- )gpufleet ([a-z].*)", TEXTS[name].replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command in commands:
        name_of_command = re.match(r"(?:[a-z][a-z-]*(?: |$)){1,2}", command)
        assert name_of_command is not None, command
        page = gpufleet(*name_of_command[0].split(), "--help")
        assert page.returncode == 0, command
        assert set(re.findall(r" (--[a-z-]+)", command)) <= set(re.findall(r"--[a-z-]+", page.stdout)), command


@pytest.mark.parametrize("name", FOLLOWED)
def test_table_of_the_page_is_that_of_the_plan(name: str) -> None:
    points = [(key, one) for key, one in STARTING_POINTS.items() if one.page == f"onboarding/{name}.md"]
    assert points
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", FOLLOWED[name], re.MULTILINE))
    for at, ((_, tier), point) in enumerate(points):
        cells = {title: text.split(" | ")[at] for title, text in rows.items()}
        assert cells["tier"].startswith(f"[{tier:d}]")
        egress = "<br>".join(f"{one.source} to {one.destination}: {one.port}, {one.protocol}" for one in point.egress)
        expected = (point.installs, point.permissions, point.labels, egress, point.first_value)
        titles = ("installed", "permissions", "labels", "egress", "first value")
        assert tuple(cells[title] for title in titles) == expected


def test_each_starting_point_has_a_page() -> None:
    assert {one.page for one in STARTING_POINTS.values()} == {f"onboarding/{name}.md" for name in FOLLOWED}
    assert {name for name, _ in STARTING_POINTS} == set(StartingPointName)
    assert {tier for _, tier in STARTING_POINTS} == set(Tier)
