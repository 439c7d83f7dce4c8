import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./planned_page.mjs";
import { step, stopCutting } from "../../../graphcut/drawing/page/cuts.js";
import { LEFT } from "../../../graphcut/drawing/page/plot.js";
import { selectKey, startProfile } from "../../../graphcut/drawing/page/profile.js";
import { profile, select, state } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, frame, happen, press, texts } from "./stand_in.mjs";

const plot = find("#profile .plot");
find(".area", plot).clientWidth = 1000; // 250 for each of the four nodes
startProfile();
beforeEach(() => {
  Object.assign(state, { drag: null, at: null });
  stopCutting();
  frame();
});

/** The x in the plot of the end of a node, and events there. */
const endOf = (node) => LEFT + 250 * (node + 1);
const at = (node, more = {}) => ({ button: 0, pointerType: "mouse", pointerId: 1, offsetX: endOf(node), offsetY: 10, altKey: false, ...more });
const dragged = (from, ...events) => {
  happen(plot, "pointerdown", at(from));
  for (const event of events) happen(plot, "pointermove", event);
  frame();
};
const letGo = () => happen(plot, "pointerup");
const cuts = () => state.yours?.cuts ?? "the plan";
const places = (selector, property = "left") => findAll(selector, plot).map((mark) => mark.style.get(property));
const path = (css) => find(`path.${css}`, plot).getAttribute("d");
/** The heights of the columns of a curve, each with the number of columns that have it in a row. */
function heights(d) {
  const found = [];
  for (const [, y] of d.matchAll(/V([\d.e-]+)H/g)) {
    if (found.at(-1)?.[0] === Number(y)) found.at(-1)[1] += 1;
    else found.push([Number(y), 1]);
  }
  return found;
}

const TOP = 6144 * 1.05; // the highest value has a margin above it
const down = (bytes) => 1 - bytes / TOP;

test("each node has its share of the columns, as high as what is alive after it", () => {
  for (const css of ["high", "low", "edge"]) {
    assert.deepEqual(heights(path(css)), [[down(4096), 375], [down(5120), 375], [down(6144), 375], [1, 375]], css);
  }
  assert.equal(path("layer").split("L").length, 1500);
  const [first, last] = [/^M0,1L1,1L/, /L1498,0.75L1499,0.75$/]; // heights 0 and 0.25
  assert.match(path("layer"), first);
  assert.match(path("layer"), last);
});

test("a key node has a tick below the profile and a dot on it", () => {
  assert.deepEqual([path("key"), path("dot")], ["M375,1.04v.06", `M375,${down(4096)}h0`]);
});

test("lines of the grid are powers of two, and as high as the curve is there", () => {
  assert.deepEqual(texts(".grid span", plot), ["0", "2 KiB", "4 KiB", "6 KiB"]);
  assert.deepEqual(places(".grid div", "bottom"), [0, 2048, 4096, 6144].map((bytes) => `${(bytes / TOP) * 100}%`));
  find("#log").click();
  frame();
  assert.deepEqual([texts(".grid span", plot), find("#log").ariaPressed], [["0", "64 B", "256 B", "1 KiB", "4 KiB"], "true"]);
  find("#log").click();
  assert.equal(find("#log").ariaPressed, "false");
});

test("parts are as wide as their nodes, and cuts are at their ends with what crosses", () => {
  assert.deepEqual([places(".parts .span"), places(".parts .span", "width")], [["0%", "25%", "75%"], ["25%", "50%", "25%"]]);
  assert.deepEqual(texts(".parts span", plot), ["p0 · pi", `p1 · ${FAST}`, "p2 · pi"]);
  assert.deepEqual([places(".cuts .cut"), places(".cuts .cut", "--width")], [["0%", "25%"], ["25%", "50%"]]); // each from the one before
  assert.deepEqual(texts(".cuts .cut", plot), ["4 KiB", "≥ 6 KiB"]);
});

test("where the cuts of the plan were is marked while you cut", () => {
  happen(plot, "dblclick", at(1));
  frame();
  assert.deepEqual([places(".before"), texts(".cuts .cut", plot)], [["25%", "75%"], ["4 KiB", "5 KiB", "6 KiB"]]);
});

test("at a chosen cut is what crosses it and what the parts beside it need", () => {
  select(0);
  frame();
  assert.deepEqual([places(".cursor"), texts(".cursor p span", plot)], [["25%"], ["4 KiB in 1 tensor", "p0: 250 ms, 20 KiB", "p1: 500 ms, 8 KiB"]]);
  assert.equal(find(".cursor p", plot).style.get("translate"), "-25%");
  select(1);
  frame();
  assert.deepEqual([places(".cursor"), texts(".cursor p", plot)], [["50%"], []]); // no cut
});

test("a screen reader hears the node, its operator, and what a cut there sends or what crosses", () => {
  const heard = (node) => {
    select(node);
    return [plot.ariaValueNow, plot.ariaValueText];
  };
  assert.deepEqual(heard(0), ["1", "/m/conv, Conv, key node: cut here, 4 KiB in 1 tensor, p0: 250 ms, 20 KiB, p1: 500 ms, 8 KiB"]);
  assert.deepEqual(heard(1), ["2", `${MARKUP}, <i>Relu</i>: a cut here sends 5 KiB; 0.1 s`]);
  assert.deepEqual(heard(2), ["3", `${QUOTED}, Relu: cut here, ≥ 6 KiB in 2 tensors, p1: 500 ms, 8 KiB, p2: 125 ms, 12 KiB; 0.2 s`]);
  assert.equal(plot.ariaValueMax, "4");
});

test("keys step through the nodes and stay on them", () => {
  const after = (...keys) => keys.map((key) => {
    press(plot, key);
    return state.at;
  });
  assert.deepEqual(after("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "ArrowLeft", "PageDown", "PageUp"), [0, 1, 0, 3, 3, 0, 0, 3, 0]);
  state.at = null;
  assert.deepEqual(after("ArrowLeft"), [3]);
});

test("brackets go to key nodes, where there is another one", () => {
  profile.keys.push(3);
  const after = [1, 1, 1, -1, -1].map((direction) => {
    selectKey(direction);
    return state.at;
  });
  assert.deepEqual(after, [0, 3, 3, 0, 0]);
  select(2);
  selectKey(-1);
  assert.equal(state.at, 0);
  profile.keys.pop();
});

test("with Shift the chosen cut moves, to the next node where no low place is next", () => {
  select(0);
  press(plot, "ArrowRight", { shiftKey: true });
  assert.deepEqual([cuts(), state.at], [[1, 2], 1]);
  press(plot, "ArrowRight", { shiftKey: true, altKey: true }); // there is one: it steps
  assert.deepEqual([cuts(), state.at], [[1, 2], 2]);
  press(plot, "ArrowLeft");
  press(plot, "ArrowLeft", { shiftKey: true, altKey: true });
  assert.deepEqual([cuts(), state.at], [[0, 2], 0]);
});

test("a click chooses the node under it, a double click cuts there", () => {
  dragged(1);
  letGo();
  assert.deepEqual([state.at, cuts()], [1, "the plan"]);
  happen(plot, "dblclick", at(1));
  assert.deepEqual(cuts(), [0, 1, 2]);
  happen(plot, "dblclick", at(1)); // on a cut
  assert.deepEqual(cuts(), [0, 1, 2]);
  happen(plot, "pointerdown", at(1, { button: 2 }));
  assert.equal(state.drag, null);
});

test("a cut follows the pointer, in one step", () => {
  dragged(0, at(1, { altKey: true }));
  assert.deepEqual([cuts(), state.at], [[1, 2], 1]);
  happen(plot, "pointermove", at(0, { altKey: true }));
  happen(plot, "pointermove", at(1, { altKey: true }));
  letGo();
  assert.deepEqual([cuts(), state.at, state.drag], [[1, 2], 1, null]);
  step(-1);
  assert.equal(cuts(), "the plan");
});

test("a cut that is dragged off the profile goes when it is let go", () => {
  dragged(0, at(0, { offsetX: endOf(0) + 1, offsetY: -31 }));
  assert.deepEqual(texts(".cursor p span", plot), []); // it is not chosen
  assert.deepEqual(places(".cuts .cut", "opacity"), [0.3, 1]);
  letGo();
  assert.deepEqual(cuts(), [2]);
  select(2);
  dragged(2, at(2, { offsetY: 31 }));
  assert.deepEqual(texts(".cursor p span", plot), ["let go to take", "this cut away"]);
  happen(plot, "pointermove", at(2, { offsetY: 30 })); // back
  letGo();
  assert.deepEqual(cuts(), [2]);
});

test("a drag that the browser takes away changes nothing more", () => {
  dragged(0, at(1, { altKey: true }));
  happen(plot, "pointercancel");
  happen(plot, "pointermove", at(0));
  letGo();
  assert.deepEqual(cuts(), [1, 2]);
});

test("what is dragged over is marked, to zoom to", () => {
  dragged(1, at(1, { offsetX: endOf(1) - 50 }));
  const chosen = find(".chosen", plot);
  assert.deepEqual([chosen.style.get("left"), chosen.style.get("width")], ["450px", "calc(500px - 450px)"]);
  letGo();
  assert.deepEqual([find("#reset").hidden, cuts()], [true, "the plan"]); // eight nodes are in sight at least
});
