/**
 * Line charts as SVG. A step without a measurement is a gap: the line is interrupted, and the area is grey. The text
 * below the chart has the reason of the gap at the cursor.
 */

import { element, foreign, printable, shape, table } from "./dom.js";
import { clockText, secondsText, timeText, valueText } from "./format.js";
import { commonGaps, domain, runs, summary, ticks, timeTicks } from "./scale.js";

const HEIGHT = 170;
const MARGIN = { top: 8, right: 8, bottom: 20, left: 64 };
const COLOURS = 8;

/** Maximum number of subjects that the text about a gap names. */
const MOST_NAMES = 3;

/** Chart of one metric: a line for each series, and a mark for each event. */
export class Chart {
  #options;
  #cursor = null;
  #line = null;
  #gaps;
  #x = () => 0;
  #holder = element("div", { class: "plot" });
  #gapText = element("p", { class: "gap-text", "aria-live": "polite" });
  #legend = element("div");

  /**
   * Options: `key`, `title`, `unit`, `start` and `end` (ms), `step` (ms), `series` (of `alignSeries`, with `label` and
   * `why(ms)`, which returns the text for a step without a value) and `events` ({at, text}).
   */
  constructor(options) {
    this.#options = options;
    this.node = element(
      "figure",
      { class: "chart" },
      element("figcaption", null, options.title),
      this.#holder,
      this.#gapText,
      this.#legend,
    );
    this.#gaps = commonGaps(options.series).flatMap((gap) => this.#splitByReason(gap));
    this.#drawLegend();
    this.#describeGap();
    // The first observation comes once the element is shown and has a width.
    new ResizeObserver(() => this.#draw()).observe(this.#holder);
  }

  get #instants() {
    return this.#options.series[0]?.points.map(([at]) => at) ?? [];
  }

  /** Split a gap where the reason changes. */
  #splitByReason([first, last]) {
    const at = this.#instants;
    const reason = (index) => this.#options.series.map((one) => one.why(at[index])).join("\n");
    const parts = [[first, first]];
    for (let index = first + 1; index <= last; index += 1) {
      if (reason(index) === reason(index - 1)) parts.at(-1)[1] = index;
      else parts.push([index, index]);
    }
    return parts;
  }

  #draw() {
    const { start, end, unit, series, events, key, step } = this.#options;
    const width = Math.max(240, this.#holder.clientWidth);
    const values = series.flatMap((one) => one.points.map(([, value]) => value)).filter((value) => value !== null);
    const [low, high] = domain(unit, values);
    const x = (at) => MARGIN.left + ((at - start) / (end - start)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) =>
      HEIGHT - MARGIN.bottom - ((value - low) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    this.#x = x;
    const instants = this.#instants;
    const svg = shape("svg", {
      width,
      height: HEIGHT,
      viewBox: `0 0 ${width} ${HEIGHT}`,
      tabindex: 0,
      role: "img",
      "aria-label":
        `${this.#options.title}. Arrow keys move the cursor, Page Up and Page Down move it between gaps; ` +
        "the text below has the reason of a gap, and the table has the values.",
      "data-key": `chart ${key}`,
      on: {
        pointermove: (event) =>
          this.#moveTo(start + ((event.offsetX - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (end - start)),
        pointerleave: () => this.#select(null),
        keydown: (event) => this.#onKey(event),
      },
    });
    for (const [first, last] of this.#gaps) {
      const from = Math.max(MARGIN.left, x(instants[first]));
      const to = Math.min(width - MARGIN.right, x(instants[last] + step));
      const gap = {
        class: "gap",
        x: from,
        y: MARGIN.top,
        width: Math.max(1, to - from),
        height: HEIGHT - MARGIN.top - MARGIN.bottom,
      };
      svg.append(shape("rect", gap));
    }
    for (const value of ticks(unit, low, high, 4)) {
      svg.append(
        shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
        shape(
          "text",
          { class: "tick", x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" },
          valueText(unit, value),
        ),
      );
    }
    const marks = timeTicks(start, end, Math.max(2, Math.floor(width / 110)));
    for (const instant of marks.instants) {
      svg.append(
        shape(
          "text",
          { class: "tick", x: x(instant), y: HEIGHT - 5, "text-anchor": "middle" },
          tickText(instant, marks.step),
        ),
      );
    }
    for (const event of events) {
      if (event.at < start || event.at > end) continue;
      const line = { class: "event", x1: x(event.at), x2: x(event.at), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom };
      svg.append(shape("line", line, shape("title", null, printable(`${clockText(event.at)} ${event.text}`))));
    }
    // The first step can begin before the range: the inner element clips its line.
    const inner = { x: MARGIN.left, y: 0, width: width - MARGIN.left - MARGIN.right, height: HEIGHT };
    const lines = shape("svg", { ...inner, viewBox: `${inner.x} 0 ${inner.width} ${HEIGHT}` });
    svg.append(lines);
    series.forEach((one, index) => {
      for (const run of runs(one.points)) {
        const style = `line line-${index % COLOURS}${index >= COLOURS ? " dashed" : ""}`;
        if (run.length === 1) {
          const at = Math.max(MARGIN.left + 2, x(run[0][0]));
          lines.append(shape("circle", { class: `${style} single`, cx: at, cy: y(run[0][1]), r: 2 }));
        } else {
          lines.append(
            shape("polyline", { class: style, points: run.map(([when, value]) => `${x(when)},${y(value)}`).join(" ") }),
          );
        }
      }
    });
    this.#line = shape("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    svg.append(this.#line);
    this.#placeCursor();
    const hadFocus = this.#holder.contains(document.activeElement);
    this.#holder.replaceChildren(svg);
    if (hadFocus) svg.focus({ preventScroll: true });
  }

  #moveTo(instant) {
    const index = this.#instants.findLastIndex((at) => at <= instant);
    if (index >= 0) this.#select(index);
  }

  #onKey(event) {
    const last = this.#instants.length - 1;
    const at = this.#cursor ?? last;
    const target = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      Home: 0,
      End: last,
      PageUp: this.#gaps.findLast(([, end]) => end < at)?.[1],
      PageDown: this.#gaps.find(([begin]) => begin > at)?.[0],
    }[event.key];
    if (target === undefined || last < 0) return;
    event.preventDefault();
    this.#select(Math.min(last, Math.max(0, target)));
  }

  #select(index) {
    if (index === this.#cursor) return;
    this.#cursor = index;
    this.#placeCursor();
    this.#drawLegend();
    this.#describeGap();
  }

  /** Show the reason of the gap at the cursor; without a cursor, the number of gaps. */
  #describeGap() {
    const { series, step, end } = this.#options;
    const at = this.#instants;
    if (this.#cursor === null) {
      const steps = this.#gaps.reduce((sum, [first, last]) => sum + last - first + 1, 0);
      this.#gapText.textContent =
        steps === 0 ? "No common gap." : `Gaps: ${this.#gaps.length}, ${secondsText((steps * step) / 1000)} in total.`;
      return;
    }
    const missing = new Map();
    for (const one of series) {
      if ((one.points[this.#cursor]?.[1] ?? null) !== null) continue;
      const reason = one.why(at[this.#cursor]);
      missing.set(reason, [...(missing.get(reason) ?? []), one.label]);
    }
    const gap = this.#gaps.find(([first, last]) => first <= this.#cursor && this.#cursor <= last);
    const range = gap ? `${timeText(at[gap[0]])} to ${timeText(Math.min(at[gap[1]] + step, end))}` : timeText(at[this.#cursor]);
    const texts = [...missing].map(
      ([reason, labels]) => `${missing.size === 1 && gap ? "" : `${namesText(labels)}: `}${reason}`,
    );
    this.#gapText.textContent = texts.length === 0 ? "" : `No measurement, ${range}. ${texts.join(" ")}`;
  }

  #placeCursor() {
    const at = this.#cursor === null ? undefined : this.#instants[this.#cursor];
    this.#line.toggleAttribute("hidden", at === undefined);
    if (at === undefined) return;
    this.#line.setAttribute("x1", this.#x(at));
    this.#line.setAttribute("x2", this.#x(at));
  }

  #drawLegend() {
    const { unit, series, title } = this.#options;
    const at = this.#instants;
    const index = this.#cursor ?? newest(series);
    const rows = series.map((one, place) => {
      const { lowest, mean, highest } = summary(one);
      const show = (value, absence = "no measurement") =>
        value === null || value === undefined ? element("span", { class: "absent" }, absence) : valueText(unit, value);
      const why = highest === null ? undefined : "unknown";
      const swatch = element("span", { class: `swatch line-${place % COLOURS}`, "aria-hidden": "true" });
      return [
        [swatch, foreign(one.label)],
        show(one.points[index]?.[1]),
        show(lowest, why),
        show(mean, why),
        show(highest),
      ];
    });
    const when = at[index] === undefined ? "Value" : `At ${timeText(at[index])}`;
    this.#legend.replaceChildren(table(`${title}: values`, ["Subject", when, "Lowest", "Mean", "Highest"], rows));
  }
}

function namesText(labels) {
  const more = labels.length > MOST_NAMES ? ` and ${labels.length - MOST_NAMES} more` : "";
  return labels.slice(0, MOST_NAMES).map(printable).join(", ") + more;
}

/** Return the index of the newest step with a value. */
function newest(series) {
  return Math.max(-1, ...series.map((one) => one.points.findLastIndex(([, value]) => value !== null)));
}

function tickText(instant, step) {
  const date = new Date(instant);
  return step < 86400e3
    ? date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
}
