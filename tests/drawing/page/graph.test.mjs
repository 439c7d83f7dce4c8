import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./planned_page.mjs";
import { cutAt, stopCutting } from "../../../graphcut/drawing/page/cuts.js";
import { enterGraph, startGraph } from "../../../graphcut/drawing/page/graph.js";
import { pin, select, state, unpin } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, frame, happen, press, texts } from "./stand_in.mjs";

const place = find("#graph .boxes");
Object.assign(place, { clientWidth: 1000, clientHeight: 200, scrollTo: (x, y) => { place.scrolled = [x, y]; } });
await startGraph();
frame();
beforeEach(() => {
  if (state.yours) stopCutting();
  unpin();
  frame();
});

const boxes = () => findAll(".box", place);
const boxOf = (name) => boxes().find((box) => texts(".line", box)[0] === name);
const styles = (elements, ...names) => elements.map((element) => names.map((name) => element.style.get(name)));
const focused = () => texts(".line", document.activeElement.parentNode)[0];

test("a box says the operator, its part, the name, what it reads besides and what it writes", () => {
  assert.deepEqual(boxes().map((box) => box.children.map((line) => line.textContent)), [
    ["input", "x", "float32[128]"],
    ["Conv p0 · pi", "/m/conv", "pads = 1", "weight float32[2560]", "→ float32[1,1024]"],
    [`<i>Relu</i> p1 · ${FAST}`, MARKUP, `→ ${MARKUP}`, "▸ then_branch, 1 node"], // its type is not known
    [`Relu p1 · ${FAST}`, QUOTED, "→ float32[1,512]"],
    ["Add p2 · pi", "/m/add", "→ float32[64]"],
    ["output", "y", "float32[64]"],
  ]);
  assert.deepEqual(findAll("#graph img, #graph b b, #graph i i"), []);
});

test("a screen reader hears whole names", () => {
  assert.equal(find("button", boxOf("/m/conv")).getAttribute("aria-label"), "Conv p0 · pi, /m/conv, pads = 1, conv.weight float32[2560], /m/a float32[1,1024]");
});

test("boxes are below each other, as high as their lines, 40 pixels apart", () => {
  assert.deepEqual(styles(boxes(), "top", "height"), [ // 28, 17 for each line, 26 for a body
    ["0px", "62px"], ["102px", "96px"], ["238px", "88px"], ["366px", "62px"], ["468px", "62px"], ["570px", "62px"]]);
  assert.deepEqual(styles([find(".canvas", place)], "height", "zoom"), [["632px", 1]]);
});

test("each part has a frame around its boxes, with its name and colour", () => {
  const frames = findAll(".frame", place);
  assert.deepEqual(texts(".frame", place), ["p0 · pi", `p1 · ${FAST}`, "p2 · pi"]);
  assert.deepEqual(styles(frames, "top", "height", "--part"), [ // 20 above, 10 below
    ["82px", "126px", "hsl(215 60% 50%)"], ["218px", "220px", "hsl(352.5 60% 50%)"], ["448px", "92px", "hsl(130 60% 50%)"]]);
});

test("an edge is named by its tensors, and over a boundary has the colour of what crosses", () => {
  const edges = findAll("g", place).map((edge) => [find("title", edge).textContent, find("path", edge).getAttribute("class")]);
  assert.deepEqual(edges, [["x float32[128]", ""], ["/m/a float32[1,1024]", "far"], ["/m/a float32[1,1024]", "far"], [MARKUP, ""],
    [`${QUOTED} float32[1,512]`, "near"], ["y float32[64]", ""]]);
  findAll("g", place)[2].click();
  assert.deepEqual([texts("#panel h2"), texts("#panel dd")], [["Conv → Add"], ["residual: skips a part", "float32[1,1024]"]]);
});

test("a click on a node chooses it, one on an input or an output tells of its tensors", () => {
  boxOf(MARKUP).click();
  frame();
  assert.deepEqual([state.pinned, boxOf(MARKUP).matches(".chosen")], [{ kind: "node", index: 1 }, true]);
  boxOf("y").click();
  assert.deepEqual([texts("#panel h2"), texts("#panel dt"), texts("#panel dd")], [["output"], ["y"], ["float32[64]"]]);
});

test("what is chosen anywhere comes to the middle of what is in sight", () => {
  for (const choose of [() => select(3), () => pin("card", 2)]) {
    choose();
    frame();
    assert.equal(place.scrolled[1], (468 + 31 + 14) - 100); // its middle, the margin, half of what is in sight
  }
  for (const [kind, middle] of [["tensor", 366 + 31], ["bus", 366 + 31]]) { // the writer of the second one
    pin(kind, 1);
    frame();
    assert.equal(place.scrolled[1], middle + 14 - 100);
  }
});

test("one enters the picture where something is chosen, and arrows go along edges to the nearest box", () => {
  select(0);
  frame();
  enterGraph();
  assert.equal(focused(), "/m/conv");
  const steps = ["ArrowDown", "ArrowUp", "ArrowUp", "ArrowUp", "ArrowLeft"].map((key) => {
    press(document.activeElement, key);
    return focused();
  });
  assert.deepEqual(steps, ["/m/add", "/m/conv", "x", "x", "x"]); // add is nearer below conv than the node with markup
  assert.deepEqual(findAll(".head[tabindex='0']", place), [document.activeElement]);
});

test("a subgraph opens with its own names, and one comes back", () => {
  const lead = () => find("#graph .lead").textContent;
  assert.equal(lead(), "The whole model: 4 nodes.");
  const [said] = texts("#panel h2");
  find(".body", boxOf(MARKUP)).click();
  frame();
  assert.deepEqual(texts("#panel h2"), [said]);
  assert.equal(lead(), `Subgraph then_branch of <i>Relu</i> ${MARKUP}: 1 node.`);
  assert.deepEqual(texts(".head", place), ["input", "Neg", "output"]);
  boxOf("<s>inner</s>").click();
  frame();
  assert.deepEqual([texts("#panel h2"), texts("#panel dd"), state.pinned], [["<s>inner</s>"], ["Neg", "inside float32[8]"], null]);
  find("#graph-back").click();
  frame();
  assert.deepEqual([lead(), boxes().length, find("#graph-back").hidden], ["The whole model: 4 nodes.", 6, true]);
});

test("the picture follows your cuts", () => {
  cutAt([0]);
  frame();
  assert.deepEqual(texts(".frame", place), ["p0 · pi", `p1 · ${FAST}`]);
  assert.deepEqual(findAll("g", place).map((edge) => find("path", edge).getAttribute("class")), ["", "near", "near", "", "", ""]);
});

test("the picture is larger and smaller, by a quarter, and fits into what is in sight", () => {
  const zoom = () => find(".canvas", place).style.get("zoom");
  const after = (id) => {
    find(`#graph-${id}`).click();
    frame();
    return zoom();
  };
  assert.deepEqual([after("larger"), after("smaller"), after("smaller"), after("fit")], [1.25, 1, 0.8, (200 - 32) / 632]);
});

test("all of a small picture can be seen, so it has no small picture of itself", () => {
  const minimap = find("#graph .minimap");
  happen(place, "scroll");
  assert.equal(minimap.getAttribute("hidden"), "");
  place.scrollHeight = 1000;
  happen(place, "scroll");
  assert.equal(minimap.getAttribute("hidden"), null);
  assert.deepEqual(findAll("rect", minimap).map((box) => box.getAttribute("y")).slice(0, 6), ["0", "102", "238", "366", "468", "570"]);
});
