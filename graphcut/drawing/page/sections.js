/* The sections that have words and tables alone: cut points, other plans, reasons; and the search for nodes. */

import { alone, cutAfter, tried } from "./cuts.js";
import { $, all, button, html, onKeys } from "./elements.js";
import { valueOf } from "./predicted.js";
import { LARGE, costs, cutter, profile, scene, select, state, when, whenCutRests } from "./shown.js";
import { asTable, nodeLink, table } from "./tables.js";
import { againstMean, count, duration, grouped, size, sizeOf } from "./words.js";

/** What a cut at each cut point makes, where that is known; else what is alive there. */
function cutPointTable(options) {
  const rows = options.map((option) => {
    const made = alone(option.nodes_before - 1);
    if (!made) return option;
    const [{ weight_bytes: weights_before }, { weight_bytes: weights_after }] = made.parts;
    return { ...option, ...made.boundaries[0], weights_before, weights_after };
  });
  return table("cut points", [
    ["after node", "name", (option) => nodeLink(option.nodes_before - 1)],
    rows.some((option) => option.module) ? ["module", "mono", (option) => option.module] : null,
    ["number", "number", (option) => grouped(option.nodes_before)],
    ["sends", "number", sizeOf],
    ["tensors", "number", (option) => grouped(option.tensors)],
    ["weights before", "number", (option) => size(option.weights_before)],
    ["after", "number", (option) => size(option.weights_after)],
    ["key node", "", (option) => (option.is_key ? "yes" : "")],
  ], rows);
}

const MOST_CUT_POINTS = 200;

function startCutPoints() {
  const options = profile?.cut_options ?? [];
  if (!options.length) return;
  const best = options.filter((option) => profile.best.includes(option.nodes_before));
  if (!scene.cards.length) $("#cut-points h2").textContent = "Cut points";
  const first = options.slice(0, MOST_CUT_POINTS);
  if (best.length < options.length) asTable("cut-points", `The first ${first.length} of ${grouped(options.length)}`, () => [cutPointTable(first)]);
  setTimeout(() => $("#cut-points .scroll").append(cutPointTable(best))); // after the page is open: it takes long for many nodes
}

function startOtherPlans() {
  const plans = scene.other_plans;
  const cutSo = ({ after, devices }) => (after.length ? button({ text: "Cut so" }, () => {
    cutAfter(after, devices);
    $("#parts").scrollIntoView({ block: "nearest" });
  }) : "");
  if (plans.length) $("#other-plans .scroll").append(table("other plans", [
    ["between two requests", "number", (plan) => duration(plan.period_s)],
    ["one request", "number", (plan) => duration(plan.latency_s)],
    plans.some((plan) => plan.devices.length) ? ["parts", "number", (plan) => grouped(plan.devices.length)] : null,
    ["shown", "", (plan) => (plan.is_chosen ? "this plan" : "")],
    cutter && plans.some((plan) => plan.after.length) ? ["choose", "", cutSo] : null,
  ], plans));
}

/* Why the cuts are where they are: of the plan as it says, of yours by trying cut points beside them. */

const TRIES = 6; // cut points on each side of a cut

const loadOf = (part) => part.busy_s ?? part.need_bytes ?? part.weight_bytes;

/** What cuts are judged by: what the goal minimizes, else the time or the memory of the largest part; more is worse. */
function valueOfCuts(yours) {
  const own = valueOf(costs, yours) ?? Math.max(...yours.parts.map(loadOf));
  return costs?.value === "token_s" ? -own : own;
}

/** The cut points next to a cut, up to the cuts before and after it. */
function beside(cuts, i) {
  const ends = profile.nodes.length > LARGE ? [] : profile.cut_options.map((option) => option.nodes_before - 1);
  const between = ends.filter((end) => end > (cuts[i - 1] ?? -1) && end < (cuts[i + 1] ?? Infinity));
  return [...between.filter((end) => end < cuts[i]).slice(-TRIES), ...between.filter((end) => end > cuts[i]).slice(0, TRIES)];
}

/** One text for a cut, from what was found of others in its place. */
function reasonOf({ cuts, parts, boundaries }, here, i, found) {
  found.sort((a, b) => a.value - b.value || a.total.bytes - b.total.bytes);
  const change = (value) => (Math.abs(value - here) <= 1e-9 * Math.abs(here) ? "equally good" : againstMean(value, here));
  const lines = found.slice(0, 2).map(({ end, value, total }) => `after ${profile.nodes[end]}: ${change(value)}, ${sizeOf(total)} cross there`);
  const slowest = parts.reduce((best, part) => (loadOf(part) > loadOf(best) ? part : best)).name;
  const isBetter = found[0]?.value < here * (1 - 1e-9);
  const helps = !found.length ? "no other cut point was tried" : isBetter ? "moving this cut helps"
    : `moving it to one of the ${count(found.length, "cut point")} beside it does not help`;
  return [`cut ${i} after ${profile.nodes[cuts[i]]}`, `${sizeOf(boundaries[i])} cross here; ${slowest} is the bottleneck; ${helps}`, ...lines].join("\n");
}

function fillReasons(texts) {
  const lines = (text) => text.split("\n").map((line) => html("div", { text: line }));
  $("#reasons .list").replaceChildren(...texts.map((text) => html("li", {}, ...lines(text))));
}

/** Shows the reasons of the plan; of your cuts after trying others, unless they change meanwhile. */
async function showReasons() {
  const { yours } = state;
  fillReasons(yours ? [] : scene.reasons);
  const texts = [];
  for (const i of [...yours?.cuts.keys() ?? []].sort((a, b) => yours.cuts[a] - yours.cuts[b])) {
    const found = [];
    for (const end of beside(yours.cuts, i)) {
      await new Promise((done) => { setTimeout(done); });
      if (state.yours !== yours || state.drag) return;
      const other = tried(yours.cuts.with(i, end), yours.on);
      if (other) found.push({ end, value: valueOfCuts(other), total: other.boundaries[i] });
    }
    texts.push(reasonOf(yours, valueOfCuts(yours), i, found));
  }
  if (yours) fillReasons(texts);
}

/* The search for nodes, by the fields of the profile and of the graph. */

let searched = null; // operators and names in small letters

/** Chooses the next node with the letters in a field; beside it is how many there are. */
function find({ target: field }) {
  const wanted = field.value.trim().toLowerCase();
  searched ??= profile.nodes.map((name, i) => `${profile.ops[i]} ${name}`.toLowerCase());
  const hits = wanted ? [...searched.keys()].filter((i) => searched[i].includes(wanted)) : [];
  const next = hits.find((node) => node > (state.at ?? -1)) ?? hits[0];
  field.nextElementSibling.textContent = `${grouped(hits.indexOf(next) + 1)} of ${grouped(hits.length)}`;
  if (next !== undefined) select(next);
}

export function startSections() {
  startCutPoints();
  startOtherPlans();
  when("cut", () => { $("#recomputed").hidden = state.yours; }); // in your cuts nothing is
  showReasons();
  whenCutRests(showReasons);
  for (const field of all("input[type=search]")) onKeys(field, { Enter: find });
}
