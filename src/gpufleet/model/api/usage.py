"""What was held and used, and what it came to."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.absence import Reason

USED_RATIO = 0.01
"""A device of which less was busy is idle."""


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a device within a stretch of time, in seconds and joules.

    Attributes:
        used_seconds, idle_seconds: how long it was known to be the one or the other.
        power_joules, power_seconds: what its power came to, and for how long that was known.
        energy_joules, energy_seconds: by how much its energy counter grew, and for how long that was known.
    """

    used_seconds: float = 0.0
    idle_seconds: float = 0.0
    power_joules: float = 0.0
    power_seconds: float = 0.0
    energy_joules: float = 0.0
    energy_seconds: float = 0.0


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A device within a span of time.

    Attributes:
        cluster: of all that see it.
        views: (machine, key of the view) of each side that sees it.
        start, end: nanoseconds since 1970, `end` excluded.
    """

    cluster: str
    views: tuple[tuple[str, str], ...]
    start: int
    end: int


class Dimension(enum.StrEnum):
    """What usage can be grouped by."""

    CLUSTER = "cluster"
    ALLOCATION = "allocation"
    TENANT = "tenant"
    TEAM = "team"
    MODEL = "model"


class EnergySource(enum.StrEnum):
    """Where an amount of energy comes from."""

    COUNTER = "counter"  # the devices' energy counters
    POWER = "power"  # power, each reading of it taken to last until the next
    MIXED = "mixed"  # some devices' counters, other devices' power


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an hour of a GPU of a model costs, from an instant on.

    Attributes:
        model: as the driver names it, in any case, such as `NVIDIA H200`.
        per_gpu_hour: in the hub's currency.
        valid_from: from when on; until the next price of the same model.
    """

    model: str
    per_gpu_hour: float
    valid_from: dt.datetime


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of devices came to. Hours are GPU-hours: a MIG device counts as its share of its GPU.

    Attributes:
        group: dimension to its value; null where there is none.
        gpus: devices that were held at any time, each once; MIG devices of one GPU are one.
        held, used, idle, unknown: GPU-hours; `held` is the sum of the others.
        known_ratio: how much of what was held is known; None where nothing was held.
        energy_kwh: of what was held, None where none of it is known.
        energy_source: where that comes from.
        energy_gpu_hours: GPU-hours of which the energy is known.
        cost: what was held times its price; None where a price is lacking.
        cost_absent, cost_detail: why there is no cost.
    """

    group: dict[Dimension, str | None]
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


class Unplaced(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation of which some or all devices are not known: what it should have counts as held and unknown.

    Attributes:
        allocation: its id.
        devices: how many are counted so; 0 where nobody said how many there should be: it is in no total.
        reason, detail: why they are not known.
    """

    allocation: str
    devices: float
    reason: Reason
    detail: str


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/usage`.

    Attributes:
        start, end: of the time, `end` excluded.
        group_by: the dimensions.
        currency: of every cost; None where the hub has no prices.
        rows: one a group, by group.
        total: of everything, each device once.
        unplaced: allocations that are not wholly accounted for.
        words: coverage for people.
    """

    start: dt.datetime
    end: dt.datetime
    group_by: tuple[Dimension, ...]
    currency: str | None
    rows: tuple[UsageRow, ...]
    total: UsageRow
    unplaced: tuple[Unplaced, ...]
    words: str
