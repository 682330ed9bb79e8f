"""Records of the adoption contract: tiers, items and versions. Pure."""

import enum
from collections.abc import Mapping
from typing import Annotated

import msgspec

from gpufleet.model.contract import ItemId, Tier

MAX_TEXT = 1000
"""Maximum length of a text of an item."""

MAX_ITEMS = 200
MAX_VERSIONS = 2
"""Number of versions that can be valid at once: the present one and the next."""

ContractText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
ContractTitle = Annotated[str, msgspec.Meta(min_length=1, max_length=120)]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")]
Limit = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Requirement(enum.StrEnum):
    """Level of an item, by the terms of RFC 2119."""

    MUST = "MUST"  # without it, GPUs are listed as not visible
    SHOULD = "SHOULD"  # without it, an answer is incomplete
    MAY = "MAY"  # adds to answers


KUBERNETES_TIERS = (Tier.PULL, Tier.COLLECTOR, Tier.EXPORTERS, Tier.AGENT)
HOST_TIERS = (Tier.PULL, Tier.HOSTS)
"""Tiers of a Kubernetes cluster, and of other clusters, lowest first."""


class CheckPlace(enum.StrEnum):
    """Place at which an item is checked."""

    HUB = "hub"  # from what the hub receives, continuously
    NODE = "node"  # on a node
    CLUSTER = "cluster"  # with the credentials of a cluster's collector


class ContractArea(enum.StrEnum):
    """Area of items: the first part of their ids."""

    NODE = "node"
    CLUSTER = "cluster"
    PERMISSION = "permission"
    METADATA = "metadata"
    EXPOSITION = "exposition"
    FRESHNESS = "freshness"
    OWNERSHIP = "ownership"


AREA_TITLES: Mapping[ContractArea, str] = {
    ContractArea.NODE: "Node components",
    ContractArea.CLUSTER: "Cluster components",
    ContractArea.PERMISSION: "Permissions",
    ContractArea.METADATA: "Metadata, labels and identity",
    ContractArea.EXPOSITION: "Exposition: mechanism and content",
    ContractArea.FRESHNESS: "Freshness and health",
    ContractArea.OWNERSHIP: "Ownership and support",
}
"""Title of each area, in the order of the documentation."""


class ItemOwner(enum.StrEnum):
    """Role that meets an item."""

    TEAM = "team"  # owns the cluster
    CLUSTER_ADMIN = "cluster_admin"  # administers its Kubernetes, or its hosts
    NODE_OPERATOR = "node_operator"  # operates its nodes
    HUB_OPERATOR = "hub_operator"  # operates the hub


class ItemPhase(enum.StrEnum):
    """Validity of an item in the valid versions."""

    IN_FORCE = "in_force"  # part of every valid version
    ANNOUNCED = "announced"  # part of the next version only: a warning
    ENDING = "ending"  # not part of the next version: a warning


class ItemRemedy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Remedy of an item: a command or a page, at least one of them.

    Attributes:
        command: command of `gpufleet`.
        page: page of the documentation with its anchor, relative to `docs/`.
    """

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^gpufleet [a-z]")] | None = None
    page: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[a-z0-9/-]+\.md(#[a-z0-9-]+)?$")] | None = None


class ContractItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Item of the contract.

    Attributes:
        id: area and name.
        title: the requirement in one line.
        level: MUST, SHOULD or MAY.
        tiers: tiers to which it applies.
        on: place of the check.
        check: name in the table of checks.
        limits: numbers of the check.
        rationale: why it is required.
        evidence: data by which the check judges.
        consequence: what is unknown without it.
        remedy: how to meet it.
        owner: role that meets it.
        since: first version of the contract with the item.
        until: first version without it, or None.
    """

    id: ItemId
    title: ContractTitle
    level: Requirement
    tiers: Annotated[tuple[Tier, ...], msgspec.Meta(min_length=1, max_length=5)]
    on: CheckPlace
    check: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{1,60}$")]
    limits: dict[str, Limit] = {}
    rationale: ContractText
    evidence: ContractText
    consequence: ContractText
    remedy: ItemRemedy
    owner: ItemOwner
    since: VersionText
    until: VersionText | None = None

    @property
    def area(self) -> ContractArea:
        """Return the area of the item."""
        return ContractArea(self.id.partition(".")[0])

    def is_in(self, version: str) -> bool:
        """Return whether a version of the contract has the item."""
        number = version_number(version)
        return version_number(self.since) <= number and (self.until is None or number < version_number(self.until))


class ContractTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a tier.

    Attributes:
        tier: number.
        name: name in one to four terms.
        installs: what is installed in the cluster.
        shows: what the hub then knows.
    """

    tier: Tier
    name: ContractTitle
    installs: ContractText
    shows: ContractText


class AdoptionContract(msgspec.Struct, frozen=True, kw_only=True):
    """Contract in this release.

    Attributes:
        title: name of the contract.
        versions: valid versions, oldest first: one or two.
        tiers: every tier, lowest first.
        items: items in the order of the file.
    """

    title: ContractTitle
    versions: tuple[VersionText, ...]
    tiers: tuple[ContractTier, ...]
    items: tuple[ContractItem, ...]

    def phase(self, item: ContractItem) -> ItemPhase:
        """Return the validity of an item. An item is part of at least one valid version."""
        if all(item.is_in(version) for version in self.versions):
            return ItemPhase.IN_FORCE
        return ItemPhase.ANNOUNCED if item.is_in(self.versions[-1]) else ItemPhase.ENDING

    def items_on(self, place: CheckPlace) -> tuple[ContractItem, ...]:
        """Return the items that are checked at a place."""
        return tuple(one for one in self.items if one.on is place)


def version_number(version: str) -> tuple[int, int]:
    """Return the two numbers of a version, for comparison."""
    major, _, minor = version.partition(".")
    return int(major), int(minor)
