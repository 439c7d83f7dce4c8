/* Things: the parts, buses, tensors and runs of the pictures, the nodes of the profile, and what the panel says of each. */

import { command } from "./commands.js";
import { alone, currentCuts, nearAt, partOf, sentBy, toggleCut } from "./cuts.js";
import { button, copy, html } from "./elements.js";
import { kindOf } from "./flows.js";
import { listed } from "./names.js";
import { fillPanel, pin, showHint, showPinned, shows } from "./panel.js";
import { cutter, kinds, names, profile, scene } from "./scene.js";
import { isOver, needOf } from "./tables.js";
import { duration, flop, grouped, leastOf, percent, size, sizeLike, sizeOf, three } from "./number_words.js";

const { cards, tensors, buses, received, sent } = scene;

const ifKnown = (text, value, least = "") => (value === null ? null : least + text(value));
export const titleOf = (card) => (card.content ? `${card.name} · ${card.content}` : card.name);

function showCard(index) {
  const card = cards[index];
  const over = isOver(card) ? `, ${sizeLike(card.need_bytes - card.budget_bytes, card.budget_bytes)} over` : "";
  fillPanel(titleOf(card), [
    ["device", card.device],
    ["nodes", grouped(card.nodes)],
    ["replicas", card.replicas ? grouped(card.replicas) : null],
    ["weights", size(card.weight_bytes)],
    [card.measure, needOf(card)],
    ["budget", ifKnown((budget) => sizeLike(budget, budget), card.budget_bytes)],
    ["of budget", card.budget_bytes ? percent(card.need_bytes / card.budget_bytes) + over : null],
    ["activations", ifKnown(size, card.activation_bytes, leastOf(card))],
    ["compute", ifKnown(flop, card.flops, leastOf(card))],
    ["time", ifKnown(duration, card.busy_s, leastOf(card))],
    ["FLOP per byte", ifKnown(three, card.intensity)],
    ["receives", received[index].tensors ? sizeOf(received[index]) : null],
    ["sends", sent[index].tensors ? sizeOf(sent[index]) : null],
    ["last node", card.last_node],
    ["reads", listed(card.reads)],
    ["writes", listed(card.writes)],
  ]);
}

function showBus(index) {
  const bus = buses[index];
  fillPanel(`${cards[bus.source].name} → ${names(bus.readers)}`, [
    ["size", sizeOf(bus)],
    ["kind", kinds[kindOf(bus)][0]],
    ["tensors", grouped(bus.tensors.length)],
    ["names", listed(bus.tensors.map((tensor) => tensors[tensor].tensor))],
  ]);
}

function showTensor(index) {
  const tensor = tensors[index];
  fillPanel(tensor.tensor, [
    ["type", tensor.type],
    ["size", sizeOf(tensor)],
    ["kind", kinds[kindOf(tensor)][0]],
    ["made by", cards[tensor.source].name],
    ["read by", names(tensor.readers)],
  ]);
}

function showStart() {
  if (cards.length) showCard(cards.reduce((best, card, index) => (card.need_bytes > cards[best].need_bytes ? index : best), 0));
  else fillPanel(scene.title, []);
  showHint("Point at anything, or reach it with Tab, to read about it here. ? lists the keys.");
}

export const runs = scene.schedules.flatMap(({ title, devices, runs: own }) => own.map((run) => ({ ...run, title, device: devices[run.worker] })));

function showRun(index) {
  const run = runs[index];
  fillPanel(`part ${run.part} · request ${run.request + 1}`, [
    ["device", run.device],
    ["begins", duration(run.began_s)],
    ["takes", duration(run.seconds)],
    ["of", run.title],
  ]);
}

function showNode(index) {
  const { nodes, ops, alive, near, tensors: counts, weights, isKey, cut_options: options } = profile;
  const text = command(scene.model, cutter?.dims ?? {}, [nodes[index]]);
  const made = alone(index), crossing = made ? made.tensors : null;
  const [before, after] = made ? made.parts.map((part) => part.weight_bytes) : [weights[index], weights.at(-1) - weights[index]];
  const isAlive = !made || made.boundaries[0].bytes === alive[index]; // else the cut is elsewhere, where less is alive
  fillPanel(nodes[index] || "(no name)", [
    ["operator", ops[index]],
    ["node", `${grouped(index + 1)} of ${grouped(nodes.length)}`],
    ["part", partOf(index)],
    ["module", options.find((option) => option.nodes_before === index + 1)?.module ?? null],
    ["key node", isKey[index] ? "yes" : "no"],
    ["a cut here sends", sentBy(index)],
    ["in tensors", grouped(crossing?.length ?? counts[index])],
    ["names", crossing && listed(crossing.map(({ tensor }) => tensor))],
    ["without residual", !isAlive || near[index] === alive[index] ? null : nearAt(index)],
    ["weights before", size(before)],
    ["weights after", size(after)],
  ], html("code", { class: "command", text }), button({ id: "copy", text: "Copy command" }, ({ currentTarget }) => copy(text, currentTarget)), ...cutButton(index));
}

function cutButton(index) {
  const isCut = cutter && currentCuts().includes(index);
  if (!isCut && !(cutter && alone(index))) return [];
  return [button({ id: "cut", title: "c", text: isCut ? "Take this cut away" : "Cut here" }, () => toggleCut(index))];
}

Object.assign(shows, { card: showCard, bus: showBus, tensor: showTensor, run: showRun, node: showNode, start: showStart });

/** Makes the parts, buses and tensors of the pictures something to point at, to focus and to pin. */
export function startPictures() {
  for (const group of document.querySelectorAll("[data-kind]")) {
    const { kind } = group.dataset;
    const index = Number(group.dataset.index);
    group.setAttribute("tabindex", 0);
    group.setAttribute("role", "button");
    group.setAttribute("aria-pressed", "false");
    // A thin line is hard to hit.
    for (const wire of kind === "bus" ? group.querySelectorAll(".wire") : []) {
      const grip = wire.cloneNode();
      grip.setAttribute("class", "grip");
      group.prepend(grip);
    }
    const peek = () => shows[kind](index);
    group.addEventListener("pointerenter", peek);
    group.addEventListener("pointerleave", showPinned);
    group.addEventListener("focus", peek);
    group.addEventListener("blur", showPinned);
    group.addEventListener("click", () => pin(kind, index));
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pin(kind, index);
    });
  }
}
