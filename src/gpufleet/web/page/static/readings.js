/** Readings as elements: the value, or the reason of its absence, with scope and age. */

import { element, foreign, printable, table } from "./dom.js";
import { agoText, bitNames, timeText } from "./format.js";
import { metricText, sentence, vocabulary } from "./vocabulary.js";

const CLOCK_EVENTS = "gpu_clock_event_reasons_mask";

/** Text of a value, with names for the bits of clock events. */
function text(metric, value) {
  if (metric === CLOCK_EVENTS) return bitNames(vocabulary().clock_events, value).join(", ") || "none";
  return printable(metricText(metric, value));
}

/** Return the explanation of an absence: the sentence of its reason, and the detail of the reader. */
export function absenceText(reason, detail) {
  return [sentence("reasons", reason), detail ? `Detail: ${printable(detail)}` : ""].filter(Boolean).join(" ");
}

function absence(metric, reading) {
  if (reading === undefined) {
    return element("span", { class: "absent", title: sentence("reasons", "not_collected") }, "not_collected");
  }
  const last = reading.last_known ?? null;
  return [
    element("span", { class: "absent", title: absenceText(reading.absent, reading.detail) }, reading.absent),
    last === null ? null : element("small", null, `last known ${text(metric, last)}`),
  ];
}

/** Create a cell with a reading, its age, and its scope if that is not the device itself. `kind` is that of the device. */
export function readingCell(metric, reading, kind = undefined) {
  const subjects = vocabulary().metrics[metric]?.subjects;
  if (reading === undefined && kind && subjects && !subjects.includes(kind)) {
    return element(
      "span",
      { class: "reading muted", title: `${metric} is not defined for this kind of device.` },
      "not defined",
    );
  }
  const isValue = (reading?.value ?? null) !== null;
  const scope = reading?.scope ?? "own";
  return element(
    "span",
    { class: "reading" },
    isValue ? element("span", { class: "value" }, text(metric, reading.value)) : absence(metric, reading),
    scope === "own" ? null : element("small", { title: sentence("scopes", scope) }, scope),
    element("small", { class: "age" }, agoText(reading?.age_seconds)),
  );
}

function labelsText(labels) {
  return Object.entries(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");
}

function row(metric, labels, reading) {
  const isValue = (reading.value ?? null) !== null;
  const name = element("span", { title: vocabulary().metrics[metric]?.help }, printable(metric));
  return [
    labels ? [name, " ", element("small", null, foreign(labelsText(labels)))] : name,
    isValue
      ? element("span", { class: "value" }, text(metric, reading.value))
      : [absence(metric, reading), element("small", null, absenceText(reading.absent, reading.detail))],
    element("span", { title: sentence("scopes", reading.scope ?? "own") }, reading.scope ?? "own"),
    foreign(reading.reader ?? ""),
    agoText(reading.age_seconds),
    reading.measured_at ? timeText(reading.measured_at) : "",
  ];
}

/** Create a table for each theme with all readings of a subject: value or reason, scope, reader, age and time. */
export function readingTables(subject, readings, dimensions = []) {
  const rows = new Map(vocabulary().themes.map((theme) => [theme, []]));
  const add = (metric, labels, reading) => {
    const theme = vocabulary().metrics[metric]?.theme ?? "identity";
    rows.get(theme)?.push(row(metric, labels, reading));
  };
  for (const [metric, reading] of Object.entries(readings)) add(metric, null, reading);
  for (const one of dimensions) add(one.metric, one.labels, one);
  const columns = ["Reading", "Value or reason", "Scope", "Reader", "Age", "Measured"];
  return [...rows]
    .filter(([, found]) => found.length > 0)
    .map(([theme, found]) => [element("h3", null, theme), table(`${theme} of ${printable(subject)}`, columns, found)]);
}

/** Columns of a table of devices: heading, and the metrics of a cell. */
export const DEVICE_COLUMNS = [
  ["State", ["gpu_state"]],
  ["Utilisation", ["gpu_utilization_ratio"]],
  ["Memory used, total", ["gpu_memory_used_bytes", "gpu_memory_total_bytes"]],
  ["Power, limit", ["gpu_power_watts", "gpu_power_limit_watts"]],
  ["Temperature", ["gpu_temperature_celsius"]],
  ["SM clock", ["gpu_sm_clock_hertz"]],
  ["Reasons for lower clocks", [CLOCK_EVENTS]],
  ["ECC uncorrected, corrected", ["gpu_ecc_uncorrected_errors_total", "gpu_ecc_corrected_errors_total"]],
];

/** Create the cells of a device for `DEVICE_COLUMNS`. */
export function deviceCells({ kind, readings }) {
  return DEVICE_COLUMNS.map(([, metrics]) => metrics.map((metric) => readingCell(metric, readings[metric], kind)));
}

/** Create the name of a device: kind or model, and its identity. */
export function deviceName(device) {
  const identity = device.uuid ?? device.pci_address ?? device.id;
  return element(
    "span",
    { class: "device" },
    foreign(device.name ?? device.kind),
    element("small", null, foreign(identity)),
  );
}
