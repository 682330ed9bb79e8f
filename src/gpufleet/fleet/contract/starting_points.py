"""Table of starting points: what a cluster installs, permits and opens for a tier, and its steps. Pure.

Texts have the placeholders `CLUSTER` and `URL`. Pages are relative to `docs/`.
"""

import enum
from collections.abc import Mapping

import msgspec

from gpufleet.model.contract import Tier


class StartingPointName(enum.StrEnum):
    """Equipment of a cluster before it joins."""

    PROMETHEUS = "prometheus"
    OTEL = "otel"
    DCGM_EXPORTER = "dcgm-exporter"
    ALL_SMI = "all-smi"
    KUBERNETES = "kubernetes"
    KUBEVIRT = "kubevirt"
    SLURM = "slurm"
    BARE_METAL = "bare-metal"
    SLICES = "slices"


class StepCheck(enum.StrEnum):
    """Condition by which a hub shows that a step is done."""

    REGISTERED = "registered"  # the cluster has a registration
    EXPECTED_GPUS = "expected_gpus"  # the number of expected GPUs is known
    FIRST_DATA = "first_data"  # a sender of the cluster has reported
    LIVE = "live"  # the newest report describes the present
    COLLECTOR = "collector"  # a cluster collector reports
    FIRST_MACHINE = "first_machine"  # a machine is live
    POOL = "pool"  # several machines are live, or the only one is
    ALL_MACHINES = "all_machines"  # every machine that is not retired is live
    ALL_GPUS = "all_gpus"  # as many GPUs report as are expected


class Connection(msgspec.Struct, frozen=True):
    """Outbound connection of a cluster: source, destination, port and protocol."""

    source: str
    destination: str
    port: str
    protocol: str


class OnboardingStep(msgspec.Struct, frozen=True):
    """Step of a starting point.

    Attributes:
        title: action of the step.
        command: main command; the page has the others.
        check: condition at the hub, or None if the hub does not show it.
    """

    title: str
    command: str
    check: StepCheck | None = None


class StartingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Way of a cluster into a tier.

    Attributes:
        title: what the cluster has.
        page: page with every command.
        installs: what is installed in the cluster.
        permissions: permissions of what is installed.
        labels: labels and names that the cluster needs.
        egress: outbound connections of the cluster.
        first_value: time until the first value at the hub, computed from default intervals.
        steps: steps in order.
    """

    title: str
    page: str
    installs: str
    permissions: str
    labels: str
    egress: tuple[Connection, ...]
    first_value: str
    steps: tuple[OnboardingStep, ...]


_BATCHES = "HTTPS, POST /v1/batches"
_COLLECTOR_RULES = (
    "ClusterRole of the collector: list and watch of nodes, pods, resource slices and claims; get of owners"
)
_GPU_NODES = "A node label of agent.gpuLabels, such as nvidia.com/gpu.present"
_DNS = Connection("all", "DNS", "53", "UDP, TCP")
_TO_API = Connection("collector", "Kubernetes API", "443, 6443", "HTTPS")
_POD_EGRESS = (Connection("collector, agents", "hub", "8470", _BATCHES), _TO_API, _DNS)
_HOST_EGRESS = (Connection("agent", "hub", "8470", _BATCHES), _DNS)
_AGENT_DELAY = "12 s after the start of an agent"

_REGISTER = OnboardingStep(
    "Register the cluster with its team, contact and expected GPUs",
    "gpufleet cluster put CLUSTER --environment NAME --team NAME --contact ADDRESS --expect MODEL=GPUS --hub URL",
    StepCheck.REGISTERED,
)
_EXPECTED = OnboardingStep(
    "Compare the expected number of GPUs", "gpufleet query fleet --hub URL", StepCheck.EXPECTED_GPUS
)
_TOKEN = OnboardingStep("Create the sender token", "gpufleet token create --role sender --cluster CLUSTER")
_LIVE = OnboardingStep("See the cluster live", "gpufleet query fleet --hub URL", StepCheck.LIVE)
_ALL_MACHINES = OnboardingStep(
    "See every machine live", "gpufleet query nodes --cluster CLUSTER --hub URL", StepCheck.ALL_MACHINES
)
_ALL_GPUS = OnboardingStep(
    "See every expected GPU report", "gpufleet query gpus --cluster CLUSTER --hub URL", StepCheck.ALL_GPUS
)
_COLLECTOR = OnboardingStep(
    "Install the collector",
    "helm upgrade --install gpufleet deploy/helm/gpufleet --namespace gpufleet --values values.yaml",
    StepCheck.COLLECTOR,
)
_JOIN = OnboardingStep(
    "Join the first node",
    "gpufleet join URL --cluster CLUSTER --token-file CLUSTER.token --ca ca.crt",
    StepCheck.FIRST_MACHINE,
)
_POOL_OF_HOSTS = OnboardingStep(
    "Join a pool of nodes", "gpufleet query nodes --cluster CLUSTER --hub URL", StepCheck.POOL
)
_ALL = (_LIVE, _EXPECTED, _ALL_MACHINES, _ALL_GPUS)
_HOSTS = (_REGISTER, _TOKEN, _JOIN, _POOL_OF_HOSTS, *_ALL)


def _imported(title: str) -> tuple[OnboardingStep, ...]:
    """Return the steps of a cluster that pushes with its own writer."""
    push = OnboardingStep(title, "gpufleet query senders --hub URL", StepCheck.FIRST_DATA)
    return (_REGISTER, _TOKEN, push, *_ALL)


def _charted(tier: Tier, *more: OnboardingStep) -> tuple[OnboardingStep, ...]:
    """Return the steps of a cluster with the chart, with `more` between the first node and the pool."""
    if tier is Tier.COLLECTOR:
        return (_REGISTER, _TOKEN, _COLLECTOR, _LIVE, _EXPECTED)
    canary = OnboardingStep(
        f"Set tier {tier:d} and the selector of one node",
        "helm upgrade --install gpufleet deploy/helm/gpufleet --namespace gpufleet --values values.yaml",
        StepCheck.FIRST_MACHINE,
    )
    pool = OnboardingStep(
        "Set the selector of a pool of nodes",
        "helm upgrade gpufleet deploy/helm/gpufleet --namespace gpufleet --values values.yaml",
        StepCheck.POOL,
    )
    return (_REGISTER, _TOKEN, _COLLECTOR, canary, *more, pool, *_ALL)


_GUEST = OnboardingStep(
    "Let an owner permit the readings of a virtual machine",
    "kubectl patch virtualmachine NAME --type=merge --patch-file vm.yaml",
)


_EXPORTER_PODS = StartingPoint(
    title="dcgm-exporter on Kubernetes",
    page="onboarding/dcgm-exporter.md",
    installs="Collector (2 pods), and an agent on each GPU node that reads the exporter of its node",
    permissions=f"{_COLLECTOR_RULES}. Agents: none, and no access to nodes",
    labels=f"{_GPU_NODES}; the labels of the exporter's pods (exporter.selector)",
    egress=(*_POD_EGRESS, Connection("agents", "exporter of the node", "9400", "HTTP")),
    first_value=_AGENT_DELAY,
    steps=_charted(Tier.EXPORTERS),
)

STARTING_POINTS: Mapping[tuple[StartingPointName, Tier], StartingPoint] = {
    (StartingPointName.PROMETHEUS, Tier.PULL): StartingPoint(
        title="Prometheus or vmagent that scrapes GPU exporters",
        page="onboarding/prometheus.md",
        installs="Nothing: a remote_write block",
        permissions="Sender token of the cluster, in a file of the Prometheus",
        labels="Hostname or instance with the node's name, UUID of each GPU",
        egress=(Connection("Prometheus or vmagent", "hub", "8470", "HTTPS, POST /api/v1/write"), _DNS),
        first_value="One scrape interval, and 6 s",
        steps=_imported("Add the remote_write block"),
    ),
    (StartingPointName.OTEL, Tier.PULL): StartingPoint(
        title="OpenTelemetry Collector with GPU metrics",
        page="onboarding/opentelemetry.md",
        installs="Nothing: an otlphttp exporter",
        permissions="Sender token of the cluster, in a file of the Collector",
        labels="Resource attribute host.name or k8s.node.name; hw.id or the UUID of each GPU",
        egress=(Connection("Collector", "hub", "8470", "HTTPS, POST /v1/metrics"), _DNS),
        first_value="One collection interval, and 2 s",
        steps=_imported("Add the otlphttp exporter to the metrics pipeline"),
    ),
    (StartingPointName.DCGM_EXPORTER, Tier.EXPORTERS): _EXPORTER_PODS,
    (StartingPointName.ALL_SMI, Tier.EXPORTERS): msgspec.structs.replace(
        _EXPORTER_PODS,
        title="all-smi on Kubernetes",
        page="onboarding/all-smi.md",
        egress=(*_POD_EGRESS, Connection("agents", "exporter of the node", "9090", "HTTP")),
    ),
    (StartingPointName.KUBERNETES, Tier.COLLECTOR): StartingPoint(
        title="Kubernetes without GPU metrics",
        page="onboarding/kubernetes.md",
        installs="Collector: a StatefulSet with 2 replicas. Nothing on nodes",
        permissions=_COLLECTOR_RULES,
        labels="None; topology and node-pool labels add region, zone and pool",
        egress=(Connection("collector", "hub", "8470", _BATCHES), _TO_API, _DNS),
        first_value="5 s after the start of the collector: nodes and pods, no usage",
        steps=_charted(Tier.COLLECTOR),
    ),
    (StartingPointName.KUBERNETES, Tier.AGENT): StartingPoint(
        title="Kubernetes without GPU metrics",
        page="onboarding/kubernetes.md",
        installs="Collector (2 pods), and the full agent on each GPU node",
        permissions=f"{_COLLECTOR_RULES}. Agents: GPUs by the container runtime, without root",
        labels=_GPU_NODES,
        egress=_POD_EGRESS,
        first_value=_AGENT_DELAY,
        steps=_charted(Tier.AGENT),
    ),
    (StartingPointName.KUBEVIRT, Tier.AGENT): StartingPoint(
        title="KubeVirt with GPUs in virtual machines",
        page="onboarding/kubevirt.md",
        installs="Collector (2 pods), and the full agent on each GPU node; DCGM in the guests",
        permissions=f"{_COLLECTOR_RULES}; list and watch of VirtualMachineInstances. Agents: the same list, and the "
        "VSOCK of guests by the API",
        labels=f"{_GPU_NODES}; annotation kubevirt.io/gpu-metrics-collector of each virtual machine that may be read",
        egress=(
            Connection("collector, agents", "hub", "8470", _BATCHES),
            Connection("collector, agents", "Kubernetes API", "443, 6443", "HTTPS; WebSocket for the VSOCK of guests"),
            _DNS,
        ),
        first_value=f"{_AGENT_DELAY}; a new guest is queried each second",
        steps=_charted(Tier.AGENT, _GUEST),
    ),
    (StartingPointName.SLURM, Tier.HOSTS): StartingPoint(
        title="SLURM",
        page="onboarding/slurm.md",
        installs="Agent as a systemd unit on each GPU node",
        permissions="scontrol and squeue with a view of every job; for processes on GPUs root with CAP_SYS_PTRACE and "
        "CAP_DAC_READ_SEARCH",
        labels="None",
        egress=(*_HOST_EGRESS, Connection("agent", "slurmctld", "6817", "SLURM")),
        first_value=_AGENT_DELAY,
        steps=_HOSTS,
    ),
    (StartingPointName.BARE_METAL, Tier.HOSTS): StartingPoint(
        title="Bare-metal hosts",
        page="onboarding/bare-metal.md",
        installs="Agent as a systemd unit or container on each host",
        permissions="Account of its own without root; /dev/nvidiactl and /dev/nvidia*",
        labels="None",
        egress=_HOST_EGRESS,
        first_value=_AGENT_DELAY,
        steps=_HOSTS,
    ),
    (StartingPointName.SLICES, Tier.HOSTS): StartingPoint(
        title="GPU cloud with slices in virtual machines",
        page="onboarding/slices.md",
        installs="Agent on each host; in the images an account, a key and a script",
        permissions="As on bare metal; an SSH key that can run one read-only script in guests",
        labels="UUID of each virtual machine, in its description and in its allocation",
        egress=(*_HOST_EGRESS, Connection("agent", "guest", "22", "SSH")),
        first_value=f"{_AGENT_DELAY}; a new guest is queried each second",
        steps=_HOSTS,
    ),
}
"""Starting points by name and tier."""

DEFAULT_POINTS: Mapping[Tier, StartingPointName] = {
    Tier.PULL: StartingPointName.PROMETHEUS,
    Tier.COLLECTOR: StartingPointName.KUBERNETES,
    Tier.EXPORTERS: StartingPointName.DCGM_EXPORTER,
    Tier.AGENT: StartingPointName.KUBERNETES,
    Tier.HOSTS: StartingPointName.BARE_METAL,
}
"""Starting point of a tier if none is named."""
