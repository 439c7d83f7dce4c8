/* The cut profile, drawn on a canvas. */

import { nearAt } from "./cuts.js";
import { $, colourOf } from "./elements.js";
import { shortPart, visible } from "./names.js";
import { count, figuresOf, grouped, size, sizeOf } from "./number_words.js";
import { PLOT, envelope, gridLines, scaleFor } from "./plot.js";
import { crossesAt, cutter, partIn, partName, placed, plan, profile, scene, shown, state } from "./shown.js";

export const canvas = $("#profile canvas");
export const view = { from: 0, to: profile ? profile.nodes.length : 0, log: false, hide: false };
export const values = () => (view.hide ? profile.near : profile.alive);

const colours = new Map();
const context = canvas.getContext("2d");

/** A colour of the theme; kept until the theme changes, since asking for it has the page styled anew. */
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`));
  return colours.get(name);
}

export function drawInTheme() {
  colours.clear();
  drawNow(); // a page that is printed has no next frame
}

/** The size of the canvas: reading it anew in each frame would have the whole page laid out for it. */
export const extent = { width: 0, height: 0 };

export function measure() {
  Object.assign(extent, { width: canvas.clientWidth, height: canvas.clientHeight });
  drawProfile();
}

/** A bar of a colour. */
function bar(fill, x, y, width, height, opacity = 1) {
  Object.assign(context, { fillStyle: fill, globalAlpha: opacity });
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
}

/** A text of a colour of the theme, before, around or after x. */
function write(text, x, y, align, name = "muted") {
  Object.assign(context, { fillStyle: colour(name), textAlign: align });
  context.fillText(text, x, y);
}

let frame = 0;

/** Draws at most once a frame. */
export function drawProfile() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(drawNow);
}

function drawNow() {
  const { width, height } = extent;
  const pixels = Math.floor(width - PLOT.left - PLOT.right);
  if (pixels < 10) return;
  $("#reset").hidden = view.to - view.from === profile.nodes.length;
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  context.scale(ratio, ratio);
  context.font = `12px ${colour("sans")}`;
  const { low, high } = envelope(values(), view, pixels);
  const { most, y } = scaleFor(high, view.log, height);
  const xOf = (index) => PLOT.left + ((index + 1 - view.from) / (view.to - view.from)) * pixels;
  const plot = { pixels, y, xOf, base: height - PLOT.bottom };
  drawParts(plot);
  drawGrid(plot, most);
  drawAlive(plot, low, high);
  drawLayers(plot);
  drawKeyNodes(plot);
  drawCuts(plot);
  drawCursor(plot);
}

const isIn = (node) => node >= view.from && node < view.to;

/** The colour of each part, and its name below; the numbers of the first and last node if nothing is cut. */
function drawParts({ pixels, xOf, base }) {
  const { spans } = shown();
  if (!spans.length) {
    write(`node ${grouped(view.from + 1)}`, PLOT.left, base + 36, "left");
    write(grouped(view.to), PLOT.left + pixels, base + 36, "right");
  }
  context.font = `600 12px ${colour("sans")}`;
  let start = 0;
  for (const [part, length] of spans) {
    const x = Math.max(PLOT.left, xOf(start - 1));
    const end = Math.min(PLOT.left + pixels, xOf(start + length - 1));
    start += length;
    if (end <= x) continue;
    bar(colourOf(part), x, base + 44, end - x, 4);
    bar(colourOf(part), x, PLOT.top, end - x, base - PLOT.top, 0.12);
    const text = [placed(part), partName(part), String(part)].map(visible).find((words) => context.measureText(words).width + 4 <= end - x);
    if (text) write(text, (x + end) / 2, base + 36, "center", "text");
  }
  context.font = `12px ${colour("sans")}`;
}

function drawGrid({ pixels, y, base }, most) {
  for (const bytes of [0, ...gridLines(most, view.log)]) {
    const top = Math.round(y(bytes));
    if (top < PLOT.top) continue;
    write(bytes ? size(bytes) : "0", PLOT.left - 6, top + 4, "right");
    bar(colour("edge"), PLOT.left, top, pixels, 1);
  }
  if (profile.keys.length) write("key nodes", PLOT.left - 6, base + 16, "right");
}

/** Pale up to the highest value of a pixel, dark up to the lowest: the cheapest cut in that pixel. */
function drawAlive({ pixels, y, base }, low, high) {
  const trace = (heights) => heights.forEach((bytes, x) => {
    context.lineTo(PLOT.left + x, y(bytes));
    context.lineTo(PLOT.left + x + 1, y(bytes));
  });
  for (const [heights, name] of [[high, "high"], [low, "alive"]]) {
    context.beginPath();
    context.moveTo(PLOT.left, base);
    trace(heights);
    context.lineTo(PLOT.left + pixels, base);
    context.fillStyle = colour(name);
    context.fill();
  }
  context.beginPath();
  trace(low);
  Object.assign(context, { strokeStyle: colour("bar"), lineWidth: 1.5 });
  context.stroke();
}

/** The lines of layers: a colour of the theme, and its name. */
export const LINES = [["over", "Red"], ["far", "Orange"], ["pick", "Purple"]];

/** What other commands found of the nodes, each as a line over the same profile: the highest of a pixel. */
function drawLayers({ pixels, base }) {
  scene.layers.forEach(({ heights }, i) => {
    context.beginPath();
    envelope(heights, view, pixels).high.forEach((share, x) => context.lineTo(PLOT.left + x, base - share * (base - PLOT.top)));
    Object.assign(context, { strokeStyle: colour(LINES[i % LINES.length][0]), lineWidth: 1.5 });
    context.stroke();
  });
}

function drawDot({ y, xOf }, index, radius, name) {
  context.fillStyle = colour(name);
  context.beginPath();
  context.arc(xOf(index), y(values()[index]), radius, 0, 2 * Math.PI);
  context.fill();
}

function drawKeyNodes(plot) {
  const inView = profile.keys.filter(isIn);
  for (const x of new Set(inView.map((key) => Math.round(plot.xOf(key))))) bar(colour("muted"), x - 0.5, plot.base + 6, 1, 10);
  if (inView.length <= plot.pixels / 5) for (const key of inView) drawDot(plot, key, 3, "text");
}

/** What crosses a cut, and the figures of the parts before and after it. */
export function cutWords(cut) {
  const { parts } = shown();
  const around = parts.slice(partIn(cut), partIn(cut) + 2).map((one) => `${shortPart(one.name)}: ${figuresOf(one).join(", ")}`);
  return [`${sizeOf(crossesAt(cut))} in ${count(crossesAt(cut).tensors, "tensor")}`, ...cutter ? around : []];
}

/** Lines of text on a ground, as near to x as they fit; the right end of the ground. */
function drawLabel(x, lines, name, left) {
  const width = Math.max(...lines.map((text) => context.measureText(text).width)) + 14;
  const start = Math.max(0, Math.min(extent.width - width, x - width / 2));
  if (start < left) return left;
  context.fillStyle = colour(name);
  context.beginPath();
  context.roundRect(start, 4, width, 6 + 14 * lines.length, 3);
  context.fill();
  lines.forEach((text, i) => write(text, start + width / 2, 18 + 14 * i, "center", "on-near"));
  return start + width + 4;
}

function drawCuts({ xOf, base }) {
  for (const cut of state.yours ? plan.cuts.filter(isIn) : []) { // where the plan cuts
    for (let y = PLOT.top; y < base; y += 8) bar(colour("muted"), Math.round(xOf(cut)), y, 1, 4);
  }
  let free = 0;
  for (const cut of shown().cuts.filter(isIn)) {
    const x = Math.round(xOf(cut));
    bar(colour("near"), x - 1, PLOT.top - 6, 2, base - PLOT.top + 22, state.drag?.isOff && cut === state.drag.cut ? 0.3 : 1);
    // What the parts send: with recomputation, less than what is alive.
    free = drawLabel(x, [view.hide && !state.yours ? nearAt(cut) : sizeOf(crossesAt(cut))], "near", free);
  }
}

function drawCursor(plot) {
  const { at, drag } = state;
  const height = plot.base - PLOT.top;
  if (drag && drag.end !== drag.start) bar(colour("pick"), Math.min(drag.start, drag.end), PLOT.top, Math.abs(drag.end - drag.start), height, 0.25);
  if (at === null || !isIn(at)) return;
  bar(colour("pick"), Math.round(plot.xOf(at)) - 1, PLOT.top, 2, height + 6);
  drawDot(plot, at, 5, "pick");
  if (shown().cuts.includes(at)) drawLabel(plot.xOf(at), drag?.isOff ? ["let go to take", "this cut away"] : cutWords(at), "pick", 0);
}
