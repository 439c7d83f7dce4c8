import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import "./planned_page.mjs";
import { cutAt, stopCutting } from "../../../graphcut/drawing/page/cuts.js";
import { startSections } from "../../../graphcut/drawing/page/sections.js";
import { state } from "../../../graphcut/drawing/page/shown.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, happen, pass, press, rowsOf, texts } from "./stand_in.mjs";

startSections();
await pass(0); // cut points come after the page is open
afterEach(() => { if (state.yours) stopCutting(); });

const parts = () => rowsOf(find("#parts .scroll"));
const meters = (place) => findAll("i", place).map(({ style, classes }) => [style.get("--share"), style.get("--tick"), ...classes]).filter(([share]) => share);
const devices = () => state.yours.parts.map(({ device }) => device);

test("the table of parts has the figures of each, and how far its time is from the mean", () => {
  assert.deepEqual(texts("th", find("#parts .scroll")), ["part, ends after", "device", "nodes", "weights", "activations", "needs, of budget", "compute", "time",
    "vs. mean", "sends", "crosses here"]);
  assert.deepEqual(parts(), [ // the mean is 0.875 s / 3
    ["p0.onnx · stem…conv", "pi", "1", "10 KiB", "4.5 KiB", "20 KiB, 125 %", "2 GFLOP", "250 ms", "−14 %", "4 KiB", "4 KiB in 1"],
    ['p1.onnx…it\'s "quoted"', FAST, "2", "1 KiB", "7 KiB", "8 KiB, 25 %", "1 GFLOP", "500 ms", "+71 %", "≥ 2 KiB", "≥ 6 KiB in 2"],
    ["p2.onnx", "pi", "1", "10 KiB", "6.25 KiB", "12 KiB, 75 %", "3 GFLOP", "125 ms", "−57 %", "–", ""],
  ]);
});

test("a bar is as long as its share of the largest need or budget, which ends at a tick", () => {
  assert.deepEqual(meters(find("#parts .scroll")), [ // of 32 KiB; of 3 GFLOP
    ["62.5%", "50%", "bad"], [`${(2 / 3) * 100}%`, "0%"], ["25%", "100%"], [`${(1 / 3) * 100}%`, "0%"], ["37.5%", "50%"], ["100%", "0%"]]);
});

test("your cuts are answered, compared and written as a command", () => {
  cutAt([1]); // shown.test.mjs has the bytes and the seconds
  assert.equal(find(".answer").textContent,
    "Your cuts: 2 parts. The largest, p1, needs 19.2 KiB of 32 KiB. The slowest, p0, takes 625 ms. At most 5 KiB crosses a boundary. ✗ 1 part over budget");
  assert.deepEqual(parts(), [
    [`p0${MARKUP}`, `pi${FAST}`, "2", "10 KiB", "5.5 KiB", "16.5 KiB, 103 %", "2.5 GFLOP", "625 ms", "+18 %", "5 KiB", "5 KiB in 2"],
    ["p1", `pi${FAST}`, "2", "11 KiB", "7.25 KiB", "19.2 KiB, 60 %", "3.5 GFLOP", "438 ms", "−18 %", "–", ""],
  ]);
  assert.equal(find("#parts .lead").textContent, "Nothing is recomputed here; the command recomputes what takes less time than to receive it."
    + " Against the plan: +25 % time between requests (625 ms, the plan 500 ms). No plan is below 250 ms.");
  assert.equal(find("#parts code").textContent, `graphcut split 'my model.onnx' --at-nodes='${MARKUP}' --device='pi,${FAST}' --dim batch=1`);
  assert.equal(find("#recomputed").hidden, true);
  stopCutting();
  assert.deepEqual([find(".answer").textContent, parts().length, find("#recomputed").hidden], ["Cut into 3 parts.", 3, false]);
});

test("buttons undo, redo and go back, and are there when they have something to do", () => {
  const tools = () => ["#undo", "#redo", "#back"].filter((id) => !find(id).hidden && !find(id).disabled);
  cutAt([1]);
  cutAt([2]);
  assert.deepEqual(tools(), ["#undo", "#back"]);
  find("#undo").click();
  assert.deepEqual([state.yours.cuts, tools()], [[1], ["#undo", "#redo", "#back"]]);
  find("#redo").click();
  assert.deepEqual([state.yours.cuts, find("#compare").hidden], [[2], false]);
  find("#back").click();
  assert.deepEqual([state.yours, find("#compare").hidden, tools()], [null, true, ["#undo"]]);
});

test("the plan is beside your cuts, without a choice of devices", () => {
  cutAt([1]);
  assert.deepEqual(rowsOf(find("#compare table")).map((row) => row.slice(0, 2)), [
    ["p0.onnx · stem…conv", "pi"], ['p1.onnx…it\'s "quoted"', FAST], ["p2.onnx", "pi"]]);
});

test("a part goes to the device that is chosen for it, and the others stay", () => {
  cutAt([1]);
  const choices = () => findAll("#parts .scroll select");
  assert.deepEqual(choices().map((choice) => [choice.getAttribute("aria-label"), choice.value]), [["device of p0", 0], ["device of p1", 1]]);
  choices()[0].value = "1";
  happen(choices()[0], "change");
  assert.deepEqual([devices(), document.activeElement], [[FAST, FAST], choices()[0]]);
});

test("cut points say what a cut there makes, the best of each range first and all on demand", () => {
  const [best] = findAll("#cut-points table");
  assert.deepEqual([texts("th", best), rowsOf(best)], [
    ["after node", "number", "sends", "tensors", "weights before", "after", "key node"], [["/m/conv", "1", "4 KiB", "1", "10 KiB", "11 KiB", "yes"]]]);
  const details = find("#cut-points details");
  details.open = true;
  happen(details, "toggle");
  assert.equal(find("summary", details).textContent, "All 3 cut points");
  assert.deepEqual(rowsOf(details), [ // a weight that both parts read counts in both
    ["…conv", "1", "4 KiB", "1", "10 KiB", "11 KiB", "yes"], ["…<img src=x onerror=alert(1)>", "2", "5 KiB", "2", "10 KiB", "11 KiB", ""],
    ['…it\'s "quoted"', "3", "6 KiB", "2", "11 KiB", "10 KiB", ""]]);
});

test("another plan is cut so, on its devices", () => {
  assert.deepEqual(rowsOf(find("#other-plans")), [["500 ms", "1 s", "3", "this plan", "Cut so"], ["750 ms", "875 ms", "2", "", "Cut so"]]);
  findAll("#other-plans button")[1].click();
  assert.deepEqual([state.yours.cuts, devices()], [[1], [FAST, "pi"]]);
});

const reasons = () => findAll("#reasons li").map((reason) => reason.children.map((line) => line.textContent));

test("the plan says why its cuts are where they are", () => {
  assert.deepEqual(reasons(), [["cut 0 after /m/conv", `after ${MARKUP}: equally good`], [`cut 1 after ${QUOTED}`]]);
});

test("your cuts are compared with the cut points beside them, the best first", async () => {
  // After conv: 0.125 + 0.25 + 0.0625 s and 0.1 s for 4 KiB on the second device; after the quoted node 1 s and 0.15 s for 6 KiB on the first.
  cutAt([1]);
  await pass(0);
  assert.deepEqual(reasons(), [[`cut 0 after ${MARKUP}`, "5 KiB cross here; p0 is the bottleneck; moving this cut helps",
    "after /m/conv: −14 %, 4 KiB cross there", `after ${QUOTED}: +84 %, 6 KiB cross there`]]);
  cutAt([0]);
  await pass(0);
  assert.deepEqual(reasons(), [["cut 0 after /m/conv", "4 KiB cross here; p1 is the bottleneck; moving it to one of the 2 cut points beside it does not help",
    `after ${MARKUP}: +16 %, 5 KiB cross there`, `after ${QUOTED}: +114 %, 6 KiB cross there`]]);
});

test("reasons for cuts that were changed meanwhile are not shown", async () => {
  cutAt([1]); // two other cut points to try
  cutAt([0, 1]); // one
  await pass(0);
  assert.deepEqual(reasons().map(([title]) => title), ["cut 0 after /m/conv", `cut 1 after ${MARKUP}`]);
});

test("a search goes from hit to hit, in operators and names, and begins again after the last", () => {
  const field = find("#search");
  const search = (text) => {
    field.value = text;
    press(field, "Enter");
    return [find("#search").nextElementSibling.textContent, state.at];
  };
  assert.deepEqual([1, 2, 3].map(() => search(" RELU")), [["1 of 2", 1], ["2 of 2", 2], ["1 of 2", 1]]);
  assert.deepEqual([search("<img"), search('"quoted"'), search("no such")], [["1 of 1", 1], ["1 of 1", 2], ["0 of 0", 2]]);
  assert.deepEqual(search(""), ["0 of 0", 2]);
});

test("names of a file are text in every section", () => {
  assert.deepEqual(findAll("#sections img, #sections b"), []);
});
