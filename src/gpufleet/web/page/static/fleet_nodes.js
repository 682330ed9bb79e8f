/** Nodes of the fleet: filters, map and list. */

import { CellMap } from "./cell_map.js";
import { element, foreign, printable, replace, section, select, table } from "./dom.js";
import { distinct, filterNodes, makeNode, NODE_CLASSES, nodeClass, poolNames } from "./fleet_data.js";
import { FleetGpus } from "./fleet_gpus.js";
import { topNodes } from "./fleet_top.js";
import { agoText, clockText, percentText } from "./format.js";
import { nodeLink } from "./labels.js";
import { sentence } from "./vocabulary.js";

const NODES_PAGE = 1000;

/** The hub reads every GPU of the nodes of a page: smaller pages are shown earlier. */
const GPUS_PAGE = 250;

/** Rows that the list shows at first, and adds on request. */
const ROWS = 100;

/** A list is loaded again after this time, or after `PAUSE` times the duration of its last load if that is longer. */
const SHORTEST_MS = 60_000;
const PAUSE = 3;

/** Section with all nodes. The nodes are loaded first; their GPUs and holders follow page by page. */
export class FleetNodes {
  #client;
  #signal;
  #filters = {};
  #colouring = "state";
  #teams = new Map();
  #records = [];
  #gpus = new Map();
  #nodes = [];
  #rows = ROWS;
  #due = { nodes: -Infinity, gpus: -Infinity };
  #isLoadingGpus = false;
  #texts = { nodes: "Loading nodes.", gpus: "" };
  #map;
  #fleetGpus;
  #top = topNodes();
  #progress = element("p", { class: "muted" });
  #controls = element("form", { class: "filters", on: { submit: (event) => event.preventDefault() } });
  #list = element("div");

  /** Set the client, and the function that goes to an address. */
  constructor(client, go) {
    this.#client = client;
    this.#map = new CellMap({
      label: "Map of nodes",
      note: "A bar at the bottom of a cell shows the share of its GPUs that report, if it is below 100 %.",
      classes: NODE_CLASSES,
      classOf: nodeClass,
      shareOf: (node) => (node.reporting < node.gpus ? node.reporting / node.gpus : null),
      describe,
      open: (node) => go(nodeLink(node.id)),
    });
    this.#fleetGpus = new FleetGpus(client, go);
    this.node = element(
      "div",
      null,
      section("Nodes", this.#controls, this.#progress, this.#map.node, this.#top.node, this.#list),
      this.#fleetGpus.node,
    );
  }

  /** Load what is due. `teams` has the team of each cluster. */
  async refresh(teams, signal) {
    this.#teams = teams;
    this.#signal = signal;
    if (performance.now() >= this.#due.nodes) {
      await this.#loadNodes(signal);
      this.#showControls();
    }
    if (performance.now() < this.#due.gpus || this.#isLoadingGpus) return;
    this.#isLoadingGpus = true;
    // Not awaited: in a large fleet it takes longer than the period of the page.
    this.#loadGpus(signal)
      .catch((error) => {
        if (!signal.aborted) this.#setProgress("gpus", `GPUs and holders: ${printable(error.message)}.`);
      })
      .finally(() => {
        this.#isLoadingGpus = false;
      });
  }

  async #loadNodes(signal) {
    const began = performance.now();
    const found = [];
    for await (const items of this.#client.pages("v1/nodes", { limit: NODES_PAGE }, signal)) {
      found.push(...items);
      this.#setProgress("nodes", `Loading nodes: ${found.length}.`);
      if (found.length > this.#records.length) this.#showRecords([...found]); // the first load
    }
    this.#due.nodes = nextLoad(began);
    this.#setProgress("nodes", `Nodes as of ${clockText(Date.now())}.`);
    this.#showRecords(found);
  }

  async #loadGpus(signal) {
    const began = performance.now();
    let count = 0;
    for await (const items of this.#client.pages("v1/nodes/gpus", { limit: GPUS_PAGE }, signal)) {
      for (const one of items) this.#gpus.set(one.machine, { ...one, loadedAt: Date.now() });
      count += items.length;
      this.#setProgress("gpus", `Loading GPUs and holders: ${count} of ${this.#records.length} nodes.`);
      this.#build();
    }
    this.#due.gpus = nextLoad(began);
    this.#setProgress("gpus", `GPUs and holders as of ${clockText(Date.now())}.`);
    this.#showControls();
  }

  #setProgress(part, text) {
    this.#texts[part] = text;
    this.#progress.textContent = `${this.#texts.nodes} ${this.#texts.gpus}`;
  }

  #showRecords(records) {
    this.#records = records;
    this.#build();
  }

  #build() {
    this.#nodes = this.#records.map((one) => makeNode(one, this.#gpus.get(one.machine.id), this.#teams));
    this.#show();
  }

  #show() {
    const found = filterNodes(this.#nodes, this.#filters);
    this.#map.show(found, this.#colouring);
    this.#top.show(found);
    this.#fleetGpus.offer(found, this.#signal);
    replace(
      this.#list,
      element(
        "p",
        null,
        `${found.length} of ${this.#nodes.length} nodes. ${found.reduce((sum, one) => sum + one.reporting, 0)} of their ` +
          `${found.reduce((sum, one) => sum + one.gpus, 0)} GPUs report on the node. GPUs that are passed through report ` +
          "in their virtual machines.",
      ),
      nodeTable(found.slice(0, this.#rows)),
      found.length > this.#rows
        ? element(
            "button",
            {
              type: "button",
              "data-key": "more",
              on: {
                click: () => {
                  this.#rows += ROWS;
                  this.#show();
                },
              },
            },
            `Show ${ROWS} more`,
          )
        : null,
    );
  }

  #showControls() {
    if (this.#controls.contains(document.activeElement)) return;
    const choose = (key, label, names) =>
      select(label, key, ["", ...names], this.#filters[key] ?? "", (value) => {
        this.#filters[key] = value;
        this.#show();
      });
    const search = (key, label) =>
      element(
        "label",
        null,
        `${label} `,
        element("input", {
          type: "search",
          "data-key": key,
          maxlength: 200,
          value: this.#filters[key] ?? "",
          on: {
            input: (event) => {
              this.#filters[key] = event.target.value;
              this.#show();
            },
          },
        }),
      );
    replace(
      this.#controls,
      select("Colour by", "colouring", Object.keys(NODE_CLASSES), this.#colouring, (value) => {
        this.#colouring = value;
        this.#show();
      }),
      choose("cluster", "Cluster", distinct(this.#nodes.map((one) => one.cluster))),
      choose("state", "State", distinct(this.#nodes.map((one) => one.state))),
      choose("model", "GPU model", distinct(this.#nodes.map((one) => Object.keys(one.models)))),
      choose("pool", "Node pool", distinct(this.#nodes.map(poolNames))),
      choose("team", "Team", distinct(this.#nodes.map((one) => one.team))),
      search("holder", "Holder"),
      search("name", "Node"),
    );
  }
}

function nextLoad(began) {
  const now = performance.now();
  return now + Math.max(SHORTEST_MS, PAUSE * (now - began));
}

function describe(node) {
  const seen = node.seen === null ? "never seen" : `seen ${agoText(node.seen)}`;
  const utilisation =
    node.utilisation === null
      ? "utilisation unknown"
      : `utilisation ${percentText(node.utilisation)}${node.utilisationOf && ` of ${node.utilisationOf}`}`;
  return [
    foreign(node.name),
    " in ",
    foreign(node.cluster),
    `: ${node.state}, ${seen}; ${node.reporting} of ${node.gpus} GPUs report; ${utilisation}; holders: `,
    node.holders.length === 0 ? nodeClass(node, "holders") : foreign(node.holders.join(", ")),
  ];
}

function utilisationOf(node) {
  if (node.utilisation === null) return element("span", { class: "absent" }, "unknown");
  const small = [node.utilisationOf, `at ${clockText(node.loadedAt)}`].filter(Boolean).join(", ");
  return [percentText(node.utilisation), element("small", null, small)];
}

function nodeTable(found) {
  const rows = found.map((node) => [
    element("a", { href: nodeLink(node.id), "data-key": node.id }, foreign(node.name)),
    foreign(node.cluster),
    element("span", { class: `state state-${node.state}`, title: sentence("states", node.state) }, node.state),
    node.seen === null ? "never" : agoText(node.seen),
    `${node.reporting} of ${node.gpus}`,
    foreign(
      Object.entries(node.models)
        .map(([name, count]) => `${count} × ${name}`)
        .join(", "),
    ),
    utilisationOf(node),
    foreign(node.holders.join(", ")),
    foreign(node.error ?? ""),
  ]);
  const columns = [
    "Node",
    "Cluster",
    "State",
    "Last seen",
    "GPUs reporting",
    "Models",
    "Utilisation",
    "Holders",
    "Newest error",
  ];
  return table("Nodes", columns, rows);
}
