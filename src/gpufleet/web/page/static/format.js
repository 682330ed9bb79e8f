/** Texts of values, ages and times. Pure. */

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const DECIMAL = [
  ["G", 1e9],
  ["M", 1e6],
  ["k", 1e3],
];

const digits = (value, count) => String(Number(value.toPrecision(count)));

/** Format bytes with three digits and a binary unit. */
export function bytesText(value) {
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < BINARY.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${digits(value, 3)} ${BINARY[step]}`;
}

/** Format a ratio as percent. */
export function percentText(value) {
  if (value > 0 && value < 0.001) return `${digits(value * 100, 2)} %`;
  return `${(value * 100).toFixed(value === 0 || value >= 0.1 ? 0 : 1)} %`;
}

/** Format a duration in seconds. */
export function secondsText(value) {
  if (value < 1) return `${digits(value * 1000, 3)} ms`;
  if (value < 120) return `${digits(value, 3)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 48 * 3600 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

function hertzText(value) {
  const found = DECIMAL.find(([, size]) => value >= size);
  return found ? `${digits(value / found[1], 4)} ${found[0]}Hz` : `${value} Hz`;
}

const UNITS = {
  bytes: bytesText,
  bytes_per_second: (value) => `${bytesText(value)}/s`,
  celsius: (value) => `${digits(value, 3)} °C`,
  hertz: hertzText,
  joules: (value) => `${digits(value, 6)} J`,
  ratio: percentText,
  seconds: (value) => `${digits(value, 10)} s`,
  watts: (value) => `${digits(value, 4)} W`,
};

/** Format a value with its unit; texts, such as names of states, are returned unchanged. */
export function valueText(unit, value) {
  if (typeof value !== "number") return String(value);
  const format = UNITS[unit];
  if (format) return format(value);
  return Number.isInteger(value) ? String(value) : digits(value, 6);
}

/** Return a number with a regular noun, such as `1 machine` or `2 machines`. */
export function counted(count, noun) {
  return count === 1 ? `1 ${noun}` : `${count} ${noun}s`;
}

/** Return the names of the bits that are set in a mask. */
export function bitNames(names, mask) {
  return Object.entries(names)
    .filter(([, bit]) => Math.floor(mask / bit) % 2 === 1)
    .map(([name]) => name);
}

/** Format an instant in local time with its zone. */
export function timeText(instant) {
  const options = { dateStyle: "medium", timeStyle: "medium" };
  return instant === null || instant === undefined ? "never" : new Date(instant).toLocaleString(undefined, options);
}

/** Format the time of day of an instant. */
export function clockText(instant) {
  return new Date(instant).toLocaleTimeString();
}

/** Format a duration since something happened. */
export function agoText(seconds) {
  return seconds === null || seconds === undefined ? "" : `${secondsText(Math.max(0, seconds))} ago`;
}
