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

/** Return the name of a holder: its kind, namespace and name or id. */
export function holderName({ holder }) {
  const name = holder.name || holder.id;
  return `${holder.kind} ${holder.namespace ? `${holder.namespace}/${name}` : name}`;
}

/** Create the present holders of a device, with the verdict of each, or the state. */
export function holdersOf(holders) {
  if (!holders) return element("span", { class: "muted" }, "held in parts");
  return [
    (holders.holdings ?? []).map((one) => [
      foreign(holderName(one)),
      element("small", null, `${one.share}, ${one.verdict}`),
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
