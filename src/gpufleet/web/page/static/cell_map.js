/** Map on a canvas: a cell for each item, coloured by class. */

import { cellAt, cellSize, cornerOf, placeCells } from "./cells.js";
import { element, printable } from "./dom.js";

const HEADING = 20;

/** Map of items. The arrow keys move the selection, Enter opens the item, as a click does. */
export class CellMap {
  #items = [];
  #colouring = "";
  #layout = placeCells([], 1, 1, HEADING);
  #selected = null;
  #options;
  #canvas;
  #context;
  #colours = {};
  #legend = element("p", { class: "legend" });
  #readout = element("p", { class: "readout", "aria-live": "polite" });

  /**
   * Options: `label` of the map, `note` below the legend, `classes` by colouring, `classOf(item, colouring)`,
   * `shareOf(item)` (share of the bar of a cell, or null), `describe(item)` (content of the readout) and `open(item)`.
   */
  constructor(options) {
    this.#options = options;
    this.#canvas = element("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label": `${options.label}. Arrow keys select a cell, Enter opens it.`,
      on: {
        pointermove: (event) => this.#select(cellAt(this.#layout, event.offsetX, event.offsetY)),
        click: (event) => this.#onClick(event),
        keydown: (event) => this.#onKey(event),
      },
    });
    this.#context = this.#canvas.getContext("2d");
    this.node = element("div", { class: "map" }, this.#legend, this.#canvas, this.#readout);
    new ResizeObserver(() => this.#place()).observe(this.node);
  }

  /** Show items, which are sorted by `group`. Each has an `id`. */
  show(items, colouring) {
    const selected = this.#items[this.#selected]?.id;
    const index = selected === undefined ? -1 : items.findIndex((one) => one.id === selected);
    this.#items = items;
    this.#colouring = colouring;
    this.#selected = index === -1 ? null : index;
    this.#drawLegend();
    this.#place();
  }

  #place() {
    const width = Math.floor(this.node.clientWidth);
    if (width === 0 || this.#colouring === "") return;
    this.#layout = placeCells(this.#items, width, cellSize(this.#items.length), HEADING);
    const ratio = devicePixelRatio || 1;
    this.#canvas.width = width * ratio;
    this.#canvas.height = Math.max(1, this.#layout.height) * ratio;
    this.#canvas.style.setProperty("height", `${this.#layout.height}px`);
    this.#draw();
  }

  #draw() {
    const context = this.#context;
    const ratio = devicePixelRatio || 1;
    const style = getComputedStyle(this.node);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.#colours = {
      text: colour("--text"),
      background: colour("--background"),
      fills: this.#options.classes[this.#colouring].map((_, place) => colour(`--${this.#colouring}-${place}`)),
    };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    context.fillStyle = this.#colours.text;
    context.font = "600 13px system-ui, sans-serif";
    for (const group of this.#layout.groups) {
      context.fillText(`${printable(group.group)} (${group.count})`, 0, group.heading + 14, this.node.clientWidth);
    }
    for (let index = 0; index < this.#items.length; index += 1) this.#drawCell(index);
    this.#drawCell(this.#selected);
  }

  /** Draw the cell of an item, with a frame if it is selected. */
  #drawCell(index) {
    if (index === null) return;
    const item = this.#items[index];
    const { size } = this.#layout;
    const [left, top] = cornerOf(this.#layout, index);
    const [context, edge, bar] = [this.#context, size - 1, size >= 16 ? 3 : 2];
    context.fillStyle =
      this.#colours.fills[this.#options.classes[this.#colouring].indexOf(this.#options.classOf(item, this.#colouring))];
    context.fillRect(left, top, edge, edge);
    const share = this.#options.shareOf(item);
    if (share !== null) {
      context.fillStyle = this.#colours.background;
      context.fillRect(left, top + edge - bar, edge, bar);
      context.fillStyle = this.#colours.text;
      context.fillRect(left, top + edge - bar, edge * share, bar);
    }
    if (index !== this.#selected) return;
    context.strokeStyle = this.#colours.text;
    context.lineWidth = 2;
    context.strokeRect(left + 1, top + 1, edge - 2, edge - 2);
  }

  #drawLegend() {
    const counts = new Map();
    for (const item of this.#items) {
      const name = this.#options.classOf(item, this.#colouring);
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    this.#legend.replaceChildren();
    this.#options.classes[this.#colouring].forEach((name, place) => {
      if (!counts.has(name)) return;
      const box = element("span", { class: "box" });
      box.style.setProperty("background", `var(--${this.#colouring}-${place})`);
      this.#legend.append(element("span", { class: "key" }, box, `${name}: ${counts.get(name)}`));
    });
    this.#legend.append(this.#options.note);
  }

  #select(index) {
    if (index === this.#selected || index === null) return;
    const before = this.#selected;
    this.#selected = index;
    this.#drawCell(before);
    this.#drawCell(index);
    const item = this.#items[index];
    this.#readout.replaceChildren(...this.#options.describe(item));
  }

  #onClick(event) {
    const index = cellAt(this.#layout, event.offsetX, event.offsetY);
    if (index === null) return;
    this.#select(index);
    this.#openSelected();
  }

  #openSelected() {
    if (this.#selected !== null) this.#options.open(this.#items[this.#selected]);
  }

  #onKey(event) {
    if (event.key === "Enter") {
      this.#openSelected();
      return;
    }
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.#layout.columns, ArrowDown: this.#layout.columns }[
      event.key
    ];
    if (move === undefined || this.#items.length === 0) return;
    event.preventDefault();
    const target = this.#selected === null ? 0 : this.#selected + move;
    this.#select(Math.min(this.#items.length - 1, Math.max(0, target)));
  }
}
