/** Page of the fleet, for operators: freshness and coverage of clusters, and nodes. */

import { contractText } from "./contract.js";
import { element, facts, foreign, replace, section, table } from "./dom.js";
import { FleetNodes } from "./fleet_nodes.js";
import { FleetUsage } from "./fleet_usage.js";
import { timeText } from "./format.js";
import { stateText } from "./labels.js";

/** Create the page. */
export function fleetPage({ client, go }) {
  const summary = element("div");
  const clusters = element("div");
  const nodes = new FleetNodes(client, go);
  return {
    title: "Fleet",
    node: element("div", null, summary, section("Clusters", clusters), nodes.node, new FleetUsage(client).node),
    period: 15_000,
    soonest: 15_000,
    subject: () => ({ topic: "fleet" }),
    async refresh(signal) {
      const fleet = await client.get("v1/fleet", {}, signal);
      replace(summary, summaryOf(fleet));
      replace(clusters, clusterTable(fleet.clusters));
      await nodes.refresh(new Map(fleet.clusters.map((one) => [one.cluster.id, one.cluster.spec?.team ?? ""])), signal);
    },
  };
}

function countsText(counts) {
  return Object.entries(counts ?? {})
    .map(([state, count]) => `${count} ${state}`)
    .join(", ");
}

/** Return the numbers of open findings as a text. */
function findingsText(counts) {
  if (!counts) return "unknown";
  const some = Object.entries(counts).filter(([, count]) => count > 0);
  return some.length === 0 ? "none" : some.map(([severity, count]) => `${count} ${severity}`).join(", ");
}

function summaryOf(fleet) {
  return [
    element("p", { class: "lead" }, fleet.summary),
    facts([
      [
        "Open findings",
        [
          element("a", { href: "#/findings", "data-key": "findings" }, findingsText(fleet.findings)),
          fleet.evaluation.is_current ? null : element("small", null, "The newest evaluation of the rules is old."),
        ],
      ],
      ["Machines", countsText(fleet.machines)],
      ["Senders", countsText(fleet.senders)],
      ["Complete up to", fleet.complete_up_to ? timeText(fleet.complete_up_to) : "unknown"],
      ["Missing batches", String(fleet.missing_batches)],
      [
        "Clusters without an expected number of GPUs",
        fleet.not_counted.length > 0 ? foreign(fleet.not_counted.join(", ")) : null,
      ],
      [
        "Hub",
        fleet.hub.rejecting ? "rejects batches" : `ingests; flush lag ${fleet.hub.flush_lag_seconds.toFixed(1)} s`,
      ],
      ["As of", timeText(fleet.at)],
    ]),
  ];
}

// Senders that import from another system do not know what was queued or dropped.
function batchesText({ missing_batches, queued_batches, dropped_batches }) {
  return `${missing_batches} missing, ${queued_batches ?? "-"} queued, ${dropped_batches ?? "-"} dropped`;
}

function clusterTable(records) {
  const rows = records.map(({ cluster, served, freshness, coverage, findings, contract }) => [
    [foreign(cluster.id), cluster.closed_at ? element("small", null, "closed") : null],
    [foreign(cluster.spec?.environment ?? ""), element("small", null, foreign(cluster.spec?.team ?? ""))],
    freshness ? stateText(freshness.liveness) : served ? "unknown" : "not served",
    freshness?.last_seen_at ? timeText(freshness.last_seen_at) : "never",
    coverage ? foreign(coverage.summary) : "unknown",
    served ? contractText(cluster.id, contract) : "",
    findingsText(findings),
    countsText(freshness?.machines),
    freshness ? batchesText(freshness) : "",
    freshness?.complete_up_to ? timeText(freshness.complete_up_to) : "unknown",
  ]);
  const columns = [
    "Cluster",
    "Environment, team",
    "State",
    "Last seen",
    "GPUs reporting",
    "Contract",
    "Open findings",
    "Machines",
    "Batches",
    "Complete up to",
  ];
  return table("Clusters", columns, rows);
}
