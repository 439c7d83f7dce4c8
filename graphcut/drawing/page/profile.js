/* The cut profile: what one can do with it by pointer and by keys, and its table. */

import { aliveAt, dropCut, moveCut, sentBy, toggleCut } from "./cuts.js";
import { $, html, listen, onKeys } from "./elements.js";
import { count, grouped } from "./number_words.js";
import { PLOT, cutNear, nextKey, nextLow, nodeAt, nodesPerPixel, zoomed } from "./plot.js";
import { LINES, canvas, cutWords, drawProfile, extent, measure, values, view } from "./profile_drawing.js";
import { LARGE, cutter, isRanked, profile, scene, select, shown, state, tell, when } from "./shown.js";
import { MAX_ROWS, asTable, table } from "./tables.js";

const SNAP = 8; // so many pixels around the pointer are searched for a low place
const OFF = 30; // so many pixels above or below the profile a cut is dropped

const nodeUnder = (x, reach) => nodeAt(values(), view, x, extent.width, reach);
const cutUnder = (x, pixels) => (cutter ? cutNear(shown().cuts, view, x, pixels, extent.width) : null);
const perPixel = () => nodesPerPixel(view, extent.width);

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
  canvas.setAttribute("aria-valuenow", at + 1);
  canvas.setAttribute("aria-valuetext", [`${profile.nodes[at]}, ${profile.ops[at]}${key}: ${said}`, ...scene.layers.map(({ words }) => words[at])].filter(Boolean).join("; "));
}

/** Chooses the next key node, or the one before if `direction` is negative. */
export function selectKey(direction) {
  const next = nextKey(profile.keys, state.at ?? (direction > 0 ? -1 : profile.nodes.length), direction);
  if (next !== undefined) select(next);
}

let resting = 0;

function startDrag({ button, offsetX, pointerType, pointerId }) {
  if (button !== 0) return;
  state.drag = { start: offsetX, end: offsetX, cut: cutUnder(offsetX, pointerType === "mouse" ? 5 : 16) };
  canvas.setPointerCapture(pointerId);
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
  if (!drag) return canvas.classList.toggle("moves", cutUnder(offsetX, 5) !== null);
  if (drag.cut === null) {
    drag.end = offsetX;
    return drawProfile();
  }
  drag.isOff = offsetY < -OFF || offsetY > extent.height + OFF;
  const node = drag.isOff || offsetX === drag.start ? drag.cut : nodeUnder(offsetX, altKey ? 0 : SNAP);
  drag.move = () => { if (node !== drag.cut && moveChosen(drag.cut, node)) drag.cut = node; };
  clearTimeout(resting);
  if (profile.nodes.length < LARGE) drag.move();
  else {
    state.at = node; // its figures follow when the pointer rests
    resting = setTimeout(drag.move, 100);
  }
  return drawProfile();
}

/** Moves a cut or takes it away, chooses a node, or zooms to the nodes between the ends of a longer way. */
function endDrag() {
  const { drag } = state;
  if (!drag) return undefined;
  const [low, high] = [drag.start, drag.end].sort((a, b) => a - b);
  clearTimeout(resting);
  drag.move?.();
  if (drag.isOff) dropCut(drag.cut);
  state.drag = null;
  if (drag.isRemembered) tell("cut"); // for what waited for the end
  if (drag.cut !== null) return select(drag.cut);
  if (high - low < 5) return select(nodeUnder(high, perPixel() < 1 ? 0 : 2));
  return zoom(...[low, high].map((x) => view.from + (x - PLOT.left) * perPixel()));
}

const step = (by) => select(state.at === null ? (by > 0 ? view.from : view.to - 1) : state.at + by);

/** Steps to a neighbour; with Shift the chosen cut moves, to the next low place or with Alt to the next node. */
function stepOrMove({ shiftKey, altKey }, by) {
  const to = altKey ? state.at + by : nextLow(values(), state.at, by) ?? state.at + by;
  if (shiftKey && moveChosen(state.at, to)) select(to);
  else step(by);
}

function profileTable() {
  const why = new Map(profile.keys.map((key) => [key, "key node"]));
  for (const option of profile.cut_options) why.set(option.nodes_before - 1, option.is_key ? "key node, cut point" : "cut point");
  for (const cut of profile.cuts) why.set(cut, "cut");
  const rows = [...why].sort(([a], [b]) => a - b);
  const few = rows.length > MAX_ROWS ? `The first ${grouped(MAX_ROWS)} of ${grouped(rows.length)} rows. ` : "";
  return [html("p", { class: "lead", text: `${few}All nodes are in the list at the end of the page.` }), table("cuts, cut points and key nodes", [
    ["after node", "name mono", ([index]) => profile.nodes[index]],
    ["number", "number", ([index]) => grouped(index + 1)],
    ["bytes", "number", ([index]) => aliveAt(index)],
    ["tensors", "number", ([index]) => grouped(profile.tensors[index])],
    ["kind", "", ([, what]) => what],
    ...scene.layers.map(({ title, words }) => [title, "", ([index]) => words[index]]),
  ], rows.slice(0, MAX_ROWS))];
}

const explanation = () => [
  "A cut after a node sends the bytes that are alive there. Within a pixel, the dark line is the lowest value, the pale area the highest.",
  profile.keys.length ? `${count(profile.keys.length, "key node")} (dots and ticks).` : "",
  shown().cuts.length ? "Lines are cuts, with what crosses there." : "",
  "Click to see what a cut there sends.",
  ...scene.layers.map(({ legend }, i) => `${LINES[i % LINES.length][1]} line: ${legend}`),
  scene.cards.some((card) => card.replicas) ? "Recomputed tensors count as alive here, but are not sent at the cuts." : "",
  profile.exact.every(Boolean) ? "" : "Some sizes are unknown: ≥ marks a lower bound.",
].filter(Boolean).join(" ");

export function startProfile() {
  if (!profile?.nodes.length) return;
  const last = profile.nodes.length - 1;
  $("#profile").hidden = false;
  canvas.ariaValueMax = last + 1;
  $("#hide").hidden = isRanked || profile.alive.every((bytes, i) => bytes === profile.near[i]);
  $("#profile .lead").textContent = explanation();
  listen(canvas, {
    pointerdown: startDrag, pointermove: drag, pointerup: endDrag,
    pointercancel: () => {
      clearTimeout(resting);
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
  onKeys(canvas, {
    ArrowRight: (event) => stepOrMove(event, 1), ArrowLeft: (event) => stepOrMove(event, -1), PageDown: () => step(100), PageUp: () => step(-100),
    Home: () => select(0), End: () => select(last), "+": () => zoomBy(0.5), "-": () => zoomBy(2), Enter: () => step(0),
  });
  for (const name of ["log", "hide"]) $(`#${name}`).addEventListener("click", ({ target }) => {
    view[name] = !view[name];
    target.setAttribute("aria-pressed", view[name]);
    drawProfile();
  });
  $("#reset").addEventListener("click", () => zoom(0, last + 1));
  asTable("profile", profileTable);
  measure();
}
