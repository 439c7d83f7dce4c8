import assert from "node:assert/strict";
import { test } from "node:test";

import { closedFold, completed, foldedLists, kindOfLink, openedFirst, pictureOf, rangesAround, tail, worded } from "../../../graphcut/drawing/page/graph_picture.js";
import { layered } from "../../../graphcut/drawing/page/layered_layout.js";
import { groupsOf } from "../../../graphcut/drawing/page/words.js";

/** A graph whose nodes are [reads, writes], by the names of tensors. */
function graphOf(nodes, { inputs = [], outputs = [], ...more } = {}) {
  const tensors = [...new Set(nodes.flat(2))];
  const indices = (names) => names.map((name) => tensors.indexOf(name));
  return completed({
    tensors, nodes: nodes.map((_, i) => `n${i}`), ops: nodes.map(() => "ai.onnx.Add"), types: tensors.map(() => "float32[1]"),
    reads: nodes.map(([reads]) => indices(reads)), writes: nodes.map(([, writes]) => indices(writes)),
    inputs: indices(inputs), outputs: indices(outputs), attributes: nodes.map(() => []), bodies: {}, ...more,
  });
}

const chain = (length) => graphOf([...Array(length).keys()].map((i) => [[`t${i}`], [`t${i + 1}`]]), { inputs: ["t0"], outputs: [`t${length}`] });
/** A view in which what is `first` open is all that is. */
function viewOf(graph, { first, ...more } = {}) {
  const view = { graph, opened: new Set(), partOf: () => undefined, flows: new Map(), partName: (part) => `p${part}`, ...more };
  const lists = foldedLists(view);
  return { ...view, lists, first: first ?? openedFirst(lists) };
}

test("a picture has boxes for inputs and outputs, and none for initializers", () => {
  const graph = graphOf([[["x", "w"], ["a"]], [["a"], ["b"]], [["b"], ["c"]], [["c", "a"], ["y"]]], { inputs: ["x"], outputs: ["y"] });
  const { boxes, links, home } = pictureOf(viewOf(graph));
  assert.deepEqual(boxes.map(({ kind, nodes }) => [kind, nodes]).sort(), [
    ["in", []], ["node", [0]], ["node", [1]], ["node", [2]], ["node", [3]], ["out", []]]);
  const names = ({ from, to, tensors }) => [from.nodes[0] ?? from.kind, to.nodes[0] ?? to.kind, tensors.map((tensor) => graph.tensors[tensor]).join()];
  assert.deepEqual(links.map(names).map(String).sort(), ["0,1,a", "0,3,a", "1,2,b", "2,3,c", "3,out,y", "in,0,x"]);
  assert.deepEqual(home.map((box) => box.nodes), [[0], [1], [2], [3]]);
});

test("what more than six boxes read is named in each of them", () => {
  const graph = graphOf([[["x"], ["m"]], ...[...Array(7).keys()].map((i) => [["m"], [`y${i}`]])], { inputs: ["x"] });
  const { boxes, links } = pictureOf(viewOf(graph));
  assert.deepEqual(boxes.filter((box) => box.far.length).map((box) => box.nodes), [[1], [2], [3], [4], [5], [6], [7]]);
  assert.equal(links.length, 1);
});

test("an edge over a boundary has the kind of what crosses, and a part that computes again is a box", () => {
  const graph = graphOf([[["x"], ["a"]], [["a"], ["b"]], [["b"], ["y"]]], { inputs: ["x"], outputs: ["y"] });
  const flows = new Map([["a", { source: 0, readers: [1, 3] }], ["b", { source: 1, readers: [2] }]]);
  const view = viewOf(graph, { partOf: (node) => node, flows });
  const { boxes, links } = pictureOf(view);
  const kinds = links.map((link) => [link.from.nodes[0] ?? link.from.kind, link.to.nodes[0] ?? link.to.kind, kindOfLink(link, view)]);
  assert.deepEqual(kinds.map(String).sort(), ["0,1,residual", "0,copies,residual", "1,2,sequential", "2,out,", "in,0,"]);
  const both = { from: { part: 1 }, to: { part: 2 }, tensors: ["b", "a"].map((name) => graph.tensors.indexOf(name)) };
  assert.equal(kindOfLink(both, view), "residual"); // of several kinds the one to see
  assert.deepEqual(boxes.find((box) => box.kind === "copies").parts, [3]);
});

test("a long list is divided into ranges until none is long", () => {
  assert.deepEqual(rangesAround(5, 100), []);
  assert.deepEqual(rangesAround(120, 300), [[100, 149]]);
  for (const position of [0, 4999, 12345]) {
    const found = rangesAround(position, 12346);
    for (const [from, to] of found) assert.ok(from <= position && position <= to);
    assert.ok(found.at(-1)[1] - found.at(-1)[0] < 100);
  }
});

test("layers fold, first as a row and then each, in each part its own", () => {
  const paths = [[["embed", null]], ...[0, 1, 2, 3].flatMap((i) => [[["layers", i], ["attn", null]], [["layers", i], ["mlp", null]]])];
  const graph = { ...chain(18), modules: paths, module: [...Array(18).keys()].map((node) => Math.floor(node / 2)) };
  const lists = foldedLists(viewOf(graph));
  const titles = (opened) => [...new Set(lists.map((list) => closedFold(list, opened)?.title))];
  assert.deepEqual(titles(new Set()), ["embed", "layers 0-3"]);
  const row = closedFold(lists.at(-1), new Set());
  assert.deepEqual([row.times, row.size], [4, 16]);
  assert.deepEqual(titles(new Set([row.key])), ["embed", "layers.0", "layers.1", "layers.2", "layers.3"]);
  const halves = foldedLists(viewOf(graph, { partOf: (node) => (node < 10 ? 0 : 1) }));
  assert.deepEqual([...new Set(halves.map((list) => closedFold(list, new Set()).title))], ["embed", "layers 0-1", "layers 2-3"]);
});

test("few boxes are shown at first, whatever the model", () => {
  const graph = chain(5000);
  const lists = foldedLists(viewOf(graph));
  const opened = openedFirst(lists);
  const boxes = lists.flatMap((list) => closedFold(list, opened) ?? list.nodes);
  assert.ok(new Set(boxes).size < 60, String(new Set(boxes).size));
  assert.equal(lists.flatMap((list) => list.nodes).length, 5000);
});

test("what only a fold reads is inside it, and what others read, too, leaves it", () => {
  const graph = graphOf([[["x"], ["a"]], [["a"], ["b"]], [["a", "b"], ["y"]]], { inputs: ["x"], outputs: ["y"], modules: [[["m", null]], []], module: [0, 0, 1] });
  const view = viewOf(graph, { first: new Set() });
  const { boxes, links } = pictureOf(view);
  assert.deepEqual(boxes.map((box) => [box.kind, box.fold?.title, box.nodes]),
    [["fold", "m", [0, 1]], ["node", undefined, [2]], ["in", undefined, []], ["out", undefined, []]]);
  assert.deepEqual(links.map(({ from, to, tensors }) => [from.kind, to.kind, tensors.map((tensor) => graph.tensors[tensor]).join()]),
    [["in", "fold", "x"], ["fold", "node", "a,b"], ["node", "out", "y"]]);
  for (const box of boxes) worded(box, view, 6);
  assert.deepEqual(boxes[0].lines.map((line) => line.text), ["2 nodes", "2 Add"]);
});

test("a box says the operator, the name, the values and what it writes", () => {
  const graph = graphOf([[["x", "net.conv.weight"], ["y"]]], { inputs: ["x"], outputs: ["y"], attributes: [["pads = 1"]] });
  const view = viewOf(graph);
  const { boxes } = pictureOf(view);
  for (const box of boxes) worded(box, view, 6);
  assert.deepEqual(boxes.map(({ head, lines }) => [head, ...lines.map((line) => line.text)]).sort(), [
    ["Add", "n0", "pads = 1", "weight float32[1]", "→ float32[1]"], ["input", "x", "float32[1]"], ["output", "y", "float32[1]"]]);
  assert.equal(boxes.find((box) => box.kind === "node").height, 28 + 4 * 17);
  assert.deepEqual(["/a/b.0/Add_output_0", "w", "a.b.weight", "onnx::MatMul_12"].map(tail), ["Add", "w", "weight", "MatMul_12"]);
});

test("of many lines the last one says how many more there are", () => {
  const graph = graphOf([[["x"], ["y"]]], { inputs: ["x"], outputs: ["y"], attributes: [["a = 1", "b = 2", "c = 3", "d = 4"]] });
  const view = viewOf(graph);
  const box = worded(pictureOf(view).boxes.find(({ kind }) => kind === "node"), view, 3);
  assert.deepEqual(box.lines.map((line) => line.text), ["n0", "a = 1", "b = 2", "and 2 more", "→ float32[1]"]);
  assert.equal(box.lines[3].title, "c = 3\nd = 4");
});

test("boxes name their part", () => {
  const graph = graphOf([[["x"], ["a"]], [["a"], ["y"]]], { inputs: ["x"], outputs: ["y"] });
  const view = viewOf(graph, { partOf: (node) => node });
  const { boxes } = pictureOf(view);
  const words = boxes.sort((a, b) => a.rank - b.rank).map((box) => [worded(box, view, 6).head, ...box.tags]);
  assert.deepEqual(words, [["input"], ["Add", "p0"], ["Add", "p1"], ["output"]]);
});

test("few nodes are all shown", () => {
  const paths = [0, 1].map((i) => [["layers", i]]);
  const graph = { ...chain(8), modules: paths, module: [0, 0, 0, 0, 1, 1, 1, 1] };
  assert.equal(pictureOf(viewOf(graph)).boxes.filter(({ kind }) => kind === "node").length, 8);
});

test("boxes of a layout don't overlap, and each is below what it reads", () => {
  const boxes = [...Array(40).keys()].map((rank) => ({ rank, width: 100 + (rank % 3) * 60, height: 30 + (rank % 4) * 20 }));
  const edges = boxes.slice(1).flatMap((to, i) => [{ from: boxes[Math.floor(i / 2)], to }, ...(i % 5 ? [] : [{ from: boxes[Math.max(0, i - 9)], to }])]);
  const { width, height } = layered(boxes, edges);
  for (const { from, to, path } of edges) {
    assert.ok(from.top + from.height < to.top);
    assert.match(path, /^M[-\d.,]+(V[-\d.]+C[-\d., ]+)+$/);
  }
  for (const [i, a] of boxes.entries()) {
    assert.ok(a.x - a.width / 2 >= 0 && a.x + a.width / 2 <= width && a.top + a.height <= height);
    for (const b of boxes.slice(i + 1)) {
      assert.ok(Math.abs(a.x - b.x) >= (a.width + b.width) / 2 || a.top + a.height <= b.top || b.top + b.height <= a.top, `${a.rank} ${b.rank}`);
    }
  }
});

test("layers are ordered so that edges don't cross, and edges leave a box in that order", () => {
  const boxes = [0, 1, 2, 3, 4, 5].map((rank) => ({ rank, width: 100, height: 20 }));
  const edges = [[0, 5], [1, 4], [2, 3]].map(([from, to]) => ({ from: boxes[from], to: boxes[to] }));
  layered(boxes, edges);
  for (const { from, to } of edges) assert.ok(Math.abs(from.x - to.x) < 1);
  const [root, ...leaves] = [0, 1, 2, 3].map((rank) => ({ rank, width: 100, height: 20 }));
  const fan = leaves.map((to) => ({ from: root, to }));
  layered([root, ...leaves], fan);
  const starts = fan.sort((a, b) => a.to.x - b.to.x).map(({ path }) => Number(/^M([-\d.]+),/.exec(path)[1]) - root.x);
  assert.ok(starts[0] < -10 && Math.abs(starts[1]) < 1 && starts[2] > 10 && starts.every((x) => Math.abs(x) < 50), String(starts));
});

test("in a cycle one edge points up, and nothing hangs", () => {
  const boxes = [0, 1, 2].map((rank) => ({ rank, width: 10, height: 10 }));
  const edges = [[0, 1], [1, 2], [2, 0]].map(([from, to]) => ({ from: boxes[from], to: boxes[to] }));
  layered(boxes, edges);
  assert.deepEqual(boxes.map((box) => box.layer), [0, 1, 2]);
  assert.deepEqual(edges.map((edge) => edge.tip[2]), [-1, -1, 1]);
});

test("lists by a key keep the order of their items", () => {
  assert.deepEqual([...groupsOf([3, 1, 4, 1, 5], (number) => number % 2)], [[1, [3, 1, 1, 5]], [0, [4]]]);
});
