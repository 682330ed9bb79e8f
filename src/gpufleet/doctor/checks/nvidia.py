"""Checks of GPUs, driver, library and NVIDIA services."""

from collections import Counter

from gpufleet.doctor.facts import PASSTHROUGH_DRIVERS, CheckResult, CheckVerdict, NodeFacts
from gpufleet.model.absence import Absent, Reason

NO_PCI = "the PCI bus could not be listed: check that /sys is mounted"
NO_GPU = "no NVIDIA display controller on the PCI bus"
ALL_PASSED_THROUGH = "every GPU is passed through to a guest, which has the driver"


def check_gpus(facts: NodeFacts) -> CheckResult:
    """Check for NVIDIA display controllers, whatever their driver."""
    name, proves = "nvidia_gpus", "the machine has NVIDIA GPUs, and each is bound to a driver that uses it"
    gpus = facts.gpus()
    if gpus is None:
        return CheckResult(
            name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=NO_PCI, fix="mount sysfs at /sys"
        )
    if not gpus:
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=NO_GPU)
    counted = Counter(gpu.driver or "no driver" for gpu in gpus)
    found = f"{len(gpus)} on the PCI bus: " + ", ".join(
        f"{number} bound to {driver}" for driver, number in counted.items()
    )
    idle = [gpu.address for gpu in gpus if gpu.driver is None]
    foreign = [gpu.address for gpu in gpus if gpu.driver not in (None, "nvidia", *PASSTHROUGH_DRIVERS)]
    if foreign:
        fix = f"bind the driver nvidia (is nouveau blacklisted?) to {', '.join(foreign)}"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)
    if idle:
        fix = f"bind nvidia, or vfio-pci for a guest, to {', '.join(idle)}"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_driver(facts: NodeFacts) -> CheckResult:
    """Check that the kernel module is loaded."""
    name, proves = "nvidia_driver", "the kernel driver is loaded"
    version = facts.driver_version
    if isinstance(version, str):
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=f"version {version}")
    skipped = _without_host_gpu(facts, name, proves)
    if skipped is not None:
        return skipped
    if isinstance(version, Absent) and version.reason is Reason.NO_DRIVER:
        fix = "install NVIDIA's driver for this kernel, or load it: modprobe nvidia"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=version.detail, fix=fix)
    found = version.detail if isinstance(version, Absent) else "/sys/module could not be read"
    return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)


def check_library(facts: NodeFacts) -> CheckResult:
    """Check for the management library in the loader's cache and folders."""
    name, proves = "nvidia_library", "libnvidia-ml.so.1 is where the loader finds it"
    if facts.libraries:
        found = ", ".join(f"{path} {version}".strip() for path, version in facts.libraries.items())
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)
    skipped = _without_host_gpu(facts, name, proves)
    if skipped is not None:
        return skipped
    if facts.libraries is None:
        return CheckResult(
            name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="the loader's folders could not be read"
        )
    fix = (
        "install the driver's libraries (libnvidia-compute, nvidia-driver-cuda-libs); "
        "in a container use the NVIDIA runtime with the capability utility"
    )
    found = "neither in the loader's cache nor in its folders"
    return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)


def check_versions(facts: NodeFacts) -> CheckResult:
    """Compare the versions of library and kernel driver: NVML requires equal versions."""
    name, proves = "nvidia_versions", "library and kernel driver have the same version"
    skipped = _without_host_gpu(facts, name, proves)
    if skipped is not None:
        return skipped
    versions = {version for version in (facts.libraries or {}).values() if version}
    if not isinstance(facts.driver_version, str) or not versions:
        found = "the version of the library or of the kernel driver is unknown"
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)
    if versions == {facts.driver_version}:
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=f"both {facts.driver_version}")
    found = f"kernel driver {facts.driver_version}, library {', '.join(sorted(versions))}"
    if facts.driver_version in versions:
        fix = "remove the stale copy: the order of the loader's folders decides which copy is loaded"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    fix = "after an upgrade of the driver's packages reload the kernel modules, or restart the machine"
    return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=found, fix=fix)


def check_device_nodes(facts: NodeFacts) -> CheckResult:
    """Check the permissions of the device nodes that NVML opens."""
    name, proves = "nvidia_device_nodes", "this user may read and write /dev/nvidiactl and every /dev/nvidia<n>"
    skipped = _without_host_gpu(facts, name, proves)
    if skipped is not None:
        return skipped
    nodes = facts.device_nodes
    if nodes is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="/dev could not be read")
    if "/dev/nvidiactl" not in nodes:
        fix = "run nvidia-smi or nvidia-modprobe once as root; in a container use the NVIDIA runtime"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found="no /dev/nvidiactl", fix=fix)
    denied = [f"{path} ({error})" for path, error in nodes.items() if error and path != "/dev/nvidia-uvm"]
    if denied:
        fix = "give this user access (NVreg_DeviceFileMode, group video), or the container these devices"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=", ".join(denied), fix=fix)
    numbered = sum(path.removeprefix("/dev/nvidia").isdecimal() for path in nodes)
    driven = sum(gpu.driver == "nvidia" for gpu in facts.gpus() or ())
    found = f"{numbered} GPU nodes for {driven} GPUs bound to nvidia"
    if numbered < driven:
        fix = "in a container, request all devices (NVIDIA_VISIBLE_DEVICES=all); otherwise run nvidia-modprobe -c <n>"
        return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)
    return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=found)


def check_fabric_manager(facts: NodeFacts) -> CheckResult:
    """Check the fabric manager if there are NVSwitches: without it CUDA does not start."""
    name, proves = "nvidia_fabric_manager", "the NVSwitches have their fabric manager"
    switches = facts.switch_drivers
    if switches is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=NO_PCI)
    if not switches:
        return CheckResult(
            name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found="no NVSwitch on the PCI bus"
        )
    if all(driver in PASSTHROUGH_DRIVERS for driver in switches):
        found = f"{len(switches)} NVSwitches are passed through to a guest, which runs their fabric manager"
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
    fix = "systemctl enable --now nvidia-fabricmanager, of the driver's version"
    return _check_service(facts, "nvidia-fabricmanager", name, proves, CheckVerdict.FAILED, fix)


def check_persistence(facts: NodeFacts) -> CheckResult:
    """Check the persistence daemon: without it the driver unloads its state when the last client exits."""
    name, proves = "nvidia_persistence", "the driver keeps its state while no client uses a GPU"
    skipped = _without_host_gpu(facts, name, proves)
    if skipped is not None:
        return skipped
    fix = "systemctl enable --now nvidia-persistenced (the older nvidia-smi -pm 1 is not visible in files)"
    return _check_service(facts, "nvidia-persistenced", name, proves, CheckVerdict.WARNING, fix)


def _check_service(
    facts: NodeFacts, service: str, name: str, proves: str, otherwise: CheckVerdict, fix: str
) -> CheckResult:
    state = (facts.services or {}).get(service)
    if state == "running":
        return CheckResult(name=name, verdict=CheckVerdict.OK, proves=proves, found=f"{service} is running")
    if isinstance(state, str):
        found = f"{service}: {state.replace('_', ' ')}"
        return CheckResult(name=name, verdict=otherwise, proves=proves, found=found, fix=fix)
    found = state.detail if isinstance(state, Absent) else "the process table could not be read"
    return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found)


def _without_host_gpu(facts: NodeFacts, name: str, proves: str) -> CheckResult | None:
    """Return a result if the host drives no GPU, or if that is unknown; else None."""
    gpus, host_gpus = facts.gpus(), facts.host_gpus()
    if gpus is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=NO_PCI)
    if not gpus:
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=NO_GPU)
    if not host_gpus:
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=ALL_PASSED_THROUGH)
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
"""Checks in the order of the stack."""
