/* A picture of a graph of nodes, that of the model or of a body: in which boxes it shows them, with which words and links.
   A graph is the record of loading/node_graph.py, completed; nodes and tensors are indices. A view says of which `graph` it is,
   in which `lists` and folds its nodes are, which of these are open (`first`, `opened`), the part of each node (`partOf`) and the
   name of a part (`partName`), and the flows between parts by name (`flows`). */

import { kindOf } from "./cutting.js";
import { count, grouped, groupsOf, isKnown, shortOperator, sumOf } from "./words.js";

const FEW = 40; // nodes that are shown without folds
const MANY = 6; // a tensor with more readers has its name in each of them instead of an edge to it

/** A graph with what follows from it; `functions` are those of the model, which its nodes call. */
export function completed(graph, functions = graph.functions) {
  if (graph.writer) return graph;
  graph.functions = functions;
  graph.writer = new Int32Array(graph.tensors.length).fill(-1);
  graph.readers = graph.tensors.map(() => []);
  graph.writes.forEach((written, node) => { for (const tensor of written) graph.writer[tensor] = node; });
  graph.reads.forEach((read, node) => { for (const tensor of read) graph.readers[tensor].push(node); });
  graph.isInput = new Set(graph.inputs);
  return graph;
}

/* Folds: modules, rows of numbered modules, and ranges of long lists, shown as one box; in each part its own. */

/** The ranges around a position, outermost first, so that no list is long. */
export function rangesAround(position, length) {
  const found = [];
  let [from, size] = [0, length];
  while (size > 100) {
    const each = Math.max(50, Math.ceil(size / 40));
    const start = from + Math.floor((position - from) / each) * each;
    [from, size] = [start, Math.min(each, from + size - start)];
    found.push([from, from + size - 1]);
  }
  return found;
}

/** The modules on a path: the key of each, and that of the row of modules with its name. */
function modulesOf(part, path) {
  let inner = `${part ?? ""}|`;
  return path.map(([name, number]) => {
    const row = `${inner}/${name}`;
    inner = number === null ? row : `${row}.${number}`;
    return { name, number, row, inner };
  });
}

/** The nodes in lists, each with the folds around it, outermost first. */
export function foldedLists({ graph, partOf }) {
  const lists = [...groupsOf(graph.nodes.keys(), (node) => `${partOf(node)} ${graph.module?.[node]}`).values()].map((own) => {
    const part = partOf(own[0]);
    return { own, part, path: modulesOf(part, graph.module ? graph.modules[graph.module[own[0]]] : []) };
  });
  const numbered = lists.flatMap(({ path }) => path.filter(({ number }) => number !== null));
  const rows = new Map([...groupsOf(numbered, ({ row }) => row)].map(([row, found]) => (
    [row, [...new Set(found.map(({ number }) => number))].sort((a, b) => a - b)])));
  const folds = new Map();
  const fold = (key, title, part, times = 1) => {
    if (!folds.has(key)) folds.set(key, { key, title, part, times, size: 0 });
    return folds.get(key);
  };
  return lists.flatMap(({ own, part, path }) => {
    const chain = [];
    let outer = ""; // the numbered module around these
    for (const { name, number, row, inner } of path) {
      const all = number === null ? [] : rows.get(row);
      const ranges = all.length > 1 ? [[0, all.length - 1], ...rangesAround(all.indexOf(number), all.length)] : [];
      for (const [from, to] of ranges) chain.push(fold(`${row}#${from}-${to}`, `${outer}${name} ${all[from]}-${all[to]}`, part, to - from + 1));
      const title = number === null ? name : `${name}.${number}`;
      chain.push(fold(inner, outer + title, part));
      if (number !== null) outer = `${title}/`;
    }
    return [...groupsOf(own.keys(), (i) => String(rangesAround(i, own.length))).values()].map((places) => {
      const ranges = rangesAround(places[0], own.length).map(([from, to]) => (
        fold(`${path.at(-1)?.inner ?? part}:${from}-${to}`, `nodes ${from + 1}-${to + 1}`, part)));
      const list = { nodes: places.map((i) => own[i]), folds: [...chain, ...ranges] };
      for (const one of list.folds) one.size += list.nodes.length;
      return list;
    });
  });
}

/** The outermost fold that is not open, or the innermost one with the same nodes; a fold of one node is none. */
export function closedFold({ folds }, opened) {
  const outermost = folds.find((fold) => fold.size > 1 && !opened.has(fold.key));
  return folds.findLast((fold) => fold.size === outermost?.size);
}

/** The folds to open at first: all around few nodes, else the largest ones, as long as there are few boxes. */
export function openedFirst(lists) {
  if (sumOf(lists, ({ nodes }) => nodes.length) <= FEW) return new Set(lists.flatMap(({ folds }) => folds.map(({ key }) => key)));
  const [opened, tried] = [new Set(), new Set()];
  const shown = () => {
    const folds = groupsOf(lists, (list) => closedFold(list, opened));
    const boxes = sumOf(folds.get(undefined) ?? [], (list) => list.nodes.length);
    folds.delete(undefined);
    return { folds: [...folds.keys()].sort((a, b) => b.size - a.size), boxes: boxes + folds.size };
  };
  for (;;) {
    const { folds, boxes } = shown();
    const next = folds.find((fold) => !tried.has(fold.key) && (fold.times === 1 || boxes === 1));
    if (!next) return opened;
    tried.add(next.key);
    opened.add(next.key);
    if (boxes > 1 && shown().boxes > 30) opened.delete(next.key);
  }
}

/* Boxes and links. */

export function pictureOf(view) {
  const { graph, partOf, flows } = view;
  const [boxes, links] = [new Map(), new Map()];
  const box = (key, made) => {
    if (!boxes.has(key)) boxes.set(key, { key, id: boxes.size, nodes: [], tensors: [], far: [], parts: [made.part], ...made });
    return boxes.get(key);
  };
  const link = (from, to, tensor) => {
    const key = `${from.id} ${to.id}`;
    if (!links.has(key)) links.set(key, { from, to, tensors: [] });
    links.get(key).tensors.push(tensor);
  };
  const home = [];
  const opened = new Set([...view.first, ...view.opened]);
  for (const list of view.lists) {
    const fold = closedFold(list, opened);
    for (const node of list.nodes) {
      const own = box(fold ? `f${fold.key}` : `n${node}`, { kind: fold ? "fold" : "node", fold, part: partOf(node), rank: node });
      own.rank = Math.min(own.rank, node);
      own.nodes.push(node);
      home[node] = own;
    }
  }
  /** A box for what is no node: inputs, outputs, parts that compute again. */
  const end = (kind, partners, tensor) => {
    const rank = Math.min(...partners.map((one) => one.rank)) + (kind === "in" ? -0.5 : 0.5);
    const own = box(`${kind} ${partners.map((one) => one.id)}`, { kind, rank });
    own.tensors.push(tensor);
    return own;
  };
  const isOutput = new Set(graph.outputs);
  graph.readers.forEach((nodes, tensor) => {
    const own = home[graph.writer[tensor]];
    if (!own && !graph.isInput.has(tensor)) return; // an initializer is in the box of its reader
    const flow = flows.get(graph.tensors[tensor]);
    const readers = [...new Set(nodes.map((node) => home[node]))].filter((one) => one !== own);
    if (readers.length > MANY) for (const one of readers) one.far.push(tensor);
    else if (readers.length) {
      const from = own ?? end("in", readers, tensor);
      for (const one of readers) link(from, one, tensor);
    }
    if (own && isOutput.has(tensor)) link(own, end("out", [own], tensor), tensor);
    const known = new Set([own?.part, ...nodes.map(partOf)]);
    const copies = flow?.readers.filter((part) => !known.has(part)) ?? [];
    if (!own || !copies.length) return;
    const replicas = end("copies", [own], tensor);
    replicas.parts = [...new Set([...replicas.parts, ...copies])].filter(isKnown).sort((a, b) => a - b);
    link(own, replicas, tensor);
  });
  return { boxes: [...boxes.values()], links: [...links.values()], home };
}

/** The kind of what crosses a boundary on an edge, of `KINDS` in scene.py; empty if nothing does. */
export function kindOfLink({ from, to, tensors: own }, { graph, flows }) {
  const isInside = from.part === undefined || to.part === undefined || from.part === to.part;
  if (isInside && to.kind !== "copies") return "";
  const kinds = own.map((tensor) => flows.get(graph.tensors[tensor])).filter(Boolean).map(kindOf);
  return kinds.find((kind) => kind === "residual" || kind === "exchange") ?? kinds[0] ?? ""; // or it is computed again
}

/* What the boxes say: a head, tags and lines. */

const ROW = 17;

export const tail = (name) => /[^/.:]*.?$/.exec(name.replace(/_output_\d+$/, ""))[0] || name;
export const typed = (graph, tensor) => [graph.tensors[tensor], graph.types[tensor]].filter(Boolean).join(" ");

/** Some lines, the first of them shown; `css` is what they are. */
function few(lines, most) {
  if (lines.length <= most) return lines;
  const rest = lines.slice(most - 1);
  return [...lines.slice(0, most - 1), { text: `and ${grouped(rest.length)} more`, title: rest.map((line) => line.title ?? line.text).join("\n") }];
}

/** Gives a box of a view its words and its height; `most` is the number of lines between its name and what it writes. */
export function worded(box, { graph, partName }, most) {
  const { kind, nodes, tensors: own, fold } = box;
  const name = (text) => ({ text, css: "name" });
  const lines = (tensors, textOf, limit) => few(tensors.map((tensor) => ({ text: textOf(tensor), title: typed(graph, tensor) })), limit);
  const typeOf = (tensor) => graph.types[tensor] || graph.tensors[tensor];
  const operator = (node) => shortOperator(graph.ops[node]);
  const parts = box.parts.filter(isKnown).map(partName);
  const ended = (noun) => ({
    head: own.length === 1 ? noun : count(own.length, noun),
    lines: [...own.length === 1 ? [name(graph.tensors[own[0]])] : [], ...lines(own, typeOf, 3)],
  });
  const ofNode = ([node]) => {
    const values = graph.reads[node].filter((tensor) => graph.writer[tensor] < 0 && !graph.isInput.has(tensor));
    const attributes = graph.attributes[node].map((text) => ({ text }));
    const all = [...attributes, ...lines(values, (tensor) => `${tail(graph.tensors[tensor])} ${graph.types[tensor]}`, Infinity)];
    return { head: operator(node), tags: parts, lines: [name(graph.nodes[node]), ...few(all, most), ...lines(graph.writes[node], (tensor) => `→ ${typeOf(tensor)}`, 3)] };
  };
  const ofFold = () => {
    const operators = [...groupsOf(nodes, operator)].sort((a, b) => b[1].length - a[1].length);
    const text = few(operators.map(([one, found]) => ({ text: `${grouped(found.length)} ${one}` })), 4).map((line) => line.text).join(", ");
    return { head: fold.title, tags: [...fold.times > 1 ? [`× ${fold.times}`] : [], ...parts], lines: [{ text: count(nodes.length, "node") }, { text }] };
  };
  const words = {
    node: () => ofNode(nodes),
    fold: ofFold,
    in: () => ended("input"),
    out: () => ended("output"),
    copies: () => ({ head: "replicas", tags: parts.length > 1 ? [count(parts.length, "part")] : parts, lines: [{ text: "compute again what reads it here", title: parts.join(", ") }] }),
  };
  Object.assign(box, { tags: [] }, words[kind]());
  box.lines.push(...lines(box.far, (tensor) => `← ${tail(graph.tensors[tensor])}`, 3));
  box.bodies = (kind === "node" ? graph.bodies[nodes[0]] ?? [] : []).map(([word, body]) => [word, graph.functions[body] ?? body]);
  box.height = (kind === "fold" ? 32 : 28) + ROW * box.lines.length + 26 * box.bodies.length;
  return box;
}
