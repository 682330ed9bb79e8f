"""Facts about allocations. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import binding_at, lacks_machine
from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.attribution.contract import inactive_reason
from gpufleet.fleet.devices import independent_readings
from gpufleet.fleet.readings import MEASURING_LANES
from gpufleet.fleet.rules.facts import FactTable
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.finding import RuleScope
from gpufleet.model.reading import Provenance


class AnswerReading(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the answer for an allocation. None for an unknown number.

    Attributes:
        answers: whether a source answers.
        reason: why none does, or empty.
        devices: devices that its target has.
        machine: id of the machine that answers; None if there is none, or several.
    """

    answers: bool
    reason: str = ""
    devices: int | None = None
    machine: str | None = None


class AllocationReading(msgspec.Struct, frozen=True, kw_only=True):
    """State of an allocation at an instant.

    Attributes:
        cluster, id: its cluster and id.
        retired: whether it has ended.
        machine: id of its machine; None if unknown, or not a single one.
        expected_devices: expected number of devices; None if none is expected.
        overlapping_tenants: see `fleet.rules.inputs`; None if its devices are unknown.
        answer: the newest known answer; None if unknown.
    """

    cluster: str
    id: str
    retired: bool = False
    machine: str | None = None
    expected_devices: int | None = None
    overlapping_tenants: int | None = None
    answer: AnswerReading | None = None


def allocation_table(
    readings: Sequence[AllocationReading], clusters: Column | Sequence[int], machines: Column | Sequence[int]
) -> FactTable:
    """Return the facts about allocations; `clusters` and `machines` are the rows of their parents."""
    answers = [one.answer for one in readings]
    return FactTable(
        RuleScope.ALLOCATION,
        [f"{one.cluster}/{one.id}" for one in readings],
        {
            "expected_devices": [one.expected_devices for one in readings],
            "devices": [None if one is None else one.devices for one in answers],
            "answers": [None if one is None else one.answers for one in answers],
            "overlapping_tenants": [one.overlapping_tenants for one in readings],
        },
        texts={"reason": [None if one is None else one.reason for one in answers]},
        parents={RuleScope.CLUSTER: clusters, RuleScope.MACHINE: machines},
        retired=[one.retired for one in readings],
    )


def allocation_reading(
    allocation: Allocation, answer: AnswerReading | None, claims: Claims, now: int
) -> AllocationReading | None:
    """Return the state of an allocation, or None before its start.

    Args:
        allocation: the allocation.
        answer: its newest known answer.
        claims: all allocations.
        now: nanoseconds since 1970 by the hub's clock.
    """
    cluster, inactive = allocation.spec.target.cluster, inactive_reason(allocation, now)
    if inactive is not None:
        is_over = inactive[0] is Reason.ENDED
        return AllocationReading(cluster=cluster, id=allocation.id, retired=True) if is_over else None
    binding = binding_at(allocation, now)
    machine = binding.machine if binding is not None else answer.machine if answer is not None else None
    rivals = None if lacks_machine(allocation) else claims.rivals(allocation, now, now + 1)
    return AllocationReading(
        cluster=cluster,
        id=allocation.id,
        machine=machine,
        expected_devices=expected_devices(allocation),
        overlapping_tenants=None if rivals is None else len({one.spec.tenant for one in rivals}),
        answer=answer,
    )


def expected_devices(allocation: Allocation) -> int | None:
    """Return the number of devices that an allocation expects or lists, whichever is larger; None for neither."""
    spec = allocation.spec
    return max(sum(spec.expected.values()), len(spec.devices or ())) or None


def answer_reading(answer: AllocationAnswer) -> AnswerReading:
    """Return the summary of an answer. Devices are unknown if no source answers, except that none may be reported."""
    answers = answer.source is not Provenance.UNAVAILABLE
    is_known = answers or answer.reason is Reason.NOT_REPORTED
    present = [one for one in answer.devices if _is_present(one)]
    of_gpus = answer.allocation.spec.devices is None  # otherwise every listed device counts, MIG devices too
    return AnswerReading(
        answers=answers,
        reason="" if answer.reason is None else answer.reason.value,
        devices=len(independent_readings(present) if of_gpus else present) if is_known else None,
        machine=answer.machine,
    )


def _is_present(device: AnswerDevice) -> bool:
    """Return whether a source reports a device now. A machine's answer also lists devices that it had before."""
    if device.source is Provenance.UNAVAILABLE:
        return False
    measured = [one for name, one in device.readings.items() if CATALOGUE[name].lane in MEASURING_LANES]
    readings = measured or list(device.readings.values())
    return not readings or any(one.absent is not Reason.STALE for one in readings)
