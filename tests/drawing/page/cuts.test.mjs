import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./planned_page.mjs";
import { alone, canStep, cutAfter, cutAt, dropCut, moveCut, sentBy, step, stopCutting, toggleCut, tried } from "../../../graphcut/drawing/page/cuts.js";
import { state, when } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";

let told = 0;
when("cut", () => { told += 1; });
const cuts = () => state.yours?.cuts ?? "the plan";
const devices = () => state.yours.parts.map(({ device }) => device);
beforeEach(() => {
  state.drag = null;
  stopCutting();
});

test("a cut alone sends what is alive after its node, and makes two parts", () => {
  assert.deepEqual([0, 1, 2].map(sentBy), ["4 KiB", "5 KiB", "6 KiB"]);
  assert.equal(sentBy(3), "0 B"); // nothing is left after the last node: what is alive there
  assert.deepEqual([alone(1).parts.map((part) => part.weight_bytes), alone(3)], [[10240, 10 * 1024 + 1024], null]);
  assert.equal(alone(1), alone(1)); // it is computed once
});

test("cuts are tried without being made", () => {
  assert.deepEqual(tried([0, 2]).parts.map((part) => part.place), [0, 1, 0]); // three parts on two devices
  assert.deepEqual(tried([1], [1, 0]).parts.map((part) => part.place), [1, 0]);
  assert.deepEqual(tried([1], [1]).parts.map((part) => part.place), [0, 1]); // devices of other parts
  assert.equal(tried([3]), null);
  assert.equal(cuts(), "the plan");
});

test("cuts that are not possible change nothing and are told to nobody", () => {
  assert.equal(cutAt([1]), true);
  const before = told;
  assert.equal(cutAt([3]), false);
  assert.deepEqual([cuts(), told], [[1], before]);
});

test("the first change begins with the cuts of the plan", () => {
  toggleCut(1);
  assert.deepEqual([cuts(), state.at], [[0, 1, 2], 1]);
  toggleCut(1);
  assert.deepEqual(cuts(), [0, 2]);
});

test("taking the last cut away shows the plan", () => {
  cutAt([1]);
  dropCut(1);
  assert.equal(cuts(), "the plan");
});

test("a cut moves to where there is none, and keeps the devices", () => {
  cutAt([0], [1, 0]);
  assert.equal(moveCut(0, 1), true);
  assert.deepEqual([cuts(), devices()], [[1], [FAST, "pi"]]);
  assert.deepEqual([moveCut(0, 2), moveCut(null, 2), moveCut(1, -1), moveCut(1, 4), moveCut(1, 3), moveCut(1, 1)], [false, false, false, false, false, false]);
  assert.deepEqual(cuts(), [1]);
});

test("changes are undone one by one and made again, with their devices, until another change", () => {
  cutAt([0], [1, 0]);
  cutAt([1]);
  step(-1);
  assert.deepEqual([cuts(), devices()], [[0], [FAST, "pi"]]);
  step(-1);
  assert.deepEqual([cuts(), canStep(1)], ["the plan", true]);
  step(1);
  step(1);
  assert.deepEqual([cuts(), canStep(1)], [[1], false]);
  step(1);
  assert.deepEqual(cuts(), [1]);
  step(-1);
  cutAt([2]);
  assert.equal(canStep(1), false);
});

test("a drag is one step, however far it goes", () => {
  cutAt([0]);
  state.drag = {};
  for (const to of [1, 2]) moveCut(cuts()[0], to);
  state.drag = null;
  assert.deepEqual(cuts(), [2]);
  step(-1);
  assert.deepEqual(cuts(), [0]);
});

test("cuts and devices are found by their names, whatever these are", () => {
  cutAfter([MARKUP], [FAST, "pi"]);
  assert.deepEqual([cuts(), devices()], [[1], [FAST, "pi"]]);
  cutAfter(["/m/conv", QUOTED], []);
  assert.deepEqual([cuts(), devices()], [[0, 2], ["pi", FAST, "pi"]]);
  cutAfter([MARKUP, "no such node"], []);
  assert.deepEqual(cuts(), [0, 2]);
});
