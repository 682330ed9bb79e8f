/** Usage of an allocation: GPU-hours, energy and cost. It is calculated on request, because that can take a minute. */

import { element, facts, printable, replace, section } from "./dom.js";
import { percentText } from "./format.js";
import { absenceText } from "./readings.js";

/** Section with the usage of an allocation in the chosen range. */
export class UsageSection {
  #client;
  #id;
  #range;
  #result = element("div", { role: "status" });

  /** Set the client, the id of the allocation, and the function that returns the range. */
  constructor(client, id, range) {
    this.#client = client;
    this.#id = id;
    this.#range = range;
    const button = element(
      "button",
      { type: "button", on: { click: () => this.#calculate() } },
      "Calculate usage of the range",
    );
    this.node = section("Usage", button, this.#result);
  }

  async #calculate() {
    const { name, start, end } = this.#range();
    this.#result.replaceChildren(element("p", null, "Calculating…"));
    try {
      const instant = (at) => new Date(at).toISOString();
      const answer = await this.#client.get("v1/usage", {
        group_by: "allocation",
        start: instant(start),
        end: instant(end),
      });
      replace(this.#result, this.#show(answer, name));
    } catch (error) {
      this.#result.replaceChildren(element("p", { class: "error" }, printable(error.message)));
    }
  }

  #show(answer, name) {
    const row = answer.rows.find((one) => one.group.allocation === this.#id);
    const unresolved = answer.unresolved.filter((one) => one.allocation === this.#id);
    const notes = unresolved.map((one) =>
      element(
        "p",
        { class: "source unavailable" },
        `${one.reason}: ${absenceText(one.reason, one.detail)} GPUs that are missing or not confirmed: ${one.devices ?? "unknown"}.`,
      ),
    );
    if (row === undefined) return [notes, element("p", null, `No GPU was held in the last ${name}.`)];
    const hours = (value) => `${value.toFixed(2)} GPU-hours`;
    return [
      notes,
      facts([
        ["Range", name],
        ["GPUs", String(row.gpus)],
        ["Held", hours(row.held_gpu_hours)],
        ["Used", hours(row.used_gpu_hours)],
        ["Idle", hours(row.idle_gpu_hours)],
        ["Unknown", hours(row.unknown_gpu_hours)],
        ["Known share", row.known_ratio === null ? "unknown" : percentText(row.known_ratio)],
        [
          "Energy",
          row.energy_kwh === null
            ? "unknown"
            : `${row.energy_kwh.toFixed(3)} kWh, known for ${hours(row.energy_gpu_hours)}`,
        ],
        [
          "Cost",
          row.cost === null
            ? `${row.cost_absent}: ${printable(row.cost_detail)}`
            : `${row.cost.toFixed(2)} ${answer.currency}`,
        ],
      ]),
    ];
  }
}
