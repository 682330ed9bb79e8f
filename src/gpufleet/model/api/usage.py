"""GPU usage: hours held and used, energy and cost."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.absence import Reason

USED_RATIO = 0.01
"""Utilisation below which a device counts as idle."""


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Known activity and energy of a device within an interval.

    Attributes:
        used_seconds, idle_seconds: time known to be used or idle.
        power_joules, power_seconds: integrated power, and the time for which it is known.
        energy_joules, energy_seconds: increase of the energy counter, and the time for which it is known.
    """

    used_seconds: float = 0.0
    idle_seconds: float = 0.0
    power_joules: float = 0.0
    power_seconds: float = 0.0
    energy_joules: float = 0.0
    energy_seconds: float = 0.0


class DeviceInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Device within an interval.

    Attributes:
        cluster: cluster of all its observers.
        views: (machine, view key) of each side that sees the device.
        start, end: nanoseconds since 1970, `end` excluded.
        whole: the same of the GPU that the device is a part of; empty for a whole GPU.
    """

    cluster: str
    views: tuple[tuple[str, str], ...]
    start: int
    end: int
    whole: tuple[tuple[str, str], ...] = ()


class UsageDimension(enum.StrEnum):
    """Dimension by which usage can be grouped."""

    CLUSTER = "cluster"
    ALLOCATION = "allocation"
    TENANT = "tenant"
    TEAM = "team"
    MODEL = "model"
    NAMESPACE = "namespace"
    OWNER = "owner"
    POD = "pod"
    JOB = "job"
    USER = "user"
    ACCOUNT = "account"
    QUEUE = "queue"


HOLDER_DIMENSIONS = frozenset(
    {
        UsageDimension.NAMESPACE,
        UsageDimension.OWNER,
        UsageDimension.POD,
        UsageDimension.JOB,
        UsageDimension.USER,
        UsageDimension.ACCOUNT,
        UsageDimension.QUEUE,
    }
)
"""Dimensions of usage by holder; the other ones, except `cluster` and `model`, are of allocations."""

ALLOCATION_DIMENSIONS = frozenset({UsageDimension.ALLOCATION, UsageDimension.TENANT, UsageDimension.TEAM})
"""Dimensions of usage by allocation."""


class EnergySource(enum.StrEnum):
    """Source of an amount of energy."""

    COUNTER = "counter"  # the devices' energy counters
    POWER = "power"  # integrated power; a reading holds until the next
    MIXED = "mixed"  # counters for some devices, power for others


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a GPU-hour of a model from an instant on.

    Attributes:
        model: as the driver names it, such as `NVIDIA H200`; case is ignored.
        per_gpu_hour: in the hub's currency.
        valid_from: start; the price holds until its end, or until the next one of the same GPUs.
        valid_to: end; None until the next one.
        instance_type, region: only GPUs of such machines; None for any.
        commitment: only GPUs of clusters that are paid by it; None for any.
    """

    model: str
    per_gpu_hour: float
    valid_from: dt.datetime
    valid_to: dt.datetime | None = None
    instance_type: str | None = None
    region: str | None = None
    commitment: str | None = None


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a group of devices. Hours are GPU-hours: a MIG device counts as its share of its GPU.

    Attributes:
        group: dimension to its value, or null.
        gpus: distinct devices that were held at any time; MIG devices of one GPU count as one.
        held, used, idle, unknown: GPU-hours; `held` is the sum of the other three.
        known_ratio: used and idle hours relative to held hours; None if nothing was held.
        energy_kwh: energy of the held devices; None if unknown throughout.
        energy_source: source of `energy_kwh`.
        energy_gpu_hours: GPU-hours with known energy.
        cost: held hours times price; None if a price is missing.
        cost_absent, cost_detail: why there is no cost.
        shared_gpu_hours: part of `unknown` on devices that holders outside of the group shared.
        replica_hours: hours of replicas of time-sliced or MPS devices.
        unattributed_gpu_hours: part of `held` without a known holder, of usage by holder.
        holder_absent: why the holder of the row's time is not known, of usage by holder; None if it is.
    """

    group: dict[UsageDimension, str | None]
    gpus: int
    held_gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    unknown_gpu_hours: float
    known_ratio: float | None
    energy_kwh: float | None
    energy_source: EnergySource | None
    energy_gpu_hours: float
    cost: float | None
    cost_absent: Reason | None
    cost_detail: str
    shared_gpu_hours: float = 0.0
    replica_hours: float = 0.0
    unattributed_gpu_hours: float = 0.0
    holder_absent: Reason | None = None


class UnresolvedAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """Allocation with unknown devices. Its missing expected devices count as held and unknown.

    Attributes:
        allocation: its id.
        devices: number of devices that are missing, or not confirmed; None if it is unknown: they are then in no total.
            0 if only the share of a MIG device is unknown.
        reason, detail: why they are unknown.
    """

    allocation: str
    devices: float | None
    reason: Reason
    detail: str


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/usage`.

    Attributes:
        start, end: interval, `end` excluded.
        group_by: the dimensions.
        currency: of every cost; None if the hub has no prices.
        rows: a row per group, sorted by group.
        total: over all groups, each device counted once.
        unresolved: allocations whose devices are not all known.
        summary: coverage, for people.
    """

    start: dt.datetime
    end: dt.datetime
    group_by: tuple[UsageDimension, ...]
    currency: str | None
    rows: tuple[UsageRow, ...]
    total: UsageRow
    unresolved: tuple[UnresolvedAllocation, ...]
    summary: str
