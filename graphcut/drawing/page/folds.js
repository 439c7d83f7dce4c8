/* Folds: modules, rows of numbered modules, and ranges of long lists, shown as one box; in each part its own. */

import { groupsOf } from "./nodes_around.js";

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

/** The shown nodes in lists, each with the folds around it, outermost first. */
export function foldedLists({ graph, nodes, partOf }) {
  const all = graph.modules?.length ?? 1;
  const modules = [...groupsOf(nodes, (node) => (partOf(node) ?? 0) * all + (graph.module?.[node] ?? 0)).values()].map((own) => (
    { own, part: partOf(own[0]), path: graph.module ? graph.modules[graph.module[own[0]]] : [] }));
  const numbers = new Map();
  const walk = ({ part, path }, visit) => path.reduce((key, [name, number]) => {
    const inner = `${key}/${name}${number === null ? "" : `.${number}`}`;
    visit(`${key}/${name}`, name, number, inner);
    return inner;
  }, `${part ?? ""}|`);
  for (const module of modules) walk(module, (row, name, number) => {
    if (number !== null) numbers.set(row, (numbers.get(row) ?? new Set()).add(number));
  });
  for (const [row, found] of numbers) numbers.set(row, [...found].sort((a, b) => a - b));
  const folds = new Map();
  const fold = (key, title, part, times = 1) => {
    if (!folds.has(key)) folds.set(key, { key, title, part, times, size: 0 });
    return folds.get(key);
  };
  return modules.flatMap((module) => {
    const { own, part } = module;
    const chain = [];
    let outer = ""; // the numbered module around these
    const last = walk(module, (row, name, number, inner) => {
      const all = numbers.get(row) ?? [];
      const rows = all.length > 1 ? [[0, all.length - 1], ...rangesAround(all.indexOf(number), all.length)] : [];
      if (number !== null) for (const [from, to] of rows) chain.push(fold(`${row}#${from}-${to}`, `${outer}${name} ${all[from]}-${all[to]}`, part, to - from + 1));
      chain.push(fold(inner, outer + (number === null ? name : `${name}.${number}`), part));
      if (number !== null) outer = `${name}.${number}/`;
    });
    const lists = groupsOf([...own.keys()], (i) => JSON.stringify(rangesAround(i, own.length)));
    return [...lists].map(([ranges, places]) => {
      const list = { nodes: places.map((i) => own[i]), folds: [...chain] };
      for (const [from, to] of JSON.parse(ranges)) list.folds.push(fold(`${last}:${from}-${to}`, `nodes ${from + 1}-${to + 1}`, part));
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
  const opened = new Set();
  const tried = new Set();
  const shown = () => {
    const folds = new Set();
    let boxes = 0;
    for (const list of lists) {
      const fold = closedFold(list, opened);
      if (fold) folds.add(fold);
      else boxes += list.nodes.length;
    }
    return { folds: [...folds].sort((a, b) => b.size - a.size), boxes: boxes + folds.size };
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
