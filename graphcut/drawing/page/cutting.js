/* What `graphcut split --at-nodes` makes, by the rules of the planner (a test compares the two).
   A model is a `CutModel` of cut_model.py, completed; a node is named by its index there. */

import { groupsOf } from "./words.js";

/** A model with what follows from it: the index of each node in the profile, and what it reads, writes and uses; the nodes next to it. */
export function completedModel(model) {
  const [before, after, reads, writes] = [0, 1, 2, 3].map(() => model.order.map(() => []));
  const shown = [];
  model.order.forEach((node, i) => { shown[node] = i; });
  model.writers.forEach((writer, tensor) => {
    for (const reader of model.readers[tensor]) reads[reader].push(tensor);
    if (writer < 0) return; // an input of the model
    writes[writer].push(tensor);
    for (const reader of model.readers[tensor]) {
      before[reader].push(writer);
      after[writer].push(reader);
    }
  });
  const used = reads.map((read, node) => [...new Set([...read, ...writes[node]])]);
  return { ...model, shown, reads, writes, used, before, after };
}

/** The part of each node if the model is cut after `cuts`, ascending; null if nothing is left after the last. */
export function partsAt(model, cuts) {
  const { before, after } = model;
  const last = cuts.length - 1;
  const cutAt = new Int32Array(after.length).fill(-1);
  const firstAfter = new Int32Array(after.length).fill(cuts.length); // the first cut that a node has to be before
  const lastBefore = new Int32Array(after.length).fill(-1); // and the last cut that it has to be after
  cuts.forEach((cut, i) => {
    [cutAt[cut], firstAfter[cut], lastBefore[cut]] = [i, i, i - 1];
  });
  for (let node = after.length - 1; node >= 0; node -= 1) { // nodes are in topological order
    for (const reader of after[node]) firstAfter[node] = Math.min(firstAfter[node], firstAfter[reader]);
  }
  if (!after[cuts[last]].length) {
    const following = model.ends.filter((node) => firstAfter[node] === cuts.length);
    if (!following.length) return null;
    for (const node of following) lastBefore[node] = last;
  }
  before.forEach((writers, node) => {
    for (const writer of writers) lastBefore[node] = Math.max(lastBefore[node], cutAt[writer], lastBefore[writer]);
  });
  const part = firstAfter.slice();
  for (let cut = 0; cut <= last; cut += 1) {
    const free = [];
    part.forEach((own, node) => { if (own > cut && lastBefore[node] < cut && cut < firstAfter[node]) free.push(node); });
    for (const node of cheapestCut(model, free, (other) => (part[other] <= cut ? BEFORE : AFTER))) part[node] = cut;
  }
  return part;
}

const [BEFORE, AFTER] = ["before", "after"]; // what can't be but before or after a cut

/** The free nodes that go before a cut so that the fewest bytes cross it: the largest minimum cut. */
function cheapestCut(model, free, side) {
  const isFree = new Set(free);
  const vertex = (node) => (isFree.has(node) ? node : side(node));
  const room = new Map(); // for each vertex, how much more can go from it to each neighbour
  const addRoom = (from, to, bytes) => {
    if (!room.has(from)) room.set(from, new Map());
    room.get(from).set(to, (room.get(from).get(to) ?? 0) + bytes);
  };
  const addArc = (from, to, bytes) => {
    addRoom(from, to, bytes);
    addRoom(to, from, 0);
  };
  for (const tensor of new Set(free.flatMap((node) => model.used[node]))) {
    if (model.writers[tensor] < 0) continue;
    const writer = vertex(model.writers[tensor]);
    const readers = [...new Set(model.readers[tensor].map(vertex))].filter((reader) => reader !== BEFORE);
    if (writer === AFTER || !readers.some((reader) => reader !== writer)) continue;
    addArc(writer, `tensor ${tensor}`, model.prices[tensor]);
    for (const reader of readers) {
      addArc(`tensor ${tensor}`, reader, Infinity);
      if (writer !== BEFORE && reader !== AFTER) addArc(reader, writer, Infinity);
    }
  }
  /** For each vertex that can be reached from one, over what has room, the vertex before it. */
  const reached = (start, roomOf) => {
    const found = new Map([[start, null]]);
    for (const at of found.keys()) for (const to of room.get(at)?.keys() ?? []) {
      if (!found.has(to) && roomOf(at, to) > 0) found.set(to, at);
    }
    return found;
  };
  const forwards = (from, to) => room.get(from).get(to);
  for (;;) { // fill a shortest path
    const found = reached(BEFORE, forwards);
    if (!found.has(AFTER)) break;
    const path = [];
    for (let to = AFTER; to !== BEFORE; to = found.get(to)) path.push([found.get(to), to]);
    const sent = Math.min(...path.map(([from, to]) => forwards(from, to)));
    for (const [from, to] of path) {
      addRoom(from, to, -sent);
      addRoom(to, from, sent);
    }
  }
  const late = reached(AFTER, (to, from) => forwards(from, to));
  return free.filter((node) => !late.has(node));
}

/** What cuts after some nodes of the profile cost; null if they are not possible. */
export function costsOf(model, chosen) {
  const cuts = [...new Set(chosen)].map((i) => model.order[i]).sort((a, b) => a - b);
  const part = cuts.length ? partsAt(model, cuts) : null;
  if (!part) return null;
  const tensors = flowsBetween(model, part);
  const parts = Array.from({ length: cuts.length + 1 }, (_, i) => ({
    name: `p${i}`, nodes: 0, weight_bytes: 0, sent: totalOf(tensors.filter((flow) => flow.source === i)) }));
  for (const own of part) parts[own].nodes += 1;
  model.users.forEach((users, weight) => {
    for (const one of new Set(users.map((node) => part[node]))) parts[one].weight_bytes += model.weights[weight];
  });
  return { cuts: cuts.map((node) => model.shown[node]), part, parts, tensors, boundaries: boundariesOf(parts, tensors) };
}

/** The node that names a cut after one of the profile: the last one up to there whose readers all come later. */
export function namedCut(model, index) {
  for (let i = index; i >= 0; i -= 1) {
    const after = model.after[model.order[i]];
    if (after.length && after.every((reader) => model.shown[reader] > index)) return i;
  }
  return index;
}

/* Flows: what parts send. A flow has `source`, the part that writes it, and `readers`, those that read it, ascending. */

/** The tensors that nodes in other parts read than the one that writes them. */
export function flowsBetween(model, part) {
  return model.writers.flatMap((writer, tensor) => {
    const source = part[writer];
    if (writer < 0 || model.readers[tensor].every((node) => part[node] === source)) return [];
    const readers = [...new Set(model.readers[tensor].map((node) => part[node]))].filter((own) => own !== source);
    return [{ source, readers: readers.sort((a, b) => a - b), bytes: model.bytes[tensor], is_exact: model.exact[tensor], tensor: model.tensors[tensor] }];
  });
}

/** The kind of a flow: between ranks an exchange or kept, else sequential or residual. */
export const kindOf = ({ source, readers, is_exchange: isMet = null }) =>
  isMet === null ? (readers.at(-1) > source + 1 ? "residual" : "sequential") : isMet ? "exchange" : "kept";

export const totalOf = (flows) => flows.reduce((total, flow) => (
  { bytes: total.bytes + flow.bytes, is_exact: total.is_exact && flow.is_exact, tensors: total.tensors + 1 }
), { bytes: 0, is_exact: true, tensors: 0 });

/** The flows over the boundary behind a part, and the totals of all boundaries. */
export const flowsOver = (flows, part) => flows.filter((flow) => flow.source <= part && flow.readers.at(-1) > part);
export const boundariesOf = (parts, flows) => parts.slice(1).map((_, part) => totalOf(flowsOver(flows, part)));

/** Flows grouped by source and readers, in the order in which the groups first occur. */
export function busesOf(flows) {
  const groups = groupsOf(flows.keys(), (i) => `${flows[i].source} ${flows[i].readers}`);
  return [...groups.values()].map((tensors) => {
    const { source, readers } = flows[tensors[0]];
    return { ...totalOf(tensors.map((i) => flows[i])), source, readers, tensors };
  });
}

/** The dependency maps of parts as a matrix: a cell has what one part sends to another. */
export function matrixOf({ parts, tensors: flows }) {
  const pairs = flows.flatMap((flow) => flow.readers.map((reader) => ({ ...flow, readers: [reader] })));
  const cells = busesOf(pairs).map((cell) => ({ ...cell, tensors: cell.tensors.map((i) => pairs[i].tensor) }));
  const most = Math.max(0, ...cells.map((cell) => cell.bytes));
  for (const cell of cells) cell.share = Math.max(0, 1 - Math.log2((most + 1) / (cell.bytes + 1)) / 16);
  return { names: parts.map((one) => one.name), cells };
}
