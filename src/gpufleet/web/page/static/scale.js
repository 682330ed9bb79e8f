/** Scales of charts: ticks, runs without gaps, and domains of units. Pure. */

/** Steps between ticks of a time axis, in ms. */
const TIME_STEPS = [10 * 60e3, 15 * 60e3, 30 * 60e3, 3600e3, 4 * 3600e3, 86400e3, 5 * 86400e3];

/**
 * Place the points of series on one grid of steps from `start` to `end`, aligned to the earliest point; instants in ms.
 * A point is [instant, value or null, reason of a null value or null]. Each series gets `points`, with a null value for a
 * step without a point, `covers(instant)`: whether it had a point, and `absence(instant)`: its reason or null.
 */
export function alignSeries(series, start, end, step) {
  const base = series.reduce((low, one) => Math.min(low, one.points[0]?.[0] ?? Infinity), Infinity);
  if (base === Infinity) return series;
  const first = -Math.max(0, Math.ceil((base - start) / step));
  const count = Math.max(1, Math.ceil((end - base) / step) - first);
  const instants = Array.from({ length: count }, (_, place) => base + (first + place) * step);
  return series.map((one) => {
    const placed = new Map(one.points.map(([at, ...rest]) => [base + Math.floor((at - base) / step) * step, rest]));
    return {
      ...one,
      points: instants.map((at) => [at, placed.get(at)?.[0] ?? null]),
      covers: (at) => placed.has(at),
      absence: (at) => placed.get(at)?.[1] ?? null,
    };
  });
}

/**
 * Return the `lowest` value, `mean` and `highest` value of an aligned series; null without values. If a reading is
 * `ambiguous_zero`, the first two are not known: without the zeros of an idle device they are too high.
 */
export function summary({ points, absence }) {
  const values = points.map(([, value]) => value).filter((value) => value !== null);
  if (values.length === 0) return { lowest: null, mean: null, highest: null };
  const highest = Math.max(...values);
  if (points.some(([at]) => absence(at) === "ambiguous_zero")) return { lowest: null, mean: null, highest };
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { lowest: Math.min(...values), mean, highest };
}

/** Split [x, value] points into runs of consecutive values; null values are gaps and belong to no run. */
export function runs(points) {
  const found = [];
  let current = null;
  for (const point of points) {
    if (point[1] === null) {
      current = null;
    } else if (current === null) {
      current = [point];
      found.push(current);
    } else {
      current.push(point);
    }
  }
  return found;
}

/** Return the [first, last] indexes of each interval in which no series has a value. */
export function commonGaps(series) {
  const length = Math.max(0, ...series.map((one) => one.points.length));
  const gaps = [];
  let first = null;
  for (let index = 0; index <= length; index += 1) {
    const isGap = index < length && series.every((one) => (one.points[index]?.[1] ?? null) === null);
    if (isGap && first === null) first = index;
    if (!isGap && first !== null) {
      gaps.push([first, index - 1]);
      first = null;
    }
  }
  return gaps;
}

/** Return the range of a value axis. It begins at zero, except for temperatures. */
export function domain(unit, values) {
  if (unit === "ratio") return [0, 1];
  if (values.length === 0) return [0, 1];
  const low = Math.min(...values);
  const high = Math.max(...values);
  if (unit === "celsius")
    return [Math.floor(low / 10) * 10, Math.max(Math.ceil(high / 10) * 10, Math.floor(low / 10) * 10 + 10)];
  return [Math.min(0, low), high > 0 ? high * 1.05 : 1];
}

/** Return about `count` round values within a range; bytes are round in binary units. */
export function ticks(unit, low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const base = unit === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(span) / Math.log(1024))) : 1;
  const raw = span / base / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5].find((one) => one * power >= raw) ?? 10) * power * base;
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high * (1 + 1e-9); index += 1) found.push(index * step);
  return found;
}

/** Return instants of ticks between two instants, aligned to local time, and the step between them. */
export function timeTicks(start, end, count) {
  const step = TIME_STEPS.find((one) => (end - start) / one <= count) ?? TIME_STEPS.at(-1);
  const offset = new Date(start).getTimezoneOffset() * 60e3;
  const found = [];
  for (let at = Math.ceil((start - offset) / step) * step + offset; at <= end; at += step) found.push(at);
  return { step, instants: found };
}
