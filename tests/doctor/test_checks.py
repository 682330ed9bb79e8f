import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.doctor import CheckResult, CheckVerdict, NodeFacts, examine
from gpufleet.doctor.connection import DeliveryState, HubConnection, TlsSession
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.access import CallerAccess, Role
from gpufleet.model.holdings import Holder, HolderKind, UnresolvedDevice, UnresolvedDevices
from gpufleet.model.machine import Machine, PciFunction

HIDDEN = Absent(Reason.NOT_PERMITTED, "hidden")
NO_MODULE = Absent(Reason.NO_DRIVER, "the kernel module nvidia is not loaded")

NO_KUBELET = "not_enabled: no kubelet on this machine"
NO_SLURM = "not_enabled: SLURM's commands are not installed"
NO_LIBVIRT = "not_enabled: /run/libvirt/libvirt-sock-ro does not exist"

UNRESOLVED = UnresolvedDevices(
    counts={"kubelet": 2, "slurm": 0},
    devices=(
        UnresolvedDevice(
            source="kubelet", name="GPU-9", detail="no device", holder=Holder(kind=HolderKind.POD, id="u", name="p")
        ),
    ),
)
ABSENT = {"kubelet": NO_KUBELET, "slurm": NO_SLURM, "libvirt": NO_LIBVIRT}


def gpu(driver: str | None = "nvidia", vendor: int = 0x10DE) -> PciFunction:
    return PciFunction(address="0000:18:00.0", vendor=vendor, device=0x2335, class_code=0x030200, driver=driver)


NOW = dt.datetime(2027, 1, 15, 8, tzinfo=dt.UTC)
HUB = HubConnection(
    url="https://hub:8470",
    cluster="local",
    at=NOW,
    addresses=("10.0.0.1",),
    peer="10.0.0.1 port 8470",
    peer_error="",
    tls=TlsSession("TLSv1.3", NOW + dt.timedelta(days=90)),
    token_file="/etc/gpufleet/sender.token",
    token_mode=0o640,
    answer=CallerAccess(id="abc", roles=(Role.SENDER,), cluster="local"),
    clock_ahead=0.4,
    delivery=DeliveryState(records=0, bytes=0, last_success=NOW),
)

HEALTHY = NodeFacts(
    inventory=(gpu(), gpu()),
    switch_drivers=("nvidia-nvswitch",),
    driver_version="590.48.01",
    libraries={"/usr/lib64/libnvidia-ml.so.1": "590.48.01"},
    device_nodes={"/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": ""},
    services={"nvidia-fabricmanager": "running", "nvidia-persistenced": "running", "kubelet": "running"},
    processes_hidden="",
    pressure="",
    kernel_log="",
    machine=Machine(name="n", machine_id="a" * 32, system_uuid="b"),
    system_uuid="b",
    container="none",
    clock_ns=1_800_000_000 * 10**9,
    clock_synchronized=True,
    state_folder="/var/lib/gpufleet",
    state_folder_error="",
    state_folder_free=100 << 30,
    missing_packages={"agent": (), "hub": ()},
    holders={"kubelet": "available", "slurm": NO_SLURM, "libvirt": NO_LIBVIRT, "processes": "available"},
    libvirt_enabled=True,
    libvirt_socket="",
    guests_described=True,
    guests=(),
    guests_capability="available",
    hub=HUB,
)


def judge(name: str, **changed: object) -> CheckResult:
    facts = msgspec.structs.replace(HEALTHY, **changed)
    return next(check for check in examine(facts) if check.name == name)


def test_healthy_node_passes_every_check() -> None:
    assert {check.name: check.verdict for check in examine(HEALTHY) if check.verdict is not CheckVerdict.OK} == {}


def test_without_facts_everything_is_unknown() -> None:
    assert {check.verdict for check in examine(NodeFacts())} == {CheckVerdict.UNKNOWN}


@given(st.sets(st.sampled_from([field.name for field in msgspec.structs.fields(NodeFacts)])))
def test_missing_facts_never_improve_a_verdict(missing: set[str]) -> None:
    defaults = NodeFacts()
    poorer = msgspec.structs.replace(HEALTHY, **{name: getattr(defaults, name) for name in missing})
    assert {check.verdict for check in examine(poorer)} <= {CheckVerdict.OK, CheckVerdict.UNKNOWN, CheckVerdict.WARNING}
    sick = msgspec.structs.replace(poorer, driver_version=NO_MODULE, kernel_log="EPERM")
    assert {check.verdict for check in examine(sick) if check.name in ("nvidia_driver", "kernel_log")}.isdisjoint(
        {CheckVerdict.OK}
    )


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "expected"),
    [
        ("nvidia_gpus", {"inventory": ()}, CheckVerdict.NOT_APPLICABLE, "no NVIDIA"),
        ("nvidia_gpus", {"inventory": (gpu("ast", vendor=0x1A03),)}, CheckVerdict.NOT_APPLICABLE, "no NVIDIA"),
        ("nvidia_gpus", {"inventory": (gpu("vfio-pci"), gpu())}, CheckVerdict.OK, "1 bound to vfio-pci"),
        ("nvidia_gpus", {"inventory": (gpu(None), gpu())}, CheckVerdict.WARNING, "no driver"),
        ("nvidia_gpus", {"inventory": (gpu("nouveau"),)}, CheckVerdict.FAILED, "nouveau"),
        ("nvidia_driver", {"driver_version": NO_MODULE}, CheckVerdict.FAILED, "not loaded"),
        ("nvidia_driver", {"driver_version": HIDDEN}, CheckVerdict.UNKNOWN, "hidden"),
        (
            "nvidia_driver",
            {"driver_version": NO_MODULE, "inventory": (gpu("vfio-pci"),)},
            CheckVerdict.NOT_APPLICABLE,
            "passed through",
        ),
        ("nvidia_library", {"libraries": {}}, CheckVerdict.FAILED, "neither"),
        ("nvidia_versions", {"libraries": {"/a": "580.1.2"}}, CheckVerdict.FAILED, "580.1.2"),
        ("nvidia_versions", {"libraries": {"/a": "580.1.2", "/b": "590.48.01"}}, CheckVerdict.WARNING, "580.1.2"),
        ("nvidia_versions", {"libraries": {"/a": ""}}, CheckVerdict.UNKNOWN, "is unknown"),
        ("nvidia_device_nodes", {"device_nodes": {}}, CheckVerdict.FAILED, "nvidiactl"),
        (
            "nvidia_device_nodes",
            {"device_nodes": {"/dev/nvidiactl": "", "/dev/nvidia0": "EACCES"}},
            CheckVerdict.FAILED,
            "EACCES",
        ),
        (
            "nvidia_device_nodes",
            {"device_nodes": {"/dev/nvidiactl": "", "/dev/nvidia0": ""}},
            CheckVerdict.WARNING,
            "1 GPU",
        ),
        ("nvidia_fabric_manager", {"switch_drivers": ()}, CheckVerdict.NOT_APPLICABLE, "no NVSwitch"),
        ("nvidia_fabric_manager", {"switch_drivers": ("vfio-pci",)}, CheckVerdict.NOT_APPLICABLE, "guest"),
        (
            "nvidia_fabric_manager",
            {"services": {"nvidia-fabricmanager": "not_running"}},
            CheckVerdict.FAILED,
            "not running",
        ),
        ("nvidia_fabric_manager", {"services": {"nvidia-fabricmanager": HIDDEN}}, CheckVerdict.UNKNOWN, "hidden"),
        (
            "nvidia_persistence",
            {"services": {"nvidia-persistenced": "not_installed"}},
            CheckVerdict.WARNING,
            "not installed",
        ),
        ("process_table", {"processes_hidden": "hidepid=2"}, CheckVerdict.WARNING, "hidepid"),
        ("identity", {"machine": Machine(name="n", machine_id="a" * 32)}, CheckVerdict.WARNING, "clones"),
        ("identity", {"machine": Machine(name="n")}, CheckVerdict.WARNING, "only the name"),
        ("clock", {"clock_ns": 0}, CheckVerdict.FAILED, "1970"),
        ("clock", {"clock_synchronized": False}, CheckVerdict.WARNING, "unsynchronised"),
        ("clock", {"clock_synchronized": None}, CheckVerdict.UNKNOWN, "is unknown"),
        ("pressure", {"pressure": "ENOENT"}, CheckVerdict.WARNING, "ENOENT"),
        ("kernel_log", {"kernel_log": "EPERM"}, CheckVerdict.WARNING, "EPERM"),
        ("state_folder", {"state_folder_error": "EROFS"}, CheckVerdict.FAILED, "EROFS"),
        ("state_folder", {"state_folder_free": 1 << 20}, CheckVerdict.WARNING, "0.0 GiB"),
        ("holders", {"holders": {"kubelet": "not_permitted: socket"}}, CheckVerdict.WARNING, "not_permitted"),
        ("holders", {"holders": {"kubelet": "partial: /var/log/pods"}}, CheckVerdict.WARNING, "/var/log/pods"),
        ("holders", {"holders": {**ABSENT, "slurm": "timeout: scontrol"}}, CheckVerdict.WARNING, "slurm: timeout"),
        ("holders", {"holders": {"libvirt": "not_permitted: socket"}}, CheckVerdict.WARNING, "libvirt"),
        (
            "holders",
            {"holders": {"kubelet": "available", "processes": "partial: other users"}},
            CheckVerdict.WARNING,
            "other users",
        ),
        ("holders", {"unresolved": UNRESOLVED}, CheckVerdict.WARNING, "2 device names"),
        ("holders", {"unresolved": UnresolvedDevices(counts={"kubelet": 0})}, CheckVerdict.OK, "available"),
        ("holders", {"holders": ABSENT}, CheckVerdict.WARNING, "kubelet is running"),
        ("holders", {"holders": ABSENT, "services": {}}, CheckVerdict.NOT_APPLICABLE, "not on this machine"),
        (
            "holders",
            {"holders": {**ABSENT, "processes": "partial: other users"}, "services": {}},
            CheckVerdict.NOT_APPLICABLE,
            "other users",
        ),
        ("holders", {"holders": dict.fromkeys(ABSENT, "disabled")}, CheckVerdict.NOT_APPLICABLE, "disabled"),
        ("agent_packages", {"missing_packages": {"agent": ("pynvml",), "hub": ()}}, CheckVerdict.FAILED, "pynvml"),
        ("hub_packages", {"missing_packages": {"agent": (), "hub": ("chdb",)}}, CheckVerdict.NOT_APPLICABLE, "chdb"),
    ],
)
def test_verdicts(name: str, changed: dict[str, object], verdict: CheckVerdict, expected: str) -> None:
    check = judge(name, **changed)
    assert check.verdict is verdict
    assert expected in check.found
    if verdict in (CheckVerdict.FAILED, CheckVerdict.WARNING):
        assert check.fix, "the check has no fix"


@pytest.mark.parametrize(
    ("source", "state", "fix"),
    [
        ("kubelet", "not_permitted: socket", "root"),
        ("kubelet", "partial: /var/log/pods: No such file or directory", "`pod_logs`"),
        ("kubelet", "reader_failed: grpcio cannot be imported", "gpufleet[kubernetes]"),
        ("slurm", "reader_failed: no answer", "scontrol ping"),
        ("slurm", "not_permitted: jobs are hidden", "SlurmUser"),
        ("libvirt", "not_permitted: socket", "read-only socket"),
        ("processes", "partial: other users", "CAP_SYS_PTRACE"),
        ("kubernetes", "not_permitted: 403", "agent.enrich"),
        ("kubernetes", "partial: owners that cannot be read: ReplicaSet (forbidden)", "agent.enrich"),
        ("kubernetes", "no_data: the name of this node is not known", "k8s_node_name"),
        ("kubernetes", "stale: no answer in time", "API server"),
        ("kubernetes", "reader_failed: lightkube is not installed (grpcio neither)", "gpufleet[kubernetes]"),
    ],
)
def test_each_holder_source_has_its_fix(source: str, state: str, fix: str) -> None:
    missing = {"kubernetes": ("grpc",) if "grpcio" in state else ()}
    check = judge("holders", holders={"kubelet": "available", source: state}, missing_packages=missing)
    assert check.fix.startswith(f"{source}: ")
    assert fix in check.fix


def test_every_check_has_a_unique_name_and_a_purpose() -> None:
    checks = examine(HEALTHY)
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.proves for check in checks)
