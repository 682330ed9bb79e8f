/** Charts and events of an allocation, a machine or a device over a range. */

import { ApiError } from "./api.js";
import { Chart } from "./chart.js";
import { element, printable, replace, section } from "./dom.js";
import { eventText } from "./events.js";
import { timeText } from "./format.js";
import { absenceText } from "./readings.js";
import { alignSeries } from "./scale.js";
import { vocabulary } from "./vocabulary.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

/** Range to its length and step in ms. A step has several samples of the fast lane. */
const RANGES = {
  "1 h": [HOUR, MINUTE],
  "24 h": [24 * HOUR, 5 * MINUTE],
  "7 d": [7 * 24 * HOUR, 30 * MINUTE],
  "30 d": [30 * 24 * HOUR, 2 * HOUR],
};

const METRICS = {
  gpu_utilization_ratio: "GPU utilisation",
  gpu_memory_used_bytes: "GPU memory used",
  gpu_power_watts: "Power",
  gpu_temperature_celsius: "GPU temperature",
  host_cpu_utilization_ratio: "CPU utilisation",
  host_memory_available_bytes: "Memory available",
};

/** Names of the metrics of a device. */
export const DEVICE_METRICS = Object.keys(METRICS).filter((name) => name.startsWith("gpu_"));

const NO_SAMPLE = "No sample is stored for this time.";

/** Section with a chart for each metric. It loads at most once per step of the range. */
export class HistorySection {
  #client;
  #subject;
  #onEvents;
  #name = "1 h";
  #loadedAt = -Infinity;
  #metrics = { devices: [], host: {} };
  #choices = element("div", { class: "choices", role: "group", "aria-label": "Range" });
  #charts = element("div", { class: "charts" });

  /**
   * Set the client, the subject, and the function that shows a page of events. A subject has `path`, `views` and
   * `metrics` of its series (all if they are missing), and `events`, the parameters of its events. It can have `load`,
   * which loads more of a range from its start to its end, RFC 3339.
   */
  constructor(client, subject, onEvents) {
    this.#client = client;
    this.#subject = subject;
    this.#onEvents = onEvents;
    this.node = section("History", this.#choices, this.#charts);
    this.#showChoices();
  }

  /** Name, start and end of the range, in ms by the hub's clock. */
  get range() {
    const end = this.#client.now();
    return { name: this.#name, start: end - RANGES[this.#name][0], end };
  }

  /** Load the range if it is due. `metrics` has `devices`, which name the series, and the readings of the `host`. */
  async refresh(metrics, signal) {
    this.#metrics = metrics;
    const [, step] = RANGES[this.#name];
    if (performance.now() - this.#loadedAt >= step) await this.#load(signal);
  }

  get #metricNames() {
    return this.#subject.metrics ?? Object.keys(METRICS);
  }

  #showChoices() {
    replace(
      this.#choices,
      Object.keys(RANGES).map((name) =>
        element(
          "button",
          {
            type: "button",
            "data-key": `range ${name}`,
            "aria-pressed": String(name === this.#name),
            on: { click: () => this.#choose(name) },
          },
          name,
        ),
      ),
    );
  }

  #choose(name) {
    this.#name = name;
    this.#loadedAt = -Infinity;
    this.#showChoices();
    this.#load().catch((error) =>
      this.#charts.replaceChildren(element("p", { class: "error", role: "alert" }, printable(error.message))),
    );
  }

  async #load(signal) {
    const { name, start, end } = this.range;
    const step = RANGES[name][1];
    const instant = (at) => new Date(at).toISOString();
    const [answer, events] = await Promise.all([
      this.#series(
        {
          metric: this.#metricNames,
          view: this.#subject.views?.() ?? [],
          start: instant(start),
          end: instant(end),
          step: `${step / 1000}s`,
        },
        signal,
      ),
      this.#client.get(
        "v1/events",
        { ...this.#subject.events, since: instant(start), until: instant(end), limit: 1000 },
        signal,
      ),
      this.#subject.load?.({ start: instant(start), end: instant(end) }, signal),
    ]);
    if (name !== this.#name) return;
    this.#loadedAt = performance.now();
    this.#onEvents(events);
    replace(
      this.#charts,
      answer instanceof ApiError
        ? element("p", { class: "error" }, printable(answer.message))
        : this.#chartsOf(answer, events, { start, end, step }),
    );
  }

  /** Return the series, or the error if the hub rejects the query. */
  async #series(parameters, signal) {
    try {
      return await this.#client.get(this.#subject.path, parameters, signal);
    } catch (error) {
      if (error instanceof ApiError && error.status === 400) return error;
      throw error;
    }
  }

  #chartsOf(answer, events, { start, end, step }) {
    const marks = events.events.map((one) => ({ at: Date.parse(one.at), text: eventText(one) }));
    const charts = this.#metricNames.flatMap((metric) => {
      const title = METRICS[metric];
      const series = answer.series
        .filter((one) => one.metric === metric)
        .sort((one, other) => this.#place(one) - this.#place(other));
      if (series.length === 0) return [];
      const lines = series.map((one) => ({
        of: one,
        label: this.#label(one),
        points: one.points.map(({ at, value, absent }) => [
          Date.parse(at),
          typeof value === "number" ? value : null,
          absent ?? null,
        ]),
      }));
      const aligned = alignSeries(lines, start, end, step);
      for (const line of aligned) line.why = this.#explain(line, answer, step);
      const { unit } = vocabulary().metrics[metric];
      return [new Chart({ key: metric, title, unit, start, end, step, series: aligned, events: marks }).node];
    });
    const reason = !answer.reason ? "" : `${answer.reason}: ${absenceText(answer.reason, answer.detail)}`;
    return [
      element("p", { class: "muted" }, "A grey area is a time without a measurement. A vertical line is an event."),
      reason ? element("p", { class: "source unavailable" }, reason) : null,
      charts.length === 0 ? element("p", null, "There is no series in this range.") : charts,
      this.#withoutSeries(answer).map((text) => element("p", { class: "muted" }, text)),
    ];
  }

  /** Return the function that gives the reason of a step without a value. */
  #explain(line, answer, step) {
    const [start, end] = [Date.parse(answer.start), Date.parse(answer.end)];
    const { spec, closed_at: closed } = answer.allocation ?? {};
    const [from, to] = [spec?.valid_from, closed ?? spec?.valid_to].map((at) => (at ? Date.parse(at) : null));
    const last = line.points.findLast(([, value]) => value !== null)?.[0] ?? -Infinity;
    const reading = this.#reading(line.of);
    return (at) => {
      if (from !== null && at < start && start <= from) return `The allocation began on ${timeText(from)}.`;
      if (to !== null && at + step > end && at >= to) return `The allocation ended on ${timeText(to)}.`;
      if (!line.covers(at)) return "The allocation is not known to have had the device then.";
      const reason = line.absence(at);
      if (reason !== null) return `${reason}. ${absenceText(reason, "")}`;
      if (at <= last || !reading?.absent) return NO_SAMPLE;
      const when = reading.measured_at ? `, ${timeText(reading.measured_at)}` : "";
      return `Newest reading${when}: ${reading.absent}. ${absenceText(reading.absent, reading.detail)}`;
    };
  }

  #reading({ device, metric }) {
    const { devices, host } = this.#metrics;
    return device === null ? host[metric] : devices.find((one) => one.id === device)?.readings[metric];
  }

  /** Return a text for each metric without a series whose newest readings are absent, with their reasons. */
  #withoutSeries(answer) {
    return this.#metricNames.flatMap((metric) => {
      const title = METRICS[metric];
      if (answer.series.some((one) => one.metric === metric)) return [];
      const subjects = [this.#metrics.host, ...this.#metrics.devices.map((one) => one.readings)];
      const reasons = new Set(subjects.map((readings) => readings[metric]?.absent).filter(Boolean));
      const texts = [...reasons].map((reason) => `${reason}. ${absenceText(reason, "")}`);
      return texts.length === 0 ? [] : [`${title} has no values in this range. Newest readings: ${texts.join(" ")}`];
    });
  }

  #place(one) {
    return this.#metrics.devices.findIndex((device) => device.id === one.device);
  }

  #label(one) {
    if (one.device === null) return "machine";
    const device = this.#metrics.devices[this.#place(one)];
    const name = device ? `${device.kind} ${device.uuid ?? device.pci_address ?? device.id}` : one.device;
    return one.scope && one.scope !== "own" ? `${name} (${one.scope})` : name;
  }
}
