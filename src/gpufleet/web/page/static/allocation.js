/** Page of an allocation. Its layout is the same for bare metal, slices, pods, jobs and virtual machines. */

import { forceText, startText, targetText } from "./allocations.js";
import { element, facts, foreign, lazyDetails, replace, section, table } from "./dom.js";
import { eventTable } from "./events.js";
import { AllocationFindings } from "./findings.js";
import { agoText, timeText } from "./format.js";
import { HistorySection } from "./history.js";
import { shareText } from "./labels.js";
import { DEVICE_COLUMNS, absenceText, deviceCells, deviceName, readingCell, readingTables } from "./readings.js";
import { UsageSection } from "./usage.js";
import { metricText, sentence } from "./vocabulary.js";

const TOTALS = [
  ["Utilisation", "gpu_utilization_ratio"],
  ["Memory used", "gpu_memory_used_bytes"],
  ["Memory total", "gpu_memory_total_bytes"],
  ["Power", "gpu_power_watts"],
  ["Highest temperature", "gpu_temperature_celsius"],
];

const MACHINE = [
  ["CPU utilisation", "host_cpu_utilization_ratio"],
  ["CPUs", "host_cpus"],
  ["Load, 1 min", "host_load_1m"],
  ["Memory available", "host_memory_available_bytes"],
  ["Memory total", "host_memory_total_bytes"],
];

const WORKLOADS = ["kubernetes_pod", "slurm_job"];

/** Create the page of an allocation by its id. */
export function allocationPage({ client }, id) {
  const path = `v1/allocations/${encodeURIComponent(id)}`;
  const parts = {
    summary: element("div"),
    totals: element("div"),
    devices: element("div"),
    machine: element("div"),
    events: element("div"),
  };
  const subject = { path: `${path}/series`, events: { allocation: id } };
  const history = new HistorySection(client, subject, (events) => replace(parts.events, eventTable(events)));
  const findings = new AllocationFindings(client);
  const usage = new UsageSection(client, id, () => history.range);
  return {
    title: "Allocation",
    node: element(
      "div",
      null,
      parts.summary,
      findings.node,
      section("Totals", parts.totals),
      section("GPUs", parts.devices),
      section("CPU and memory", parts.machine),
      history.node,
      section("Events of the range", parts.events),
      usage.node,
    ),
    period: 15_000,
    subject: () => ({ topic: "allocation", id }),
    async refresh(signal) {
      const answer = await client.get(`${path}/metrics`, {}, signal);
      replace(parts.summary, summaryOf(answer, client.now()));
      replace(parts.totals, totalsOf(answer.aggregate));
      replace(parts.devices, devicesOf(answer));
      replace(parts.machine, machineOf(answer));
      await findings.refresh(answer.allocation, signal);
      await history.refresh(answer, signal);
    },
  };
}

function summaryOf(answer, now) {
  const { allocation } = answer;
  const { spec } = allocation;
  return [
    element("p", { class: "lead" }, foreign(allocation.id), ` is ${forceText(allocation, now)}.`),
    element(
      "p",
      { class: answer.source === "unavailable" ? "source unavailable" : "source" },
      element("strong", null, answer.source),
      " ",
      sentence("sources", answer.source),
    ),
    answer.reason === null
      ? null
      : element(
          "p",
          { class: "source unavailable" },
          element("strong", null, answer.reason),
          " ",
          absenceText(answer.reason, answer.detail),
        ),
    facts([
      ["GPUs", `${answer.aggregate.reporting} of ${answer.aggregate.devices} report`],
      ["Newest reading", answer.measured_at === null ? "none" : `measured ${timeText(answer.measured_at)}`],
      [
        "Received",
        answer.received_at === null ? "never" : `${timeText(answer.received_at)}, ${agoText(answer.age_seconds)}`,
      ],
      ["Kind", spec.kind],
      ["Target", [foreign(targetText(spec)), element("small", null, foreign(spec.target.cluster))]],
      ["Tenant", spec.tenant ? foreign(spec.tenant) : null],
      ["Team", spec.team ? foreign(spec.team) : null],
      ["From", startText(spec)],
      ["To", allocation.closed_at || spec.valid_to ? timeText(allocation.closed_at ?? spec.valid_to) : "open"],
      ["Detail", answer.reason === null && answer.detail ? foreign(answer.detail) : null],
      ["Newest error of a reader", answer.last_error ? foreign(answer.last_error) : null],
    ]),
  ];
}

function totalsOf(aggregate) {
  const rows = TOTALS.filter(([, metric]) => aggregate.metrics[metric]).map(([name, metric]) => {
    const total = aggregate.metrics[metric];
    return [
      name,
      total.value === null
        ? element("span", { class: "absent" }, "no GPU reports it")
        : metricText(metric, total.value),
      total.operation,
      `${total.reporting} of ${total.devices}`,
    ];
  });
  if (rows.length === 0) return element("p", null, "There are no totals, because no GPU of this allocation is known.");
  return table("Totals", ["Reading", "Value", "Operation", "GPUs included"], rows);
}

function devicesOf({ devices, reason }) {
  if (devices.length === 0) {
    const why = reason === null ? "This answer has no GPU." : "No GPU is shown. The reason is stated above.";
    return element("p", null, why);
  }
  const rows = devices.map((device) => [deviceName(device), kindOf(device), ...deviceCells(device)]);
  return [
    table("GPUs", ["GPU", "Kind", ...DEVICE_COLUMNS.map(([name]) => name)], rows),
    devices.map((device) =>
      lazyDetails(`device ${device.id}`, ["All readings of ", deviceName(device)], () =>
        element("div", null, readingTables(device.id, device.readings, device.dimensions)),
      ),
    ),
  ];
}

function kindOf(device) {
  const { holding, passthrough } = device;
  return [
    device.kind,
    element("small", { title: sentence("sources", device.source) }, device.source),
    holding ? element("small", null, `${shareText(holding)} since ${timeText(holding.since)}`) : null,
    holding?.containers ? element("small", null, foreign(holding.containers.join(", "))) : null,
    passthrough ? element("small", null, foreign(passthrough.detail)) : null,
  ];
}

function machineOf(answer) {
  if (Object.keys(answer.host).length === 0) {
    const isWorkload = WORKLOADS.includes(answer.allocation.spec.kind);
    return element(
      "p",
      null,
      isWorkload ? "Readings of a machine are not those of a pod or job." : "This answer has no readings of a machine.",
    );
  }
  const rows = MACHINE.map(([name, metric]) => [name, readingCell(metric, answer.host[metric])]);
  return [
    table("CPU and memory", ["Reading", "Value or reason"], rows),
    lazyDetails("machine", "All readings of the machine", () =>
      element("div", null, readingTables("the machine", answer.host, answer.host_dimensions)),
    ),
  ];
}
