"""GPUs, driver, library, and the services beside them."""

from collections import Counter

from gpufleet.doctor.facts import HANDED_OVER, Check, Facts, Verdict
from gpufleet.model.absence import Absent, Reason

NO_PCI = "the PCI bus could not be listed: is /sys mounted?"
NO_GPU = "no NVIDIA display controller on the PCI bus"
ALL_HANDED_OVER = "every GPU is handed to guests: the driver is theirs"


def check_gpus(facts: Facts) -> Check:
    """Look for NVIDIA display controllers, whatever drives them."""
    name, proves = "nvidia_gpus", "the machine has NVIDIA GPUs, and each is bound to a driver that uses it"
    gpus = facts.gpus()
    if gpus is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=NO_PCI, mend="mount sysfs at /sys")
    if not gpus:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=NO_GPU)
    counted = Counter(gpu.driver or "no driver" for gpu in gpus)
    found = f"{len(gpus)} on the PCI bus: " + ", ".join(f"{number} bound to {who}" for who, number in counted.items())
    idle = [gpu.address for gpu in gpus if gpu.driver is None]
    foreign = [gpu.address for gpu in gpus if gpu.driver not in (None, "nvidia", *HANDED_OVER)]
    if foreign:
        mend = f"bind the driver nvidia (is nouveau blacklisted?) to {', '.join(foreign)}"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)
    if idle:
        mend = f"bind nvidia, or vfio-pci for a guest, to {', '.join(idle)}"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_driver(facts: Facts) -> Check:
    """Look for the loaded kernel module."""
    name, proves = "nvidia_driver", "the kernel driver is loaded"
    version = facts.driver_version
    if isinstance(version, str):
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=f"version {version}")
    excused = _excused(facts, name, proves)
    if excused is not None:
        return excused
    if isinstance(version, Absent) and version.reason is Reason.NO_DRIVER:
        mend = "install NVIDIA's driver for this kernel, or load it: modprobe nvidia"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=version.detail, mend=mend)
    found = version.detail if isinstance(version, Absent) else "/sys/module could not be read"
    return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)


def check_library(facts: Facts) -> Check:
    """Look for the management library where the loader looks."""
    name, proves = "nvidia_library", "libnvidia-ml.so.1 is where the loader finds it"
    if facts.libraries:
        found = ", ".join(f"{path} {version}".strip() for path, version in facts.libraries.items())
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)
    excused = _excused(facts, name, proves)
    if excused is not None:
        return excused
    if facts.libraries is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="the loader's folders could not be read")
    mend = (
        "install the driver's libraries (libnvidia-compute, nvidia-driver-cuda-libs); "
        "in a container use the NVIDIA runtime with the capability utility"
    )
    found = "neither in the loader's cache nor in its folders"
    return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)


def check_versions(facts: Facts) -> Check:
    """Compare library and kernel driver: NVML refuses to work across versions."""
    name, proves = "nvidia_versions", "library and kernel driver are of one version"
    excused = _excused(facts, name, proves)
    if excused is not None:
        return excused
    told = {version for version in (facts.libraries or {}).values() if version}
    if not isinstance(facts.driver_version, str) or not told:
        found = "the version of the library or of the kernel driver is not told"
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)
    if told == {facts.driver_version}:
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=f"both {facts.driver_version}")
    found = f"kernel driver {facts.driver_version}, library {', '.join(sorted(told))}"
    if facts.driver_version in told:
        mend = "remove the stale copy: which one is loaded depends on the order of the loader's folders"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    mend = "after an upgrade of the driver's packages reload the kernel modules, or restart the machine"
    return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=found, mend=mend)


def check_device_nodes(facts: Facts) -> Check:
    """Ask whether this user may use the device nodes that NVML opens."""
    name, proves = "nvidia_device_nodes", "this user may read and write /dev/nvidiactl and every /dev/nvidia<n>"
    excused = _excused(facts, name, proves)
    if excused is not None:
        return excused
    nodes = facts.device_nodes
    if nodes is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="/dev could not be read")
    if "/dev/nvidiactl" not in nodes:
        mend = "run nvidia-smi or nvidia-modprobe once as root; in a container use the NVIDIA runtime"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found="no /dev/nvidiactl", mend=mend)
    refused = [f"{path} ({error})" for path, error in nodes.items() if error and path != "/dev/nvidia-uvm"]
    if refused:
        mend = "give this user access (NVreg_DeviceFileMode, group video), or the container these devices"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=", ".join(refused), mend=mend)
    numbered = sum(path.removeprefix("/dev/nvidia").isdecimal() for path in nodes)
    driven = sum(gpu.driver == "nvidia" for gpu in facts.gpus() or ())
    found = f"{numbered} GPU nodes for {driven} GPUs bound to nvidia"
    if numbered < driven:
        mend = "in a container ask for all devices (NVIDIA_VISIBLE_DEVICES=all); else run nvidia-modprobe -c <n>"
        return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)
    return Check(name=name, verdict=Verdict.OK, proves=proves, found=found)


def check_fabric_manager(facts: Facts) -> Check:
    """Ask for the fabric manager where there are NVSwitches: without it CUDA does not start."""
    name, proves = "nvidia_fabric_manager", "the NVSwitches have their fabric manager"
    switches = facts.switch_drivers
    if switches is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=NO_PCI)
    if not switches:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found="no NVSwitch on the PCI bus")
    if all(driver in HANDED_OVER for driver in switches):
        found = f"{len(switches)} NVSwitches are handed to a guest: their fabric manager runs there"
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=found)
    mend = "systemctl enable --now nvidia-fabricmanager, of the driver's version"
    return _check_service(facts, "nvidia-fabricmanager", name, proves, Verdict.FAILED, mend)


def check_persistence(facts: Facts) -> Check:
    """Ask for the persistence daemon: without it the driver unloads its state when the last client leaves."""
    name, proves = "nvidia_persistence", "the driver keeps its state when nobody uses a GPU"
    excused = _excused(facts, name, proves)
    if excused is not None:
        return excused
    mend = "systemctl enable --now nvidia-persistenced (nvidia-smi -pm 1, its forerunner, cannot be seen from files)"
    return _check_service(facts, "nvidia-persistenced", name, proves, Verdict.WARNING, mend)


def _check_service(facts: Facts, service: str, name: str, proves: str, otherwise: Verdict, mend: str) -> Check:
    state = (facts.services or {}).get(service)
    if state == "running":
        return Check(name=name, verdict=Verdict.OK, proves=proves, found=f"{service} is running")
    if isinstance(state, str):
        found = f"{service}: {state.replace('_', ' ')}"
        return Check(name=name, verdict=otherwise, proves=proves, found=found, mend=mend)
    found = state.detail if isinstance(state, Absent) else "the process table could not be read"
    return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found)


def _excused(facts: Facts, name: str, proves: str) -> Check | None:
    """Excuse a check of the host's NVIDIA stack where the host drives no GPU, or nobody knows whether it does."""
    gpus, host_gpus = facts.gpus(), facts.host_gpus()
    if gpus is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=NO_PCI)
    if not gpus:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=NO_GPU)
    if not host_gpus:
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=ALL_HANDED_OVER)
    return None


NVIDIA_CHECKS = (
    check_gpus,
    check_driver,
    check_library,
    check_versions,
    check_device_nodes,
    check_fabric_manager,
    check_persistence,
)
"""In the order of the stack."""
