/* Folds: modules, rows of numbered modules, and ranges of long lists, shown as one box; in each part its own. */

import { groupsOf } from "./names.js";

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
