/* Tables below the charts, and the sections that have nothing else. */

import { alone, cutAfter } from "./cuts.js";
import { $, button, html, show } from "./elements.js";
import { kindOf } from "./flows.js";
import { LARGE, cutter, isRanked, profile, scene } from "./scene.js";
import { names, shown } from "./shown.js";
import { state, when } from "./state.js";
import { MAX_ROWS, asTable, nodeLink, table } from "./tables.js";
import { duration, grouped, size, sizeOf } from "./number_words.js";

/** The flows between parts, the totals of boundaries, and the tensors. */
function flowTables() {
  const { boundaries, buses, parts, tensors } = shown();
  const ends = (flow) => names([flow.source]);
  return [table("tensors between parts", [
    ["from", "", ends],
    ["to", "", (bus) => names(bus.readers)],
    ["tensors", "number", (bus) => grouped(bus.tensors.length)],
    ["bytes", "number", sizeOf],
    ["kind", "", kindOf],
  ], buses), ...isRanked ? [] : [table("totals of the boundaries", [
    ["boundary", "", ({ index }) => names([index, index + 1]).replace(", ", " | ")],
    ["tensors", "number", (boundary) => grouped(boundary.tensors)],
    ["bytes", "number", sizeOf],
  ], boundaries.map((boundary, index) => ({ ...boundary, index })))], table("boundary tensors", [
    ["tensor", "name mono", (tensor) => tensor.tensor],
    tensors.some(({ type }) => type) ? ["type", "mono", (tensor) => tensor.type] : null,
    ["bytes", "number", sizeOf],
    ["made by", "", ends],
    ["read by", "", (tensor) => names(tensor.readers)],
    ["kind", "", kindOf],
  ], tensors.slice(0, MAX_ROWS))];
}

export function startMap() {
  asTable("map", flowTables);
}

/** What a cut at each cut point makes, where that is known; else what is alive there. */
function cutPointTable(options) {
  const rows = options.map((option) => {
    const made = alone(option.nodes_before - 1);
    if (!made) return option;
    const [{ weight_bytes: weights_before }, { weight_bytes: weights_after }] = made.parts;
    return { ...option, ...made.boundaries[0], weights_before, weights_after };
  });
  return table("cut points", [
    ["after node", "name", (option) => nodeLink(option.nodes_before - 1, option.node)],
    rows.some((option) => option.module) ? ["module", "mono", (option) => option.module] : null,
    ["number", "number", (option) => grouped(option.nodes_before)],
    ["sends", "number", sizeOf],
    ["tensors", "number", (option) => grouped(option.tensors)],
    ["weights before", "number", (option) => size(option.weights_before)],
    ["after", "number", (option) => size(option.weights_after)],
    ["key node", "", (option) => (option.is_key ? "yes" : "")],
  ], rows);
}

const MORE = 200; // cut points in the longer list

export function startCutPoints() {
  const all = profile ? profile.cut_options : [];
  if (!all.length) return;
  if (!scene.cards.length) $("#cut-points-title").textContent = "Cut points";
  const best = all.filter((option) => profile.best.includes(option.nodes_before));
  $("#cut-points").hidden = false;
  const fill = () => show("cut-points", cutPointTable(best));
  if (profile.nodes.length > LARGE) setTimeout(fill);
  else fill();
  if (best.length === all.length) return;
  const place = $("#cut-points .scroll");
  const most = Math.min(MORE, all.length);
  const more = button({ text: `Show ${most === all.length ? "all" : "the first"} ${grouped(most)}` }, () => {
    place.replaceChildren(cutPointTable(all.slice(0, most)));
    more.remove();
  });
  place.after(more);
}

export function startOtherPlans() {
  if (scene.other_plans.length) show("other-plans", table("other plans", [
    ["between two requests", "number", (plan) => duration(plan.period_s)],
    ["one request", "number", (plan) => duration(plan.latency_s)],
    scene.other_plans.some((plan) => plan.devices.length) ? ["parts", "number", (plan) => grouped(plan.devices.length)] : null,
    ["shown", "", (plan) => (plan.is_chosen ? "this plan" : "")],
    cutter && scene.other_plans.some((plan) => plan.after.length) ? ["choose", "", otherPlanButton] : null,
  ], scene.other_plans));
}

/** Cuts as another plan does. */
function otherPlanButton({ after, devices }) {
  if (!after.length) return "";
  return button({ text: "Cut so" }, () => {
    cutAfter(after, devices);
    $("#parts").scrollIntoView({ block: "nearest" });
  });
}

export function startDetails() {
  if (scene.details.length) show("details", table("details", [["", "word", ([word]) => word], ["", "name", ([, value]) => value]], scene.details));
}

export function startRecomputed() {
  const isHidden = () => { $("#recomputed").hidden = !scene.recomputed.length || state.yours; }; // nothing is in your cuts
  show("recomputed", html("ul", { class: "plain" }, ...scene.recomputed.map((text) => html("li", { text }))));
  isHidden();
  when("cut", isHidden);
}
