"""Mapping of processes to claims. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpufleet.codecs.libvirt_domain import split_kubevirt_name
from gpufleet.holders.processes.parse.process import VirtualMachine
from gpufleet.holders.processes.records import ProcessEvidence
from gpufleet.model.holdings import MAX_STEPS, Holder, HolderKind, Method
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming


class _Key(NamedTuple):
    kind: HolderKind
    id: str
    container: str
    method: Method


def holder_of(process: ProcessEvidence) -> Holder | None:
    """Return the holder of a process, or None if it belongs to none."""
    placement, vm = process.placement, process.vm
    if placement.pod:
        return Holder(kind=HolderKind.POD, id=placement.pod)
    if placement.job:
        return Holder(kind=HolderKind.JOB, id=placement.job)
    if placement.container:
        return Holder(kind=HolderKind.CONTAINER, id=placement.container)
    return _vm_holder(vm) if vm is not None else None


def claims_of(processes: Iterable[ProcessEvidence]) -> tuple[HolderClaim, ...]:
    """Return one claim for each holder, container and method."""
    devices: dict[_Key, dict[DeviceName, None]] = {}
    steps: dict[_Key, set[str]] = {}
    holders: dict[_Key, tuple[Holder, Holder | None]] = {}
    for process in processes:
        holder = holder_of(process)
        if holder is None:
            continue
        container = process.placement.container if holder.kind is HolderKind.POD else ""
        for method, names in _names(process):
            key = _Key(holder.kind, holder.id, container, method)
            parent = _pod_parent(process) if holder.kind is HolderKind.POD else None
            known = holders.get(key)
            holders[key] = (holder, parent or (known[1] if known else None))
            devices.setdefault(key, {}).update(dict.fromkeys(names))
            steps.setdefault(key, set()).update({process.placement.step} - {""})
    return tuple(
        [
            HolderClaim(
                holder=holder,
                parent=parent,
                devices=tuple(devices[key]),
                method=key.method,
                container_id=key.container,
                steps=tuple(sorted(steps[key])[:MAX_STEPS]),
            )
            for key, (holder, parent) in holders.items()
        ]
    )


def _names(process: ProcessEvidence) -> list[tuple[Method, Sequence[DeviceName]]]:
    used = [DeviceName(Naming.VIEW, view, view) for view in process.views] + list(process.passed_through)
    opened = [DeviceName(Naming.MINOR, str(minor), f"/dev/nvidia{minor}") for minor in process.minors]
    opened += [DeviceName(Naming.MIG_OF_MINOR, one, f"/dev/nvidia-caps of {one}") for one in process.instances]
    opened += process.grouped
    if process.is_weak:
        used, opened = [], used + opened
    return [(method, names) for method, names in ((Method.PROCESS, used), (Method.DEVICE_FILE, opened)) if names]


def _vm_holder(vm: VirtualMachine) -> Holder:
    return Holder(kind=HolderKind.VM, id=vm.uuid, name=vm.name)


def _pod_parent(process: ProcessEvidence) -> Holder | None:
    """Return the virtual machine of a KubeVirt launcher pod. The sandbox of a Kata pod has another form of name.

    Its id is `namespace/name` and not its UUID: a pod chooses the command lines of its processes.
    """
    kubevirt = split_kubevirt_name(process.vm.name) if process.vm is not None else None
    if process.vm is None or kubevirt is None:
        return None
    return Holder(kind=HolderKind.VM, id="/".join(kubevirt), namespace=kubevirt[0], name=kubevirt[1])
