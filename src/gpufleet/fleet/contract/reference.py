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
        f"Valid: version {versions}.",
        "",
        "```sh",
        "gpufleet contract show              # the items as a table",
        "gpufleet contract lint              # check this file, or another one",
        "gpufleet contract check --on node   # the items that are checked on a node; --on cluster: by a collector",
        "gpufleet query contract             # verdicts of a hub about its clusters",
        "gpufleet query contract CLUSTER     # the items of a cluster, what is not visible first",
        "```",
        "",
        "## Rules",
        "",
        *_rules(),
        "",
        "## Tiers",
        "",
        "| tier | name | installs | the hub knows |",
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
        f"| {Requirement.SHOULD} | An answer about it is incomplete, as the consequence of the item states. |",
        f"| {Requirement.MAY} | Nothing is wrong. |",
        "",
        "- What is not visible is never counted as zero or as idle.",
        "- An item about a machine or GPU hides GPUs. Those that report nevertheless are counted apart.",
        "- An item about a cluster hides no GPU that reports. The reason has the number of GPUs that report, and",
        "  `Without it` states what is not visible. The cluster is *not visible* if no GPU reports, else *partly",
        "  visible* ([decision 25](decisions/0025-a-cluster-item-hides-no-reporting-gpu.md)).",
        "- An item is met, not met, unknown or not applicable. Unknown is neither met nor not met. Missing evidence is",
        "  unknown, except for items about the reports themselves.",
        "- An item about machines is met if every machine meets it. Items about GPUs leave out machines without GPUs.",
        "- A machine without a current report is judged by the items about freshness and about missing GPUs only.",
        "- A cluster is judged by its declared tier, or else by the tier of most of its machines.",
        "- The percentage is that of met MUST items. Waived items and items that are not applicable do not count.",
        "- A waiver has an item, an end and a reason. After its end it does not count.",
        "- Two versions can be valid at once. A MUST item that only the next version has is a warning. It takes effect",
        "  with the release that ends the present version.",
        "- A hub judges each cluster each minute, after the evaluation of the [rules](findings.md#evaluation). Without",
        "  an earlier verdict, a cluster is *not judged yet* in the first minute of the hub.",
        "  Its answer is `GET /v1/clusters/{id}/contract`, and a page of the [web page](web-page.md).",
        "- While the store or the registry does not answer, the items that need it become unknown. They do not become",
        "  met or not met.",
        "- The tier and the waivers of a cluster are part of its registration:",
        "  `gpufleet cluster put --tier 3 --waive ITEM:DATE:REASON`.",
        "- A report has the begin of the present status of each item, and its first and last time.",
        "  They survive a restart of the hub. The last time is saved every ten minutes.",
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
