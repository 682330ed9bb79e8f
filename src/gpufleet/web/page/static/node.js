/** Page of a node, for operators. */

import { element, facts, foreign, replace, section, table } from "./dom.js";
import { eventTable } from "./events.js";
import { agoText, timeText } from "./format.js";
import { HistorySection } from "./history.js";
import { gpuLink, holderName, holdersOf, nodeLink, shareText, stateText, viewKey } from "./labels.js";
import { DEVICE_COLUMNS, deviceCells, deviceName, readingCell } from "./readings.js";
import { TopologyPicture } from "./topology_picture.js";

const PROCESS_METRICS = ["memory_bytes", "sm_utilization_ratio"];

/** Maximum number of devices in the charts. */
const MAX_CHARTED = 16;

/** Create the page of a machine by its id or name. */
export function nodePage({ client }, id) {
  const parts = {
    summary: element("div"),
    gpus: element("div"),
    holders: element("div"),
    processes: element("div"),
    events: element("div"),
  };
  const topology = new TopologyPicture();
  let shown = [];
  let netdata;
  const path = `v1/machines/${encodeURIComponent(id)}`;
  const series = { path: `${path}/series`, views: () => shown.map(viewKey), events: { machine: id } };
  const history = new HistorySection(client, series, (events) => replace(parts.events, eventTable(events)));
  return {
    title: "Node",
    node: element(
      "div",
      null,
      parts.summary,
      section("GPUs", parts.gpus),
      history.node,
      section("Topology", topology.node),
      section("Holders", parts.holders),
      section("Processes", parts.processes),
      section("Events of the range", parts.events),
    ),
    period: 15_000,
    subject: () => ({ topic: "machine", id }),
    async refresh(signal) {
      const record = await client.get(path, {}, signal);
      netdata ??= await netdataUrl(client, record, signal);
      replace(parts.summary, summaryOf(record, netdata));
      const machine = record.id;
      const gpus = [];
      for await (const items of client.pages("v1/gpus", { machine }, signal)) gpus.push(...items);
      replace(parts.gpus, gpuTable(gpus));
      topology.show(gpus);
      const [holders, processes] = await Promise.all([
        client.get("v1/holders", { machine }, signal),
        client.get(`${path}/processes`, {}, signal),
      ]);
      replace(parts.holders, holderTable(holders.items));
      replace(parts.processes, processTables(processes.devices));
      shown = chartedDevices(gpus);
      await history.refresh({ devices: shown, host: {} }, signal);
    },
  };
}

/** Return the devices with charts: the physical GPUs, or all if there are none, such as in a guest with a vGPU. */
function chartedDevices(records) {
  const devices = records.map((record) => record.device);
  const gpus = devices.filter((device) => device.kind === "gpu");
  return (gpus.length === 0 ? devices : gpus).slice(0, MAX_CHARTED);
}

/** Return the URL of the operator's Netdata about a node, or an empty text if none is registered. */
async function netdataUrl(client, { cluster, machine }, signal) {
  const found = await client.get(`v1/clusters/${encodeURIComponent(cluster)}`, {}, signal);
  return (found.cluster.spec?.netdata_url ?? "").replaceAll("{node}", encodeURIComponent(machine.name));
}

function summaryOf(record, netdata) {
  const { machine } = record;
  return [
    element("p", { class: "lead" }, foreign(machine.name), " in ", foreign(record.cluster)),
    facts([
      ["State", stateText(record.liveness)],
      ["Last seen", `${timeText(record.last_seen)}, ${agoText(record.age_seconds ?? 0)}`],
      ["First seen", timeText(record.first_seen)],
      ["Retired", record.retired_at ? timeText(record.retired_at) : null],
      ["Listed by Kubernetes only", record.named_only ? "yes: nothing on it ever reported" : null],
      ["Kind", machine.kind ?? "node"],
      ["Hypervisor", hypervisorOf(record)],
      ["Id in the hub", foreign(record.id)],
      ["Sender", foreign(record.sender)],
      ["System UUID", machine.system_uuid ? foreign(machine.system_uuid) : null],
      ["Kubernetes node", machine.k8s_node_name ? foreign(machine.k8s_node_name) : null],
      ["Instance", machine.instance_type ? foreign(`${machine.instance_type} ${machine.instance_id ?? ""}`) : null],
      ["Conflict", record.conflict ? foreign(record.conflict) : null],
      ["Netdata", netdata ? element("a", { href: netdata, target: "_blank", rel: "noreferrer" }, "Open Netdata") : null],
    ]),
  ];
}

/** Create the name of the hypervisor of a machine, with a link if the hub knows it. */
function hypervisorOf({ machine, hypervisor_id: id }) {
  if (!machine.hypervisor) return null;
  const name = foreign(machine.hypervisor);
  return id ? element("a", { href: nodeLink(id), "data-key": "hypervisor" }, name) : name;
}

/** Return the records with MIG devices and vGPU instances after their GPU. */
function inGroups(records) {
  const groupOf = ({ device }) => device.parent ?? viewKey(device);
  const groups = Map.groupBy(records, groupOf);
  return [...groups.values()].flat();
}

function gpuTable(records) {
  if (records.length === 0) return element("p", null, "No GPU of this machine is known.");
  const rows = inGroups(records).map((record) => [
    element("a", { href: gpuLink(record.device.id), "data-key": record.device.id }, deviceName(record.device)),
    [record.device.kind, element("small", null, `seen from ${record.device.side}`)],
    holdersOf(record.holders),
    ...deviceCells(record.device),
  ]);
  return table("GPUs", ["GPU", "Kind", "Holders", ...DEVICE_COLUMNS.map(([name]) => name)], rows);
}

function holderTable(items) {
  if (items.length === 0) return element("p", null, "No holder is reported now.");
  const rows = items.map((one) => [
    foreign(holderName(one)),
    [foreign(one.model ?? ""), element("small", null, foreign(one.uuid ?? one.device))],
    foreign(one.holder.user || ""),
    shareText(one),
    [one.verdict, element("small", null, foreign(one.methods.join(", ")))],
    timeText(one.since),
    one.current ? "yes" : "unknown: the machine does not report",
    foreign((one.allocations ?? []).map((found) => found.id).join(", ")),
  ]);
  return table("Holders", ["Holder", "Device", "User", "Share", "Verdict", "Since", "Current", "Allocations"], rows);
}

function processTables(devices) {
  if (devices.length === 0) return element("p", null, "No process table was reported in the last hour.");
  return devices.map((device) => {
    const rows = device.processes.map((one) => [
      String(one.pid),
      foreign(one.name || ""),
      one.kinds.join(", "),
      ...PROCESS_METRICS.map((name) => readingCell(name, one.readings[name])),
    ]);
    return [
      element("h3", null, foreign(device.device)),
      element(
        "p",
        { class: device.stale ? "absent" : "muted" },
        `${device.total === 1 ? "1 process" : `${device.total} processes`}, ${agoText(device.age_seconds)}` +
          (device.stale ? ", stale" : ""),
      ),
      rows.length === 0
        ? null
        : table(`Processes of ${device.device}`, ["Process", "Name", "Kind", "Memory", "SM utilisation"], rows),
    ];
  });
}
