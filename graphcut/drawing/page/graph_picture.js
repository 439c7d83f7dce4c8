/* A picture of a graph of nodes, that of the model or of a body: which nodes it shows, in which boxes, with which words and links.
   A graph is the record of loading/node_graph.py, completed; nodes and tensors are indices. A view says which `nodes` of which
   `graph` are shown, the part of each (`partOf`), and the flows between parts by name (`flows`). */

import { kindOf } from "./cutting.js";
import { count, grouped, groupsOf, shortOperator } from "./words.js";

export const AROUND = 80; // the most nodes around something
export const MANY = 6; // a tensor with more readers has its name in each of them instead of an edge to it

export function completed(graph) {
  if (graph.writer) return graph;
  graph.writer = new Int32Array(graph.tensors.length).fill(-1);
  graph.readers = graph.tensors.map(() => []);
  graph.writes.forEach((written, node) => { for (const tensor of written) graph.writer[tensor] = node; });
  graph.reads.forEach((read, node) => { for (const tensor of read) graph.readers[tensor].push(node); });
  graph.isInput = new Set(graph.inputs);
  return graph;
}

/** The nodes up to some steps from others, but not many more than `AROUND`; through a tensor with many readers none. */
export function nodesAround(graph, start, steps) {
  const found = new Set(start);
  let edge = [...start];
  for (let step = 0; step < steps && found.size < AROUND; step += 1) {
    const near = edge.flatMap((node) => [
      ...graph.reads[node].map((tensor) => graph.writer[tensor]),
      ...graph.writes[node].flatMap((tensor) => (graph.readers[tensor].length <= 2 * MANY ? graph.readers[tensor] : [])),
    ]);
    edge = [...new Set(near)].filter((node) => node >= 0 && !found.has(node)).slice(0, AROUND - found.size);
    for (const node of edge) found.add(node);
  }
  return found;
}

export function endsOf(graph, names) {
  const wanted = new Set(names);
  const ends = graph.tensors.flatMap((name, tensor) => (wanted.has(name) && (graph.writer[tensor] >= 0 || graph.isInput.has(tensor))
    ? [graph.writer[tensor], ...graph.readers[tensor].slice(0, 2 * MANY)] : []));
  return [...new Set(ends)].filter((node) => node >= 0);
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

/** The shown nodes in lists, each with the folds around it, outermost first. */
export function foldedLists({ graph, nodes, partOf }) {
  const lists = [...groupsOf(nodes, (node) => `${partOf(node)} ${graph.module?.[node]}`).values()].map((own) => {
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

/** The folds to open at first: the largest ones, as long as there are few boxes. */
export function openedFirst(lists) {
  const [opened, tried] = [new Set(), new Set()];
  const shown = () => {
    const folds = groupsOf(lists, (list) => closedFold(list, opened));
    const boxes = (folds.get(undefined) ?? []).reduce((sum, list) => sum + list.nodes.length, 0);
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
  const { graph, nodes, partOf, flows } = view;
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
  const home = []; // sparse: mostly few nodes of many are shown
  const lists = view.isFolded ? foldedLists(view) : [{ nodes: [...nodes], folds: [] }];
  view.opened ??= openedFirst(lists);
  for (const list of lists) {
    const fold = closedFold(list, view.opened);
    for (const node of list.nodes) {
      const own = box(fold ? `f${fold.key}` : `n${node}`, { kind: fold ? "fold" : "node", fold, part: partOf(node), rank: node });
      own.rank = Math.min(own.rank, node);
      own.nodes.push(node);
      home[node] = own;
    }
  }
  /** A box for what is not shown: inputs, outputs, nodes before or after. */
  const end = (kind, partners, part, tensor, hidden = []) => {
    const rank = Math.min(...partners.map((one) => one.rank)) + (kind === "in" || kind === "before" ? -0.5 : 0.5);
    const own = box(`${kind} ${part ?? ""} ${partners.map((one) => one.id)}`, { kind, part, rank });
    own.tensors.push(tensor);
    for (const node of hidden) if (!own.nodes.includes(node)) own.nodes.push(node);
    return own;
  };
  const isOutput = new Set(graph.outputs);
  const parts = new Set([...boxes.values()].map((one) => one.part));
  view.onlyPart = parts.size === 1 ? [...parts][0] : undefined;
  for (const tensor of new Set([...nodes].flatMap((node) => [...graph.reads[node], ...graph.writes[node]]))) {
    const writer = graph.writer[tensor];
    if (writer < 0 && !graph.isInput.has(tensor)) continue; // an initializer is in the box of its reader
    const own = home[writer];
    const flow = flows.get(graph.tensors[tensor]);
    if (own && !isOutput.has(tensor) && !flow && graph.readers[tensor].every((node) => home[node] === own)) continue;
    const readers = [...new Set(graph.readers[tensor].map((node) => home[node]))].filter((one) => one && one !== own);
    if (readers.length > MANY) for (const one of readers) one.far.push(tensor);
    else if (readers.length) {
      const from = own ?? (writer < 0 ? end("in", readers, undefined, tensor) : end("before", readers, partOf(writer), tensor, [writer]));
      for (const one of readers) link(from, one, tensor);
    }
    if (!own) continue;
    const hidden = groupsOf(graph.readers[tensor].filter((node) => !home[node]), partOf);
    for (const [part, after] of hidden) link(own, end("after", [own], part, tensor, after), tensor);
    if (isOutput.has(tensor)) link(own, end("out", [own], undefined, tensor), tensor);
    const known = new Set([own.part, ...graph.readers[tensor].map(partOf)]);
    const copies = flow?.readers.filter((part) => !known.has(part)) ?? [];
    if (!copies.length) continue;
    const replicas = end("copies", [own], undefined, tensor);
    replicas.parts = [...new Set([...replicas.parts, ...copies])].filter((part) => part !== undefined).sort((a, b) => a - b);
    link(own, replicas, tensor);
  }
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
export function worded(box, { graph, onlyPart, partName, functions }, most) {
  const { kind, nodes, tensors: own, fold } = box;
  const name = (text) => ({ text, css: "name" });
  const lines = (tensors, textOf, limit) => few(tensors.map((tensor) => ({ text: textOf(tensor), title: typed(graph, tensor) })), limit);
  const typeOf = (tensor) => graph.types[tensor] || graph.tensors[tensor];
  const operator = (node) => shortOperator(graph.ops[node]);
  const parts = box.parts.filter((part) => part !== undefined && part !== onlyPart).map(partName);
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
  const ofHidden = () => (nodes.length === 1 ? { head: operator(nodes[0]), lines: [name(graph.nodes[nodes[0]])] } : { head: count(nodes.length, "node"), lines: [] });
  const words = {
    node: () => ofNode(nodes),
    fold: ofFold,
    in: () => ended("input"),
    out: () => ended("output"),
    copies: () => ({ head: "replicas", tags: parts.length > 1 ? [count(parts.length, "part")] : parts, lines: [{ text: "compute again what reads it here", title: parts.join(", ") }] }),
    before: () => ({ tags: [kind, ...parts], ...ofHidden() }),
    after: () => ({ tags: [kind, ...parts], ...ofHidden() }),
  };
  Object.assign(box, { tags: [] }, words[kind]());
  box.lines.push(...lines(box.far, (tensor) => `← ${tail(graph.tensors[tensor])}`, 3));
  box.bodies = (kind === "node" ? graph.bodies[nodes[0]] ?? [] : []).map(([word, body]) => [word, functions[body] ?? body]);
  box.height = (kind === "fold" ? 32 : 28) + ROW * box.lines.length + 26 * box.bodies.length;
  return box;
}
