/** Topology of a node, from records of `/v1/gpus`: PCIe, NVLinks, fabric and parts of each GPU. Pure. */

import { valueText } from "./format.js";

/** Types of the device at the other end of an NVLink, by label of `gpu_nvlink_peers`. */
const PEERS = { switch: "NVSwitch", gpu: "another GPU", npu: "NPU", unknown: "unknown device" };

const WHOLE_FABRIC = ["healthy", "not_reported"];

/**
 * Return `gpus`, in the order of their PCI addresses, and `orphans`: parts whose GPU is not in the records. Each GPU
 * has `pcie`, `nvlink` and `fabric`, with `text` and `state` (`up`, `degraded`, `down` or `unknown`). `nvlink.ends` has
 * [name, number of links] by type of the other end, as far as it is reported. `nvlink.peers` has [GPU, number of links]
 * of the other GPUs to which it is linked directly; their links are not in `nvlink.ends`.
 */
export function topologyOf(records) {
  const gpus = new Map();
  for (const record of records) {
    if (record.device.kind === "gpu") gpus.set(viewKey(record.device), gpuOf(record));
  }
  const orphans = [];
  for (const { device } of records) {
    if (device.kind !== "gpu") (gpus.get(device.parent)?.parts ?? orphans).push(partOf(device));
  }
  for (const one of gpus.values()) one.parts.sort((a, b) => compare(a.order, b.order));
  const sorted = [...gpus.values()].sort((a, b) => compare(a.order, b.order));
  for (const gpu of sorted) findPeers(gpu, sorted);
  return { gpus: sorted, orphans };
}

/** Set the GPUs to which a GPU is linked directly, by the PCI addresses that it reports. */
function findPeers({ id, nvlink }, gpus) {
  for (const [address, count] of nvlink.addresses) {
    const peer = gpus.find((one) => one.address === address && one.id !== id);
    if (peer !== undefined) nvlink.peers.push([peer, count]);
  }
  nvlink.peers.sort(([a], [b]) => compare(a.order, b.order));
  const known = nvlink.peers.reduce((sum, [, count]) => sum + count, 0);
  nvlink.ends = nvlink.ends
    .map(([name, count]) => [name, name === PEERS.gpu ? count - known : count])
    .filter(([, count]) => count > 0);
}

/** Return [GPU, GPU, number of links] of each pair of GPUs that are linked directly, in the order of the GPUs. */
export function linkedPairs(gpus) {
  const found = [];
  gpus.forEach((one, place) => {
    for (const other of gpus.slice(place + 1)) {
      const counts = [one, other].map((gpu, end) => countTo(gpu, end === 0 ? other : one));
      if (Math.max(...counts) > 0) found.push([one, other, Math.max(...counts)]);
    }
  });
  return found;
}

function countTo(gpu, other) {
  return gpu.nvlink.peers.find(([peer]) => peer === other)?.[1] ?? 0;
}

/** Return the names of the other ends of NVLinks of these GPUs, in a fixed order. */
export function linkEnds(gpus) {
  const found = new Set(gpus.flatMap((gpu) => gpu.nvlink.ends.map(([name]) => name)));
  return Object.values(PEERS).filter((name) => found.has(name));
}

/** Return what the records do not show, as sentences. */
export function unknownParts({ gpus, orphans }) {
  const texts = ["PCIe switches are not in the hub's answers."];
  if (linkEnds(gpus).some((name) => name !== PEERS.switch)) {
    texts.push("Of some NVLinks only the type of the device at the other end is known.");
  }
  const unread = gpus.filter((gpu) => gpu.nvlink.state === "unknown");
  if (unread.length > 0) {
    texts.push(`The number of NVLinks that are up is unknown for ${unread.length} of ${gpus.length} GPUs.`);
  }
  if (orphans.length > 0) texts.push(`The GPU of ${orphans.length} MIG devices or vGPU instances is not known.`);
  return texts;
}

function compare(one, other) {
  return one < other ? -1 : Number(one > other);
}

/** Return the key of a view within its machine: the id without cluster and machine. */
function viewKey(device) {
  return device.id.split("/").slice(2).join("/");
}

function gpuOf({ device, index, numa_node: slotNode }) {
  const { readings, dimensions = [] } = device;
  const address = device.pci_address ?? readings.gpu_pci_address?.value ?? null;
  const memoryNode = numberOf(readings.gpu_memory_numa_node);
  const hasIndex = index !== undefined && index !== null;
  return {
    id: device.id,
    name: `${hasIndex ? `GPU ${index}: ` : ""}${device.name ?? "GPU"}`,
    place: hasIndex ? `GPU ${index}` : `GPU ${address}`,
    address,
    domain: address?.split(":")[0] ?? null,
    order: address ?? `~${device.id}`,
    slotNode: slotNode ?? null,
    memoryNode,
    isOnBusOnly: device.side === "pci_only",
    pcie: pcieOf(readings),
    nvlink: nvlinkOf(readings, dimensions),
    fabric: fabricOf(readings),
    parts: [],
  };
}

function numberOf(reading) {
  return typeof reading?.value === "number" ? reading.value : null;
}

function reasonOf(reading) {
  return reading?.absent ?? "not_collected";
}

function pcieOf(readings) {
  const generation = numberOf(readings.gpu_pcie_link_generation);
  const width = numberOf(readings.gpu_pcie_link_width);
  const highest = numberOf(readings.gpu_pcie_link_generation_max);
  const widest = numberOf(readings.gpu_pcie_link_width_max);
  if (generation === null && width === null) {
    return { state: "unknown", text: `unknown: ${reasonOf(readings.gpu_pcie_link_width)}` };
  }
  const link = (one, lanes) => `gen ${one ?? "?"} ×${lanes ?? "?"}`;
  const now = link(generation, width);
  const most = highest === null && widest === null ? "" : ` of ${link(highest, widest)}`;
  // A lower generation is normal while the GPU is idle.
  return { state: widest !== null && width !== null && width < widest ? "degraded" : "up", text: `${now}${most}` };
}

function nvlinkOf(readings, dimensions) {
  const links = linksOf(dimensions);
  const count = numberOf(readings.gpu_nvlinks) ?? (links.size > 0 ? links.size : null);
  const known = [...links.values()].filter((isUp) => isUp !== null);
  const active =
    numberOf(readings.gpu_nvlinks_active) ??
    (known.length > 0 && known.length === count ? known.filter(Boolean).length : null);
  if (count === null && active === null) {
    return { state: "unknown", text: `unknown: ${reasonOf(readings.gpu_nvlinks)}`, ends: [], addresses: [], peers: [] };
  }
  const down = [...links].filter(([, isUp]) => isUp === false).map(([link]) => link);
  const ends = endsOf(readings, dimensions);
  const speed = speedOf(dimensions);
  const facts = [
    `${active ?? "?"} of ${count ?? "?"} up`,
    down.length > 0 ? `down: ${down.join(", ")}` : "",
    speed === null ? "" : `${speed} each`,
  ];
  return { state: linkState(count, active), text: facts.filter(Boolean).join("; "), ends, addresses: addressesOf(dimensions), peers: [] };
}

/** Return [PCI address, number of links] of each GPU at the other end of a link. */
function addressesOf(dimensions) {
  return dimensions
    .filter((one) => one.metric === "gpu_nvlink_gpu_links" && one.value > 0)
    .map((one) => [one.labels.peer_pci_address, one.value]);
}

function linkState(count, active) {
  if (count === null || active === null) return "unknown";
  if (active === 0) return "down";
  return active < count ? "degraded" : "up";
}

/** Return whether each link is up, in the order of their numbers; null is unknown. */
function linksOf(dimensions) {
  const found = dimensions
    .filter((one) => one.metric === "gpu_nvlink_up")
    .map((one) => [one.labels.link, typeof one.value === "number" ? one.value === 1 : null]);
  return new Map(found.sort(([a], [b]) => Number(a) - Number(b)));
}

/** Return the speed of the links as a text if all have the same, else null. */
function speedOf(dimensions) {
  const speeds = dimensions
    .filter((one) => one.metric === "gpu_nvlink_speed_bytes_per_second" && one.value > 0)
    .map((one) => one.value);
  return new Set(speeds).size === 1 ? valueText("bytes_per_second", speeds[0]) : null;
}

function endsOf(readings, dimensions) {
  const counts = new Map();
  for (const one of dimensions) {
    const name = Object.hasOwn(PEERS, one.labels.peer ?? "") ? PEERS[one.labels.peer] : null;
    if (one.metric === "gpu_nvlink_peers" && name !== null && one.value > 0) counts.set(name, one.value);
  }
  const switched = numberOf(readings.gpu_nvswitch_links); // of the slow lane: newer than the peers
  if (switched > 0) counts.set(PEERS.switch, switched);
  return Object.values(PEERS)
    .filter((name) => counts.has(name))
    .map((name) => [name, counts.get(name)]);
}

function fabricOf(readings) {
  const state = readings.gpu_fabric_state?.value ?? null;
  if (state === null) return { state: "unknown", text: `unknown: ${reasonOf(readings.gpu_fabric_state)}` };
  const value = (name) => readings[name]?.value ?? null;
  const health = value("gpu_fabric_health_status");
  const status = value("gpu_fabric_status");
  const clique = value("gpu_fabric_clique");
  const cluster = value("gpu_fabric_cluster_uuid");
  const isWhole =
    state === "completed" && (status ?? "SUCCESS") === "SUCCESS" && WHOLE_FABRIC.includes(health ?? "healthy");
  const facts = [
    state,
    status !== "SUCCESS" ? status : null,
    health,
    clique === null ? null : `clique ${clique}`,
    cluster,
  ];
  return { state: isWhole ? "up" : "degraded", text: facts.filter((one) => one !== null).join(", ") };
}

function partOf(device) {
  const value = (name) => device.readings[name]?.value ?? null;
  if (device.kind === "vgpu") {
    const vm = value("vgpu_vm_id");
    const name = String(value("vgpu_type") ?? device.name ?? "vGPU").replace("NVIDIA ", "");
    const label = vm === null ? name : `${name} · ${String(vm).slice(0, 8)}`;
    return { kind: "vgpu", order: label, name, label, detail: vm === null ? "VM unknown" : `VM ${vm}` };
  }
  const [instance, compute] = [value("mig_gpu_instance"), value("mig_compute_instance")];
  const name = String(value("mig_profile") ?? device.name ?? "MIG device");
  const place = instance === null ? null : `${instance}/${compute ?? "?"}`;
  return {
    kind: "mig",
    order: String(instance).padStart(4, "0"),
    name,
    label: place === null ? name : `${name} · ${place}`,
    detail: place === null ? "instance unknown" : `instance ${place}`,
  };
}
