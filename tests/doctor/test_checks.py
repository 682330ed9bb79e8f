import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.doctor import Check, Facts, Verdict, examine
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import Machine, PciFunction

HIDDEN = Absent(Reason.NOT_PERMITTED, "hidden")
NO_MODULE = Absent(Reason.NO_DRIVER, "the kernel module nvidia is not loaded")


def gpu(driver: str | None = "nvidia", vendor: int = 0x10DE) -> PciFunction:
    return PciFunction(address="0000:18:00.0", vendor=vendor, device=0x2335, class_code=0x030200, driver=driver)


HEALTHY = Facts(
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
    pod_resources="",
    missing_packages={"agent": (), "hub": ()},
    libvirt_enabled=True,
    libvirt_socket="",
    guests_described=True,
    guests=(),
    guests_capability="available",
)


def judge(name: str, **changed: object) -> Check:
    facts = msgspec.structs.replace(HEALTHY, **changed)
    return next(check for check in examine(facts) if check.name == name)


def test_a_healthy_node_is_ok_throughout() -> None:
    assert {check.name: check.verdict for check in examine(HEALTHY) if check.verdict is not Verdict.OK} == {}


def test_without_facts_everything_is_unknown() -> None:
    assert {check.verdict for check in examine(Facts())} == {Verdict.UNKNOWN}


@given(st.sets(st.sampled_from([field.name for field in msgspec.structs.fields(Facts)])))
def test_a_missing_fact_never_makes_anything_better(missing: set[str]) -> None:
    defaults = Facts()
    poorer = msgspec.structs.replace(HEALTHY, **{name: getattr(defaults, name) for name in missing})
    assert {check.verdict for check in examine(poorer)} <= {Verdict.OK, Verdict.UNKNOWN, Verdict.WARNING}
    sick = msgspec.structs.replace(poorer, driver_version=NO_MODULE, kernel_log="EPERM")
    assert {check.verdict for check in examine(sick) if check.name in ("nvidia_driver", "kernel_log")}.isdisjoint(
        {Verdict.OK}
    )


@pytest.mark.parametrize(
    ("name", "changed", "verdict", "word"),
    [
        ("nvidia_gpus", {"inventory": ()}, Verdict.NOT_APPLICABLE, "no NVIDIA"),
        ("nvidia_gpus", {"inventory": (gpu("ast", vendor=0x1A03),)}, Verdict.NOT_APPLICABLE, "no NVIDIA"),
        ("nvidia_gpus", {"inventory": (gpu("vfio-pci"), gpu())}, Verdict.OK, "1 bound to vfio-pci"),
        ("nvidia_gpus", {"inventory": (gpu(None), gpu())}, Verdict.WARNING, "no driver"),
        ("nvidia_gpus", {"inventory": (gpu("nouveau"),)}, Verdict.FAILED, "nouveau"),
        ("nvidia_driver", {"driver_version": NO_MODULE}, Verdict.FAILED, "not loaded"),
        ("nvidia_driver", {"driver_version": HIDDEN}, Verdict.UNKNOWN, "hidden"),
        (
            "nvidia_driver",
            {"driver_version": NO_MODULE, "inventory": (gpu("vfio-pci"),)},
            Verdict.NOT_APPLICABLE,
            "guests",
        ),
        ("nvidia_library", {"libraries": {}}, Verdict.FAILED, "neither"),
        ("nvidia_versions", {"libraries": {"/a": "580.1.2"}}, Verdict.FAILED, "580.1.2"),
        ("nvidia_versions", {"libraries": {"/a": "580.1.2", "/b": "590.48.01"}}, Verdict.WARNING, "580.1.2"),
        ("nvidia_versions", {"libraries": {"/a": ""}}, Verdict.UNKNOWN, "not told"),
        ("nvidia_device_nodes", {"device_nodes": {}}, Verdict.FAILED, "nvidiactl"),
        (
            "nvidia_device_nodes",
            {"device_nodes": {"/dev/nvidiactl": "", "/dev/nvidia0": "EACCES"}},
            Verdict.FAILED,
            "EACCES",
        ),
        ("nvidia_device_nodes", {"device_nodes": {"/dev/nvidiactl": "", "/dev/nvidia0": ""}}, Verdict.WARNING, "1 GPU"),
        ("nvidia_fabric_manager", {"switch_drivers": ()}, Verdict.NOT_APPLICABLE, "no NVSwitch"),
        ("nvidia_fabric_manager", {"switch_drivers": ("vfio-pci",)}, Verdict.NOT_APPLICABLE, "guest"),
        ("nvidia_fabric_manager", {"services": {"nvidia-fabricmanager": "not_running"}}, Verdict.FAILED, "not running"),
        ("nvidia_fabric_manager", {"services": {"nvidia-fabricmanager": HIDDEN}}, Verdict.UNKNOWN, "hidden"),
        (
            "nvidia_persistence",
            {"services": {"nvidia-persistenced": "not_installed"}},
            Verdict.WARNING,
            "not installed",
        ),
        ("process_table", {"processes_hidden": "hidepid=2"}, Verdict.WARNING, "hidepid"),
        ("identity", {"machine": Machine(name="n", machine_id="a" * 32)}, Verdict.WARNING, "clones"),
        ("identity", {"machine": Machine(name="n")}, Verdict.WARNING, "only the name"),
        ("clock", {"clock_ns": 0}, Verdict.FAILED, "1970"),
        ("clock", {"clock_synchronized": False}, Verdict.WARNING, "unsynchronised"),
        ("clock", {"clock_synchronized": None}, Verdict.UNKNOWN, "cannot be asked"),
        ("pressure", {"pressure": "ENOENT"}, Verdict.WARNING, "ENOENT"),
        ("kernel_log", {"kernel_log": "EPERM"}, Verdict.WARNING, "EPERM"),
        ("state_folder", {"state_folder_error": "EROFS"}, Verdict.FAILED, "EROFS"),
        ("state_folder", {"state_folder_free": 1 << 20}, Verdict.WARNING, "0.0 GiB"),
        ("kubelet_pod_resources", {"pod_resources": "EACCES"}, Verdict.FAILED, "EACCES"),
        ("kubelet_pod_resources", {"pod_resources": "ENOENT"}, Verdict.WARNING, "running"),
        (
            "kubelet_pod_resources",
            {"pod_resources": "ENOENT", "services": {"kubelet": "not_installed"}},
            Verdict.NOT_APPLICABLE,
            "no kubelet",
        ),
        (
            "kubelet_pod_resources",
            {"pod_resources": "ENOENT", "services": {"kubelet": HIDDEN}},
            Verdict.UNKNOWN,
            "hidden",
        ),
        ("agent_packages", {"missing_packages": {"agent": ("pynvml",), "hub": ()}}, Verdict.FAILED, "pynvml"),
        ("hub_packages", {"missing_packages": {"agent": (), "hub": ("chdb",)}}, Verdict.NOT_APPLICABLE, "chdb"),
    ],
)
def test_verdicts(name: str, changed: dict[str, object], verdict: Verdict, word: str) -> None:
    check = judge(name, **changed)
    assert check.verdict is verdict
    assert word in check.found
    if verdict in (Verdict.FAILED, Verdict.WARNING):
        assert check.mend, "what is wrong has a way to mend it"


def test_every_check_has_its_own_name_and_says_what_it_proves() -> None:
    checks = examine(HEALTHY)
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.proves for check in checks)
