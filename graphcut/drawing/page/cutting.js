/* What `graphcut split --at-nodes` makes, by the rules of the planner (a test compares the two).
   A model is a `CutModel` of cut_model.py, completed; a node is named by its index there. */

import { groupsOf } from "./names.js";

/** A cut model with what follows from it: the nodes before and after each, its tensors, and its index in the profile. */
export function completedModel(model) {
  const [before, after, touched] = [0, 1, 2].map(() => model.order.map(() => []));
  const shown = [];
  model.order.forEach((node, i) => { shown[node] = i; });
  model.writers.forEach((writer, tensor) => {
    touched[writer].push(tensor);
    for (const reader of model.readers[tensor]) {
      before[reader].push(writer);
      after[writer].push(reader);
      touched[reader].push(tensor);
    }
  });
  return { ...model, touched, shown, stack: new Int32Array(shown.length), before: packed(before), after: packed(after) };
}

/** Lists of nodes in one array, which is read faster: that of a node ends where the next one starts. */
function packed(lists) {
  const starts = new Int32Array(lists.length + 1);
  lists.forEach((list, i) => { starts[i + 1] = starts[i] + list.length; });
  return { starts, all: Int32Array.from(lists.flat()) };
}

const afterNode = ({ after: { starts, all } }, node) => all.subarray(starts[node], starts[node + 1]);

/** Marks nodes, and all that the packed lists lead to from them. */
function mark({ stack }, nodes, marks, value, unmarked, { starts, all }) {
  let waiting = 0;
  const visit = (node) => {
    if (marks[node] !== unmarked) return;
    marks[node] = value;
    stack[waiting] = node;
    waiting += 1;
  };
  nodes.forEach(visit);
  while (waiting) {
    waiting -= 1;
    const node = stack[waiting];
    for (let i = starts[node]; i < starts[node + 1]; i += 1) visit(all[i]);
  }
}

/** The part of each node if the model is cut after `cuts`, ascending; null if nothing is left after the last. */
export function partsAt(model, cuts) {
  const last = cuts.length - 1;
  const firstAfter = new Int32Array(model.order.length).fill(cuts.length);
  const lastBefore = new Int32Array(model.order.length).fill(-1);
  cuts.forEach((cut, i) => mark(model, [cut], firstAfter, i, cuts.length, model.before));
  let following = afterNode(model, cuts[last]);
  if (!following.length) following = model.ends.filter((node) => firstAfter[node] === cuts.length);
  if (!following.length) return null;
  mark(model, following, lastBefore, last, -1, model.after);
  for (let i = last; i > 0; i -= 1) {
    lastBefore[cuts[i]] = Math.max(lastBefore[cuts[i]], i - 1);
    mark(model, afterNode(model, cuts[i - 1]), lastBefore, i - 1, -1, model.after);
  }
  const part = firstAfter.slice();
  for (let cut = 0; cut <= last; cut += 1) {
    const free = [];
    part.forEach((own, node) => { if (own > cut && lastBefore[node] < cut && cut < firstAfter[node]) free.push(node); });
    for (const node of cheapestCut(model, free, (other) => (part[other] <= cut ? 0 : 1))) part[node] = cut;
  }
  return part;
}

/** The free nodes that go before a cut so that the fewest bytes cross it: the largest minimum cut. */
function cheapestCut(model, free, side) {
  if (!free.length) return [];
  const vertices = new Map(free.map((node, i) => [node, i + 2])); // 0 is what is before the cut, 1 what is after it
  const vertex = (node) => vertices.get(node) ?? side(node);
  const leaving = Array.from({ length: free.length + 2 }, () => []);
  const [target, residual] = [[], []];
  const arc = (source, to, capacity) => {
    leaving[source].push(target.length);
    leaving[to].push(target.length + 1);
    target.push(to, source);
    residual.push(capacity, 0);
  };
  for (const tensor of new Set(free.flatMap((node) => model.touched[node]))) {
    const writer = vertex(model.writers[tensor]);
    const readers = [...new Set(model.readers[tensor].map(vertex))].filter((reader) => reader !== 0);
    if (writer === 1 || !readers.some((reader) => reader !== writer)) continue;
    const own = leaving.push([]) - 1;
    arc(writer, own, model.prices[tensor]);
    for (const reader of readers) {
      arc(own, reader, Infinity);
      if (writer !== 0 && reader !== 1) arc(reader, writer, Infinity);
    }
  }
  /** The arc by which each vertex is reached from one; `next` gives the vertex at the end of an arc, or -1. */
  const reachable = (start, next) => {
    const found = new Map([[start, -1]]);
    for (const at of found.keys()) for (const one of leaving[at]) {
      const to = next(one);
      if (to >= 0 && !found.has(to)) found.set(to, one);
    }
    return found;
  };
  for (;;) { // saturate a shortest path from 0 to 1
    const found = reachable(0, (one) => (residual[one] ? target[one] : -1));
    if (!found.has(1)) break;
    const path = [];
    for (let at = 1; at !== 0; at = target[path.at(-1) ^ 1]) path.push(found.get(at));
    const sent = Math.min(...path.map((one) => residual[one]));
    for (const one of path) {
      residual[one] -= sent;
      residual[one ^ 1] += sent;
    }
  }
  const late = reachable(1, (one) => (residual[one ^ 1] ? target[one] : -1));
  return free.filter((node) => !late.has(vertices.get(node)));
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
    const own = part[users[0]];
    const owners = areIn(users, part, own) ? [own] : new Set(users.map((node) => part[node]));
    for (const one of owners) parts[one].weight_bytes += model.weights[weight];
  });
  return { cuts: cuts.map((node) => model.shown[node]), part, parts, tensors, boundaries: boundariesOf(parts, tensors) };
}

/** Whether all nodes are in one part. */
function areIn(nodes, part, own) {
  for (const node of nodes) if (part[node] !== own) return false;
  return true;
}

/** The node that names a cut after one of the profile: the last one up to there whose readers all come later. */
export function namedCut(model, index) {
  for (let i = index; i >= 0; i -= 1) {
    const after = afterNode(model, model.order[i]);
    if (after.length && after.every((reader) => model.shown[reader] > index)) return i;
  }
  return index;
}

/* Flows: what parts send. A flow has `source`, the part that writes it, and `readers`, those that read it, ascending. */

/** The tensors that nodes in other parts read than the one that writes them. */
export function flowsBetween(model, part) {
  return model.writers.flatMap((writer, tensor) => {
    const source = part[writer];
    if (areIn(model.readers[tensor], part, source)) return [];
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
export const crossing = (flows, part) => flows.filter((flow) => flow.source <= part && flow.readers.at(-1) > part);
export const boundariesOf = (parts, flows) => parts.slice(1).map((_, part) => totalOf(crossing(flows, part)));

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
  const groups = groupsOf(flows.flatMap((flow) => flow.readers.map((reader) => [flow, reader])), ([{ source }, reader]) => `${source} ${reader}`);
  const cells = [...groups.values()].map((own) => (
    { ...totalOf(own.map(([flow]) => flow)), source: own[0][0].source, readers: [own[0][1]], tensors: own.map(([flow]) => flow.tensor) }));
  const most = Math.max(0, ...cells.map((cell) => cell.bytes));
  for (const cell of cells) cell.share = Math.max(0, 1 - Math.log2((most + 1) / (cell.bytes + 1)) / 16);
  return { names: parts.map((one) => one.name), cells };
}
