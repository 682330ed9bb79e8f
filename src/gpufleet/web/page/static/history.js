/** Charts and events of an allocation over a range. */

import { ApiError } from "./api.js";
import { Chart } from "./chart.js";
import { element, printable, replace, section } from "./dom.js";
import { eventText } from "./events.js";
import { absenceText } from "./readings.js";
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

/** Section with a chart for each metric. It loads at most once per step of the range. */
export class HistorySection {
  #client;
  #id;
  #onEvents;
  #name = "1 h";
  #loadedAt = -Infinity;
  #devices = [];
  #choices = element("div", { class: "choices", role: "group", "aria-label": "Range" });
  #charts = element("div", { class: "charts" });

  /** Set the client, the id of the allocation, and the function that shows a page of events. */
  constructor(client, id, onEvents) {
    this.#client = client;
    this.#id = id;
    this.#onEvents = onEvents;
    this.node = section("History", this.#choices, this.#charts);
    this.#showChoices();
  }

  /** Name, start and end of the range, in ms by the hub's clock. */
  get range() {
    const end = this.#client.now();
    return { name: this.#name, start: end - RANGES[this.#name][0], end };
  }

  /** Load the range if it is due. `devices` name the series. */
  async refresh(devices, signal) {
    this.#devices = devices;
    const [, step] = RANGES[this.#name];
    if (performance.now() - this.#loadedAt >= step) await this.#load(signal);
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
        { metric: Object.keys(METRICS), start: instant(start), end: instant(end), step: `${step / 1000}s` },
        signal,
      ),
      this.#client.get(
        "v1/events",
        { allocation: this.#id, since: instant(start), until: instant(end), limit: 1000 },
        signal,
      ),
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
      return await this.#client.get(`v1/allocations/${encodeURIComponent(this.#id)}/series`, parameters, signal);
    } catch (error) {
      if (error instanceof ApiError && error.status === 400) return error;
      throw error;
    }
  }

  #chartsOf(answer, events, { start, end, step }) {
    const marks = events.events.map((one) => ({ at: Date.parse(one.at), text: eventText(one) }));
    const charts = Object.entries(METRICS).flatMap(([metric, title]) => {
      const series = answer.series
        .filter((one) => one.metric === metric)
        .sort((one, other) => this.#place(one) - this.#place(other));
      if (series.length === 0) return [];
      const lines = series.map((one) => ({
        label: this.#label(one),
        points: one.points.map(({ at, value }) => [Date.parse(at), typeof value === "number" ? value : null]),
      }));
      const { unit } = vocabulary().metrics[metric];
      return [new Chart({ key: metric, title, unit, start, end, step, series: lines, events: marks }).node];
    });
    const reason = answer.reason === null ? "" : `${answer.reason}: ${absenceText(answer.reason, answer.detail)}`;
    return [
      element("p", { class: "muted" }, "A grey area is a time without a measurement. A vertical line is an event."),
      reason ? element("p", { class: "source unavailable" }, reason) : null,
      charts.length === 0 ? element("p", null, "There is no series in this range.") : charts,
    ];
  }

  #place(one) {
    return this.#devices.findIndex((device) => device.id === one.device);
  }

  #label(one) {
    if (one.device === null) return "machine";
    const device = this.#devices[this.#place(one)];
    const name = device ? `${device.kind} ${device.uuid ?? device.pci_address ?? device.id}` : one.device;
    return one.scope && one.scope !== "own" ? `${name} (${one.scope})` : name;
  }
}
