/* The cut profile, drawn on a canvas. */

import { nearAt, partRuns, shownCuts } from "./cuts.js";
import { $ } from "./elements.js";
import { visible } from "./names.js";
import { PLOT, envelope, gridLines, scaleFor } from "./plot.js";
import { partName, profile, scene } from "./scene.js";
import { state } from "./state.js";
import { grouped, size, sizeOf } from "./number_words.js";

export const canvas = $("#profile canvas");
export const view = { from: 0, to: profile ? profile.nodes.length : 0, log: false, hide: false };

export const shown = () => (view.hide ? profile.near : profile.alive);

/** The drawing context of a canvas, in CSS pixels, and the colours of the theme by name. */
function startDrawing(target, width, height) {
  const ratio = window.devicePixelRatio || 1;
  target.width = Math.round(width * ratio);
  target.height = Math.round(height * ratio);
  const context = target.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  return { context, colour: (name) => style.getPropertyValue(`--${name}`) };
}

export function drawProfile() {
  const width = canvas.clientWidth;
  const pixels = Math.floor(width - PLOT.left - PLOT.right);
  if (pixels < 10) return;
  const { context, colour } = startDrawing(canvas, width, PLOT.height);
  const { low, high } = envelope(shown(), view, pixels);
  const { most, y } = scaleFor(high, view.log);
  const xOf = (index) => PLOT.left + ((index + 1 - view.from) / (view.to - view.from)) * pixels;
  const plot = { context, colour, pixels, y, xOf, base: PLOT.height - PLOT.bottom };
  context.font = `12px ${colour("sans")}`;
  drawParts(plot);
  drawGrid(plot, most);
  drawAlive(plot, low, high);
  drawKeyNodes(plot);
  drawCuts(plot);
  drawCursor(plot);
}

/** A shaded background for every other part, and its name below; the numbers of the first and last node if nothing is cut. */
function drawParts({ context, colour, pixels, xOf, base }) {
  if (!partRuns().length) {
    context.fillStyle = colour("muted");
    context.textAlign = "left";
    context.fillText(`node ${grouped(view.from + 1)}`, PLOT.left, base + 40);
    context.textAlign = "right";
    context.fillText(grouped(view.to), PLOT.left + pixels, base + 40);
    return;
  }
  context.textAlign = "center";
  let start = 0;
  for (const [part, length] of partRuns()) {
    const x = Math.max(PLOT.left, xOf(start - 1));
    const end = Math.min(PLOT.left + pixels, xOf(start + length - 1));
    start += length;
    if (end <= x) continue;
    if (part % 2) {
      context.fillStyle = colour("stripe");
      context.fillRect(x, PLOT.top, end - x, base - PLOT.top);
    }
    context.fillStyle = colour("text");
    context.font = `600 12px ${colour("sans")}`;
    const fits = (text) => context.measureText(text).width + 4 <= end - x;
    const text = [state.yours ? `p${part}` : visible(partName(part)), String(part)].find(fits);
    if (text) context.fillText(text, (x + end) / 2, base + 40);
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
  context.arc(xOf(index), y(shown()[index]), radius, 0, 2 * Math.PI);
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

function drawCuts({ context, colour, xOf, base }) {
  context.textAlign = "center";
  let free = 0;
  for (const [i, cut] of shownCuts().entries()) {
    if (cut < view.from || cut >= view.to) continue;
    const x = Math.round(xOf(cut));
    context.fillStyle = colour("near");
    context.fillRect(x - 1, PLOT.top - 6, 2, base - PLOT.top + 22);
    // What the parts send: with recomputation, less than what is alive.
    const text = state.yours ? sizeOf(state.yours.boundaries[i]) : view.hide ? nearAt(cut) : sizeOf(scene.boundaries[profile.parts[cut]]);
    const half = context.measureText(text).width / 2 + 7;
    const middle = Math.min(canvas.clientWidth - half, x);
    if (middle - half < free) continue;
    free = middle + half + 4;
    context.beginPath();
    context.roundRect(middle - half, 4, 2 * half, 20, 3);
    context.fill();
    context.fillStyle = colour("on-near");
    context.fillText(text, middle, 18);
  }
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
}
