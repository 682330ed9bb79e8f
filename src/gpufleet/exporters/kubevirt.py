"""GPUs of virtual machines under the names of KubeVirt's proposal; only what was read inside the guest."""

from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.exporters.exposition import Page
from gpufleet.exporters.families import Shown, add_families, each_once
from gpufleet.model.catalogue import Subject
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import ViewKind


def add_kubevirt(page: Page, snapshot: Snapshot) -> None:
    """Add the families to a page; a virtual machine without a namespace has an empty one."""
    shown = []
    for guest in snapshot.guests:
        for device in guest.devices:
            if device.kind is not ViewKind.GPU or device.uuid is None:
                continue
            labels = {
                "node": snapshot.node.name,
                "namespace": guest.namespace,
                "name": guest.name,
                "gpu_index": "" if device.index is None else str(device.index),
                "gpu_uuid": device.uuid,
                "gpu_name": device.name or "",
            }
            shown.append(Shown(subject=Subject.GPU, readings=device.readings, labels=labels))
    add_families(page, KUBEVIRT, list(each_once(shown)))
