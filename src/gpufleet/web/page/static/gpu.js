/** Page of a GPU, MIG device or vGPU instance, for operators: every reading with reader, age and reason. */

import { gpuPath } from "./api.js";
import { element, facts, foreign, replace, section, table } from "./dom.js";
import { eventTable } from "./events.js";
import { agoText, timeText } from "./format.js";
import { DEVICE_METRICS, HistorySection } from "./history.js";
import { gpuLink, holderName, holdersOf, nodeLink, shareText, stateText, viewKey } from "./labels.js";
import { deviceName, readingTables } from "./readings.js";
import { sentence } from "./vocabulary.js";

/** Maximum number of holders of its machine that the page of a device requests. */
const MAX_HOLDERS = 1000;

const NO_HOLDER = "No holder is known in this range.";

/** Create the page of a device by its id. */
export function gpuPage({ client }, id) {
  const parts = {
    summary: element("div"),
    readings: element("div"),
    holders: element("div"),
    places: element("div"),
    events: element("div"),
  };
  let [machine, device, inParts] = [null, "", false];
  const series = {
    path: "",
    views: () => [series.events.view],
    events: {},
    metrics: DEVICE_METRICS,
    async load(range, signal) {
      const page = await client.get("v1/holders", { machine, ...range, limit: MAX_HOLDERS }, signal);
      replace(parts.holders, holderTable(page, device, inParts));
    },
  };
  const history = new HistorySection(client, series, (events) => replace(parts.events, eventTable(events)));
  return {
    title: "GPU",
    node: element(
      "div",
      null,
      parts.summary,
      history.node,
      section("Holders of the range", parts.holders),
      section("Readings", parts.readings),
      section("Places", parts.places),
      section("Events of the range", parts.events),
    ),
    period: 15_000,
    subject: () => (machine === null ? null : { topic: "machine", id: machine }),
    async refresh(signal) {
      const record = await client.get(gpuPath(id), {}, signal);
      const shown = record.device;
      [machine, device, inParts] = [shown.machine, shown.id, !record.holders];
      replace(parts.summary, summaryOf(record));
      replace(parts.readings, readingTables(shown.id, shown.readings, shown.dimensions));
      replace(parts.places, historyTables(record.history));
      series.path = `v1/machines/${encodeURIComponent(machine)}/series`;
      series.events = { machine, view: viewKey(shown) };
      await history.refresh({ devices: [shown], host: {} }, signal);
    },
  };
}

function summaryOf(record) {
  const { device } = record;
  return [
    element(
      "p",
      { class: "lead" },
      deviceName(device),
      " on ",
      element("a", { href: nodeLink(device.machine) }, foreign(record.node)),
    ),
    facts(
      [
        ["Source", [device.source, element("small", null, sentence("sources", device.source))]],
        ["Kind", `${device.kind}, seen from ${device.side}`],
        ["State of its reports", stateText(record.liveness)],
        [
          "Newest sample",
          `measured ${timeText(record.measured_at)}, received ${timeText(record.received_at)}, ${agoText(record.age_seconds)}`,
        ],
        ["Holders", holdersOf(record.holders)],
        ["PCI address", device.pci_address ? foreign(device.pci_address) : null],
        ["Index", record.index ?? null],
        ["Part of", device.parent ? foreign(device.parent) : null],
        ["Passthrough", device.passthrough ? foreign(device.passthrough.detail) : null],
        [
          "Other views",
          (device.passthrough?.views ?? []).map((view) => element("a", { href: gpuLink(view) }, foreign(view))),
        ],
        ["Id", foreign(device.id)],
      ].filter(([, content]) => !Array.isArray(content) || content.length > 0),
    ),
  ];
}

/** Create the table of the holders of a device in a range, the newest first. */
function holderTable(page, device, inParts) {
  const found = page.items.filter((one) => one.device === device);
  const rows = found
    .sort((one, other) => Date.parse(other.since) - Date.parse(one.since))
    .map((one) => [
      foreign(holderName(one)),
      foreign(one.holder.user || ""),
      shareText(one),
      [one.verdict, element("small", null, foreign(one.methods.join(", ")))],
      timeText(one.since),
      one.until ? timeText(one.until) : one.current ? "now" : "unknown: the machine does not report",
    ]);
  return [
    rows.length === 0
      ? element("p", null, inParts ? "The device is held in parts, which the page of its node lists." : NO_HOLDER)
      : table("Holders of the range", ["Holder", "User", "Share", "Verdict", "Since", "Until"], rows),
    page.next ? element("p", { class: "muted" }, "The machine has more holders, which are not listed.") : null,
  ];
}

function historyTables(history) {
  if (!history) return element("p", null, "No history.");
  const places = history.places.map((place) => [
    [foreign(place.node || place.machine), element("small", null, foreign(place.cluster))],
    foreign(place.pci_address),
    timeText(place.first_seen),
    place.last_seen ? timeText(place.last_seen) : "unknown",
    place.is_newest ? "yes" : "",
  ]);
  const others = history.slot.map((one) => [
    element("a", { href: gpuLink(one.id) }, foreign(one.id)),
    timeText(one.first_seen),
    one.last_seen ? timeText(one.last_seen) : "unknown",
  ]);
  return [
    table("Places of this GPU", ["Node", "Slot", "First seen", "Last seen", "Newest"], places),
    element("h3", null, "GPUs of its slot"),
    table("GPUs of its slot", ["GPU", "First seen", "Last seen"], others),
  ];
}
