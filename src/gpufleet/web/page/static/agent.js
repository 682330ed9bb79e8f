/** Pages that an agent serves about its own machine and the devices in it, from its snapshot. */

import { element, facts, foreign, lazyDetails, printable, replace, section, table } from "./dom.js";
import { eventTable } from "./events.js";
import { agoText, timeText } from "./format.js";
import { gpuLink, holdersOf } from "./labels.js";
import { DEVICE_COLUMNS, absenceText, deviceCells, deviceName, readingCell, readingTables } from "./readings.js";
import { TopologyPicture } from "./topology_picture.js";

const PERIOD_MS = 5_000;
const SNAPSHOT = "v1/snapshot";
const PROCESS_METRICS = ["memory_bytes", "sm_utilization_ratio"];

const HOST = [
  ["CPU utilisation", "host_cpu_utilization_ratio"],
  ["CPUs", "host_cpus"],
  ["Load, 1 min", "host_load_1m"],
  ["Memory available", "host_memory_available_bytes"],
  ["Memory total", "host_memory_total_bytes"],
];

/** Create the page of the agent's machine. */
export function machinePage({ client }) {
  const parts = Object.fromEntries(
    ["summary", "gpus", "host", "processes", "guests", "readers", "events"].map((name) => [name, element("div")]),
  );
  const topology = new TopologyPicture();
  return {
    title: "Node",
    node: element(
      "div",
      null,
      parts.summary,
      section("GPUs", parts.gpus),
      section("Topology", topology.node),
      section("CPU and memory", parts.host),
      section("Processes", parts.processes),
      section("Virtual machines", parts.guests),
      section("Readers", parts.readers),
      section("Events", parts.events),
    ),
    period: PERIOD_MS,
    async refresh(signal) {
      const snapshot = await client.get(SNAPSHOT, {}, signal);
      const now = client.now();
      const devices = snapshot.devices.map((one) => deviceOf(one, now));
      replace(parts.summary, summaryOf(snapshot, now));
      replace(parts.gpus, deviceTable("GPUs", devices, { linked: true }));
      topology.show(topologyRecords(devices, snapshot.host.pci ?? []));
      replace(parts.host, hostOf(snapshot.host, snapshot.node.name, now));
      replace(parts.processes, processTables(devices));
      replace(parts.guests, (snapshot.guests ?? []).map((guest) => guestOf(guest, now)), noneText(snapshot.guests));
      replace(parts.readers, readerTable(snapshot.readers, now));
      replace(parts.events, eventTable({ events: snapshot.events ?? [] }));
    },
  };
}

/** Create the page of a device of the agent's machine, by its id. */
export function devicePage({ client }, id) {
  const [summary, readings] = [element("div"), element("div")];
  return {
    title: "GPU",
    node: element("div", null, summary, section("Readings", readings)),
    period: PERIOD_MS,
    async refresh(signal) {
      const snapshot = await client.get(SNAPSHOT, {}, signal);
      const device = snapshot.devices.map((one) => deviceOf(one, client.now())).find((one) => one.id === id);
      if (device === undefined) {
        replace(summary, element("p", { class: "lead absent" }, "The newest snapshot does not have this device."));
        replace(readings);
        return;
      }
      replace(
        summary,
        element("p", { class: "lead" }, deviceName(device), " on ", foreign(snapshot.node.name)),
        facts([
          ["Kind", `${device.kind}, seen from ${device.side}`],
          ["Holders", holdersOf(device.holders)],
          ["PCI address", device.pci_address ? foreign(device.pci_address) : null],
          ["Index", device.index ?? null],
          ["Part of", device.parent ? foreign(device.parent) : null],
          ["Sources", (device.sources ?? []).map((one) => element("div", null, sourceText(one)))],
        ]),
      );
      replace(readings, readingTables(device.id, device.readings, device.dimensions));
    },
  };
}

function sourceText(source) {
  return foreign(`${source.reader}, ${source.lane}: measured ${timeText(source.measured_at)}`);
}

function noneText(items) {
  return (items ?? []).length === 0 ? element("p", null, "None is read.") : null;
}

/** Return the readings with their ages by the agent's clock. */
function withAges(readings, now) {
  const aged = Object.entries(readings).map(([metric, one]) => [metric, { ...one, age_seconds: ageOf(one, now) }]);
  return Object.fromEntries(aged);
}

function ageOf({ measured_at: at }, now) {
  return at ? (now - Date.parse(at)) / 1000 : undefined;
}

/** Return a device of the snapshot in the form that the tables of a hub's devices have. */
function deviceOf(device, now) {
  return {
    ...device,
    id: `agent/node/${device.key}`,
    readings: withAges(device.readings, now),
    dimensions: (device.dimensions ?? []).map((one) => ({ ...one, age_seconds: ageOf(one, now) })),
  };
}

function topologyRecords(devices, functions) {
  const nodes = new Map(functions.map((one) => [one.address, one.numa_node]));
  return devices.map((device) => ({
    device,
    index: device.index,
    numa_node: nodes.get(device.pci_address ?? device.readings.gpu_pci_address?.value),
  }));
}

function summaryOf(snapshot, now) {
  const { node } = snapshot;
  const missing = Object.entries(snapshot.capabilities).filter(([, state]) => state !== "available");
  return [
    element("p", { class: "lead" }, foreign(node.name), `: ${snapshot.aggregate.coverage}.`),
    facts([
      [
        "Newest reading",
        `measured ${timeText(snapshot.measured_at)}, ${agoText((now - Date.parse(snapshot.measured_at)) / 1000)}`,
      ],
      ["System UUID", node.system_uuid ? foreign(node.system_uuid) : null],
      ["Hypervisor", node.hypervisor ? foreign(node.hypervisor) : null],
      ["Agent", `version ${snapshot.version}`],
      ["Not available", missing.map(([name, state]) => element("div", null, foreign(`${name}: ${state}`)))],
    ]),
  ];
}

function deviceTable(label, devices, { linked }) {
  if (devices.length === 0) return element("p", null, "No GPU is known.");
  const rows = devices.map((device) => [
    linked ? element("a", { href: gpuLink(device.id), "data-key": device.id }, deviceName(device)) : deviceName(device),
    [device.kind, element("small", null, `seen from ${device.side}`)],
    linked && device.holders === undefined ? withoutHolders(device, devices) : holdersOf(device.holders),
    ...deviceCells(device),
  ]);
  return table(label, ["GPU", "Kind", "Holders", ...DEVICE_COLUMNS.map(([name]) => name)], rows);
}

/** Create the text for a device without holders: its parts have them, or nothing reports them. */
function withoutHolders(device, devices) {
  const inParts = devices.some((one) => one.parent === device.key && one.holders !== undefined);
  return element("span", { class: "muted" }, inParts ? "held in parts" : "not reported");
}

function hostOf(host, name, now) {
  const readings = withAges(host.readings, now);
  const dimensions = (host.dimensions ?? []).map((one) => ({ ...one, age_seconds: ageOf(one, now) }));
  return [
    facts(HOST.map(([title, metric]) => [title, readingCell(metric, readings[metric])])),
    lazyDetails("host readings", "All readings of the machine", () =>
      element("div", null, readingTables(name, readings, dimensions)),
    ),
  ];
}

function processTables(devices) {
  const listed = devices.filter((device) => Array.isArray(device.processes));
  if (listed.length === 0) return element("p", null, "No reader lists processes.");
  const rows = listed.flatMap((device) =>
    device.processes.map((one) => [
      String(one.pid),
      foreign(one.name ?? ""),
      one.kinds.join(", "),
      foreign(device.uuid ?? device.key),
      ...PROCESS_METRICS.map((name) => readingCell(name, one.readings[name])),
    ]),
  );
  if (rows.length === 0) return element("p", null, "No process uses a device.");
  return table("Processes", ["Process", "Name", "Kind", "Device", "Memory", "SM utilisation"], rows);
}

function guestOf(guest, now) {
  const devices = (guest.devices ?? []).map((one) => deviceOf(one, now));
  const name = [guest.namespace, guest.name || guest.machine.name].filter(Boolean).join("/");
  const isRead = guest.state === "ok";
  return [
    element("h3", null, foreign(name)),
    element(
      "p",
      { class: isRead ? "muted" : "source unavailable" },
      element("strong", null, printable(guest.state || "unknown")),
      " ",
      isRead ? "" : absenceText(guest.state, guest.detail),
    ),
    devices.length === 0 ? null : deviceTable(`GPUs of ${printable(name)}`, devices, { linked: false }),
  ];
}

function readerTable(readers, now) {
  const rows = readers.map((one) => [
    `${one.reader}, ${one.lane}`,
    element("span", { class: one.state === "ok" ? "" : "absent" }, one.state),
    one.last_success ? agoText((now - Date.parse(one.last_success)) / 1000) : "never",
    one.interval_seconds == null ? "-" : `${one.interval_seconds} s`,
    String(one.failures ?? 0),
    foreign(one.last_error ?? ""),
  ]);
  return table("Readers", ["Reader", "State", "Last success", "Interval", "Failures", "Newest error"], rows);
}
