"""Page of the adoption contract, rendered from its items. Pure."""

from collections.abc import Iterator

from gpufleet.fleet.contract.records import (
    AREA_TITLES,
    AdoptionContract,
    CheckPlace,
    ContractItem,
    ItemPhase,
    Requirement,
)
from gpufleet.fleet.contract.table import CHECKS

_ON = {
    CheckPlace.HUB: "the hub, from what it receives",
    CheckPlace.NODE: "the node, by `gpufleet doctor`",
    CheckPlace.CLUSTER: "the cluster, by `gpufleet doctor cluster-agent`",
}
_PHASES = {
    ItemPhase.ANNOUNCED: " A warning until then.",
    ItemPhase.ENDING: " A warning until then.",
    ItemPhase.IN_FORCE: "",
}


def render_contract(contract: AdoptionContract) -> str:
    """Return the page `docs/contract.md` as Markdown."""
    versions = " and ".join(contract.versions)
    lines = [
        "# Adoption contract",
        "",
        "Rendered from `contract/v1.yaml` by `make docs`; do not edit.",
        "",
        "What a cluster has to provide so that its GPUs are visible at a hub, and how each point is checked.",
        f"Valid: version {versions}. Owners, response, deprecation and retention: [ownership and support](support.md).",
        "",
        "```sh",
        "gpufleet contract show                      # the items as a table",
        "gpufleet contract lint                      # check the contract of this version, or a file",
        "gpufleet contract check --on node           # the items that are checked on a node",
        "gpufleet contract check --on cluster        # the items that are checked by a cluster collector",
        "gpufleet contract check --on hub CLUSTER    # verdict of a hub; exits with 1 unless visible",
        "gpufleet query contract                     # verdicts of a hub about its clusters",
        "gpufleet query contract CLUSTER             # the items of a cluster, unmet items first",
        "gpufleet query contract CLUSTER --format md # the same as a report in Markdown; --json: in JSON",
        "```",
        "",
        "## Rules",
        "",
        *_rules(),
        "",
        "## Tiers",
        "",
        "| tier | name | installs | shown at the hub |",
        "|---|---|---|---|",
        *(f"| {one.tier:d} | {one.name} | {one.installs} | {one.shows} |" for one in contract.tiers),
        "",
        "Tiers 1 to 3 are for Kubernetes, tier 4 is for other clusters, tier 0 is for both. A tier is reached if every",
        "MUST item that applies to it is met, waived or not applicable.",
        "",
        "## Items",
        "",
        "| item | level | tiers | checked on | owner |",
        "|---|---|---|---|---|",
        *(_overview(one) for one in contract.items),
    ]
    for area, title in AREA_TITLES.items():
        items = [one for one in contract.items if one.area is area]
        if items:
            lines += ["", f"## {title}"]
        for item in items:
            lines += ["", *_item(contract, item)]
    return "\n".join(lines) + "\n"


def _rules() -> Iterator[str]:
    yield from (
        "| level | not met |",
        "|---|---|",
        f"| {Requirement.MUST} | The cluster, machine or GPU is listed as *not visible*, with the reason. |",
        f"| {Requirement.SHOULD} | An answer about it is incomplete, as `Without it` of the item states. |",
        f"| {Requirement.MAY} | Nothing is wrong. |",
        "",
        "### What is not visible",
        "",
        "- What is not visible is never counted as zero or as idle.",
        "- An item about a machine or GPU hides its GPUs. Hidden GPUs that report are counted apart.",
        "- An item about a cluster hides no GPU that reports. Its reason has the number of GPUs that report, and",
        "  `Without it` states what is not visible. The cluster is *not visible* if no GPU reports, else *partly",
        "  visible* ([decision 25](decisions/0025-a-cluster-item-hides-no-reporting-gpu.md)).",
        "",
        "### Status of an item",
        "",
        "- An item is met, not met, unknown or not applicable. Missing evidence is unknown, and never met.",
        "- A missing report does not meet the items about reports.",
        "- An item about machines is met if every machine meets it. Items about GPUs leave out machines without GPUs.",
        "- Without a current report of a machine, items about its readings, sender and driver are unknown for it. The",
        "  other machines decide, if one meets the item. The items about freshness, missing GPUs, identity, placement",
        "  and the mechanism of reports judge this machine, too.",
        "- Items about reporting GPUs are unknown for a machine without reporting GPUs. Here, too, other machines",
        "  decide, if one meets the item.",
        "- While the store or the registry does not answer, the items that need it become unknown.",
        "- The percentage is that of met MUST items. Waived items and items that are not applicable do not count.",
        "",
        "### Tier, waivers and versions",
        "",
        "- A cluster is judged by its declared tier, or else by the tier of most of its machines.",
        "- A waiver has an item, an end and a reason. After its end it does not count.",
        "- Tier and waivers are part of the registration: `gpufleet cluster put --tier 3 --waive ITEM:DATE:REASON`.",
        "- Two versions can be valid at once. A MUST item of one of them only is a warning. A new item takes effect",
        "  with the release that ends the older version.",
        "",
        "### Verdict of a hub",
        "",
        "- A hub judges each cluster once a minute, after the evaluation of the [rules](findings.md#evaluation).",
        "- In the first minute of a hub, a cluster without an earlier verdict is *not judged yet*.",
        "- The verdict is the answer of `GET /v1/clusters/{id}/contract`, and a page of the [web page](web-page.md).",
        "- It has no items that are checked on nodes and in clusters. Its report lists them as N/A, with the place.",
        "- A report has the start of the present status of each item, and its first and last time. They survive a",
        "  restart of the hub. The last time is saved every ten minutes.",
    )


def _overview(item: ContractItem) -> str:
    link = item.id.replace(".", "")
    tiers = ", ".join(str(int(one)) for one in item.tiers)
    return f"| [`{item.id}`](#{link}) | {item.level} | {tiers} | {item.on} | {item.owner.replace('_', ' ')} |"


def _item(contract: AdoptionContract, item: ContractItem) -> Iterator[str]:
    limits = "".join(f" `{name}` is {value:g}." for name, value in item.limits.items())
    yield from (f"### {item.id}", "", f"**{item.level}**: {item.title}.", "", item.rationale, "")
    yield f"- Check on {_ON[item.on]}: {CHECKS[item.check].help}{limits}"
    yield f"- Evidence: {item.evidence}"
    yield f"- Without it: {item.consequence}"
    parts = [f"`{item.remedy.command}`" if item.remedy.command else ""]
    parts.append(f"[{item.remedy.page}]({item.remedy.page})" if item.remedy.page else "")
    yield f"- Remedy: {', '.join(one for one in parts if one)}"
    until = "" if item.until is None else f" Until version {item.until}."
    yield f"- Since version {item.since}.{until}{_PHASES[contract.phase(item)]}"
