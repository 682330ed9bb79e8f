/** Addresses of pages, and texts of holders and states that several pages show. */

import { element, foreign } from "./dom.js";
import { sentence } from "./vocabulary.js";

/** Return the address of an allocation's page. */
export function allocationLink(id) {
  return `#/allocations/${encodeURIComponent(id)}`;
}

/** Return the address of a node's page. */
export function nodeLink(id) {
  return `#/nodes/${encodeURIComponent(id)}`;
}

/** Return the address of a finding's page. */
export function findingLink(id) {
  return `#/findings/${encodeURIComponent(id)}`;
}

/** Return the address of the page of a cluster's report by the adoption contract. */
export function contractLink(cluster) {
  return `#/contract/${encodeURIComponent(cluster)}`;
}

/** Return the address of a GPU's page. */
export function gpuLink(id) {
  return `#/gpus/${encodeURIComponent(id)}`;
}

/** Return the view key of a device: its id without cluster and machine. */
export function viewKey(device) {
  return device.id.split("/").slice(2).join("/");
}

/** Return the name of a holder: its kind, namespace and name or id; of a job its id and name. */
export function holderName({ holder }) {
  const name = holder.name || holder.id;
  if (holder.kind === "job") return `job ${holder.id} ${holder.name ?? ""}`.trimEnd();
  return `${holder.kind} ${holder.namespace ? `${holder.namespace}/${name}` : name}`;
}

/**
 * Return a sharing mode, with the number of replicas of a shared device: `timeslice x2`, or `timeslice 2/4`. The API
 * leaves out what is exclusive.
 */
export function shareText({ share = "exclusive", replicas = 0, total_replicas: total = 0 }) {
  if (replicas === 0) return share;
  return total === 0 ? `${share} x${replicas}` : `${share} ${replicas}/${total}`;
}

/** Create the present holders of a device, with the verdict of each, or the state. */
export function holdersOf(holders) {
  if (!holders) return element("span", { class: "muted" }, "held in parts");
  return [
    (holders.holdings ?? []).map((one) => [
      foreign(holderName(one)),
      element("small", null, `${shareText(one)}, ${one.verdict}`),
    ]),
    holders.state === "held" ? null : element("span", { class: "absent" }, holders.state),
    holders.detail ? element("small", null, foreign(holders.detail)) : null,
  ];
}

/** Create the text of a liveness state, with its sentence, and the known gaps and doubts. */
export function stateText(liveness) {
  if (!liveness) return element("span", { class: "absent" }, "unknown");
  return [
    element(
      "span",
      { class: `state state-${liveness.state}`, title: sentence("states", liveness.state) },
      liveness.state,
    ),
    liveness.unverified ? element("small", null, "not verified since the hub started") : null,
    [...liveness.partial, ...liveness.suspect].map((text) => element("small", null, foreign(text))),
  ];
}
