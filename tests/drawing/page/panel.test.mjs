import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import "./planned_page.mjs";
import { cutAt, stopCutting } from "../../../graphcut/drawing/page/cuts.js";
import { html } from "../../../graphcut/drawing/page/elements.js";
import { fillPanel, isOne, showFlows, showPinned, startPanel } from "../../../graphcut/drawing/page/panel.js";
import { pin, plan, state, unpin } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, happen, press, texts } from "./stand_in.mjs";

startPanel();
afterEach(() => {
  unpin();
  if (state.yours) stopCutting();
});

/** The title of the panel, and its words with their values. */
const said = () => [find("#panel h2").textContent, ...texts("#panel dt").map((word, i) => [word, texts("#panel dd")[i]])];
const buttons = () => texts("#panel button");

const FIRST = ["p0.onnx · stem",
  ["device", "pi"], ["nodes", "1"], ["weights", "10 KiB"], ["needs", "20 KiB"], ["budget", "16 KiB"], ["of budget", "125 %, 4 KiB over"],
  ["activations", "4.5 KiB"], ["compute", "2 GFLOP"], ["time", "250 ms"], ["FLOP per byte", "8.12"], ["sends", "4 KiB"],
  ["last node", "/m/conv"], ["reads", "x"], ["writes", "/m/a"]];

test("at first the panel is of the part that needs most, and says what one can do", () => {
  assert.deepEqual(said(), FIRST);
  assert.ok(find("#panel").matches(".idle"));
  assert.match(find("#panel .hint").textContent, /^Point at anything/);
});

test("what is not known of a part is left out, and what is a lower bound says so", () => {
  const part = plan.parts[1];
  Object.assign(part, { is_exact: false, need_exact: false, replicas: 1234 });
  pin("card", 1);
  Object.assign(part, { is_exact: true, need_exact: true, replicas: 0 });
  assert.deepEqual(said(), ["p1.onnx", ["device", FAST], ["nodes", "2"], ["replicas", "1,234"], ["weights", "1 KiB"], ["needs", "≥ 8 KiB"], ["budget", "32 KiB"],
    ["of budget", "25 %"], ["activations", "≥ 7 KiB"], ["compute", "≥ 1 GFLOP"], ["time", "≥ 500 ms"], ["receives", "4 KiB"], ["sends", "≥ 2 KiB"],
    ["last node", QUOTED], ["reads", "/m/a"], ["writes", QUOTED]]);
});

test("a tensor and a bus say what they are, who makes and who reads them", () => {
  pin("tensor", 1);
  assert.deepEqual(said(), [QUOTED, ["type", "float32[1,512]"], ["size", "≥ 2 KiB"], ["kind", "sequential: read by the next part only"],
    ["made by", "p1.onnx"], ["read by", "p2.onnx"]]);
  pin("bus", 0);
  assert.deepEqual(said(), ["p0.onnx → p1.onnx, p2.onnx", ["size", "4 KiB"], ["kind", "residual: skips a part"], ["tensors", "1"], ["names", "/m/a"]]);
});

test("of many tensors eight are named", () => {
  showFlows("a → b", plan.buses[0], [..."abcdefghij"]);
  assert.deepEqual(said().slice(3), [["tensors", "10"], ["names", "a, b, c, d, e, f, g, h and 2 more"]]);
});

test("a node says what a cut after it would send, and how the weights would be divided", () => {
  pin("node", 1);
  assert.deepEqual(said(), [MARKUP, ["operator", "<i>Relu</i>"], ["node", "2 of 4"], ["part", "p1.onnx"], ["key node", "no"], ["measured", "0.1 s"],
    ["a cut here sends", "5 KiB"], ["in tensors", "2"], ["names", `/m/a 4 KiB, ${MARKUP} 1 KiB`], ["weights before", "10 KiB"], ["weights after", "11 KiB"]]);
  assert.deepEqual(buttons(), ["Cut here", "Unpin"]);
  assert.deepEqual(findAll("#panel img, #panel i"), []);
});

test("a node before a cut says what crosses it, the largest tensor first, and what the parts beside it need", () => {
  pin("node", 2);
  assert.deepEqual(said(), [QUOTED, ["crosses here", "≥ 6 KiB"], ["in tensors", "2"], ["p1.onnx", "500 ms, 8 KiB"], ["p2.onnx", "125 ms, 12 KiB"],
    ["names", `/m/a 4 KiB, ${QUOTED} ≥ 2 KiB`], ["operator", "Relu"], ["node", "3 of 4"], ["part", "p1.onnx"], ["key node", "no"], ["measured", "0.2 s"]]);
  assert.deepEqual(buttons(), ["Take this cut away", "Unpin"]);
});

test("after the last node one can't cut", () => {
  pin("node", 3);
  assert.deepEqual(said().slice(-4), [["a cut here sends", "0 B"], ["in tensors", "0"], ["weights before", "11 KiB"], ["weights after", "0 B"]]);
  assert.deepEqual(buttons(), ["Unpin"]);
});

test("the button cuts, and takes the cut away", () => {
  pin("node", 1);
  find("#cut").click();
  assert.deepEqual([state.yours.cuts, buttons(), said()[0]], [[0, 1, 2], ["Take this cut away", "Unpin"], MARKUP]);
  find("#cut").click();
  assert.deepEqual([state.yours.cuts, buttons()], [[0, 2], ["Cut here", "Unpin"]]);
});

test("a part or a tensor that is pinned is another one after a cut, and is unpinned; a node stays", () => {
  for (const [kind, rest] of [["card", null], ["tensor", null], ["node", { kind: "node", index: 0 }]]) {
    pin(kind, 0);
    cutAt([1]);
    assert.deepEqual(state.pinned, rest);
  }
});

test("the parts of your cuts say what is predicted of them", () => {
  cutAt([1]);
  pin("card", 0); // see shown.test.mjs for what it needs: 16.5 KiB of 16
  assert.deepEqual(said(), ["p0", ["device", "pi"], ["nodes", "2"], ["weights", "10 KiB"], ["needs", "16.5 KiB"], ["budget", "16 KiB"], ["of budget", "103 %, 512 B over"],
    ["activations", "5.5 KiB"], ["compute", "2.5 GFLOP"], ["time", "625 ms"], ["sends", "5 KiB"], ["last node", MARKUP], ["writes", `/m/a, ${MARKUP}`]]);
});

test("a pair without a value is left out, and a long value has room", () => {
  fillPanel(MARKUP, [["a", null], ["b", undefined], ["c", ""], ["d", "0"], ["e", "x".repeat(29)]], html("p", {}, "more"));
  assert.deepEqual(said(), [MARKUP, ["d", "0"], ["e", "x".repeat(29)]]);
  assert.deepEqual(findAll("#panel dd").map((value) => value.classes), [[], ["long"]]);
  assert.ok(!find("#panel").matches(".idle"));
  fillPanel("nothing", []);
  assert.equal(find("#panel dl"), null);
});

test("a picture of a thing shows it while it is pointed at or focused, and pins it by a click, Enter or space", () => {
  const picture = isOne(html("span"), "tensor", 0);
  document.append(picture);
  assert.deepEqual([...picture.attributes], [["data-kind", "tensor"], ["data-index", "0"], ["tabindex", "0"], ["role", "button"], ["aria-pressed", "false"]]);
  for (const [begin, end] of [["pointerenter", "pointerleave"], ["focus", "blur"]]) {
    happen(picture, begin);
    assert.equal(said()[0], "/m/a");
    happen(picture, end);
    assert.equal(said()[0], "p0.onnx · stem");
  }
  for (const choose of [() => picture.click(), () => press(picture, "Enter"), () => press(picture, " ")]) {
    choose();
    assert.deepEqual([state.pinned, picture.ariaPressed, picture.matches(".hot")], [{ kind: "tensor", index: 0 }, "true", true]);
    assert.equal(said()[0], "/m/a");
    findAll("#panel button").at(-1).click();
    assert.deepEqual([state.pinned, picture.ariaPressed, picture.matches(".hot")], [null, "false", false]);
  }
  showPinned();
  assert.deepEqual(said(), FIRST);
});
