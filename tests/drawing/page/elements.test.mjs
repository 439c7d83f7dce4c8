import assert from "node:assert/strict";
import { test } from "node:test";

import "./planned_page.mjs";
import { $, all, button, coloured, copyText, html, inNextFrame, isNarrow, listen, narrowed, onKeys, share, svg } from "../../../graphcut/drawing/page/elements.js";
import { frame, happen, pass, press } from "./stand_in.mjs";

const MARKUP = '<img src=x onerror="alert(1)">';

test("what looks like markup is text, in an element and in its attributes", () => {
  const element = html("p", { title: MARKUP, text: "</p>" }, MARKUP, html("b", {}, "'&amp;'"));
  assert.equal(element.textContent, `</p>${MARKUP}'&amp;'`);
  assert.equal(element.getAttribute("title"), MARKUP);
  assert.deepEqual(all("img, b", element).map((one) => one.tag), ["b"]);
  assert.equal(svg("title", {}, MARKUP).textContent, MARKUP);
});

test("what shows nothing or turns the text is visible in texts and attributes", () => {
  const element = html("p", { title: "a\nb", text: "c\u202ed" }, "e\u200bf");
  assert.deepEqual([element.title, element.textContent], ["a\ufffdb", "c‹U+202E›de\ufffdf"]);
});

test("a long text may break after separators, a short one and a child may not", () => {
  const pieces = (element) => element.childNodes.map((one) => (one.tag === "wbr" ? "|" : one.textContent)).join("");
  assert.equal(pieces(html("p", { text: "/model/layers.0/add_1:x" })), "/|model/|layers.|0/|add_|1:|x|");
  assert.equal(pieces(html("p", { text: "/model/layers.0/add" })), "/model/layers.0/add");
  assert.equal(pieces(html("p", {}, "/model/layers.0/add_1:x")), "/model/layers.0/add_1:x");
});

test("an attribute without a value is left out, one of no length is not", () => {
  const element = html("p", { class: null, title: "", tabindex: 0, style: { left: "1px" } });
  assert.deepEqual([...element.attributes], [["title", ""], ["tabindex", "0"]]);
  assert.deepEqual([...element.style], [["left", "1px"]]);
});

test("parts have colours 137.5 degrees apart, and what is in none has no colour", () => {
  const hues = [0, 1, 2, 3].map((part) => coloured(part)["--part"]);
  assert.deepEqual(hues, ["hsl(215 60% 50%)", "hsl(352.5 60% 50%)", "hsl(130 60% 50%)", "hsl(267.5 60% 50%)"]);
  assert.deepEqual(coloured(undefined), {});
  assert.deepEqual([0, 0.25, 1].map(share), ["0%", "25%", "100%"]);
});

test("a name keeps what is up to its first number, or ten letters, and its title is whole", () => {
  const halves = (name) => narrowed(name).children.map((half) => half.textContent);
  assert.deepEqual(halves("/m/layers.12/add_3"), ["/m/layers.12", "/add_3"]);
  assert.deepEqual(halves("/m/embedding"), ["/m/embeddi", "ng"]);
  assert.deepEqual(halves("abcdefghijklmnopq1"), ["abcdefghij", "klmnopq1"]); // its number is too far behind
  assert.deepEqual(halves("👩".repeat(11)), ["👩".repeat(10), "👩"]);
  assert.deepEqual(halves(""), ["", ""]);
  assert.equal(narrowed(MARKUP).title, MARKUP);
});

test("a listener hears each event that it names", () => {
  const heard = [];
  const element = html("p", { on: { "focus pointerenter": ({ type }) => heard.push(type) } });
  listen(element, { click: () => heard.push("clicked") });
  for (const event of ["focus", "pointerleave", "pointerenter", "click"]) happen(element, event);
  assert.deepEqual(heard, ["focus", "pointerenter", "clicked"]);
  const made = button({ text: "Go" }, () => heard.push("gone"));
  made.click();
  assert.deepEqual([made.tag, made.textContent, heard.at(-1)], ["button", "Go", "gone"]);
});

test("keys that mean something are kept from the browser, others and its own are not", () => {
  const heard = [];
  const element = html("p");
  onKeys(element, { a: () => heard.push("a"), " ": () => heard.push("space") });
  assert.deepEqual([press(element, "a"), press(element, " "), press(element, "b"), press(element, "a", { ctrlKey: true })], [true, true, false, false]);
  assert.deepEqual(heard, ["a", "space"]);
});

test("what is asked for several times is drawn once in the next frame", () => {
  let drawn = 0;
  const draw = inNextFrame(() => { drawn += 1; });
  draw();
  draw();
  assert.equal(drawn, 0);
  frame();
  frame();
  assert.equal(drawn, 1);
});

test("a command is copied, or selected where a page may not copy, and the button says so for a while", async () => {
  const [code, asked] = [html("code", { text: "graphcut split 'a b.onnx'" }), html("button", {}, "Copy command")];
  await copyText(code, asked);
  assert.deepEqual([globalThis.copied, asked.textContent], ["graphcut split 'a b.onnx'", "Copied"]);
  await pass(1600);
  assert.equal(asked.textContent, "Copy command");
  const clipboard = navigator.clipboard;
  navigator.clipboard = { writeText: () => Promise.reject(new Error("not allowed")) };
  await copyText(code, asked);
  navigator.clipboard = undefined;
  assert.equal(asked.textContent, "Selected: press Ctrl+C");
  await copyText(code, asked);
  assert.equal(asked.textContent, "Selected: press Ctrl+C");
  navigator.clipboard = clipboard;
});

test("elements are found in the page or in another one", () => {
  assert.equal($("#parts h2").textContent, "Parts");
  const list = html("ul", {}, html("li", {}, "a"), html("li", {}, "b"));
  assert.deepEqual(all("li", list).map((one) => one.textContent), ["a", "b"]);
  assert.equal(isNarrow, false);
});
