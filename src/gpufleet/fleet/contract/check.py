"""Kinds of checks of the contract, and their outcomes. Pure."""

import enum
from collections.abc import Callable, Mapping

import msgspec

from gpufleet.fleet.contract.facts import ClusterFacts, MachineFacts, PlaceFacts
from gpufleet.fleet.contract.records import CheckPlace
from gpufleet.model.text import bounded

MAX_FOUND = 300
"""Maximum length of the evidence of an outcome."""

ContractLimits = Mapping[str, float]
"""Numbers of an item by name."""


class ItemStatus(enum.StrEnum):
    """Status of an item."""

    MET = "met"
    NOT_MET = "not_met"
    UNKNOWN = "unknown"  # a fact is missing
    NOT_APPLICABLE = "not_applicable"


class CheckOutcome(msgspec.Struct, frozen=True):
    """Outcome of a check about one subject.

    Attributes:
        status: the outcome.
        found: evidence: what was observed, or what is missing.
        gpus: of an outcome `not_met`, the number of GPUs that it concerns; None for all GPUs of the subject.
    """

    status: ItemStatus
    found: str
    gpus: int | None = None


class ContractCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Check of a kind of subject.

    Attributes:
        name: name in the contract.
        help: condition for `met`.
        limits: name of each number that the item gives, with its unit.
    """

    name: str
    help: str
    limits: Mapping[str, str] = {}

    @property
    def place(self) -> CheckPlace:
        """Return the place of the check."""
        return CheckPlace.HUB


class ClusterCheck(ContractCheck, frozen=True, kw_only=True):
    """Check of a cluster at the hub."""

    run: Callable[[ClusterFacts, ContractLimits], CheckOutcome]


class MachineCheck(ContractCheck, frozen=True, kw_only=True):
    """Check of each machine of a cluster at the hub. `run` also receives the cluster."""

    run: Callable[[MachineFacts, ClusterFacts, ContractLimits], CheckOutcome]


class DoctorCheck(ContractCheck, frozen=True, kw_only=True):
    """Check of a node or cluster by results of `gpufleet doctor`: each named result is `ok`.

    Attributes:
        at: place.
        results: names of the results.
    """

    at: CheckPlace
    results: tuple[str, ...]

    @property
    def place(self) -> CheckPlace:
        """Return the place of the check."""
        return self.at

    def run(self, facts: PlaceFacts) -> CheckOutcome:
        """Return the outcome: not met if a result failed or warns, else unknown if a result is missing or unknown."""
        found = [(name, facts.results.get(name)) for name in self.results]
        known = [(name, one) for name, one in found if one is not None]
        bad = [f"{name}: {one.found}" for name, one in known if one.verdict in ("failed", "warning")]
        if bad:
            return not_met("; ".join(bad))
        missing = [name for name, one in found if one is None]
        missing += [f"{name}: {one.found}" for name, one in known if one.verdict == "unknown"]
        if missing:
            return unknown("; ".join(missing))
        if all(one.verdict == "not_applicable" for _, one in known):
            return not_applicable("; ".join(f"{name}: {one.found}" for name, one in known))
        return met("; ".join(f"{name}: {one.found}" for name, one in known if one.verdict != "not_applicable"))


def met(found: str) -> CheckOutcome:
    """Return the outcome of a subject that meets the item."""
    return CheckOutcome(ItemStatus.MET, bounded(found, MAX_FOUND))


def not_met(found: str, gpus: int | None = None) -> CheckOutcome:
    """Return the outcome of a subject that does not; `gpus` as in `CheckOutcome`."""
    return CheckOutcome(ItemStatus.NOT_MET, bounded(found, MAX_FOUND), gpus)


def unknown(found: str) -> CheckOutcome:
    """Return the outcome of a subject with a missing fact, which `found` describes."""
    return CheckOutcome(ItemStatus.UNKNOWN, bounded(f"not known: {found}", MAX_FOUND))


def not_applicable(found: str) -> CheckOutcome:
    """Return the outcome of a subject that does not need the item."""
    return CheckOutcome(ItemStatus.NOT_APPLICABLE, bounded(found, MAX_FOUND))
