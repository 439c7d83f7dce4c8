/* What `graphcut split --at-nodes` makes, by the rules of the planner (a test compares the two).
   A model is a `CutModel` of cut_model.py, completed; a node is named by its index there. */

import { NOTHING, plus } from "./flows.js";
import { cheapestCut } from "./minimum_cut.js";

/** A cut model with what follows from it: the nodes before and after each, its tensors, and its index in the profile. */
export function completedModel(model) {
  const all = model.order.length;
  const [before, after, touched] = [0, 1, 2].map(() => Array.from({ length: all }, () => []));
  const shown = new Array(all);
  model.order.forEach((node, i) => { shown[node] = i; });
  model.writers.forEach((writer, tensor) => {
    touched[writer].push(tensor);
    for (const reader of model.readers[tensor]) {
      before[reader].push(writer);
      after[writer].push(reader);
      touched[reader].push(tensor);
    }
  });
  return { ...model, touched, shown, stack: new Int32Array(all), before: packed(before), after: packed(after) };
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
  const all = model.order.length;
  const firstAfter = new Int32Array(all).fill(cuts.length);
  const lastBefore = new Int32Array(all).fill(-1);
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
    for (let node = 0; node < all; node += 1) {
      if (part[node] > cut && lastBefore[node] < cut && cut < firstAfter[node]) free.push(node);
    }
    const side = (node) => (part[node] <= cut ? 0 : 1);
    for (const node of cheapestCut(model, free, side)) part[node] = cut;
  }
  return part;
}

/** Whether all nodes are in one part. */
function areIn(nodes, part, own) {
  for (const node of nodes) if (part[node] !== own) return false;
  return true;
}

/** The tensors that nodes in other parts read than the one that writes them. */
export function flowsBetween(model, part) {
  const found = [];
  model.writers.forEach((writer, tensor) => {
    const source = part[writer];
    if (areIn(model.readers[tensor], part, source)) return;
    const readers = [...new Set(model.readers[tensor].map((node) => part[node]))].filter((own) => own !== source);
    readers.sort((a, b) => a - b);
    found.push({ source, readers, bytes: model.bytes[tensor], is_exact: model.exact[tensor], tensor: model.tensors[tensor] });
  });
  return found;
}

/** What cuts after some nodes of the profile cost; null if they are not possible. */
export function costsOf(model, chosen) {
  const cuts = [...new Set(chosen)].map((i) => model.order[i]).sort((a, b) => a - b);
  const part = cuts.length ? partsAt(model, cuts) : null;
  if (!part) return null;
  const parts = Array.from({ length: cuts.length + 1 }, (_, i) => ({ name: `p${i}`, nodes: 0, weight_bytes: 0, sent: NOTHING }));
  for (const own of part) parts[own].nodes += 1;
  model.users.forEach((users, weight) => {
    const own = part[users[0]];
    const owners = areIn(users, part, own) ? [own] : new Set(users.map((node) => part[node]));
    for (const one of owners) parts[one].weight_bytes += model.weights[weight];
  });
  const found = flowsBetween(model, part);
  for (const flow of found) parts[flow.source].sent = plus(parts[flow.source].sent, flow);
  const boundaries = cuts.map((_, i) =>
    found.filter((flow) => flow.source <= i && flow.readers.at(-1) > i).reduce(plus, NOTHING));
  return { cuts: cuts.map((node) => model.shown[node]), part, parts, tensors: found, boundaries };
}

/** The node that names a cut after one of the profile: the last one up to there whose readers all come later. */
export function namedCut(model, index) {
  for (let i = index; i >= 0; i -= 1) {
    const after = afterNode(model, model.order[i]);
    if (after.length && after.every((reader) => model.shown[reader] > index)) return i;
  }
  return index;
}
