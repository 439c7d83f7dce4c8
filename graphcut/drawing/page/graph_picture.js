/* The boxes of a graph, and the links between them.
   A view says which `nodes` of which `graph` are shown, the part of each (`partOf`), and the flows between parts by name (`flows`). */

import { kindOf } from "./flows.js";
import { closedFold, foldedLists, openedFirst } from "./folds.js";
import { MANY, groupsOf } from "./nodes_around.js";

/** The boxes of a view, and the links between them with their tensors. */
export function pictureOf(view) {
  const { graph, nodes, partOf, flows } = view;
  const boxes = new Map();
  const box = (key, made) => {
    if (!boxes.has(key)) boxes.set(key, { key, id: boxes.size, nodes: [], tensors: [], far: [], ...made() });
    return boxes.get(key);
  };
  const home = []; // sparse: mostly few nodes of many are shown
  const lists = view.isFolded ? foldedLists(view) : [{ nodes: [...nodes], folds: [] }];
  view.opened ??= openedFirst(lists);
  for (const list of lists) {
    const fold = closedFold(list, view.opened);
    for (const node of list.nodes) {
      const own = box(fold ? `f${fold.key}` : `n${node}`, () => ({ kind: fold ? "fold" : "node", fold, part: partOf(node), rank: node }));
      own.rank = Math.min(own.rank, node);
      own.nodes.push(node);
      home[node] = own;
    }
  }
  const links = new Map();
  const link = (from, to, tensor) => {
    const key = `${from.id} ${to.id}`;
    if (!links.has(key)) links.set(key, { from, to, tensors: [] });
    links.get(key).tensors.push(tensor);
  };
  /** A box for what is not shown: inputs, outputs, nodes before or after. */
  const end = (kind, partners, part, tensor, hidden) => {
    const rank = Math.min(...partners.map((one) => one.rank)) + (kind === "in" || kind === "before" ? -0.5 : 0.5);
    const own = box(`${kind} ${part ?? ""} ${partners.map((one) => one.id)}`, () => ({ kind, part, rank }));
    own.tensors.push(tensor);
    for (const node of hidden) if (!own.nodes.includes(node)) own.nodes.push(node);
    return own;
  };
  const withParts = (one, parts) => Object.assign(one, { parts: [...new Set([...one.parts ?? [], ...parts])].sort((a, b) => a - b) });
  const isOutput = new Set(graph.outputs);
  const parts = new Set([...boxes.values()].map((one) => one.part));
  view.onlyPart = parts.size === 1 ? [...parts][0] : undefined;
  const touched = new Set();
  for (const node of nodes) {
    for (const tensor of graph.reads[node]) touched.add(tensor);
    for (const tensor of graph.writes[node]) touched.add(tensor);
  }
  for (const tensor of touched) {
    const writer = graph.writer[tensor];
    if (writer < 0 && !graph.isInput.has(tensor)) continue; // an initializer is in the box of its reader
    const own = home[writer];
    if (own && !isOutput.has(tensor) && !flows.has(graph.tensors[tensor]) && graph.readers[tensor].every((node) => home[node] === own)) continue;
    const readers = [...new Set(graph.readers[tensor].map((node) => home[node]))].filter((one) => one && one !== own);
    if (readers.length > MANY) for (const one of readers) one.far.push(tensor);
    else if (readers.length) {
      const from = own ?? (writer < 0 ? end("in", readers, undefined, tensor, []) : end("before", readers, partOf(writer), tensor, [writer]));
      for (const one of readers) link(from, one, tensor);
    }
    if (!own) continue;
    const hidden = groupsOf(graph.readers[tensor].filter((node) => !home[node]), partOf);
    for (const [part, after] of hidden) link(own, end("after", [own], part, tensor, after), tensor);
    if (isOutput.has(tensor)) link(own, end("out", [own], undefined, tensor, []), tensor);
    const known = new Set([own.part, ...graph.readers[tensor].map(partOf)]);
    const copies = flows.get(graph.tensors[tensor])?.readers.filter((part) => !known.has(part)) ?? [];
    if (copies.length) link(own, withParts(end("copies", [own], undefined, tensor, []), copies), tensor);
  }
  return { boxes: [...boxes.values()], links: [...links.values()], home };
}

/** The kind of what crosses a boundary on an edge, of `kinds` in scene.js; empty if nothing does. */
export function kindOfLink({ from, to, tensors: own }, { graph, flows }) {
  const isInside = from.part === undefined || to.part === undefined || from.part === to.part;
  if (isInside && to.kind !== "copies") return "";
  const kinds = own.map((tensor) => flows.get(graph.tensors[tensor])).filter(Boolean).map(kindOf);
  return kinds.find((kind) => kind === "residual" || kind === "exchange") ?? kinds[0] ?? ""; // or it is computed again
}
