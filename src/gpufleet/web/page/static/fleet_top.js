/** Lists of the nodes or GPUs with the highest values, from data that is loaded already. */

import { element, foreign, replace, select, table } from "./dom.js";
import { topOf } from "./fleet_data.js";
import { bytesText, percentText, valueText } from "./format.js";
import { gpuLink, nodeLink } from "./labels.js";

const ROWS = 10;

/**
 * Orders of nodes and GPUs: the field of the value, and its text. The field with the suffix `Of` states how many GPUs the
 * value of a node includes.
 */
const UTILISATION = ["utilisation", percentText];
const POWER = ["power", (value) => valueText("watts", value)];
const TEMPERATURE = ["temperature", (value) => valueText("celsius", value)];
const MEMORY = ["memory", bytesText];

/** Ten rows with a choice of their order. */
class TopList {
  #options;
  #order;
  #items = [];
  #shown = element("div");

  /** Options: `label`, `orders` by name, `head` and `cells(item)`, which precede the values, and `note`. */
  constructor(options) {
    this.#options = options;
    const { label, orders, note } = options;
    [this.#order] = Object.keys(orders);
    const choice = select(`${label} by`, label, Object.keys(orders), this.#order, (name) => {
      this.#order = name;
      this.#showRows();
    });
    this.node = element(
      "div",
      null,
      element("h3", null, label),
      element("div", { class: "filters" }, choice),
      this.#shown,
      note ? element("p", { class: "muted" }, note) : null,
    );
  }

  /** Choose the rows from these items. */
  show(items) {
    this.#items = items;
    this.#showRows();
  }

  #showRows() {
    const { label, orders, head, cells } = this.#options;
    const [field] = orders[this.#order];
    const { found, known } = topOf(this.#items, field, ROWS);
    const rows = found.map((item) => [
      ...cells(item),
      ...Object.values(orders).map(([name, text]) =>
        item[name] === null ? "unknown" : [text(item[name]), includedNote(item[`${name}Of`])],
      ),
    ]);
    replace(
      this.#shown,
      element("p", { class: "muted" }, `${known} of ${this.#items.length} report it now.`),
      rows.length === 0 ? null : table(label, [...head, ...Object.keys(orders)], rows),
    );
  }
}

function includedNote(text) {
  return text ? element("small", null, text) : null;
}

/** Create the list of nodes. */
export function topNodes() {
  return new TopList({
    label: "Top nodes",
    orders: { "Mean utilisation": UTILISATION, "Total power": POWER },
    head: ["Node", "Cluster"],
    cells: (node) => [
      element("a", { href: nodeLink(node.id), "data-key": `top ${node.id}` }, foreign(node.name)),
      foreign(node.cluster),
    ],
    note: "Temperature and memory are loaded with the GPUs below.",
  });
}

/** Create the list of GPUs. */
export function topGpus() {
  return new TopList({
    label: "Top GPUs",
    orders: { Utilisation: UTILISATION, Power: POWER, Temperature: TEMPERATURE, "Memory used": MEMORY },
    head: ["GPU", "Node", "Holders"],
    cells: (gpu) => [
      element("a", { href: gpuLink(gpu.id), "data-key": `top ${gpu.id}` }, foreign(gpu.name)),
      foreign(gpu.node),
      gpu.holders.length === 0 ? gpu.holder : foreign(gpu.holders.join(", ")),
    ],
  });
}
