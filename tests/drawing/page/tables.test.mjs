import assert from "node:assert/strict";
import { test } from "node:test";

import "./planned_page.mjs";
import { html } from "../../../graphcut/drawing/page/elements.js";
import { state, tell } from "../../../graphcut/drawing/page/shown.js";
import { asTable, nodeLink, table } from "../../../graphcut/drawing/page/tables.js";
import { MARKUP } from "./scenes.mjs";
import { find, findAll, happen, pass, rowsOf, texts } from "./stand_in.mjs";

test("a table has a row for each record and a column for each title that there is", () => {
  const made = table("sizes", [["name", "mono", ({ name }) => name], null, ["bytes", "number", ({ bytes }) => html("b", {}, bytes)]], [
    { name: MARKUP, bytes: 5 }, { name: "b", bytes: 0 }]);
  assert.deepEqual(texts("thead th", made), ["name", "bytes"]);
  assert.deepEqual(rowsOf(made), [[MARKUP, "5"], ["b", "0"]]);
  assert.deepEqual(findAll("td", made).map((cell) => [cell.getAttribute("class"), cell.dataset.title]), [
    ["mono", "name"], ["number", "bytes"], ["mono", "name"], ["number", "bytes"]]);
  assert.equal(made.getAttribute("aria-label"), "sizes");
  assert.deepEqual(findAll("img", made), []);
});

test("a table that is shown as blocks keeps its roles", () => {
  const made = table("one", [["a", "", () => "1"]], [{}]);
  assert.deepEqual([made, ...made.descendants].map((element) => `${element.tag} ${element.role}`), [
    "table table", "thead rowgroup", "tr row", "th columnheader", "tbody rowgroup", "tr row", "td cell"]);
});

test("columns without titles have no head", () => {
  const made = table("none", [["", "", () => "1"]], [{}]);
  assert.deepEqual([findAll("thead", made), find("td", made).dataset.title], [[], undefined]);
});

test("a table is made when it is opened, anew for other cuts, and goes when it is closed", async () => {
  let times = 0;
  asTable("map", MARKUP, () => [html("p", {}, times += 1)]);
  const details = find("#map details");
  const shown = () => texts("p", details);
  assert.deepEqual([find("summary", details).textContent, shown()], [MARKUP, []]);
  tell("cut");
  assert.equal(times, 0);
  details.open = true;
  happen(details, "toggle");
  assert.deepEqual(shown(), ["1"]);
  tell("cut");
  assert.deepEqual(shown(), ["2"]);
  state.drag = {};
  tell("cut"); // while a cut is dragged it waits
  tell("cut");
  assert.deepEqual(shown(), ["2"]);
  await pass(120);
  assert.deepEqual(shown(), ["3"]);
  state.drag = null;
  details.open = false;
  happen(details, "toggle");
  assert.deepEqual(shown(), []);
});

test("a node in a table leads to it in the profile", () => {
  const link = nodeLink(1, "…short");
  assert.deepEqual([link.title, link.textContent], [MARKUP, "…short"]);
  link.click();
  assert.deepEqual([state.at, state.pinned], [1, { kind: "node", index: 1 }]);
  assert.equal(document.activeElement, find("#profile .plot"));
});
