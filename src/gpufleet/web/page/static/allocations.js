/** List of allocations that the caller may see. */

import { element, foreign, replace, section, table } from "./dom.js";
import { timeText } from "./format.js";
import { allocationLink } from "./labels.js";

const PAGE = 200;

/** Create the page. */
export function allocationsPage({ client }) {
  const list = element("div");
  const items = [];
  let next = null;
  let shown = PAGE;

  function show() {
    replace(
      list,
      items.length === 0
        ? element("p", null, "No allocation is visible to this token.")
        : allocationTable(items, client.now()),
      next === null
        ? null
        : element("button", { type: "button", "data-key": "more", on: { click: () => more() } }, "Show more"),
    );
  }

  async function load(signal) {
    const found = [];
    let cursor = null;
    do {
      const page = await client.list("v1/allocations", { limit: PAGE, cursor }, signal);
      found.push(...page.items);
      cursor = page.next;
    } while (cursor !== null && found.length < shown);
    items.splice(0, items.length, ...found);
    next = cursor;
    show();
  }

  function more() {
    shown = items.length + PAGE;
    view.reload();
  }

  const view = {
    title: "Allocations",
    node: section("Allocations", list),
    period: 60_000,
    subject: () => ({ topic: "allocations" }),
    refresh: load,
    reload: () => undefined,
  };
  return view;
}

/** Return the state of an allocation at an instant (ms): closed, ended, not started or in force. */
export function forceText(allocation, now) {
  const { spec } = allocation;
  if (allocation.closed_at) return "closed";
  if (spec.valid_to && Date.parse(spec.valid_to) <= now) return "ended";
  if (spec.valid_from && Date.parse(spec.valid_from) > now) return "not started";
  return "in force";
}

/** Return the start of an allocation; one that starts in 1970 applies to any time before its end. */
export function startText({ valid_from }) {
  if (!valid_from) return "";
  return Date.parse(valid_from) > 0 ? timeText(valid_from) : "any time";
}

/** Return the target of an allocation as a text. */
export function targetText({ target }) {
  return target.machine ?? target.vm_uuid ?? target.pod_uid ?? target.job_id ?? "";
}

function allocationTable(items, now) {
  const rows = items.map((one) => [
    element("a", { href: allocationLink(one.id), "data-key": one.id }, foreign(one.id)),
    one.spec.kind,
    [foreign(targetText(one.spec)), element("small", null, foreign(one.spec.target.cluster))],
    foreign(one.spec.tenant ?? ""),
    foreign(one.spec.team ?? ""),
    forceText(one, now),
    startText(one.spec),
    one.closed_at || one.spec.valid_to ? timeText(one.closed_at ?? one.spec.valid_to) : "open",
  ]);
  return table("Allocations", ["Allocation", "Kind", "Target", "Tenant", "Team", "State", "From", "To"], rows);
}
