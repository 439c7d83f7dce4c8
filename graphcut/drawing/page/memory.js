/* What a part takes in its file and in memory, by the formulas of the planner (weighing.py, disk_size.py; a test compares).
   Costs are `CutCosts` of cut_costs.py, completed; a part is the list of its nodes, ascending. */

import { sumOf } from "./number_words.js";

/** Costs with what follows from them: the tensors that each node reads, writes and uses. */
export function completedCosts(costs) {
  const [reads, writes] = [0, 1].map(() => costs.nodes.map(() => []));
  costs.writers.forEach((writer, tensor) => {
    if (writer >= 0) writes[writer].push(tensor);
    for (const reader of costs.readers[tensor]) reads[reader].push(tensor);
  });
  const used = reads.map((read, node) => [...new Set([...read, ...writes[node]])]);
  const [outputs, pasts, presents] = ["outputs", "pasts", "presents"].map((name) => new Set(costs[name]));
  const states = costs.pasts.map((past, i) => [past, costs.presents[i]]);
  return { ...costs, reads, writes, used, outputs, pasts, presents, states, lastMemory: new Map() };
}

/** The order in which ONNX Runtime runs nodes that are listed ascending. */
export function runOrder(costs, nodes, inside) {
  const before = (node) => [...new Set(costs.reads[node].map((tensor) => costs.writers[tensor]))].filter((writer) => inside.has(writer));
  const read = new Set(nodes.flatMap(before));
  const stack = nodes.filter((node) => !read.has(node));
  const [seen, order] = [new Set(), new Set()];
  while (stack.length) {
    const node = stack.at(-1);
    if (seen.has(node)) order.add(stack.pop()); // a node that is on the stack again was run already
    else stack.push(...before(node).sort((a, b) => a - b).filter((one) => !seen.has(one)));
    seen.add(node);
  }
  return [...order];
}

/** The most bytes alive at once while nodes run in this order, with what the kernel of each takes. */
export function peakOf(costs, order, isOwn, isKept, bytesOf, workOf = () => 0) {
  const last = new Map();
  for (const node of order) for (const tensor of costs.used[node]) last.set(tensor, node);
  let held = sumOf([...last.keys()], (tensor) => (isOwn(tensor) ? 0 : bytesOf(tensor)));
  let peak = held;
  for (const node of order) {
    for (const tensor of costs.writes[node]) held += bytesOf(tensor);
    peak = Math.max(peak, held + workOf(node));
    for (const tensor of costs.used[node]) if (last.get(tensor) === node && isOwn(tensor) && !isKept(tensor)) held -= bytesOf(tensor);
  }
  return peak;
}

/** What ONNX Runtime holds of the weights of a part besides its files, and what it takes besides while it opens the part. */
function heldBytes(costs, inside) {
  let [more, largest, every, later] = [0, 0, 0, 0];
  for (const [bytes, users] of costs.held.toReversed()) {
    const own = users.filter(([node]) => inside.has(node));
    if (!own.length) continue;
    const isRecast = own.filter((use) => use[4]).length > 1;
    const isPackedTwice = !isRecast && own.filter((use) => use[2] > 0).length > 1;
    const [open, one, all, reordered] = [1, 2, 3, 5].map((field) => Math.max(...own.map((use) => use[field])));
    more += bytes * ((isRecast ? 1 : open) - 1);
    largest = Math.max(largest, bytes * one * (isPackedTwice ? 2 : 1), bytes * reordered - later);
    every += bytes * all;
    if (reordered) later += (bytes * open * 7) / 8;
  }
  return [Math.ceil(more), Math.ceil(largest + every)];
}

/** What a part takes in files and in memory. */
export function memoryOf(costs, nodes) {
  const inside = new Set(nodes);
  const isOwn = (tensor) => inside.has(costs.writers[tensor]);
  const isKept = (tensor) => costs.outputs.has(tensor) || costs.readers[tensor].some((reader) => !inside.has(reader));
  const reads = [...new Set(nodes.flatMap((node) => costs.reads[node]))].filter((tensor) => !isOwn(tensor));
  const writes = nodes.flatMap((node) => costs.writes[node]).filter(isKept);
  const order = runOrder(costs, nodes, inside);
  const bytesOf = (tensor) => costs.bytes[tensor];
  const computedOf = (tensor) => (isOwn(tensor) && !costs.presents.has(tensor) ? costs.computed[tensor] : 0);
  const workOf = (node) => {
    const [always, reading, writing] = costs.work[node];
    return Math.max(always, costs.reads[node].every(isOwn) ? 0 : reading, costs.writes[node].some(isKept) ? writing : 0);
  };
  const ofNodes = (bytes) => sumOf(nodes, (node) => bytes[node]);
  const ofUsed = (items) => sumOf(items, ([bytes, users]) => (users.some((node) => inside.has(node)) ? bytes : 0));
  const [more, opening] = heldBytes(costs, inside);
  const cached = [...reads.filter((tensor) => costs.pasts.has(tensor)), ...writes.filter((tensor) => costs.presents.has(tensor))];
  const counted = {
    inputs: () => sumOf(reads.filter((tensor) => !costs.pasts.has(tensor)), bytesOf),
    cache: () => sumOf(cached, bytesOf),
    activations: () => Math.max(opening, peakOf(costs, order, isOwn, isKept, computedOf, workOf)),
  };
  const written_bytes = costs.part + ofNodes(costs.nodes) + ofUsed(costs.shared)
    + sumOf([...reads, ...writes], (tensor) => costs.declared[tensor]) - sumOf(writes, (tensor) => costs.listed[tensor]);
  const loaded = costs.session + ofNodes(costs.inner) + ofUsed(costs.loaded) + more;
  return {
    written_bytes,
    need_bytes: costs.counting.length ? loaded + sumOf(costs.counting, (what) => counted[what]()) : written_bytes,
    activation_bytes: peakOf(costs, order, isOwn, isKept, bytesOf),
    is_exact: nodes.every((node) => costs.used[node].every((tensor) => costs.exact[tensor])),
  };
}

/** The memory of parts. Kept for the next cuts: a cut that moves changes two parts. */
export function memoryOfAll(costs, parts) {
  const keys = parts.map(String);
  costs.lastMemory = new Map(keys.map((key, i) => [key, costs.lastMemory.get(key) ?? memoryOf(costs, parts[i])]));
  return keys.map((key) => costs.lastMemory.get(key));
}
