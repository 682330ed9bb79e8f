/** Picture and table of the topology of a node. */

import { element, foreign, lazyDetails, printable, shape, table } from "./dom.js";
import { counted } from "./format.js";
import { gpuLink } from "./labels.js";
import { linkEnds, linkedPairs, topologyOf, unknownParts } from "./topology.js";

const NARROWEST = 280;
const WIDE = 640;
const WIDEST = 1000;
const LINE = 17;
const PAD = 9;
const GAP = 10;
const CHIP = { height: 20, gap: 5 };
const BAR = 26;
const HEADING = 20;

/** Average width of a character; longer texts are cut. */
const LETTER = 7.2;

/** Maximum numbers in the picture; the table has all. */
const MOST_GPUS = 32;
const MOST_PARTS = 16;

/** Section content with the picture of a node's GPUs, and the same content as a table. */
export class TopologyPicture {
  #topology = { gpus: [], orphans: [] };
  #width = 0;
  #plot = element("div", { class: "plot topology" });
  #about = element("div");

  constructor() {
    this.node = element("div", null, this.#plot, this.#about);
    new ResizeObserver(() => {
      if (this.#plot.clientWidth !== this.#width) this.#draw();
    }).observe(this.#plot);
  }

  /** Show the GPUs of the records of `/v1/gpus` of a machine. */
  show(records) {
    this.#topology = topologyOf(records);
    const isOpen = this.#about.querySelector("details")?.open ?? false;
    this.#about.replaceChildren(...aboutOf(this.#topology));
    const details = this.#about.querySelector("details");
    if (details) details.open = isOpen;
    this.#draw();
  }

  #draw() {
    this.#width = this.#plot.clientWidth;
    const { gpus } = this.#topology;
    this.#plot.hidden = gpus.length === 0;
    const width = Math.min(WIDEST, Math.max(NARROWEST, this.#width));
    this.#plot.replaceChildren(gpus.length === 0 ? "" : pictureOf(gpus.slice(0, MOST_GPUS), width));
  }
}

function aboutOf(topology) {
  const { gpus } = topology;
  if (gpus.length + topology.orphans.length === 0) return [element("p", null, "No GPU of this machine is known.")];
  const drawn = gpus.length > MOST_GPUS ? `The picture has the first ${MOST_GPUS} of ${gpus.length} GPUs. ` : "";
  return [
    element(
      "p",
      { class: "muted" },
      `${drawn}A solid line is a link that is wholly up, a dashed line one that is partly up, a dotted line one ` +
        `that is down, a thin grey line one of unknown state. ${unknownParts(topology).join(" ")}`,
    ),
    lazyDetails("topology table", "Topology as a table", () => tableOf(topology)),
  ];
}

function tableOf({ gpus, orphans }) {
  const partText = (part) => element("div", null, foreign(`${part.kind} ${part.name}, ${part.detail}`));
  const rows = gpus.map((gpu) => [
    element("a", { href: gpuLink(gpu.id), "data-key": `topology ${gpu.id}` }, foreign(gpu.name)),
    foreign(gpu.address ?? "unknown"),
    foreign(gpu.pcie.text),
    gpu.slotNode === null ? "unknown" : String(gpu.slotNode),
    gpu.memoryNode === null ? "unknown" : String(gpu.memoryNode),
    foreign(gpu.nvlink.text),
    foreign(endsText(gpu.nvlink) || "unknown"),
    foreign(gpu.fabric.text),
    gpu.parts.map(partText),
  ]);
  const columns = [
    "GPU",
    "PCI address",
    "PCIe link",
    "NUMA node of its slot",
    "NUMA node of its memory",
    "NVLinks",
    "Other ends",
    "Fabric",
    "MIG devices, vGPU instances",
  ];
  return element(
    "div",
    null,
    table("Topology", columns, rows),
    orphans.length === 0 ? null : element("p", null, "GPU unknown:", orphans.map(partText)),
  );
}

function endsText({ peers, ends }) {
  const all = [...peers.map(([gpu, count]) => [gpu.place, count]), ...ends];
  return all.map(([name, count]) => `${count} to ${name}`).join(", ");
}

/** Draw each GPU in a row: the PCI bus at the left, the NVLinks at the right: arcs to other GPUs, bars of other ends. */
function pictureOf(gpus, width) {
  const isWide = width >= WIDE;
  const [ends, pairs] = [linkEnds(gpus), linkedPairs(gpus)];
  const side = isWide ? 225 : 22;
  const arcs = pairs.length === 0 ? 0 : isWide ? 110 : 44;
  const bars = ends.length === 0 ? 1 : (isWide ? 170 : 8) + ends.length * BAR;
  const box = { left: side, right: width - arcs - bars, arcs };
  const svg = shape("svg", { width, role: "img", "aria-label": labelOf(gpus, ends) });
  let top = ends.length * HEADING;
  let domain;
  const rows = [];
  for (const gpu of gpus) {
    if (gpu.domain !== domain) {
      domain = gpu.domain;
      const name = domain === null ? "PCI address unknown" : `PCI domain ${domain}`;
      svg.append(text(0, top + 13, name, { class: "tick", width: box.right }));
      top += HEADING;
    }
    const content = contentOf(gpu, { isWide, ends }, box.right - box.left - 2 * PAD);
    rows.push({ gpu, top, middle: top + PAD + LINE, domain, ...content });
    top += content.height + GAP;
  }
  drawBus(svg, rows, box, isWide);
  drawEnds(svg, rows, ends, box, isWide);
  drawPairs(svg, rows, pairs, box);
  for (const row of rows) svg.append(boxOf(row, box));
  svg.setAttribute("height", top);
  svg.setAttribute("viewBox", `0 0 ${width} ${top}`);
  return svg;
}

function labelOf(gpus, ends) {
  const counts = new Map();
  for (const { nvlink } of gpus) counts.set(nvlink.state, (counts.get(nvlink.state) ?? 0) + 1);
  const states = [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
  const direct = linkedPairs(gpus).length;
  const pairs = direct === 0 ? "" : `, ${counted(direct, "pair")} of linked GPUs`;
  const others = ends.length === 0 ? "" : `, other ends: ${ends.join(", ")}`;
  return `Topology of ${counted(gpus.length, "GPU")}. NVLinks: ${states}${pairs}${others}. The table below has the same content.`;
}

/** Return lines, chips and height of the box of a GPU. A narrow picture has the texts of the links in the box. */
function contentOf(gpu, { isWide, ends: all }, width) {
  const isOnLine = isWide && all.length === 1 && gpu.nvlink.ends.length > 0 && gpu.nvlink.peers.length === 0;
  const node = [
    gpu.slotNode === null ? "" : `, NUMA node ${gpu.slotNode}`,
    gpu.memoryNode === null ? "" : `, memory is NUMA node ${gpu.memoryNode}`,
  ].join("");
  const texts = endsText(gpu.nvlink);
  const ends = texts === "" ? "" : `; ${texts}`;
  const lines = [
    { text: gpu.name, class: "title" },
    { text: `${gpu.address ?? "PCI address unknown"}${node}` },
    gpu.isOnBusOnly ? { text: "only the PCI bus shows this GPU" } : null,
    isWide ? null : { text: `PCIe ${gpu.pcie.text}`, class: gpu.pcie.state },
    isOnLine ? null : { text: `NVLinks ${gpu.nvlink.text}${ends}`, class: gpu.nvlink.state },
    { text: `Fabric ${gpu.fabric.text}`, class: gpu.fabric.state },
  ].filter((line) => line !== null);
  const { chips, rows } = placeChips(gpu.parts, width);
  const height = 2 * PAD + lines.length * LINE + rows * (CHIP.height + CHIP.gap);
  return { lines, chips, height };
}

function placeChips(parts, width) {
  const shown = parts.slice(0, MOST_PARTS);
  const labels = shown.map((part) => ({ text: part.label, title: `${part.name}, ${part.detail}` }));
  if (parts.length > MOST_PARTS) labels.push({ text: `${parts.length - MOST_PARTS} more`, title: "see the table" });
  let [x, row] = [0, 0];
  const chips = labels.map((label) => {
    const size = Math.min(width, printable(label.text).length * LETTER + 14);
    if (x > 0 && x + size > width) [x, row] = [0, row + 1];
    const chip = { ...label, x, row, size };
    x += size + CHIP.gap;
    return chip;
  });
  return { chips, rows: chips.length === 0 ? 0 : row + 1 };
}

function boxOf({ gpu, top, lines, chips, height }, box) {
  const width = box.right - box.left;
  const group = shape("svg", { x: box.left, y: top, width, height }); // clips its content
  group.append(
    shape("rect", { class: "device-box", x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 5 }),
    ...lines.map((line, place) =>
      text(PAD, PAD + place * LINE + 12, line.text, { class: line.class ?? "", width: width - 2 * PAD }),
    ),
  );
  const first = PAD + lines.length * LINE + 2;
  for (const chip of chips) {
    const y = first + chip.row * (CHIP.height + CHIP.gap);
    group.append(
      shape("rect", { class: "part-box", x: PAD + chip.x, y, width: chip.size, height: CHIP.height, rx: 4 }),
      text(PAD + chip.x + 6, y + 14, chip.text, { width: chip.size - 8, title: chip.title }),
    );
  }
  group.append(shape("title", null, printable(gpu.name)));
  return group;
}

/** Create a text that is cut to a width; its title has the whole text. */
function text(x, y, content, { class: name = "", width, title = content, anchor = "start" }) {
  const whole = printable(content);
  const most = Math.max(1, Math.floor(width / LETTER));
  const shown = whole.length <= most ? whole : `${whole.slice(0, most - 1)}…`;
  return shape("text", { x, y, class: name, "text-anchor": anchor }, shown, shape("title", null, printable(title)));
}

/** Draw the PCI bus of each domain, with a branch to each GPU. */
function drawBus(svg, rows, box, isWide) {
  const x = 10;
  for (const domain of new Set(rows.map((row) => row.domain))) {
    const members = rows.filter((row) => row.domain === domain);
    svg.append(shape("line", { class: "bus", x1: x, x2: x, y1: members[0].top, y2: members.at(-1).middle }));
  }
  for (const { gpu, middle } of rows) {
    svg.append(link(gpu.pcie.state, x, box.left, middle));
    if (isWide) svg.append(text(x + 8, middle - 5, `PCIe ${gpu.pcie.text}`, { width: box.left - x - 12 }));
  }
}

/** Draw a bar for each type of other end, and a line from each GPU that has links to it. */
function drawEnds(svg, rows, ends, box, isWide) {
  ends.forEach((name, place) => {
    const x = box.right + box.arcs + (isWide ? 160 : 0) + place * BAR + BAR / 2;
    const linked = rows.flatMap((row) => {
      const found = row.gpu.nvlink.ends.find(([end]) => end === name);
      return found ? [{ ...row, count: found[1], y: row.middle + place * LINE }] : [];
    });
    const bottom = Math.max(...linked.map((row) => row.y));
    svg.append(
      shape("line", { class: "bar", x1: x, x2: x, y1: (ends.length - place) * HEADING, y2: bottom + 8 }),
      text(x + 6, (ends.length - 1 - place) * HEADING + 13, name, { class: "tick", anchor: "end", width: 160 }),
    );
    for (const { gpu, y, count } of linked) {
      svg.append(link(gpu.nvlink.state, box.right, x, y), shape("circle", { class: "joint", cx: x, cy: y, r: 3.5 }));
      if (!isWide) continue;
      const left = box.right + box.arcs + 8;
      const width = x - left - 4;
      svg.append(text(left, y - 5, `${count} to ${name}`, { width }));
      if (ends.length === 1) {
        svg.append(text(left, y + 14, gpu.nvlink.text, { class: `tick ${gpu.nvlink.state}`, width }));
      }
    }
  });
}

/** Draw an arc between each pair of linked GPUs: the more GPUs lie between them, the deeper. Its title has the number. */
function drawPairs(svg, rows, pairs, box) {
  const placed = new Map(rows.map((row, place) => [row.gpu, { place, y: row.middle }]));
  const found = pairs.map(([one, other, count]) => ({ one, other, count, ends: [one, other].map((gpu) => placed.get(gpu)) }));
  const deepest = Math.max(1, ...found.map(({ ends: [from, to] }) => to.place - from.place));
  for (const { one, other, count, ends: [from, to] } of found) {
    const reach = 12 + ((to.place - from.place) / deepest) * (box.arcs - 36);
    const title = `${counted(count, "NVLink")} between ${one.place} and ${other.place}`;
    const [x, middle] = [box.right + reach / 0.75, (from.y + to.y) / 2]; // a curve reaches 3/4 of its control points
    const path = `M ${box.right} ${from.y} C ${x} ${from.y}, ${x} ${to.y}, ${box.right} ${to.y}`;
    svg.append(
      shape("path", { class: "link link-up arc", d: path }, shape("title", null, printable(title))),
      text(box.right + reach + 3, middle + 4, `${count}`, { class: "tick", width: 24, title }),
    );
  }
}

function link(state, from, to, y) {
  return shape("line", { class: `link link-${state}`, x1: from, x2: to, y1: y, y2: y });
}
