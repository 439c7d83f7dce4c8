import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import "./planned_page.mjs";
import { startCharts } from "../../../graphcut/drawing/page/charts.js";
import { plan, state, tell } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, happen, rowsOf, texts } from "./stand_in.mjs";

startCharts();

/** Shows other parts, tensors or runs than those of the plan. */
function show(more) {
  state.yours = { ...plan, ...more };
  tell("cut");
}

afterEach(() => {
  state.yours = null;
  tell("cut");
});

/** What the marks of a row are, and where: [class, left, width]. */
const marks = (row) => findAll("i", row).map((mark) => [mark.getAttribute("class"), mark.style.get("left"), mark.style.get("width") ?? ""]);
const lines = () => findAll("#map .lane").filter((row) => !row.matches(".heads, .totals"));
const THIRDS = [1, 2, 3, 4, 5].map((sixths) => `${(sixths / 6) * 100}%`); // of three parts the middles are at 1/6, 3/6, 5/6

test("each part has a head with its device and figures, and a word if it is over budget", () => {
  const heads = findAll("#map .part");
  assert.deepEqual(heads.map((head) => head.children.map((line) => line.textContent)), [
    ["p0", "pi", "250 ms", "20 KiB", "over budget"], ["p1", FAST, "500 ms", "8 KiB"], ["p2", "pi", "125 ms", "12 KiB"]]);
  assert.equal(heads[0].title, "p0.onnx, stem, pi, 250 ms, 20 KiB, over budget");
  assert.deepEqual(heads.map((head) => [head.dataset.kind, head.dataset.index]), [["card", "0"], ["card", "1"], ["card", "2"]]);
});

test("a tensor is a line from the part that makes it to the last one that reads it, with a dot in each", () => {
  const [a, c] = lines();
  assert.deepEqual(marks(a), [["wire", THIRDS[0], `${(2 / 3) * 100}%`], ["made", THIRDS[0], ""], ["read", "50%", ""], ["read", THIRDS[4], ""]]);
  assert.deepEqual(marks(c), [["wire", "50%", `${(1 / 3) * 100}%`], ["made", "50%", ""], ["read", THIRDS[4], ""]]);
  assert.deepEqual([a, c].map((row) => row.classes), [["lane", "far"], ["lane", "near"]]);
  assert.deepEqual([a, c].map((row) => row.title), [
    "/m/a, 4 KiB, from p0.onnx to p1.onnx, p2.onnx; residual: skips a part", `${QUOTED}, ≥ 2 KiB, from p1.onnx to p2.onnx; sequential: read by the next part only`]);
  assert.deepEqual(texts("#map .lane .what"), ["tensor", "…a", "…it's \"quoted\"", "crosses in total"]);
});

test("totals are at the boundaries between the parts", () => {
  const totals = findAll("#map .totals .total");
  assert.deepEqual(totals.map((total) => [total.style.get("left"), total.textContent]), [[`${(1 / 3) * 100}%`, "4 KiB"], [`${(2 / 3) * 100}%`, "≥ 6 KiB"]]);
});

const flow = (i, bytes, more = {}) => ({ tensor: `/m/layers.${i}/out`, type: "", bytes, is_exact: true, source: 0, readers: [1], ...more });

test("a line is thinner the fewer bytes there are: by half of its range for a 256th", () => {
  show({ tensors: [flow(0, 65535), flow(1, 255), flow(2, 0)] });
  assert.deepEqual(lines().map((row) => find(".wire", row).style.get("height")), ["4px", "2.75px", "1.5px"]);
});

test("more than twelve tensors are a line for all with the same ends, the most bytes first", () => {
  const tensors = Array.from({ length: 13 }, (_, i) => flow(i, 1024));
  const bus = (own) => ({ ...flow(0, 1024 * own.length), tensors: own });
  show({ tensors, buses: [bus([0]), bus([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])] });
  assert.deepEqual(lines().map((row) => [row.dataset.kind, row.dataset.index, find(".what", row).textContent, find(".bytes", row).textContent]), [
    ["bus", "1", "…layers.1/out and 11 more", "12 KiB"], ["bus", "0", "…layers.0/out", "1 KiB"]]);
  show({ tensors: tensors.slice(1), buses: [] }); // twelve are not too many
  assert.deepEqual(lines().map((row) => row.dataset.kind), Array(12).fill("tensor"));
});

test("of more than forty lines the others are counted", () => {
  const tensors = Array.from({ length: 84 }, (_, i) => flow(i, 1024 * (Math.floor(i / 2) + 1))); // two of 1 KiB, two of 2, ...
  const buses = Array.from({ length: 42 }, (_, i) => ({ ...flow(i, 2048 * (i + 1)), tensors: [2 * i, 2 * i + 1] }));
  show({ tensors, buses });
  assert.equal(lines().length, 40);
  assert.equal(find("#map .lead").textContent, "and 4 more tensors, 6 KiB"); // two of 1 and two of 2 KiB
});

test("a run is a block from when it begins, as long as it takes, of the time to the last end", () => {
  assert.deepEqual(texts("#schedule .lead"), ["by the predicted times"]);
  const rows = findAll("#schedule .schedule");
  assert.deepEqual(rows.map((row) => [find(".what", row).textContent, marks(row)]), [
    ["pi", [["run", "0%", "25%"], ["run", "75%", "25%"]]], [FAST, [["run", "25%", "50%"]]]]);
  assert.equal(find("i", rows[1]).title, "part 1, request 1: 1 s, from 500 ms on");
  assert.deepEqual(findAll("#schedule .totals i").map((mark) => [mark.style.get("left"), mark.textContent]), [["0%", "0"], ["50%", "1 s"]]);
});

test("the matrix has a row for each part that writes, and darker cells for more bytes", () => {
  const cells = findAll("#matrix tr").map((row) => row.children.map((cell) => cell.textContent));
  assert.deepEqual(cells, [["p0", "0", "4 KiB", "4 KiB"], ["p1", "", "1", "2 KiB"], ["p2", "", "", "2"]]);
  const buttons = findAll("#matrix button");
  assert.deepEqual(buttons.map((button) => [button.classes[0], button.style.get("--share")]), [["near", "32%"], ["far", "32%"], ["near", "30.75%"]]); // 12 % + 20 % of the share
  assert.equal(buttons[1].title, "p0 → p2: 4 KiB, 1 tensor; residual");
});

test("a matrix of many parts has no words in its cells", () => {
  const names = [..."abcdefghi"];
  const [cell] = plan.matrix.cells;
  show({ matrix: { names, cells: [cell] } });
  const button = find("#matrix button");
  assert.deepEqual([button.textContent, button.style.get("--share"), button.getAttribute("aria-label")], ["", "100%", "a → b: 4 KiB, 1 tensor; sequential"]);
});

test("a cell tells in the panel what it is, as long as it is pointed at", () => {
  const button = findAll("#matrix button")[2];
  happen(button, "pointerenter");
  assert.deepEqual([texts("#panel h2"), texts("#panel dd")], [["p1 → p2"], ["2 KiB", "sequential: read by the next part only", "1", QUOTED]]);
  happen(button, "pointerleave");
  assert.deepEqual(texts("#panel h2"), ["p0.onnx · stem"]);
});

test("the tensors are in a table, too, a thousand at most", () => {
  const details = find("#map details");
  details.open = true;
  happen(details, "toggle");
  assert.deepEqual(rowsOf(details), [
    ["/m/a", "float32[1,1024]", "4 KiB", "p0.onnx", "p1.onnx, p2.onnx", "residual"], [QUOTED, "float32[1,512]", "≥ 2 KiB", "p1.onnx", "p2.onnx", "sequential"]]);
  show({ tensors: Array.from({ length: 1001 }, (_, i) => flow(i, i)), buses: [] });
  assert.deepEqual([rowsOf(details).length, rowsOf(details)[7]], [1000, ["/m/layers.7/out", "7 B", "p0.onnx", "p1.onnx", "sequential"]]); // no type is known
});

test("names of a file are text in every chart", () => {
  show({
    parts: plan.parts.map((part) => ({ ...part, name: MARKUP, device: MARKUP })), tensors: [flow(0, 1, { tensor: MARKUP })],
    runs: plan.runs.map((run) => ({ ...run, device: MARKUP, title: MARKUP })), matrix: { ...plan.matrix, names: [MARKUP, MARKUP, MARKUP] },
  });
  assert.deepEqual([texts("#map .part b"), texts("#schedule .lead"), texts("#matrix th")], [[MARKUP, MARKUP, MARKUP], [MARKUP], [MARKUP, MARKUP, MARKUP]]);
  assert.deepEqual(findAll("img, b b"), []);
});
