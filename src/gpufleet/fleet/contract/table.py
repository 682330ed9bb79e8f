"""Table of the checks of the contract. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from gpufleet.fleet.contract.check import ContractCheck, DoctorCheck
from gpufleet.fleet.contract.cluster_checks import CLUSTER_CHECKS
from gpufleet.fleet.contract.machine_checks import MACHINE_CHECKS
from gpufleet.fleet.contract.records import CheckPlace

DOCTOR_CHECKS = (
    DoctorCheck(
        name="disk_queue_usable",
        help="`gpufleet doctor` reports `state_folder` as ok: the folder is writable and has 2 GiB free.",
        at=CheckPlace.NODE,
        results=("state_folder",),
    ),
    DoctorCheck(
        name="devices_permitted",
        help="`gpufleet doctor` reports `nvidia_library` and `nvidia_device_nodes` as ok.",
        at=CheckPlace.NODE,
        results=("nvidia_library", "nvidia_device_nodes"),
    ),
    DoctorCheck(
        name="clock_synchronised",
        help="`gpufleet doctor` reports `clock` as ok: the kernel has the clock as synchronised.",
        at=CheckPlace.NODE,
        results=("clock",),
    ),
    DoctorCheck(
        name="api_permitted",
        help="`gpufleet doctor cluster-agent` may read the namespace kube-system, nodes and pods.",
        at=CheckPlace.CLUSTER,
        results=("get namespaces", "list watch nodes", "list watch pods"),
    ),
)

CHECKS: Mapping[str, ContractCheck] = MappingProxyType(
    {one.name: one for one in (*CLUSTER_CHECKS, *MACHINE_CHECKS, *DOCTOR_CHECKS)}
)
"""Every check by name."""
