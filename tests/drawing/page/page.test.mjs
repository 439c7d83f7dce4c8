import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import "./linked_page.mjs";
import "../../../graphcut/drawing/page/page.js";
import { pin, select, state, unpin } from "../../../graphcut/drawing/page/shown.js";
import { stopCutting } from "../../../graphcut/drawing/page/cuts.js";
import { FAST, MARKUP, QUOTED } from "./scenes.mjs";
import { find, findAll, happen, pass, press } from "./stand_in.mjs";

const words = () => [...new URLSearchParams(location.hash.slice(1))];
const devices = () => state.yours.parts.map(({ device }) => device);
const follow = (...pairs) => {
  location.hash = `#${new URLSearchParams(pairs)}`;
  happen(window, "hashchange");
};
const field = find("#search");

test("an address of cuts, devices and a thing is followed when the page opens", () => {
  assert.deepEqual([state.yours.cuts, devices(), state.pinned], [[1], [FAST, "pi"], { kind: "node", index: 1 }]);
});

test("the page says when it is ready, and each section has its title as its name", () => {
  assert.equal(document.documentElement.dataset.ready, "yes");
  assert.deepEqual(findAll("section").map((section) => section.getAttribute("aria-label")).slice(0, 3), ["Cut profile: bytes alive after each node", "Parts", "Parts and tensors between them"]);
  assert.equal(find(".tools").hidden, false);
});

test.describe("then", () => {
  beforeEach(async () => {
    if (state.yours) stopCutting();
    unpin();
    await pass(100);
  });

  test("what is pinned and cut is in the address when nothing has changed for a tenth of a second", async () => {
    assert.deepEqual(words(), []);
    follow(["cut", "/m/conv"], ["cut", QUOTED]);
    select(1);
    await pass(99);
    assert.deepEqual(words(), [["cut", "/m/conv"], ["cut", QUOTED]]);
    await pass(1);
    assert.deepEqual(words(), [["cut", "/m/conv"], ["cut", QUOTED], ["node", MARKUP]]);
    pin("card", 0);
    await pass(100);
    assert.deepEqual(words(), [["cut", "/m/conv"], ["cut", QUOTED], ["part", "0"]]);
    follow(["cut", MARKUP], ["on", FAST], ["on", "pi"]);
    await pass(100);
    assert.deepEqual(words(), [["cut", MARKUP], ["on", FAST], ["on", "pi"]]);
  });

  test("an address that was set just now is followed, not written over", async () => {
    select(0);
    location.hash = "#part=1";
    await pass(100);
    assert.equal(location.hash, "#part=1");
    happen(window, "hashchange");
    assert.deepEqual(state.pinned, { kind: "card", index: 1 });
  });

  test("keys go to key nodes, cut, undo, unpin and turn the light out", () => {
    const after = (key, more = {}) => {
      const isPrevented = press(document, key, more);
      return [isPrevented, state.yours?.cuts ?? null, state.pinned?.index ?? null];
    };
    select(2);
    assert.deepEqual(after("["), [true, null, 0]);
    select(1);
    assert.deepEqual(after("c"), [true, [0, 1, 2], 1]);
    assert.deepEqual(after("z", { ctrlKey: true }), [true, null, 1]);
    assert.deepEqual(after("Z", { ctrlKey: true, shiftKey: true }), [true, [0, 1, 2], 1]);
    assert.deepEqual(after("z", { metaKey: true }), [true, null, 1]);
    assert.deepEqual(after("y", { ctrlKey: true }), [true, [0, 1, 2], 1]);
    assert.deepEqual(after("Escape"), [true, [0, 1, 2], null]);
    assert.deepEqual(after("c", { ctrlKey: true }), [false, [0, 1, 2], null]); // it copies
    assert.deepEqual(after("q"), [false, [0, 1, 2], null]);
    press(document, "t");
    assert.equal(document.documentElement.dataset.theme, "dark");
  });

  test("letters in a field are text, and Escape leaves it", () => {
    press(document, "/");
    assert.equal(document.activeElement, field);
    select(1);
    assert.equal(press(field, "c"), false);
    assert.equal(press(field, "z", { ctrlKey: true }), false);
    assert.equal(state.yours, null);
    assert.equal(press(field, "Escape"), true);
    assert.deepEqual([state.pinned, document.activeElement], [null, null]);
  });

  test("while the list of keys is open they do nothing", () => {
    press(document, "?");
    const dialog = find("#keys");
    assert.equal(dialog.open, true);
    select(1);
    press(document, "c");
    dialog.open = false;
    assert.equal(state.yours, null);
  });
});
