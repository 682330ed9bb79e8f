"""GPUs of virtual machines under the names of KubeVirt's proposal. Only readings from inside the guest are written."""

import re
from collections.abc import Mapping

from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.exporters.exposition import MetricsPage
from gpufleet.exporters.families import LabelledSubject, add_families, without_duplicates
from gpufleet.model.catalogue import Subject
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import ViewKind

LABEL_PREFIX = "kubernetes_vmi_label_"
"""Prefix of KubeVirt for the labels of a VirtualMachineInstance on its series."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def add_kubevirt(page: MetricsPage, snapshot: Snapshot) -> None:
    """Add the KubeVirt families to a page. A virtual machine without a namespace has an empty label."""
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
                **labels_of_vmi(guest.labels),
            }
            shown.append(LabelledSubject(subject=Subject.GPU, readings=device.readings, labels=labels))
    add_families(page, KUBEVIRT, list(without_duplicates(shown)))


def labels_of_vmi(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a virtual machine under KubeVirt's names. Of two labels with one name, the first is kept."""
    named: dict[str, str] = {}
    for name, value in sorted(labels.items()):
        named.setdefault(LABEL_PREFIX + _NOT_IN_NAMES.sub("_", name), value)
    return named
