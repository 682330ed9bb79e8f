"""Devices of one machine: duplicates, ended instances, names, and the parents of MIG devices."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, Lane, MetricKind, Subject
from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.reading import Reading
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES, ReaderStatus, lane_interval
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Scope, ViewKind

NOT_HELD_BY_DRIVER = frozenset({Reason.NO_DRIVER, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER})
"""Reasons for which the PCI bus lists a GPU that NVIDIA's driver on this host does not hold."""


class ListedDevice(Protocol):
    """The part of a device that decides whether it duplicates another one."""

    @property
    def kind(self) -> ViewKind:
        """GPU, MIG device or vGPU instance."""
        ...

    @property
    def uuid(self) -> str | None:
        """UUID, if its reader reports one."""
        ...

    @property
    def pci_address(self) -> str | None:
        """PCI address, if its reader reports one."""
        ...

    @property
    def parent(self) -> str | None:
        """View key of the GPU that it is a part of."""
        ...

    @property
    def readings(self) -> Mapping[str, Reading]:
        """Merged readings."""
        ...


class GpuListing(NamedTuple):
    """GPU of a machine before duplicates are removed.

    Attributes:
        key: of the GPU.
        unnamed: whether only its index in a list identifies it: no UUID, no PCI address.
        why: why it has no value at all; None if it has one.
    """

    key: str
    unnamed: bool
    why: Reason | None = None

    @classmethod
    def of(cls, key: str, *, named: bool, readings: Mapping[str, Reading]) -> "GpuListing":
        """Return the listing of a GPU with these readings."""
        absent = None
        for name, reading in readings.items():
            if reading.absent is None and name != "gpu_pci_address":
                return cls(key, not named)
            absent = absent or reading.absent
        return cls(key, not named, absent)


def hidden_devices(devices: Mapping[str, ListedDevice]) -> frozenset[str]:
    """Return the view keys of devices that duplicate another one of the same machine.

    These are the GPUs of `duplicate_gpus`, and MIG devices without a UUID on a GPU whose MIG devices another reader
    lists by UUID.
    """
    duplicates = duplicate_gpus(
        GpuListing.of(key, named=bool(device.uuid or device.pci_address), readings=device.readings)
        for key, device in devices.items()
        if device.kind is ViewKind.GPU
    )
    mig = {key: device for key, device in devices.items() if device.kind is ViewKind.MIG}
    named_parents = {device.parent for device in mig.values() if device.uuid is not None}
    unnamed = {key for key, device in mig.items() if device.uuid is None and device.parent in named_parents}
    return duplicates | unnamed


def duplicate_gpus(gpus: Iterable[GpuListing]) -> frozenset[str]:
    """Return the keys of GPUs that are not listed because another one may be the same.

    A fallback reader may know a GPU only by its index in a list. An index identifies nothing, so such a GPU is never
    joined with another one:

    - If any named GPU has a value, the unnamed GPUs are hidden.
    - If no named GPU has a value, and as many of them belong to NVIDIA's driver as there are unnamed ones, both lists
      are the same GPUs: the named ones without values are hidden.
    - If the numbers differ, or no unnamed GPU has a value, the unnamed GPUs are hidden.
    """
    gpus = list(gpus)
    unnamed = frozenset(gpu.key for gpu in gpus if gpu.unnamed)
    named = [gpu for gpu in gpus if not gpu.unnamed]
    held = frozenset(gpu.key for gpu in named if gpu.why is not None and gpu.why not in NOT_HELD_BY_DRIVER)
    any_named_value = any(gpu.why is None for gpu in named)
    any_unnamed_value = any(gpu.why is None for gpu in gpus if gpu.unnamed)
    if not unnamed:
        return frozenset()
    return unnamed if any_named_value or (held and (len(held) != len(unnamed) or not any_unnamed_value)) else held


SourceKey = TypeVar("SourceKey", bound=Hashable)


def is_gone(instance: Mapping[SourceKey, float], parent: Mapping[SourceKey, float]) -> bool:
    """Return whether a newer pass over the GPU did not list the instance. A pass lists every existing instance.

    Args:
        instance: reader and lane to the time of its newest sample.
        parent: the same for its GPU. All samples of a pass must have the same time.
    """
    return any(parent.get(source, at) > at for source, at in instance.items())


_PASS_NS, _LATE_NS = (int(LANE_SECONDS[lane] * NANOS) for lane in (Lane.FAST, Lane.SLOW))
"""Longest time between two measurements of a pass, and between a measurement and the end of its pass."""


def unlisted_keys(stored: Iterable[StoredSample], readers: Iterable[ReaderStatus] = ()) -> frozenset[str]:
    """Return the keys of the devices of a machine that the newest pass of no reader listed.

    A reader that has stopped lists none. Only the lane counts in which a device is read most often.

    Args:
        stored: the newest samples of each view, by reader and lane.
        readers: status of the machine's readers. A pass that listed no device at all is known by its status only.
    """
    passes: dict[tuple[str, Lane], int] = {}
    by_key: dict[str, dict[tuple[str, Lane], int]] = {}
    for one in stored:
        sample = one.sample
        source = sample.reader, sample.lane
        passes[source] = max(passes.get(source, 0), sample.measured_at)
        if sample.view is not None:
            of_key = by_key.setdefault(sample.view.key, {})
            of_key[source] = max(of_key.get(source, 0), sample.measured_at)
    longest = LANE_SECONDS[Lane.SLOW]
    for status in readers:
        source = status.reader, status.lane
        passes[source] = max(passes.get(source, 0), (status.last_success or 0) - _LATE_NS)
        longest = max(longest, lane_interval(status) if status.lane is not Lane.STATIC else 0)
    outage = int(MISSED_PASSES * longest * NANOS)
    of_devices = {reader for of_key in by_key.values() for reader, _ in of_key}
    newest = max((at for (reader, _), at in passes.items() if reader in of_devices), default=0)

    def is_listed(of_key: Mapping[tuple[str, Lane], int]) -> bool:
        fastest = min(LANE_SECONDS[lane] for _, lane in of_key)
        return any(
            at + _PASS_NS >= passes[reader, lane] and at + outage >= newest
            for (reader, lane), at in of_key.items()
            if LANE_SECONDS[lane] == fastest
        )

    return frozenset(key for key, of_key in by_key.items() if not is_listed(of_key))


_NAMES = (("gpu_name", ""), ("vgpu_type", ""), ("mig_profile", "MIG "))

NAME_METRICS = tuple(metric for metric, _ in _NAMES)
"""Metrics of the name of a device; the first that has a value counts."""


def device_name(readings: Mapping[str, Reading]) -> str | None:
    """Return the display name of a device: its product, vGPU type or MIG profile; None if none is known."""
    for metric, prefix in _NAMES:
        reading = readings.get(metric)
        if reading is not None and reading.value is not None:
            return f"{prefix}{reading.value}"
    return None


PARENT_METRICS = frozenset(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects
    and Subject.MIG not in metric.subjects
    and metric.kind is not MetricKind.INFO
    and metric.role is None
    and metric not in EVENT_METRICS
    and not any(case.reason is Reason.NOT_IN_MIG_MODE for case in metric.absent_when)
)
"""Metrics that exist only for a whole GPU but also concern its MIG devices: power, temperature, ECC, ...

Metrics of events are not among them: an XID may be of another holder's MIG device.
"""


def with_parents(chosen: Iterable[AnswerDevice], every: Sequence[AnswerDevice]) -> tuple[AnswerDevice, ...]:
    """Add to each MIG device the readings that only its whole GPU has, in scope `parent`.

    Args:
        chosen: the devices of an answer.
        every: every device of their machine.
    """
    by_key = {_key(one): one for one in every}
    return tuple(_with_parent(one, by_key.get(one.parent or "")) for one in chosen)


def independent_readings(devices: Sequence[AnswerDevice]) -> list[Mapping[str, Reading]]:
    """Return the readings of the devices that are not part of another listed device, for totals."""
    keys = {_key(one) for one in devices}
    return [one.readings for one in devices if one.parent not in keys]


def _with_parent(device: AnswerDevice, parent: AnswerDevice | None) -> AnswerDevice:
    if device.kind is not ViewKind.MIG or parent is None:
        return device
    added = {
        name: msgspec.structs.replace(reading, scope=Scope.PARENT)
        for name, reading in parent.readings.items()
        if name in PARENT_METRICS and name not in device.readings
    }
    return msgspec.structs.replace(device, readings=device.readings | added)


def _key(device: AnswerDevice) -> str:
    return device.id.split("/", 2)[2]
