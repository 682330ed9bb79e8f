/** Page of a cluster's report by the adoption contract, and its verdict in the table of clusters. */

import { element, facts, foreign, replace, section, table } from "./dom.js";
import { agoText, counted, timeText } from "./format.js";
import { contractLink } from "./labels.js";

const STATUSES = {
  "Not Implemented": "not met",
  "Partially Implemented": "not met",
  Unknown: "unknown",
  Waived: "waived",
  Implemented: "met",
  "N/A": "not applicable",
};
const STATUS_ORDER = Object.keys(STATUSES);
const LEVELS = ["MUST", "SHOULD", "MAY"];

/** Create the page of a cluster, by its id. */
export function contractPage({ client }, cluster) {
  const summary = element("div");
  const hidden = element("div");
  const items = element("div");
  return {
    title: "Contract",
    node: element("div", null, summary, section("Not visible", hidden), section("Items", items)),
    period: 60_000,
    subject: () => ({ topic: "findings" }),
    async refresh(signal) {
      const report = await client.get(`v1/clusters/${encodeURIComponent(cluster)}/contract`, {}, signal);
      replace(summary, summaryOf(report));
      replace(hidden, hiddenTable(report.not_visible));
      replace(items, itemTable(report));
    },
  };
}

/** Create the verdict about a cluster, with a link to its report; a summary of null is unknown. */
export function contractText(cluster, summary) {
  const link = (text) => element("a", { href: contractLink(cluster), "data-key": `contract ${cluster}` }, text);
  if (!summary) return link("unknown");
  const uncounted = uncountedText(summary.machines_without_count);
  const hidden =
    summary.gpus_not_visible > 0 || uncounted !== ""
      ? `${counted(summary.gpus_not_visible, "GPU")} not visible${uncounted}`
      : null;
  return [
    link(visibilityText(summary.visibility)),
    element("small", null, `${percentText(summary.percent)}, tier ${tierText(summary.tier)}`),
    hidden === null ? null : element("small", null, hidden),
    summary.not_visible.map((item) => element("small", null, foreign(item))),
  ];
}

function visibilityText(visibility) {
  return element("span", { class: `visibility-${visibility}` }, visibility.replace("_", " "));
}

function uncountedText(machines) {
  return machines > 0 ? `, and those of ${counted(machines, "machine")}` : "";
}

function percentText(percent) {
  return percent === null ? "no MUST item applies" : `${percent} % of MUST items met`;
}

function tierText(tier) {
  return tier === null ? "not known yet" : String(tier);
}

function summaryOf({ metadata, warnings, ignored_waivers }) {
  const uncounted = uncountedText(metadata.machines_without_count);
  const reporting = metadata.gpus_reporting > 0 ? `, ${metadata.gpus_reporting} of them report` : "";
  return [
    element("p", { class: "lead" }, visibilityText(metadata.visibility), `: ${percentText(metadata.percent)}.`),
    element("p", null, judgedText(metadata.age_seconds)),
    facts([
      ["Cluster", foreign(metadata.cluster)],
      ["Tier", tierText(metadata.tier) + originText(metadata)],
      ["Reached tier", metadata.reached_tier === null ? "none" : String(metadata.reached_tier)],
      ["GPUs not visible", `${metadata.gpus_not_visible}${uncounted}${reporting}`],
      ["Since", metadata.visible_since === null ? null : timeText(metadata.visible_since)],
      ["Contract", metadata.versions.join(" and ")],
      ["Warnings", warnings.join(", ")],
      [
        "Waivers that do not count",
        ignored_waivers.length === 0 ? null : ignored_waivers.map((text) => element("small", null, foreign(text))),
      ],
      ["As of", timeText(metadata.at)],
    ]),
  ];
}

function originText({ tier, is_declared }) {
  if (tier === null) return "";
  return is_declared ? ", as declared" : ", as observed";
}

function judgedText(seconds) {
  if (seconds === null) return "Not judged yet, only the registration was checked.";
  return `Judged ${agoText(seconds)}.`;
}

function hiddenTable(entries) {
  if (entries.length === 0) return element("p", null, "Nothing is known to be not visible.");
  const rows = entries.map((one) => [
    one.item,
    one.is_whole ? "the cluster" : one.machines > 0 ? counted(one.machines, "machine") : "GPUs",
    one.gpus === null ? "unknown" : String(one.gpus),
    [element("small", null, foreign(one.reason)), element("small", null, one.consequence)],
    one.examples.map((name) => element("small", null, foreign(name))),
  ]);
  return table("Not visible", ["Item", "Concerns", "GPUs", "Reason", "Machines"], rows);
}

/** Create the table of items: those by which GPUs are not visible first, then by status and level. */
function itemTable({ spec, not_visible }) {
  const hidden = new Set(not_visible.map((one) => one.item));
  const rank = (one) =>
    (hidden.has(one.id) ? 0 : 100) + 10 * STATUS_ORDER.indexOf(one.status) + LEVELS.indexOf(one.level);
  const rows = Object.values(spec)
    .flat()
    .sort((one, other) => rank(one) - rank(other))
    .map((one) => [
      [one.id, element("small", null, one.description)],
      one.level,
      STATUSES[one.status],
      [
        (one.evidence ?? []).map((text) => element("small", null, foreign(text))),
        one.notes ? element("small", null, foreign(one.notes)) : null,
      ],
      one.since ? timeText(one.since) : "",
      remedyOf(one.remedy),
    ]);
  return table("Items", ["Item", "Level", "Status", "Found", "Since", "Remedy"], rows);
}

function remedyOf(remedy) {
  if (!remedy) return "";
  return [
    remedy.command ? element("code", null, remedy.command) : null,
    remedy.page ? element("small", null, `docs/${remedy.page}`) : null,
  ];
}
