/* The cut profile: its picture, and what one can do with it by pointer and by keys.
   Curves are SVG, stretched to the room that there is; parts, cuts and words are HTML over it. */

import { dropCut, moveCut, sentBy, toggleCut } from "./cuts.js";
import { $, coloured, html, inNextFrame, listen, onKeys, share, svg } from "./elements.js";
import { LEFT, cutNear, envelope, gridLines, nextLow, nodeAt, scaleFor, zoomed } from "./plot.js";
import { LARGE, crossesAt, cutter, partIn, placed, plan, profile, resting, scene, select, shown, state, tell, when } from "./shown.js";
import { count, figuresOf, grouped, shortPart, size, sizeOf } from "./words.js";

const SNAP = 8; // so many pixels around the pointer are searched for a low place
const OFF = 30; // so many pixels above or below the profile a cut is dropped
const COLUMNS = 1500; // of the curves, as in page.html: as many as a wide window has pixels
const LINES = ["over", "far", "pick"]; // colours of the lines of layers, as html.py names them

const plot = $("#profile .plot");
const area = $(".area", plot);
const view = { from: 0, to: profile ? profile.nodes.length : 0, log: false };
const isIn = (node) => node >= view.from && node < view.to;
const shareOf = (node) => (node + 1 - view.from) / (view.to - view.from);

/* The picture. */

let curves = { of: "" }; // the view that the curves are of, and the scale of their heights

/** Draws the curves only if the view is another one. */
const drawProfile = inNextFrame(() => {
  $("#reset").hidden = view.to - view.from === profile.nodes.length;
  $("#reset").textContent = `Nodes ${grouped(view.from + 1)} to ${grouped(view.to)}: show all`;
  const of = Object.values(view).join();
  if (of !== curves.of) drawCurves(of);
  const { spans, cuts } = shown();
  $(".parts", area).replaceChildren(...partMarks(spans));
  const before = state.yours ? plan.cuts.filter(isIn).map((cut) => mark("before", shareOf(cut))) : [];
  $(".cuts", area).replaceChildren(...before, ...cutMarks(cuts.filter(isIn)), ...cursorMarks());
});

const mark = (css, left, style, ...content) => html("div", { class: css, style: { left: share(left), ...style } }, ...content);

/** Pale up to the highest value of a column, dark up to the lowest: the cheapest cut there. */
function drawCurves(of) {
  const { low, high } = envelope(profile.alive, view, COLUMNS);
  const { most, heightOf } = scaleFor(high, view.log);
  curves = { of, heightOf };
  const steps = (bytes) => Array.from(bytes, (one, x) => `V${1 - heightOf(one)}H${x + 1}`).join("");
  const layer = ({ heights }) => `M${Array.from(envelope(heights, view, COLUMNS).high, (one, x) => `${x},${1 - one}`).join("L")}`;
  const path = (css, d, style) => svg("path", { class: css, d, style });
  $("svg", area).replaceChildren(
    path("high", `M0,1${steps(high)}V1Z`), path("low", `M0,1${steps(low)}V1Z`),
    path("edge", `M0,${1 - heightOf(low[0])}${steps(low)}`),
    ...scene.layers.map((one, i) => path("edge layer", layer(one), { stroke: `var(--${LINES[i % LINES.length]})` })),
    ...keyPaths(profile.keys.filter(isIn)).map(([css, d]) => path(css, d)));
  const lines = [0, ...gridLines(most, view.log)].filter((bytes) => heightOf(bytes) <= 1);
  $(".grid", area).replaceChildren(...lines.map((bytes) => (
    html("div", { style: { bottom: share(heightOf(bytes)) } }, html("span", {}, bytes ? size(bytes) : "0")))));
}

/** A tick below each key node, and a dot on it where there are few. */
function keyPaths(keys) {
  const at = (key) => Math.round(shareOf(key) * COLUMNS);
  const dots = keys.length > COLUMNS / 7 ? [] : keys.map((key) => `M${at(key)},${1 - curves.heightOf(profile.alive[key])}h0`);
  return [["key", [...new Set(keys.map(at))].map((x) => `M${x},1.04v.06`).join("")], ["dot", dots.join("")]];
}

/** The colour of each part, and as much of its name as there is room for. */
function partMarks(spans) {
  let start = 0;
  return spans.flatMap(([part, length]) => {
    const [from, to] = [start, start + length].map((node) => Math.min(1, Math.max(0, shareOf(node - 1))));
    start += length;
    const names = [html("span", {}, placed(part)), html("b", {}, part)];
    return to > from ? [mark("span", from, { width: share(to - from), ...coloured(part) }, ...names)] : [];
  });
}

/** What crosses a cut, and the figures of the parts before and after it. */
function cutWords(cut) {
  const { parts } = shown();
  const around = parts.slice(partIn(cut), partIn(cut) + 2).map((one) => `${shortPart(one.name)}: ${figuresOf(one).join(", ")}`);
  return [`${sizeOf(crossesAt(cut))} in ${count(crossesAt(cut).tensors, "tensor")}`, ...cutter ? around : []];
}

/** A line for each cut, and what the parts send there, if there is room for it since the cut before. */
function cutMarks(cuts) {
  return cuts.toSorted((a, b) => a - b).map((cut, i, sorted) => {
    const from = i ? shareOf(sorted[i - 1]) : 0;
    const style = { "--width": share(shareOf(cut) - from), opacity: state.drag?.isOff && cut === state.drag.cut ? 0.3 : 1 };
    return mark(i ? "cut" : "first cut", from, style, html("span", {}, sizeOf(crossesAt(cut))));
  });
}

/** The chosen node, what is said of a cut after it, and the nodes to zoom to. */
function cursorMarks() {
  const { at, drag } = state;
  const found = [];
  if (drag && drag.end !== drag.start) {
    const [left, right] = [drag.start, drag.end].sort((a, b) => a - b).map((x) => `${x - LEFT}px`);
    found.push(html("div", { class: "chosen", style: { left, width: `calc(${right} - ${left})` } }));
  }
  if (at === null || !isIn(at)) return found;
  const dot = html("i", { style: { bottom: share(curves.heightOf(profile.alive[at])) } });
  return [...found, mark("cursor", shareOf(at), {}, dot, ...shown().cuts.includes(at) ? [cursorWords(at)] : [])];
}

function cursorWords(cut) {
  const words = state.drag?.isOff ? ["let go to take", "this cut away"] : cutWords(cut);
  // Moved to the left by its share of the width, the text ends where the area does.
  return html("p", { style: { translate: share(-shareOf(cut)) } }, ...words.map((line) => html("span", {}, line)));
}

/* What one can do with it. */

const nodeUnder = (x, reach) => nodeAt(profile.alive, view, x, area.clientWidth, reach);
const cutUnder = (x, pixels) => (cutter ? cutNear(shown().cuts, view, x, pixels, area.clientWidth) : null);

function zoom(from, to) {
  Object.assign(view, zoomed(from, to, profile.nodes.length));
  drawProfile();
}

function zoomBy(factor, middle = state.at ?? (view.from + view.to) / 2) {
  const half = ((view.to - view.from) * factor) / 2;
  zoom(middle - half, middle + half);
}

/** Says of the chosen node what a screen reader tells, of a cut what is written at it. */
function describe() {
  const { at } = state;
  drawProfile();
  if (at === null) return;
  const key = profile.keys.includes(at) ? ", key node" : "";
  const said = shown().cuts.includes(at) ? `cut here, ${cutWords(at).join(", ")}` : `a cut here sends ${sentBy(at)}`;
  const all = [`${profile.nodes[at]}, ${profile.ops[at]}${key}: ${said}`, ...scene.layers.map(({ words }) => words[at])];
  Object.assign(plot, { ariaValueNow: at + 1, ariaValueText: all.filter(Boolean).join("; ") });
}

export function selectKey(direction) {
  const at = state.at ?? (direction > 0 ? -1 : Infinity);
  const next = direction > 0 ? profile.keys.find((key) => key > at) : profile.keys.findLast((key) => key < at);
  if (next !== undefined) select(next);
}

function startDrag({ button, offsetX, pointerType, pointerId }) {
  if (button !== 0) return;
  state.drag = { start: offsetX, end: offsetX, cut: cutUnder(offsetX, pointerType === "mouse" ? 5 : 16) };
  plot.setPointerCapture(pointerId);
}

/** Moves a cut, and chooses the node that it is after then. */
function moveChosen(from, to) {
  const { at, pinned } = state;
  Object.assign(state, { at: to, pinned: { kind: "node", index: to } });
  const isMoved = moveCut(from, to);
  if (!isMoved) Object.assign(state, { at, pinned });
  return isMoved;
}

function drag({ offsetX, offsetY, altKey }) {
  const { drag } = state;
  if (!drag) return plot.classList.toggle("moves", cutUnder(offsetX, 5) !== null);
  if (drag.cut === null) {
    drag.end = offsetX;
    return drawProfile();
  }
  drag.isOff = offsetY < -OFF || offsetY > plot.clientHeight + OFF;
  const node = drag.isOff || offsetX === drag.start ? drag.cut : nodeUnder(offsetX, altKey ? 0 : SNAP);
  drag.move = () => { if (node !== drag.cut && moveChosen(drag.cut, node)) drag.cut = node; };
  if (profile.nodes.length < LARGE) drag.move();
  else {
    state.at = node; // its figures follow when the pointer rests
    moveResting();
  }
  return drawProfile();
}

const moveResting = resting(() => state.drag?.move?.(), 100);

/** Moves a cut or takes it away, chooses a node, or zooms to the nodes between the ends of a longer way. */
function endDrag() {
  const { drag } = state;
  if (!drag) return undefined;
  const [low, high] = [drag.start, drag.end].sort((a, b) => a - b);
  drag.move?.();
  if (drag.isOff) dropCut(drag.cut);
  state.drag = null;
  if (drag.isRemembered) tell("cut"); // for what waited for the end
  const perPixel = (view.to - view.from) / area.clientWidth;
  if (drag.cut !== null) return select(drag.cut);
  if (high - low < 5) return select(nodeUnder(high, perPixel < 1 ? 0 : 2));
  return zoom(...[low, high].map((x) => view.from + (x - LEFT) * perPixel));
}

const step = (by) => select(state.at === null ? (by > 0 ? view.from : view.to - 1) : state.at + by);

/** Steps to a neighbour; with Shift the chosen cut moves, to the next low place or with Alt to the next node. */
function stepOrMove({ shiftKey, altKey }, by) {
  const to = altKey ? state.at + by : nextLow(profile.alive, state.at, by) ?? state.at + by;
  if (shiftKey && moveChosen(state.at, to)) select(to);
  else step(by);
}

export function startProfile() {
  if (!profile?.nodes.length) return;
  const last = profile.nodes.length - 1;
  $("#profile").hidden = false;
  plot.ariaValueMax = last + 1;
  if (profile.keys.length) area.dataset.below = "key nodes";
  listen(plot, {
    pointerdown: startDrag, pointermove: drag, pointerup: endDrag,
    pointercancel: () => {
      state.drag = null;
      drawProfile();
    },
    dblclick: ({ offsetX, altKey }) => { if (cutter && cutUnder(offsetX, 5) === null) toggleCut(nodeUnder(offsetX, altKey ? 0 : SNAP)); },
  });
  when("chosen", () => {
    if (state.at < view.from || state.at >= view.to) zoomBy(1, state.at);
    describe();
  });
  when("cut", describe);
  onKeys(plot, {
    ArrowRight: (event) => stepOrMove(event, 1), ArrowLeft: (event) => stepOrMove(event, -1), PageDown: () => step(100), PageUp: () => step(-100),
    Home: () => select(0), End: () => select(last), "+": () => zoomBy(0.5), "-": () => zoomBy(2), Enter: () => step(0),
  });
  listen($("#log"), { click: ({ target }) => {
    view.log = !view.log;
    target.setAttribute("aria-pressed", view.log);
    drawProfile();
  } });
  listen($("#reset"), { click: () => zoom(0, last + 1) });
  drawProfile();
}
