/* Why the cuts are where they are: of the plan as it says, of yours by trying cut points beside them. */

import { tried } from "./cuts.js";
import { $, html } from "./elements.js";
import { valueOf } from "./predicted.js";
import { LARGE, costs, cutter, profile, scene } from "./scene.js";
import { shown } from "./shown.js";
import { state, when } from "./state.js";
import { againstMean, count, sizeOf } from "./number_words.js";

const [TRIES, REST_MS] = [6, 250]; // cut points on each side of a cut, and how long the cuts rest before they are tried

let asked = 0;

/** What cuts are judged by: what the goal minimizes, else the time or the memory of the largest part; more is worse. */
function valueOfCuts(yours) {
  const own = valueOf(costs, yours);
  if (own !== null) return costs.value === "token_s" ? -own : own;
  return Math.max(...yours.parts.map((part) => part.busy_s ?? part.need_bytes ?? part.weight_bytes));
}

/** The cut points next to a cut, up to the cuts before and after it. */
function beside(cuts, i) {
  if (profile.nodes.length > LARGE) return [];
  const ends = profile.cut_options.map((option) => option.nodes_before - 1).filter((end) => end !== cuts[i] && end > (cuts[i - 1] ?? -1) && end < (cuts[i + 1] ?? Infinity));
  return [...ends.filter((end) => end < cuts[i]).slice(-TRIES), ...ends.filter((end) => end > cuts[i]).slice(0, TRIES)];
}

const pause = () => new Promise((done) => { setTimeout(done); });

/** One text for a cut; undefined if the cuts have changed meanwhile. */
async function reasonOf(yours, i, ask) {
  const { cuts, parts, on, boundaries } = yours;
  const here = valueOfCuts(yours);
  const loads = parts.map((part) => part.busy_s ?? part.need_bytes ?? part.weight_bytes);
  const found = [];
  for (const end of beside(cuts, i)) {
    await pause();
    if (ask !== asked) return undefined;
    const other = tried(cuts.map((cut, at) => (at === i ? end : cut)), on);
    if (other) found.push([valueOfCuts(other), other.boundaries[i].bytes, end, other]);
  }
  found.sort(([a, few], [b, more]) => a - b || few - more);
  const change = (value) => (Math.abs(value - here) <= 1e-9 * Math.abs(here) ? "equally good" : `${againstMean(value, here)}`);
  const lines = found.slice(0, 2).map(([value, , end, other]) => `after ${profile.nodes[end]}: ${change(value)}, ${sizeOf(other.boundaries[i])} cross there`);
  const slowest = parts[loads.indexOf(Math.max(...loads))].name;
  const isBetter = found.length && found[0][0] < here * (1 - 1e-9);
  const helps = !found.length ? "no other cut point was tried" : isBetter ? "moving this cut helps" : `moving it to one of the ${count(found.length, "cut point")} beside it does not help`;
  return [`cut ${i} after ${profile.nodes[cuts[i]]}`, `${sizeOf(boundaries[i])} cross here; ${slowest} is the bottleneck; ${helps}`, ...lines].join("\n");
}

function fill(texts) {
  const lines = (text) => text.split("\n").map((line) => html("div", { text: line }));
  $("#reasons").hidden = !texts.length;
  $("#reasons .list").replaceChildren(...texts.map((text) => html("li", {}, ...lines(text))));
}

async function showReasons() {
  const { yours } = state;
  const ask = asked += 1;
  fill(yours ? [] : scene.reasons);
  if (!yours) return;
  await new Promise((done) => { setTimeout(done, REST_MS); });
  const cuts = [...yours.cuts.keys()].sort((a, b) => yours.cuts[a] - yours.cuts[b]);
  const texts = [];
  for (const i of cuts) {
    const text = ask === asked && !state.drag ? await reasonOf(yours, i, ask) : undefined;
    if (text === undefined) return;
    texts.push(text);
  }
  fill(texts);
}

export function startReasons() {
  showReasons();
  if (cutter) when("cut", showReasons);
}
