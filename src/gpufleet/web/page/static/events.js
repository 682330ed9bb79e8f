/** Tables of events. */

import { element, foreign, table } from "./dom.js";
import { secondsText, timeText } from "./format.js";

/** Attributes that are in the first columns, or of no use to people. */
const APART = new Set(["name", "log_seq"]);

/** Kinds with the code of a reset, and its text. */
const RESETS = { gpu_recovered: "(reset)", gpu_reset: "", driver_reloaded: "" };

/** Return a short text of an event: kind, code and name. The code of a reset is shown as its meaning. */
export function eventText(event) {
  const code = RESETS[event.kind] ?? String(event.code);
  return [event.kind, event.code ? code : "", event.attributes?.name ?? ""].filter(Boolean).join(" ");
}

/** Create the table of a page of events, newest first. */
export function eventTable({ events, next }) {
  if (events.length === 0) return element("p", null, "No event.");
  const isReceived = events.some((event) => event.received_at); // an agent's own events are not
  const rows = events.map((event) => [
    timeText(event.at),
    foreign(eventText(event)),
    foreign(event.device ?? "machine"),
    foreign(
      Object.entries(event.attributes ?? {})
        .filter(([name]) => !APART.has(name))
        .map(([name, value]) => `${name} ${value}`)
        .join(", "),
    ),
    ...(isReceived ? [delayText(event)] : []),
  ]);
  const columns = ["Time", "Event", "Device", "Attributes", ...(isReceived ? ["Received"] : [])];
  return [
    table("Events", columns, rows),
    next === null || next === undefined ? null : element("p", { class: "muted" }, "Older events are not shown here."),
  ];
}

function delayText(event) {
  const seconds = (Date.parse(event.received_at) - Date.parse(event.at)) / 1000;
  return seconds < 0 ? timeText(event.received_at) : `${secondsText(seconds)} later`;
}
