import assert from "node:assert/strict";
import { test } from "node:test";

import "./planned_page.mjs";
import { predicted } from "../../../graphcut/drawing/page/predicted.js";
import { costsOf } from "../../../graphcut/drawing/page/cutting.js";
import { LARGE, costs, crossesAt, cutter, flowsAt, kinds, names, partIn, pin, placed, plan, profile, resting, scene, select, shown, shownCuts, started, state, tell, unpacked, unpin, when, whenCutRests } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED, planned } from "./scenes.mjs";
import { pass } from "./stand_in.mjs";

test("the scene is what the page has, and the profile is read fast", async () => {
  assert.deepEqual(await unpacked("data"), planned);
  assert.deepEqual([scene.title, scene.model, kinds], ["model.onnx", "my model.onnx", planned.kinds]);
  assert.deepEqual(profile.alive, Float64Array.of(4096, 5120, 6144, 0));
  assert.ok(started > 0 && LARGE > profile.nodes.length);
});

test("parts of the plan have what they receive, send, and what crosses behind them", () => {
  const totals = plan.parts.map(({ received, sent, crosses }) => [received, sent, crosses].map((total) => total && [total.bytes, total.tensors, total.is_exact]));
  assert.deepEqual(totals, [
    [[0, 0, true], [4096, 1, true], [4096, 1, true]],
    [[4096, 1, true], [2048, 1, false], [6144, 2, false]],
    [[6144, 2, false], [0, 0, true], undefined],
  ]);
  assert.deepEqual(plan.parts.map(({ read, written }) => [read, written].map((flows) => flows.map(({ tensor }) => tensor))), [
    [[], ["/m/a"]], [["/m/a"], [QUOTED]], [["/m/a", QUOTED], []]]);
  assert.deepEqual(plan.parts.map(({ index, cut }) => [index, cut]), [[0, 0], [1, 2], [2, undefined]]);
  assert.deepEqual(plan.spans, [[0, 1], [1, 2], [2, 1]]);
  assert.deepEqual(plan.runs.map(({ device, part, began_s, title }) => [device, part, began_s, title]), [
    ["pi", 0, 0, "by the predicted times"], [FAST, 1, 0.5, "by the predicted times"], ["pi", 2, 1.5, "by the predicted times"]]);
});

test("a node is in the part that has it, and its cut is crossed by what is alive there", () => {
  assert.deepEqual([0, 1, 2, 3].map(partIn), [0, 1, 1, 2]);
  assert.deepEqual([crossesAt(0).bytes, crossesAt(2).bytes], [4096, 6144]);
  assert.deepEqual(flowsAt(2).map(({ tensor }) => tensor), ["/m/a", QUOTED]);
  assert.equal(names([0, 2]), "p0.onnx, p2.onnx");
  assert.deepEqual([placed(0), placed(1)], ["p0 · pi", `p1 · ${FAST}`]);
});

/** Your cuts after some nodes. */
const cutAfter = (...nodes) => shownCuts(predicted(costs, costsOf(cutter, nodes), null));

test("your cuts are in the form of the plan", () => {
  const yours = cutAfter(1);
  // Both send 5 KiB at 40 KiB/s: 0.125 s. The first computes 0.25 + 0.25 s on pi, the second 0.25 + 0.0625 s on the other one.
  assert.deepEqual(yours.parts.map(({ name, device, nodes, busy_s, measure }) => [name, device, nodes, busy_s, measure]), [
    ["p0", "pi", 2, 0.625, "needs"], ["p1", FAST, 2, 0.4375, "needs"]]);
  // A session, the weights, what is read, and what is alive at most: a and b; c and y.
  assert.deepEqual(yours.parts.map((part) => part.need_bytes), [1024 + 10240 + 512 + 5120, 1024 + 11264 + 5120 + 2304]);
  assert.deepEqual(yours.parts.map((part) => part.budget_bytes), [16384, 32768]);
  assert.deepEqual(yours.boundaries, [{ bytes: 5120, is_exact: true, tensors: 2 }]);
  assert.deepEqual(yours.buses.map(({ source, readers, tensors }) => [source, readers, tensors]), [[0, [1], [0, 1]]]);
  assert.deepEqual(yours.matrix.cells.map(({ tensors, share }) => [tensors, share]), [[["/m/a", MARKUP], 1]]);
  assert.deepEqual(yours.spans, [[0, 2], [1, 2]]);
});

test("a part begins when the one before has ended and its device is free, for three requests", () => {
  const { runs } = cutAfter(1);
  assert.deepEqual(runs.map(({ request, part, device, began_s, seconds }) => [request, part, device, began_s, seconds]), [
    [0, 0, "pi", 0, 0.625], [0, 1, FAST, 0.625, 0.4375],
    [1, 0, "pi", 0.625, 0.625], [1, 1, FAST, 1.25, 0.4375],
    [2, 0, "pi", 1.25, 0.625], [2, 1, FAST, 1.875, 0.4375]]);
  assert.match(runs[0].title, /^3 requests in flight/);
});

test("what is shown is the plan until the reader cuts", () => {
  assert.equal(shown(), plan);
  state.yours = cutAfter(1);
  assert.deepEqual([shown().parts.length, [0, 1, 2, 3].map(partIn), placed(1)], [2, [0, 0, 1, 1], `p1 · ${FAST}`]);
  state.yours = null;
});

test("a chosen node is one that there is, and is pinned after it was told of", () => {
  const told = [];
  when("chosen", () => told.push(`chosen ${state.at}`));
  when("pinned", () => told.push(`pinned ${state.pinned?.index ?? "nothing"}`));
  when("pinned", () => told.push("and the next one"));
  select(-5);
  select(99);
  pin("tensor", 1);
  unpin();
  unpin(); // nothing is pinned
  assert.deepEqual(told, ["chosen 0", "pinned 0", "and the next one", "chosen 3", "pinned 3", "and the next one",
    "pinned 1", "and the next one", "pinned nothing", "and the next one"]);
});

test("an action that is asked for again waits again", async () => {
  let times = 0;
  const later = resting(() => { times += 1; }, 100);
  later();
  await pass(99);
  later();
  await pass(99);
  assert.equal(times, 0);
  await pass(1);
  assert.equal(times, 1);
});

test("what takes long follows each cut, but a dragged one only when it rests", async () => {
  let times = 0;
  whenCutRests(() => { times += 1; });
  tell("cut");
  assert.equal(times, 1);
  state.drag = {};
  tell("cut");
  tell("cut");
  assert.equal(times, 1);
  await pass(120);
  assert.equal(times, 2);
  state.drag = null;
});
