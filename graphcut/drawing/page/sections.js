/* Tables below the charts, and the sections that have nothing else. */

import { cutAfter } from "./cuts.js";
import { $, button, html, show } from "./elements.js";
import { kindOf } from "./flows.js";
import { runs, titleOf } from "./things.js";
import { cutter, isRanked, names, profile, scene } from "./scene.js";
import { MAX_ROWS, asTable, nodeLink, partTable, table } from "./tables.js";
import { duration, grouped, size, sizeOf } from "./number_words.js";

const { boundaries, buses, cards, sent, tensors } = scene;

export function startMap() {
  if (cards.length) asTable("map", () => [table("tensors between parts", [
    ["from", "", (bus) => cards[bus.source].name],
    ["to", "", (bus) => names(bus.readers)],
    ["tensors", "number", (bus) => grouped(bus.tensors.length)],
    ["bytes", "number", sizeOf],
    ["kind", "", kindOf],
  ], buses), ...isRanked ? [] : [table("totals of the boundaries", [
    ["boundary", "", (boundary) => `${cards[boundary.index].name} | ${cards[boundary.index + 1].name}`],
    ["tensors", "number", (boundary) => grouped(boundary.tensors)],
    ["bytes", "number", sizeOf],
  ], boundaries.map((boundary, index) => ({ ...boundary, index })))]]);
  if (tensors.length) asTable("lanes", () => [table("boundary tensors", [
    ["tensor", "name mono", (tensor) => tensor.tensor],
    ["type", "mono", (tensor) => tensor.type],
    ["bytes", "number", sizeOf],
    ["made by", "", (tensor) => cards[tensor.source].name],
    ["read by", "", (tensor) => names(tensor.readers)],
    ["kind", "", kindOf],
  ], tensors)]);
}

export function startSchedule() {
  if (runs.length) asTable("schedule", () => [table("runs of parts", [
    ["of", "", (run) => run.title],
    ["device", "", (run) => run.device],
    ["part", "number", (run) => grouped(run.part)],
    ["request", "number", (run) => grouped(run.request + 1)],
    ["begins", "number", (run) => duration(run.began_s)],
    ["takes", "number", (run) => duration(run.seconds)],
  ], runs)]);
}

export function startBalance() {
  if (cards.length) show("balance", partTable("balance", cards.map((card, i) => ({ ...card, sent: sent[i] })), [
    ["part", "name", titleOf],
    cards.some((card) => card.device) ? ["device", "mono clip", (card) => card.device] : null,
  ]));
}

function cutPointTable(rows) {
  return table("cut points", [
    ["after node", "name", (option) => nodeLink(option.nodes_before - 1, option.node)],
    rows.some((option) => option.module) ? ["module", "mono", (option) => option.module] : null,
    ["number", "number", (option) => grouped(option.nodes_before)],
    ["bytes", "number", sizeOf],
    ["tensors", "number", (option) => grouped(option.tensors)],
    ["weights before", "number", (option) => size(option.weights_before)],
    ["after", "number", (option) => size(option.weights_after)],
    ["key node", "", (option) => (option.is_key ? "yes" : "")],
  ], rows);
}

export function startCutPoints() {
  const all = profile ? profile.cut_options : [];
  if (!all.length) return;
  if (!cards.length) $("#cut-points-title").textContent = "Cut points";
  const best = all.filter((option) => profile.best.includes(option.nodes_before));
  show("cut-points", cutPointTable(best));
  if (best.length === all.length) return;
  const place = $("#cut-points .scroll");
  const most = Math.min(MAX_ROWS, all.length);
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
    $("#yours").scrollIntoView({ block: "nearest" });
  });
}

export function startDetails() {
  if (scene.details.length) show("details", table("details", [["", "word", ([word]) => word], ["", "name", ([, value]) => value]], scene.details));
}

export function startSentences(id) {
  const lines = (text) => text.split("\n").map((line) => html("div", { text: line }));
  if (scene[id].length) show(id, html("ul", { class: "plain" }, ...scene[id].map((text) => html("li", {}, ...lines(text)))));
}
