"""Records of the verdict about a cluster. Pure."""

import msgspec

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.records import ItemPhase
from gpufleet.model.contract import ClusterVisibility, Tier

MAX_EXAMPLES = 20
"""Maximum number of machines that an item names."""


class MachineOutcome(msgspec.Struct, frozen=True):
    """Machine that does not meet an item, with what was found."""

    machine: str
    found: str


class ItemVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verdict of an item about a cluster or a place.

    Attributes:
        item: id.
        status: not met if one subject does not meet it, else unknown if the status of a current machine is unknown.
        found: evidence: what was found about the cluster, or about the first machine with this status.
        phase: validity of the item.
        machines: number of machines by status; empty for an item about the cluster.
        examples: machines that do not meet it, or else those with unknown status; at most `MAX_EXAMPLES`.
        gpus: if it is not met, the known number of GPUs that are not visible by it; None if it is unknown. An item
            about the cluster hides no GPU with a current value.
        is_whole: it is not met, and concerns the cluster and not some of its GPUs.
        waived_until: end of its waiver, nanoseconds since 1970; None without a valid waiver.
        waiver: reason of that waiver.
    """

    item: str
    status: ItemStatus
    found: str
    phase: ItemPhase = ItemPhase.IN_FORCE
    machines: dict[ItemStatus, int] = {}
    examples: tuple[MachineOutcome, ...] = ()
    gpus: int | None = None
    is_whole: bool = False
    waived_until: int | None = None
    waiver: str = ""


class RequirementCounts(msgspec.Struct, frozen=True, kw_only=True):
    """MUST items of the judged tier that are in force, by status. `waived` ones are in no other count."""

    met: int = 0
    not_met: int = 0
    unknown: int = 0
    not_applicable: int = 0
    waived: int = 0

    @property
    def percent(self) -> float | None:
        """Return the met items in percent of all but the waived and inapplicable ones; None without such items."""
        total = self.met + self.not_met + self.unknown
        return round(100.0 * self.met / total, 1) if total else None


class ClusterVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict about a cluster at an instant.

    Attributes:
        cluster: id.
        at: nanoseconds since 1970 by the hub's clock.
        versions: valid versions of the contract, oldest first.
        judged_tier: tier by which it is judged; None if nothing is known about the cluster: tier 0 is used.
        is_declared: whether that tier is declared.
        reached_tier: highest tier with every MUST item met, waived or not applicable; None if there is none.
        visibility: the verdict.
        must: MUST items by status.
        items: verdict of every item of the judged tier that the hub checks, in the order of the contract.
        not_visible: ids of the items by which GPUs are not visible.
        warnings: ids of MUST items that are not met and not in force in every version.
        gpus_not_visible: number of GPUs that are not visible, at least: two items about different GPUs of one machine
            count as the larger number.
        gpus_reporting: number of these with a current value, at least: they do not meet an item about machines, and
            the fleet counts them as reporting.
        machines_not_visible: number of machines with GPUs that are not visible.
        machines_without_count: those of them whose number of GPUs is unknown: their GPUs are in no count.
        ignored_waivers: waivers that do not count, with the reason.
    """

    cluster: str
    at: int
    versions: tuple[str, ...]
    judged_tier: Tier | None
    is_declared: bool
    reached_tier: Tier | None
    visibility: ClusterVisibility
    must: RequirementCounts
    items: tuple[ItemVerdict, ...]
    not_visible: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gpus_not_visible: int = 0
    gpus_reporting: int = 0
    machines_not_visible: int = 0
    machines_without_count: int = 0
    ignored_waivers: tuple[str, ...] = ()
