import assert from "node:assert/strict";
import { test } from "node:test";

import { completedModel, costsOf, flowsBetween, kindOf, matrixOf, namedCut, partsAt } from "../../../graphcut/drawing/page/cutting.js";

/** A cut model: `tensors` are [writer, readers, bytes], a node that no tensor leaves is an end. */
function modelOf(nodes, tensors, more = {}) {
  const all = [...Array(nodes).keys()];
  const [writers, readers, bytes] = [0, 1, 2].map((i) => tensors.map((tensor) => tensor[i]));
  return completedModel({
    order: all, ends: all.filter((node) => !writers.includes(node)), tensors: tensors.map((_, i) => `t${i}`), writers, readers,
    bytes, exact: bytes.map(() => true), prices: bytes, weights: [], users: [], dims: {}, ...more,
  });
}

/** A number from 0 to 1 after the other, always the same ones. */
function random(seed) {
  let at = seed;
  return () => {
    at = (at * 48271) % 2147483647;
    return at / 2147483647;
  };
}

/** What is sent if exactly these nodes come before a cut; undefined if one of them reads a later one. */
function priceOf({ writers, readers, prices }, isBefore) {
  let price = 0;
  for (const [tensor, writer] of writers.entries()) {
    if (!isBefore(writer) && readers[tensor].some(isBefore)) return undefined;
    if (isBefore(writer) && !readers[tensor].every(isBefore)) price += prices[tensor];
  }
  return price;
}

test("free nodes go where the fewest bytes cross, and before the cut where that is the same", () => {
  const next = random(7);
  let free = 0;
  for (let round = 0; round < 300; round += 1) {
    const nodes = 4 + Math.floor(next() * 5);
    const tensors = [...Array(nodes - 1).keys()].map((writer) => {
      const readers = [...Array(nodes).keys()].filter((node) => node > writer && next() < 0.35);
      return [writer, readers.length ? readers : [writer + 1], 1 + Math.floor(next() * 9)];
    });
    const model = modelOf(nodes, tensors);
    const cut = Math.floor(next() * (nodes - 1));
    const part = partsAt(model, [cut]);
    const [must, never] = [new Set([cut]), new Set(tensors[cut][1])];
    for (let node = nodes - 1; node >= 0; node -= 1) if (tensors[node]?.[1].some((reader) => must.has(reader))) must.add(node);
    for (const [writer, readers] of tensors) if (never.has(writer)) readers.forEach((reader) => never.add(reader));
    let best = [Infinity, 0];
    for (let set = 0; set < 1 << nodes; set += 1) {
      const isBefore = (node) => Boolean(set & (1 << node));
      const price = priceOf(model, isBefore);
      const all = [...Array(nodes).keys()];
      if (price === undefined || [...must].some((node) => !isBefore(node)) || [...never].some(isBefore)) continue;
      const size = all.filter(isBefore).length;
      if (price < best[0] || (price === best[0] && size > best[1])) best = [price, size];
      free += size > must.size;
    }
    assert.deepEqual([priceOf(model, (node) => part[node] === 0), part.filter((own) => own === 0).length], best);
  }
  assert.ok(free > 300);
});

test("several cuts keep what each node needs before it, and what needs it after it", () => {
  const next = random(11);
  for (let round = 0; round < 300; round += 1) {
    const nodes = 6 + Math.floor(next() * 6);
    const tensors = [...Array(nodes - 1).keys()].map((writer) => {
      const readers = [...Array(nodes).keys()].filter((node) => node > writer && next() < 0.25);
      return [writer, readers.length ? readers : [writer + 1], 1 + Math.floor(next() * 9)];
    });
    const cuts = [...new Set([next(), next(), next()].map((share) => Math.floor(share * (nodes - 1))))].sort((a, b) => a - b);
    const part = partsAt(modelOf(nodes, tensors), cuts);
    cuts.forEach((cut, i) => {
      assert.equal(part[cut], i);
      for (const reader of tensors[cut][1]) assert.ok(part[reader] > i);
    });
    for (const [writer, readers] of tensors) for (const reader of readers) assert.ok(part[writer] <= part[reader]);
  }
});

// 0 feeds 1 and, past it, 3: a residual tensor over a cut after 1 and one after 2.
const SKIP = [[0, [1, 3], 100], [1, [2], 10], [2, [3], 20]];

test("parts have their nodes, their weights and what crosses each boundary", () => {
  const model = modelOf(4, SKIP, { weights: [1000, 7], users: [[0, 3], [2]] });
  const found = costsOf(model, [2, 0, 2]); // in any order, each once
  assert.deepEqual(found.cuts, [0, 2]);
  assert.deepEqual([...found.part], [0, 1, 1, 2]);
  assert.deepEqual(found.parts.map(({ nodes, weight_bytes: bytes, sent }) => [nodes, bytes, sent.bytes]), [[1, 1000, 100], [2, 7, 20], [1, 1000, 0]]);
  assert.deepEqual(found.tensors.map((flow) => [flow.tensor, flow.source, flow.readers, kindOf(flow)]),
    [["t0", 0, [1, 2], "residual"], ["t2", 1, [2], "sequential"]]);
  assert.deepEqual(found.boundaries.map(({ bytes, tensors }) => [bytes, tensors]), [[100, 1], [120, 2]]);
});

test("a total of which one size is unknown is a lower bound", () => {
  const model = modelOf(4, SKIP, { exact: [true, true, false] });
  assert.deepEqual(costsOf(model, [1]).boundaries[0], { bytes: 110, is_exact: true, tensors: 2 });
  assert.deepEqual(costsOf(model, [2]).boundaries[0], { bytes: 120, is_exact: false, tensors: 2 });
});

test("a cut after the last node is none, since nothing is left", () => {
  const model = modelOf(4, SKIP);
  assert.equal(costsOf(model, [3]), null);
  assert.equal(costsOf(model, []), null);
});

test("after a node that writes an output the other outputs follow", () => {
  const model = modelOf(3, [[0, [1, 2], 5]]); // two heads
  assert.deepEqual([...partsAt(model, [1])], [0, 0, 1]);
});

test("an order of the profile other than that of the nodes names the same cuts", () => {
  const model = modelOf(4, SKIP, { order: [0, 2, 1, 3] });
  const found = costsOf(model, [1]); // shown second: node 2
  assert.deepEqual([found.cuts, [...found.part]], [[1], [0, 0, 0, 1]]);
});

test("a cut is named by the last node up to there whose readers come later", () => {
  const model = modelOf(5, [[0, [1], 1], [1, [2, 3], 1], [2, [3], 1], [3, [4], 1]]);
  assert.deepEqual([0, 1, 2, 3].map((index) => namedCut(model, index)), [0, 1, 2, 3]);
  const detour = modelOf(4, [[0, [1], 1], [1, [3], 1], [0, [2], 1]]);
  assert.equal(namedCut(detour, 2), 1); // 2 has no reader
});

test("the matrix has what each part sends to each other one", () => {
  const model = modelOf(4, SKIP);
  const found = costsOf(model, [0, 2]);
  const { names, cells } = matrixOf(found);
  assert.deepEqual(names, ["p0", "p1", "p2"]);
  assert.deepEqual(cells.map(({ source, readers, bytes, tensors }) => [source, readers, bytes, tensors]),
    [[0, [1], 100, ["t0"]], [0, [2], 100, ["t0"]], [1, [2], 20, ["t2"]]]);
  assert.equal(cells[0].share, 1);
  assert.ok(cells[2].share < 1 && cells[2].share > 0.8);
  assert.deepEqual(flowsBetween(model, [0, 0, 0, 0]), []);
});
