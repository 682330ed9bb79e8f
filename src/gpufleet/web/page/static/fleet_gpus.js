/** Map of the GPUs of a few nodes, loaded on request. */

import { CellMap } from "./cell_map.js";
import { element, foreign, printable, section, select } from "./dom.js";
import { GPU_CLASSES, gpuClass, makeGpu } from "./fleet_data.js";
import { topGpus } from "./fleet_top.js";
import { clockText, percentText } from "./format.js";
import { gpuLink } from "./labels.js";

/** Maximum number of nodes. The readings of a GPU have about 10 kB. */
const MOST_NODES = 100;
const CONCURRENT = 4;

/** Section with the GPUs of the nodes that match the filters. */
export class FleetGpus {
  #client;
  #signal;
  #nodes = [];
  #gpus = [];
  #colouring = "condition";
  #map;
  #top = topGpus();
  #button = element("button", { type: "button", on: { click: () => this.#load() } });
  #text = element("p", { class: "muted", role: "status" });
  #shown = element("div");

  /** Set the client, and the function that goes to an address. */
  constructor(client, go) {
    this.#client = client;
    this.#map = new CellMap({
      label: "Map of GPUs",
      note: "",
      classes: GPU_CLASSES,
      classOf: gpuClass,
      shareOf: () => null,
      describe,
      open: (gpu) => go(gpuLink(gpu.id)),
    });
    const colours = select("Colour GPUs by", "gpu colouring", Object.keys(GPU_CLASSES), this.#colouring, (value) => {
      this.#colouring = value;
      this.#show();
    });
    this.#shown.append(element("div", { class: "filters" }, colours), this.#map.node, this.#top.node);
    this.#shown.hidden = true;
    this.node = section("GPUs", this.#button, this.#text, this.#shown);
  }

  /** Offer the nodes that match the filters. `signal` ends a load. */
  offer(nodes, signal) {
    this.#nodes = nodes;
    this.#signal = signal;
    this.#button.disabled = nodes.length === 0 || nodes.length > MOST_NODES;
    this.#button.textContent =
      nodes.length > MOST_NODES
        ? `Show GPUs: filter to at most ${MOST_NODES} nodes`
        : `Show GPUs, nodes: ${nodes.length}`;
  }

  async #load() {
    const nodes = [...this.#nodes];
    const found = new Map();
    const waiting = nodes.values();
    const failed = new AbortController();
    const signal = AbortSignal.any([failed.signal, this.#signal]);
    const load = async () => {
      for (const node of waiting) {
        const records = [];
        for await (const items of this.#client.pages("v1/gpus", { machine: node.id }, signal)) records.push(...items);
        found.set(node.id, records.filter((one) => one.device.kind === "gpu").map(makeGpu));
        this.#text.textContent = `Loading GPUs, nodes: ${found.size} of ${nodes.length}.`;
      }
    };
    this.#button.disabled = true;
    try {
      await Promise.all(Array.from({ length: CONCURRENT }, load));
      this.#gpus = nodes.flatMap((node) => found.get(node.id));
      this.#text.textContent = `GPUs: ${this.#gpus.length}, nodes: ${nodes.length}, as of ${clockText(Date.now())}.`;
      this.#shown.hidden = false;
      this.#show();
    } catch (error) {
      failed.abort();
      this.#text.textContent = `The GPUs cannot be loaded: ${printable(error.message)}.`;
    } finally {
      this.offer(this.#nodes, this.#signal);
    }
  }

  #show() {
    this.#map.show(this.#gpus, this.#colouring);
    this.#top.show(this.#gpus);
  }
}

function describe(gpu) {
  const utilisation = gpu.utilisation === null ? "utilisation unknown" : `utilisation ${percentText(gpu.utilisation)}`;
  const temperature = gpu.temperature === null ? "temperature unknown" : `${gpu.temperature} °C`;
  return [
    foreign(gpu.name),
    " on ",
    foreign(gpu.node),
    `: ${gpuClass(gpu, "condition")}; ${utilisation}; ${temperature}; holder: `,
    gpu.holders.length === 0 ? gpu.holder : foreign(gpu.holders.join(", ")),
  ];
}
