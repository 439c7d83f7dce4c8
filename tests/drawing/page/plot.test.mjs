import assert from "node:assert/strict";
import { test } from "node:test";

import { LEFT, cutNear, envelope, gridLines, nextLow, nodeAt, scaleFor, zoomed } from "../../../graphcut/drawing/page/plot.js";

const WIDTH = 1000; // pixels for nodes
const xOf = (node, { from, to }) => LEFT + ((node + 1 - from) / (to - from)) * 1000;

test("a click finds the node whose end is there, where a node has several pixels", () => {
  const view = { from: 100, to: 200 };
  const values = new Array(300).fill(5);
  for (const node of [100, 150, 199]) assert.equal(nodeAt(values, view, xOf(node, view) + 4, WIDTH, 0), node);
  assert.equal(nodeAt(values, view, 0, WIDTH, 0), 100);
  assert.equal(nodeAt(values, view, LEFT + WIDTH + 12, WIDTH, 0), 199);
});

test("among many nodes in a pixel a click finds the cheapest within two pixels", () => {
  const view = { from: 0, to: 20000 };
  const values = Array.from({ length: 20000 }, (_, i) => (i === 10030 ? 1 : i === 10050 ? 0 : 9));
  assert.equal(nodeAt(values, view, xOf(10000, view), WIDTH, 2), 10030); // 10050 is 2.5 pixels away
});

test("a dragged cut goes to the lowest place near the pointer, of equally low ones to the nearest", () => {
  const view = { from: 0, to: 100 }; // 10 pixels each
  const values = Array.from({ length: 100 }, (_, i) => ([40, 44].includes(i) ? 1 : 9));
  assert.deepEqual([0, 15].map((reach) => nodeAt(values, view, xOf(41, view), WIDTH, reach)), [41, 40]);
  assert.equal(nodeAt(values, view, xOf(42, view) + 1, WIDTH, 25), 44);
});

test("the next low place has less than before it, and not more than after it", () => {
  const values = [5, 3, 3, 7, 2, 8, 9, 1];
  assert.deepEqual([0, 1, 4].map((at) => nextLow(values, at, 1)), [1, 4, undefined]);
  assert.deepEqual([7, 4].map((at) => nextLow(values, at, -1)), [4, 2]);
});

test("zooming keeps to the nodes that there are, and at least eight in sight", () => {
  assert.deepEqual(zoomed(40, 60, 100), { from: 40, to: 60 });
  assert.deepEqual(zoomed(50, 51, 100), { from: 50, to: 58 });
  assert.deepEqual(zoomed(-10, 10, 100), { from: 0, to: 20 });
  assert.deepEqual(zoomed(95, 115, 100), { from: 80, to: 100 });
  assert.deepEqual(zoomed(-50, 500, 100), { from: 0, to: 100 });
  assert.deepEqual(zoomed(0, 3, 5), { from: 0, to: 5 });
});

test("a pixel has the lowest and the highest value of its nodes", () => {
  const { low, high } = envelope([3, 1, 4, 1, 5, 9, 2, 6], { from: 0, to: 8 }, 4);
  assert.deepEqual([[...low], [...high]], [[1, 1, 5, 2], [3, 4, 9, 6]]);
  const wide = envelope([3, 1], { from: 0, to: 2 }, 4);
  assert.deepEqual([...wide.low], [3, 3, 1, 1]);
  const zoomedIn = envelope([3, 1, 4, 1, 5, 9, 2, 6], { from: 4, to: 8 }, 2);
  assert.deepEqual([...zoomedIn.high], [9, 6]);
});

test("higher bytes are higher on both scales, and all are in the plot", () => {
  for (const isLog of [false, true]) {
    const { most, heightOf } = scaleFor([10, 5000, 300], isLog);
    assert.equal(most, 5000);
    const heights = [0, 1, 64, 300, 4999, 5000].map(heightOf);
    assert.deepEqual(heights, [...heights].sort((a, b) => a - b));
    assert.equal(heights[0], 0);
    assert.ok(heights.at(-1) <= 1);
    const lines = gridLines(most, isLog);
    assert.ok(lines.length >= 3 && lines.length <= 7, String(lines));
    assert.ok(lines.at(-1) > most / 2);
    assert.ok(lines.every((bytes) => Number.isInteger(Math.log2(bytes)) || bytes % lines[0] === 0));
  }
  assert.deepEqual(gridLines(1000, false), [256, 512, 768, 1024]);
});

test("a cut is taken where the pointer is near its line", () => {
  const view = { from: 0, to: 100 }; // ten pixels each
  assert.equal(cutNear([20, 21], view, xOf(20, view) + 3, 5, WIDTH), 20);
  assert.equal(cutNear([20, 21], view, xOf(20, view) + 6, 5, WIDTH), 21);
  assert.equal(cutNear([20], view, xOf(20, view) - 6, 5, WIDTH), null);
  assert.equal(cutNear([], view, 500, 5, WIDTH), null);
});
