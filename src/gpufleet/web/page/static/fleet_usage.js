/** Usage of the fleet by team, tenant or holder. It is calculated on request, because that can take a minute. */

import { element, foreign, printable, replace, section, select, table } from "./dom.js";
import { percentText } from "./format.js";

const HOUR = 3_600_000;

/** Range to its length in ms. */
const RANGES = { "24 h": 24 * HOUR, "7 d": 7 * 24 * HOUR, "30 d": 30 * 24 * HOUR };

/** Dimensions: those of allocations first, then those of holders. */
const GROUPS = ["team", "tenant", "namespace", "owner", "user", "queue", "model"];

const MAX_ROWS = 200;

/** Section with the hours, energy and cost of each group. */
export class FleetUsage {
  #client;
  #group = "team";
  #range = "24 h";
  #result = element("div", { role: "status" });

  constructor(client) {
    this.#client = client;
    const choices = element(
      "div",
      { class: "filters" },
      select("Usage by", "usage group", GROUPS, this.#group, (name) => {
        this.#group = name;
      }),
      select("Usage of the last", "usage range", Object.keys(RANGES), this.#range, (name) => {
        this.#range = name;
      }),
      element("button", { type: "button", on: { click: () => this.#calculate() } }, "Calculate usage"),
    );
    this.node = section("Usage", choices, this.#result);
  }

  async #calculate() {
    const [group, end] = [this.#group, this.#client.now()];
    this.#result.replaceChildren(element("p", null, "Calculating…"));
    try {
      const answer = await this.#client.get("v1/usage", {
        group_by: group,
        start: new Date(end - RANGES[this.#range]).toISOString(),
        end: new Date(end).toISOString(),
      });
      replace(this.#result, usageTable(answer, group));
    } catch (error) {
      this.#result.replaceChildren(element("p", { class: "error" }, printable(error.message)));
    }
  }
}

function usageTable(answer, group) {
  const rows = answer.rows
    .toSorted((one, other) => other.held_gpu_hours - one.held_gpu_hours)
    .slice(0, MAX_ROWS)
    .map((row) => [groupText(row, group), ...cells(row, answer.currency)]);
  const columns = ["GPUs", "Held, GPU-hours", "Used", "Idle", "Unknown", "Known share", "Energy", "Cost"];
  const hidden = answer.rows.length - rows.length;
  return [
    element("p", null, foreign(answer.summary)),
    rows.length === 0
      ? null
      : table("Usage", [group, ...columns], [...rows, ["total", ...cells(answer.total, answer.currency)]]),
    answer.unresolved.length > 0
      ? element("p", { class: "muted" }, `Allocations with missing or unconfirmed GPUs: ${answer.unresolved.length}.`)
      : null,
    hidden > 0 ? element("p", { class: "muted" }, `Groups with fewer hours that are not listed: ${hidden}.`) : null,
  ];
}

/** Create the name of a group, or the reason why its hours have none. */
function groupText({ group, holder_absent: absent }, name) {
  if (group[name] !== null && group[name] !== undefined) return foreign(group[name]);
  return element("span", { class: "absent" }, absent ?? "none");
}

/** Create the energy of a group with the hours for which it is known. */
function energyCell(row) {
  const known = `known for ${row.energy_gpu_hours.toFixed(2)} GPU-hours`;
  return [`${row.energy_kwh.toFixed(3)} kWh`, element("small", null, known)];
}

function cells(row, currency) {
  const hours = (value) => value.toFixed(2);
  return [
    String(row.gpus),
    hours(row.held_gpu_hours),
    hours(row.used_gpu_hours),
    hours(row.idle_gpu_hours),
    hours(row.unknown_gpu_hours),
    row.known_ratio === null ? "unknown" : percentText(row.known_ratio),
    row.energy_kwh === null ? "unknown" : energyCell(row),
    row.cost === null ? element("span", { class: "absent" }, row.cost_absent) : `${row.cost.toFixed(2)} ${currency}`,
  ];
}
