/* The sections that are words and tables: parts, with the headline; cut points, other plans, reasons; and the search for nodes. */

import { alone, canStep, cutAfter, cutAt, step, stopCutting, tried } from "./cuts.js";
import { $, all, button, copyText, html, listen, narrowed, onKeys, share } from "./elements.js";
import { command } from "./links.js";
import { against, valueOf } from "./predicted.js";
import { LARGE, costs, cutter, plan, profile, scene, select, shown, state, when, whenCutRests } from "./shown.js";
import { asTable, nodeLink, table } from "./tables.js";
import { againstMean, count, duration, flop, grouped, isKnown, isOver, leastOf, needOf, percent, size, sizeOf, sumOf, titleOf, withoutCommon } from "./words.js";

const MOST_CUT_POINTS = 200; // in the longer table
const answer = [...$(".answer").childNodes]; // of the plan

/** A choice of the device of a part; devices with one name are one. */
function deviceOf(part) {
  const first = (name) => costs.devices.findIndex((device) => device.name === name);
  const names = [...new Set(costs.devices.map(({ name }) => name))];
  const choose = () => {
    cutAt(state.yours.cuts, state.yours.parts.map((one, i) => (i === part.index ? Number(choice.value) : one.place)));
    all("#parts select")[part.index].focus();
  };
  const choice = html("select", { "aria-label": `device of ${part.name}`, on: { change: choose } },
    ...names.map((name) => html("option", { value: first(name), text: name })));
  choice.value = first(costs.devices[part.place].name);
  return choice;
}

/** A number with a bar below it; `tick` is where the budget ends, as a share of the bar. */
function meter(number, part, isBad = false, tick = 0) {
  number.classList.toggle("bad", isBad);
  return html("span", {}, number, html("i", { class: isBad ? "bad" : null, style: { "--share": share(part), "--tick": share(tick) } }));
}

const exactly = (text, number, unit = "B") => html("span", { text, title: `${unit === "s" ? number : grouped(number)} ${unit}` });

/** A table of parts: what is not known of any part has no column. */
function partTable(title, { parts }, isOwn) {
  const known = (...names) => names.flatMap((name) => parts.map((one) => one[name]).filter(isKnown));
  const areKnown = (name) => known(name).length === parts.length && known(name).some((value) => value > 0);
  const load = ["busy_s", "flops", "need_bytes", "weight_bytes", "nodes"].find(areKnown);
  const mean = sumOf(parts, (one) => one[load]) / parts.length;
  const scale = Math.max(1, ...known("need_bytes", "budget_bytes"));
  const most = Math.max(1, ...known("flops"));
  const cuts = known("cut");
  const ends = withoutCommon(cuts.map((cut) => profile.nodes[cut]));
  const nameOf = (one) => html("span", {}, narrowed(titleOf(one)), ...isKnown(one.cut) ? [nodeLink(one.cut, ends[cuts.indexOf(one.cut)])] : []);
  const need = (one) => {
    const text = one.budget_bytes ? `${needOf(one)}, ${percent(one.need_bytes / one.budget_bytes)}` : needOf(one);
    return meter(exactly(text, one.need_bytes), one.need_bytes / scale, isOver(one), (one.budget_bytes ?? 0) / scale);
  };
  const crosses = ({ crosses: one }) => (one ? exactly(`${sizeOf(one)} in ${grouped(one.tensors)}`, one.bytes, `B in ${one.tensors}`) : "");
  const optional = (name, word, css, cell) => (known(name).length ? [word, css, (one) => (isKnown(one[name]) ? cell(one) : "–")] : null);
  const ofSeveral = (column) => (parts.length > 1 ? column : null);
  return table(title, [
    [cuts.length ? "part, ends after" : "part", "name", nameOf],
    isOwn && costs?.is_cluster ? ["device", "", deviceOf] : parts.some((one) => one.device) ? ["device", "mono", (one) => narrowed(one.device)] : null,
    ["nodes", "number", (one) => grouped(one.nodes)],
    ["weights", "number", (one) => exactly(size(one.weight_bytes), one.weight_bytes)],
    optional("activation_bytes", "activations", "number", (one) => exactly(leastOf(one) + size(one.activation_bytes), one.activation_bytes)),
    optional("need_bytes", parts[0].measure + (known("budget_bytes").length ? ", of budget" : ""), "meter", need),
    optional("flops", "compute", "meter", (one) => meter(html("span", { text: leastOf(one) + flop(one.flops) }), one.flops / most)),
    optional("busy_s", "time", "number", (one) => exactly(leastOf(one) + duration(one.busy_s), one.busy_s, "s")),
    ofSeveral(["vs. mean", "number", (one) => againstMean(one[load], mean)]),
    ofSeveral(["sends", "number", (one) => (one.sent.tensors ? exactly(sizeOf(one.sent), one.sent.bytes) : "–")]),
    cuts.length ? ["crosses here", "number", crosses] : null,
  ], parts);
}

/** What your cuts make, in the words of the headline of a plan. */
function answerOf({ parts, boundaries }) {
  const largest = (items, name) => items.reduce((best, one) => (one[name] > best[name] ? one : best));
  const [needs, slowest] = [largest(parts, "need_bytes"), largest(parts, "busy_s")];
  const of = needs.budget_bytes ? ` of ${size(needs.budget_bytes)}` : "";
  const need = needs.need_bytes >= 0 ? ` The largest, ${needs.name}, ${needs.measure === "needs" ? "needs" : "takes"} ${needOf(needs)}${of}.` : "";
  const time = slowest.busy_s >= 0 ? ` The slowest, ${slowest.name}, takes ${duration(slowest.busy_s)}.` : "";
  const over = parts.filter(isOver).length;
  return [`Your cuts: ${count(parts.length, "part")}.${need}${time} At most ${sizeOf(largest(boundaries, "bytes"))} crosses a boundary. `,
    ...over ? [html("span", { class: "badge bad" }, `✗ ${count(over, "part")} over budget`)] : []];
}

function showTools(yours) {
  for (const one of all("#parts .own")) one.hidden = !yours;
  $("#compare").hidden = !yours || !scene.cards.length;
  for (const [id, by] of [["undo", -1], ["redo", 1]]) Object.assign($(`#${id}`), { disabled: !canStep(by), hidden: !canStep(-1) && !canStep(1) });
  if (!yours) return;
  const change = against(costs, yours, plan.parts.length);
  $("#parts .lead").textContent = `Nothing is recomputed here; the command recomputes what takes less time than to receive it.${change}`;
  const devices = costs?.is_cluster ? yours.parts.map((one) => one.device) : [];
  $("#parts code").textContent = command(scene.model, cutter.dims, yours.cuts.map((cut) => profile.nodes[cut]), devices);
}

function showParts() {
  const { yours } = state;
  $(".answer").replaceChildren(...yours ? answerOf(yours) : answer);
  if (cutter) showTools(yours);
  $("#parts .scroll").replaceChildren(...shown().parts.length ? [partTable("parts", shown(), yours)] : []);
}

function startParts() {
  showParts();
  if (!cutter) return all(".cutting, #parts .own, #compare").forEach((one) => one.remove());
  $("#back").textContent = scene.cards.length ? "Back to the plan" : "No cuts";
  if (scene.cards.length) $("#compare .scroll").append(partTable("parts of the plan", plan, false));
  const clicked = { back: stopCutting, undo: () => step(-1), redo: () => step(1), "copy-cuts": ({ target }) => copyText($("#parts code"), target) };
  for (const [id, action] of Object.entries(clicked)) listen($(`#${id}`), { click: action });
  return when("cut", showParts);
}

/* Cut points, and other plans. */

/** What a cut at each cut point makes, where that is known; else what is alive there. */
function cutPointTable(options) {
  const rows = options.map((option) => {
    const made = alone(option.nodes_before - 1);
    if (!made) return option;
    const [{ weight_bytes: weights_before }, { weight_bytes: weights_after }] = made.parts;
    return { ...option, ...made.boundaries[0], weights_before, weights_after };
  });
  const names = withoutCommon(options.map(({ node }) => node));
  return table("cut points", [
    ["after node", "name", (option) => nodeLink(option.nodes_before - 1, names[rows.indexOf(option)])],
    rows.some((option) => option.module) ? ["module", "mono", (option) => narrowed(option.module)] : null,
    ["number", "number", (option) => grouped(option.nodes_before)],
    ["sends", "number", sizeOf],
    ["tensors", "number", (option) => grouped(option.tensors)],
    ["weights before", "number", (option) => size(option.weights_before)],
    ["after", "number", (option) => size(option.weights_after)],
    ["key node", "", (option) => (option.is_key ? "yes" : "")],
  ], rows);
}

function startCutPoints() {
  const options = profile?.cut_options ?? [];
  if (!options.length) return;
  const best = options.filter((option) => profile.best.includes(option.nodes_before));
  if (!scene.cards.length) $("#cut-points h2").textContent = "Cut points";
  const first = options.slice(0, MOST_CUT_POINTS);
  if (best.length < options.length) asTable("cut-points", `${first.length < options.length ? "The first" : "All"} ${first.length} cut points`, () => [cutPointTable(first)]);
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
  const change = (value) => (Math.abs(value - here) < 0.005 * Math.abs(here) ? "equally good" : againstMean(value, here));
  const lines = found.slice(0, 2).map(({ end, value, total }) => `after ${profile.nodes[end]}: ${change(value)}, ${sizeOf(total)} cross there`);
  const slowest = parts.reduce((best, part) => (loadOf(part) > loadOf(best) ? part : best)).name;
  const isBetter = here - found[0]?.value >= 0.005 * Math.abs(here);
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

/** Chooses the next node with the letters in a field; beside it is how many there are. */
function find({ target: field }) {
  const wanted = field.value.trim().toLowerCase();
  const isHit = (i) => `${profile.ops[i]} ${profile.nodes[i]}`.toLowerCase().includes(wanted);
  const hits = wanted ? [...profile.nodes.keys()].filter(isHit) : [];
  const next = hits.find((node) => node > (state.at ?? -1)) ?? hits[0];
  field.nextElementSibling.textContent = `${grouped(hits.indexOf(next) + 1)} of ${grouped(hits.length)}`;
  if (next !== undefined) select(next);
}

export function startSections() {
  startParts();
  startCutPoints();
  startOtherPlans();
  when("cut", () => { $("#recomputed").hidden = state.yours; }); // in your cuts nothing is
  showReasons();
  whenCutRests(showReasons);
  for (const field of all("input[type=search]")) onKeys(field, { Enter: find });
}
