/* The cut profile, drawn on a canvas. */

import { nearAt } from "./cuts.js";
import { $ } from "./elements.js";
import { shortPart, visible } from "./names.js";
import { colourOf, figuresOf } from "./part_words.js";
import { PLOT, envelope, gridLines, scaleFor } from "./plot.js";
import { cutter, profile } from "./scene.js";
import { crossing, partIn, partName, partRuns, placed, plan, shown } from "./shown.js";
import { state } from "./state.js";
import { count, grouped, size, sizeOf } from "./number_words.js";

export const canvas = $("#profile canvas");
export const view = { from: 0, to: profile ? profile.nodes.length : 0, log: false, hide: false };

export const values = () => (view.hide ? profile.near : profile.alive);

const colours = new Map();

/** A colour of the theme; kept until the theme changes, since asking for it has the page styled anew. */
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`));
  return colours.get(name);
}

export function drawInTheme() {
  colours.clear();
  drawProfile();
}

/** The drawing context of a canvas, in CSS pixels, and the colours of the theme by name. */
function startDrawing(target, width, height) {
  const ratio = window.devicePixelRatio || 1;
  target.width = Math.round(width * ratio);
  target.height = Math.round(height * ratio);
  const context = target.getContext("2d");
  context.scale(ratio, ratio);
  return { context, colour };
}

/** The size of the canvas: reading it anew in each frame would have the whole page laid out for it. */
export const extent = { width: 0, height: 0 };

export function measure() {
  Object.assign(extent, { width: canvas.clientWidth, height: canvas.clientHeight });
  drawProfile();
}

export function drawProfile() {
  const { width, height } = extent;
  const pixels = Math.floor(width - PLOT.left - PLOT.right);
  if (pixels < 10) return;
  $("#reset").hidden = view.to - view.from === profile.nodes.length;
  const { context, colour } = startDrawing(canvas, width, height);
  const { low, high } = envelope(values(), view, pixels);
  const { most, y } = scaleFor(high, view.log, height);
  const xOf = (index) => PLOT.left + ((index + 1 - view.from) / (view.to - view.from)) * pixels;
  const plot = { context, colour, pixels, y, xOf, base: height - PLOT.bottom };
  context.font = `12px ${colour("sans")}`;
  drawParts(plot);
  drawGrid(plot, most);
  drawAlive(plot, low, high);
  drawKeyNodes(plot);
  drawCuts(plot);
  drawCursor(plot);
}

/** The colour of each part, and its name below; the numbers of the first and last node if nothing is cut. */
function drawParts({ context, colour, pixels, xOf, base }) {
  if (!partRuns().length) {
    context.fillStyle = colour("muted");
    context.textAlign = "left";
    context.fillText(`node ${grouped(view.from + 1)}`, PLOT.left, base + 36);
    context.textAlign = "right";
    context.fillText(grouped(view.to), PLOT.left + pixels, base + 36);
    return;
  }
  context.textAlign = "center";
  let start = 0;
  for (const [part, length] of partRuns()) {
    const x = Math.max(PLOT.left, xOf(start - 1));
    const end = Math.min(PLOT.left + pixels, xOf(start + length - 1));
    start += length;
    if (end <= x) continue;
    context.fillStyle = colourOf(part);
    context.fillRect(x, base + 44, end - x, 4);
    context.globalAlpha = 0.12;
    context.fillRect(x, PLOT.top, end - x, base - PLOT.top);
    context.globalAlpha = 1;
    context.fillStyle = colour("text");
    context.font = `600 12px ${colour("sans")}`;
    const fits = (text) => context.measureText(text).width + 4 <= end - x;
    const text = [placed(part), partName(part), String(part)].map(visible).find(fits);
    if (text) context.fillText(text, (x + end) / 2, base + 36);
    context.font = `12px ${colour("sans")}`;
  }
}

function drawGrid({ context, colour, pixels, y, base }, most) {
  context.textAlign = "right";
  context.fillStyle = colour("muted");
  for (const bytes of [0, ...gridLines(most, view.log)]) {
    const top = Math.round(y(bytes));
    if (top < PLOT.top) continue;
    context.fillText(bytes ? size(bytes) : "0", PLOT.left - 6, top + 4);
    context.fillStyle = colour("edge");
    context.fillRect(PLOT.left, top, pixels, 1);
    context.fillStyle = colour("muted");
  }
  if (profile.keys.length) context.fillText("key nodes", PLOT.left - 6, base + 16);
}

/** Pale up to the highest value of a pixel, dark up to the lowest: the cheapest cut in that pixel. */
function drawAlive({ context, colour, pixels, y, base }, low, high) {
  const trace = (values) => {
    for (let x = 0; x < pixels; x += 1) {
      context.lineTo(PLOT.left + x, y(values[x]));
      context.lineTo(PLOT.left + x + 1, y(values[x]));
    }
  };
  for (const [values, name] of [[high, "high"], [low, "alive"]]) {
    context.beginPath();
    context.moveTo(PLOT.left, base);
    trace(values);
    context.lineTo(PLOT.left + pixels, base);
    context.fillStyle = colour(name);
    context.fill();
  }
  context.beginPath();
  trace(low);
  context.strokeStyle = colour("bar");
  context.lineWidth = 1.5;
  context.stroke();
}

function drawDot({ context, y, xOf }, index, radius) {
  context.beginPath();
  context.arc(xOf(index), y(values()[index]), radius, 0, 2 * Math.PI);
  context.fill();
}

function drawKeyNodes(plot) {
  const { context, colour, pixels, xOf, base } = plot;
  const inView = profile.keys.filter((key) => key >= view.from && key < view.to);
  context.fillStyle = colour("muted");
  let last = -1;
  for (const key of inView) {
    const x = Math.round(xOf(key));
    if (x !== last) context.fillRect(x - 0.5, base + 6, 1, 10);
    last = x;
  }
  if (inView.length > pixels / 5) return;
  context.fillStyle = colour("text");
  for (const key of inView) drawDot(plot, key, 3);
}

/** What crosses a cut, and the figures of the parts before and after it. */
export function cutWords(cut) {
  const { parts } = shown();
  const part = partIn(cut);
  const around = [parts[part], parts[part + 1]].filter(Boolean).map((one) => `${shortPart(one.name)}: ${figuresOf(one).join(", ")}`);
  return [`${sizeOf(crossing(cut))} in ${count(crossing(cut).tensors, "tensor")}`, ...cutter ? around : []];
}

/** Lines of text on a ground, as near to x as they fit; the right end of the ground. */
function drawLabel({ context, colour }, x, lines, name, left) {
  const width = Math.max(...lines.map((text) => context.measureText(text).width)) + 14;
  const start = Math.max(0, Math.min(extent.width - width, x - width / 2));
  if (start < left) return left;
  context.fillStyle = colour(name);
  context.beginPath();
  context.roundRect(start, 4, width, 6 + 14 * lines.length, 3);
  context.fill();
  context.fillStyle = colour("on-near");
  lines.forEach((text, i) => context.fillText(text, start + width / 2, 18 + 14 * i));
  return start + width + 4;
}

function drawCuts(plot) {
  const { context, colour, xOf, base } = plot;
  context.textAlign = "center";
  const isIn = (cut) => cut >= view.from && cut < view.to;
  context.fillStyle = colour("muted");
  for (const cut of state.yours ? plan().cuts.filter(isIn) : []) { // where the plan cuts
    for (let y = PLOT.top; y < base; y += 8) context.fillRect(Math.round(xOf(cut)), y, 1, 4);
  }
  let free = 0;
  for (const cut of shown().cuts.filter(isIn)) {
    const x = Math.round(xOf(cut));
    context.globalAlpha = state.drag?.isOff && cut === state.drag.cut ? 0.3 : 1;
    context.fillStyle = colour("near");
    context.fillRect(x - 1, PLOT.top - 6, 2, base - PLOT.top + 22);
    // What the parts send: with recomputation, less than what is alive.
    free = drawLabel(plot, x, [view.hide && !state.yours ? nearAt(cut) : sizeOf(crossing(cut))], "near", free);
  }
  context.globalAlpha = 1;
}

function drawCursor(plot) {
  const { context, colour, xOf, base } = plot;
  context.fillStyle = colour("pick");
  if (state.drag && state.drag.end !== state.drag.start) {
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(state.drag.start, state.drag.end), PLOT.top, Math.abs(state.drag.end - state.drag.start), base - PLOT.top);
    context.globalAlpha = 1;
  }
  if (state.at === null || state.at < view.from || state.at >= view.to) return;
  context.fillRect(Math.round(xOf(state.at)) - 1, PLOT.top, 2, base - PLOT.top + 6);
  drawDot(plot, state.at, 5);
  if (!shown().cuts.includes(state.at)) return;
  context.textAlign = "center";
  drawLabel(plot, xOf(state.at), state.drag?.isOff ? ["let go to take", "this cut away"] : cutWords(state.at), "pick", 0);
}
