/** Nodes and GPUs of the fleet in the form that maps need, filters and colour classes. Pure. */

import { holderName } from "./labels.js";

const UTILISATION = ["0-10 %", "10-30 %", "30-60 %", "60-90 %", "90-100 %", "unknown"];
const UTILISATION_LIMITS = [0.1, 0.3, 0.6, 0.9];
const TEMPERATURE = ["below 40 °C", "40-60 °C", "60-75 °C", "75-85 °C", "from 85 °C", "unknown"];
const TEMPERATURE_LIMITS = [40, 60, 75, 85];

/** Classes of a node by colouring, in the order of the legend. */
export const NODE_CLASSES = {
  state: ["live", "late", "stale", "lost", "never_seen", "retired", "unknown"],
  reporting: ["all GPUs report", "some GPUs report", "no GPU reports", "no GPU known"],
  utilisation: UTILISATION,
  holders: ["all held", "partly held", "free", "unknown"],
};

/** Classes of a GPU by colouring. */
export const GPU_CLASSES = {
  condition: ["ok", "not ok", "no current report", "unknown"],
  utilisation: UTILISATION,
  temperature: TEMPERATURE,
  holder: ["held", "free", "unknown"],
};

/** Return how many of the GPUs of a node a value includes, by their models; empty if it includes all of them. */
function includedText(count, models) {
  const total = Object.values(models ?? {}).reduce((sum, one) => sum + one, 0);
  return count < total ? `${count} of ${total} GPUs` : "";
}

/**
 * Return a node for the map from its rows in `/v1/nodes` and `/v1/nodes/gpus`; the second can be missing. Readings and
 * holders of a node that is neither live nor late are unknown.
 */
export function makeNode(record, gpus, teams) {
  const { machine } = record;
  const isRetired = machine.retired_at && machine.retired_at >= machine.last_seen;
  const state = isRetired ? "retired" : (machine.liveness?.state ?? "unknown");
  const present = state === "live" || state === "late" ? gpus : undefined;
  return {
    id: machine.id,
    name: machine.machine.name,
    cluster: machine.cluster,
    group: machine.cluster,
    team: teams.get(machine.cluster) ?? "",
    state,
    seen: machine.named_only ? null : (machine.age_seconds ?? 0),
    error: record.last_error,
    gpus: record.gpus,
    reporting: record.gpus_reporting,
    models: gpus?.models ?? {},
    utilisation: present?.utilization_ratio ?? null,
    utilisationOf: includedText(present?.utilization_gpus, gpus?.models),
    power: present?.power_watts ?? null,
    powerOf: includedText(present?.power_gpus, gpus?.models),
    holders: (present?.holders ?? []).map(holderName),
    holderStates: present?.holder_states ?? {},
    loadedAt: gpus?.loadedAt ?? null,
    pools: record.kubernetes_node?.pools ?? {},
  };
}

/** Return a GPU for the map from its row in `/v1/gpus`. Readings of a GPU that is neither live nor late are unknown. */
export function makeGpu(record) {
  const { device, liveness } = record;
  const isCurrent = liveness?.state === "live" || liveness?.state === "late";
  const value = (metric) => (isCurrent ? (device.readings[metric]?.value ?? null) : null);
  const holdings = record.holders?.holdings ?? [];
  return {
    id: device.id,
    name: device.uuid ?? device.pci_address ?? device.id,
    node: record.node,
    group: record.cluster,
    isCurrent,
    state: value("gpu_state"),
    utilisation: value("gpu_utilization_ratio"),
    temperature: value("gpu_temperature_celsius"),
    power: value("gpu_power_watts"),
    memory: value("gpu_memory_used_bytes"),
    holder: isCurrent
      ? (record.holders?.state ?? (record.holders === undefined ? "held in parts" : "unknown"))
      : "unknown",
    holders: isCurrent ? holdings.map(holderName) : [],
  };
}

/** Return the class of a value between limits; the last class is that of an unknown value. */
function valueClass(classes, limits, value) {
  if (value === null) return classes.at(-1);
  const index = limits.findIndex((limit) => value < limit);
  return classes[index === -1 ? limits.length : index];
}

/** Return the class of a GPU in a colouring. A GPU that is held in parts, such as MIG devices, counts as held. */
export function gpuClass(gpu, colouring) {
  if (colouring === "utilisation") return valueClass(UTILISATION, UTILISATION_LIMITS, gpu.utilisation);
  if (colouring === "temperature") return valueClass(TEMPERATURE, TEMPERATURE_LIMITS, gpu.temperature);
  if (colouring === "holder") return { held: "held", free: "free", "held in parts": "held" }[gpu.holder] ?? "unknown";
  if (!gpu.isCurrent) return "no current report";
  if (gpu.state === null) return "unknown";
  return gpu.state === "ok" ? "ok" : "not ok";
}

function holderClass(states) {
  const held = states.held ?? 0;
  const free = states.free ?? 0;
  if ((states.unknown ?? 0) > 0 || held + free === 0) return "unknown";
  if (free === 0) return "all held";
  return held === 0 ? "free" : "partly held";
}

function reportingClass(node) {
  if (node.gpus === 0) return "no GPU known";
  if (node.reporting === 0) return "no GPU reports";
  return node.reporting < node.gpus ? "some GPUs report" : "all GPUs report";
}

/** Return the class of a node in a colouring. */
export function nodeClass(node, colouring) {
  if (colouring === "state") return NODE_CLASSES.state.includes(node.state) ? node.state : "unknown";
  if (colouring === "reporting") return reportingClass(node);
  if (colouring === "utilisation") return valueClass(UTILISATION, UTILISATION_LIMITS, node.utilisation);
  return holderClass(node.holderStates);
}

/** Return `found`, the items with the highest values of a field, and `known`, the number of items with a value. */
export function topOf(items, field, count) {
  const known = items.filter((one) => one[field] !== null);
  return { known: known.length, found: known.sort((one, other) => other[field] - one[field]).slice(0, count) };
}

/** Return the pools of a node as `label=value` texts. */
export function poolNames(node) {
  return Object.entries(node.pools).map(([label, value]) => `${label}=${value}`);
}

/** Return the nodes that match all filters. An empty filter matches every node; texts match parts, in any case. */
export function filterNodes(nodes, filters) {
  const has = (text, part) => text.toLowerCase().includes(part.toLowerCase());
  return nodes.filter(
    (node) =>
      (!filters.cluster || node.cluster === filters.cluster) &&
      (!filters.team || node.team === filters.team) &&
      (!filters.state || node.state === filters.state) &&
      (!filters.model || Object.hasOwn(node.models, filters.model)) &&
      (!filters.pool || poolNames(node).includes(filters.pool)) &&
      (!filters.holder || node.holders.some((name) => has(name, filters.holder))) &&
      (!filters.name || has(node.name, filters.name) || node.id === filters.name),
  );
}

/** Return the sorted distinct values of a list of lists. */
export function distinct(lists) {
  return [...new Set(lists.flat())].filter(Boolean).sort();
}
