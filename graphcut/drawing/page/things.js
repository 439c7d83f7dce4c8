/* Things: the parts, buses, tensors and runs of the pictures, the nodes of the profile, and what the panel says of each. */

import { command } from "./commands.js";
import { alone, nearAt, sentBy, toggleCut } from "./cuts.js";
import { button, copy, html } from "./elements.js";
import { kindOf } from "./flows.js";
import { listed } from "./names.js";
import { fillPanel, pin, showHint, showPinned, shows } from "./panel.js";
import { figuresOf, isOver, needOf, titleOf } from "./part_words.js";
import { cutter, kinds, profile, scene } from "./scene.js";
import { crossing, names, partIn, shown } from "./shown.js";
import { duration, flop, grouped, leastOf, percent, size, sizeLike, sizeOf, three } from "./number_words.js";

const ifKnown = (text, value, least = "") => ((value ?? null) === null ? null : least + text(value));

function showCard(index) {
  const card = shown().parts[index];
  const over = isOver(card) ? `, ${sizeLike(card.need_bytes - card.budget_bytes, card.budget_bytes)} over` : "";
  fillPanel(titleOf(card), [
    ["device", card.device],
    ["nodes", grouped(card.nodes)],
    ["replicas", card.replicas ? grouped(card.replicas) : null],
    ["weights", size(card.weight_bytes)],
    [card.measure, card.need_bytes >= 0 ? needOf(card) : null],
    ["budget", ifKnown((budget) => sizeLike(budget, budget), card.budget_bytes)],
    ["of budget", card.budget_bytes ? percent(card.need_bytes / card.budget_bytes) + over : null],
    ["activations", ifKnown(size, card.activation_bytes, leastOf(card))],
    ["compute", ifKnown(flop, card.flops, leastOf(card))],
    ["time", ifKnown(duration, card.busy_s, leastOf(card))],
    ["FLOP per byte", ifKnown(three, card.intensity)],
    ["receives", card.received.tensors ? sizeOf(card.received) : null],
    ["sends", card.sent.tensors ? sizeOf(card.sent) : null],
    ["last node", card.last_node ?? profile.nodes[card.cut] ?? null],
    ["reads", listed(card.reads ?? card.read.map(({ tensor }) => tensor))],
    ["writes", listed(card.writes ?? card.written.map(({ tensor }) => tensor))],
  ]);
}

function showBus(index) {
  const { buses, tensors } = shown();
  const bus = buses[index];
  fillPanel(`${names([bus.source])} → ${names(bus.readers)}`, [
    ["size", sizeOf(bus)],
    ["kind", kinds[kindOf(bus)][0]],
    ["tensors", grouped(bus.tensors.length)],
    ["names", listed(bus.tensors.map((tensor) => tensors[tensor].tensor))],
  ]);
}

function showTensor(index) {
  const tensor = shown().tensors[index];
  fillPanel(tensor.tensor, [
    ["type", tensor.type ?? null],
    ["size", sizeOf(tensor)],
    ["kind", kinds[kindOf(tensor)][0]],
    ["made by", names([tensor.source])],
    ["read by", names(tensor.readers)],
  ]);
}

function showStart() {
  const { parts } = shown();
  if (parts.length) showCard(parts.reduce((best, part, index) => (part.need_bytes > parts[best].need_bytes ? index : best), 0));
  else fillPanel(scene.title, []);
  showHint("Point at anything, or reach it with Tab, to read about it here. ? lists the keys.");
}

function showRun(index) {
  const run = shown().runs[index];
  fillPanel(`part ${run.part} · request ${run.request + 1}`, [
    ["device", run.device],
    ["begins", duration(run.began_s)],
    ["takes", duration(run.seconds)],
    ["of", run.title ?? shown().title],
  ]);
}

/** The names of tensors with their sizes, the largest first. */
const largest = (flows) => listed([...flows].sort((a, b) => b.bytes - a.bytes).map((flow) => `${flow.tensor} ${sizeOf(flow)}`));

/** What crosses a cut, and what both of its parts need. */
function ofCut(index) {
  const { cuts, parts, tensors } = shown();
  const part = cutter && cuts.includes(index) ? partIn(index) : null;
  if (part === null || !parts[part + 1]) return [];
  const flows = tensors.filter((flow) => flow.source <= part && flow.readers.at(-1) > part);
  return [
    ["crosses here", sizeOf(crossing(index))],
    ["in tensors", grouped(flows.length)],
    ...[part, part + 1].map((one) => [parts[one].name, figuresOf(parts[one]).join(", ")]),
    ["names", largest(flows)],
  ];
}

/** What one cut after a node makes. */
function ofNode(index) {
  const { alive, near, tensors: counts, weights } = profile;
  const made = alone(index), flows = made ? made.tensors : null;
  const [before, after] = made ? made.parts.map((part) => part.weight_bytes) : [weights[index], weights.at(-1) - weights[index]];
  const isAlive = !made || made.boundaries[0].bytes === alive[index]; // else the cut is elsewhere, where less is alive
  return [
    ["a cut here sends", sentBy(index)],
    ["in tensors", grouped(flows?.length ?? counts[index])],
    ["names", flows && largest(flows)],
    ["without residual", !isAlive || near[index] === alive[index] ? null : nearAt(index)],
    ["weights before", size(before)],
    ["weights after", size(after)],
  ];
}

function showNode(index) {
  const { nodes, ops, isKey, cut_options: options } = profile;
  const cut = ofCut(index);
  const text = command(scene.model, cutter?.dims ?? {}, [nodes[index]]);
  fillPanel(nodes[index] || "(no name)", [
    ...cut,
    ["operator", ops[index]],
    ["node", `${grouped(index + 1)} of ${grouped(nodes.length)}`],
    ["part", shown().parts[partIn(index)]?.name ?? ""],
    ["module", options.find((option) => option.nodes_before === index + 1)?.module ?? null],
    ["key node", isKey[index] ? "yes" : "no"],
    ...cut.length ? [] : ofNode(index),
  ], ...cutter ? cutButton(index, cut.length) : [html("code", { class: "command", text }), button({ id: "copy", text: "Copy command" }, ({ currentTarget }) => copy(text, currentTarget))]);
}

function cutButton(index, isCut) {
  return isCut || alone(index) ? [button({ id: "cut", title: "c", text: isCut ? "Take this cut away" : "Cut here" }, () => toggleCut(index))] : [];
}

Object.assign(shows, { card: showCard, bus: showBus, tensor: showTensor, run: showRun, node: showNode, start: showStart });

/** Makes an element the picture of a thing: something to point at, to focus and to pin. */
export function isOne(element, kind, index) {
  Object.assign(element.dataset, { kind, index });
  for (const [name, value] of [["tabindex", 0], ["role", "button"], ["aria-pressed", false]]) element.setAttribute(name, value);
  const peek = () => shows[kind](index);
  for (const event of ["pointerenter", "focus"]) element.addEventListener(event, peek);
  for (const event of ["pointerleave", "blur"]) element.addEventListener(event, showPinned);
  element.addEventListener("click", () => pin(kind, index));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pin(kind, index);
  });
  return element;
}

/** The same for what the pictures in the page show. */
export function startPictures() {
  for (const group of document.querySelectorAll("[data-kind]")) {
    const { kind, index } = group.dataset;
    // A thin line is hard to hit.
    for (const wire of kind === "bus" ? group.querySelectorAll(".wire") : []) {
      const grip = wire.cloneNode();
      grip.setAttribute("class", "grip");
      group.prepend(grip);
    }
    isOne(group, kind, Number(index));
  }
}
