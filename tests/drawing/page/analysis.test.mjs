import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import "./analyzed_page.mjs";
import { startCharts } from "../../../graphcut/drawing/page/charts.js";
import { startPanel } from "../../../graphcut/drawing/page/panel.js";
import { startProfile } from "../../../graphcut/drawing/page/profile.js";
import { startSections } from "../../../graphcut/drawing/page/sections.js";
import { cutter, pin, shown, unpin } from "../../../graphcut/drawing/page/shown.js";
import { MARKUP } from "./scenes.mjs";
import { find, findAll, frame, happen, pass, rowsOf, texts } from "./stand_in.mjs";

const plot = find("#profile .plot");
startPanel();
startCharts();
startProfile();
startSections();
await pass(0);
frame();
afterEach(unpin);

test("where nothing is cut there are no parts, and no charts of them", () => {
  assert.deepEqual([shown().parts, shown().boundaries, cutter], [[], [], null]);
  assert.deepEqual(["#map .chart", "#schedule .chart", "#matrix .scroll", "#parts .scroll", "#other-plans .scroll"].map((place) => find(place).children), [[], [], [], [], []]);
  assert.deepEqual(texts("#panel h2"), ["<u>model</u>"]);
});

test("without the model one can't cut here, and nothing says so", () => {
  assert.deepEqual(findAll(".cutting, .own, #compare"), []);
  find(".area", plot).clientWidth = 300;
  happen(plot, "dblclick", { offsetX: 174, altKey: false });
  assert.equal(shown().parts.length, 0);
});

test("a node says what is alive after it, the weights up to it, and the command that cuts there", async () => {
  pin("node", 1);
  const pairs = texts("#panel dt").map((word, i) => [word, texts("#panel dd")[i]]);
  assert.deepEqual(pairs, [["operator", "Add"], ["node", "2 of 3"], ["key node", "no"], ["a cut here sends", "≥ 2 KiB"], ["in tensors", "2"],
    ["weights before", "1 KiB"], ["weights after", "2 KiB"]]);
  assert.equal(find("#panel code").textContent, `graphcut split '<u>model</u>' --at-nodes='${MARKUP}'`);
  find("#copy").click();
  assert.equal(globalThis.copied, find("#panel code").textContent);
  pin("node", 2);
  assert.deepEqual(texts("#panel h2"), ["(no name)"]);
});

test("all cut points are in one table where they are few, with their modules", () => {
  assert.equal(find("#cut-points h2").textContent, "Cut points");
  assert.deepEqual(findAll("#cut-points table").map(rowsOf), [[
    ["a", "layers.0", "1", "0.977 KiB", "1", "0 B", "3 KiB", ""], [MARKUP, "", "2", "≥ 2 KiB", "2", "1 KiB", "2 KiB", "yes"]]]);
});
