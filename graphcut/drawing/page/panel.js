/* The panel: it tells of what is under the pointer, focused or pinned. Things are the parts, buses and tensors of the
   pictures, and the nodes of the profile. */

import { alone, sentBy, toggleCut } from "./cuts.js";
import { kindOf } from "./cutting.js";
import { $, all, button, copyText, html, listen, onKeys } from "./elements.js";
import { command } from "./links.js";
import { crossesAt, cutter, flowsAt, kinds, names, partIn, pin, profile, scene, shown, state, unpin, when } from "./shown.js";
import { duration, figuresOf, flop, grouped, isKnown, isOver, leastOf, listed, needOf, percent, size, sizeOf, three, titleOf } from "./words.js";

const panel = $("#panel");

/** A title and pairs of a word and a value; pairs without a value are left out. */
export function fillPanel(title, pairs, ...content) {
  const list = pairs.filter(([, value]) => isKnown(value) && value !== "").flatMap(([word, value]) => [
    html("dt", { text: word }), html("dd", { class: value.length > 28 ? "long" : null, text: value })]);
  panel.replaceChildren(html("h2", { text: title }), ...list.length ? [html("dl", {}, ...list)] : [], ...content);
  panel.classList.remove("idle");
}

const ifKnown = (text, value, least = "") => (isKnown(value) ? least + text(value) : null);

/** What parts send to others: all tensors of a bus, or of a cell of the dependency maps. */
export const showFlows = (title, flow, tensors) => fillPanel(title, [
  ["size", sizeOf(flow)],
  ["kind", kinds[kindOf(flow)][0]],
  ["tensors", grouped(tensors.length)],
  ["names", listed(tensors)],
]);

const largest = (flows) => listed([...flows].sort((a, b) => b.bytes - a.bytes).map((flow) => `${flow.tensor} ${sizeOf(flow)}`));

function ofCut(index) {
  const { cuts, parts } = shown();
  const part = partIn(index);
  if (!cutter || !cuts.includes(index) || !parts[part + 1]) return [];
  return [
    ["crosses here", sizeOf(crossesAt(index))],
    ["in tensors", grouped(crossesAt(index).tensors)],
    ...[part, part + 1].map((one) => [parts[one].name, figuresOf(parts[one]).join(", ")]),
    ["names", largest(flowsAt(index))],
  ];
}

function ofNode(index) {
  const { tensors: counts, weights } = profile;
  const made = alone(index);
  const [before, after] = made ? made.parts.map((part) => part.weight_bytes) : [weights[index], weights.at(-1) - weights[index]];
  return [
    ["a cut here sends", sentBy(index)],
    ["in tensors", grouped(made?.tensors.length ?? counts[index])],
    ["names", made && largest(made.tensors)],
    ["weights before", size(before)],
    ["weights after", size(after)],
  ];
}

/** A button that cuts after a node, or takes that cut away; where one can't cut, the command to copy. */
function cutting(index, isCut) {
  const text = command(scene.model, cutter?.dims ?? {}, [profile.nodes[index]]);
  if (!cutter) return [html("code", { class: "command", text }), button({ id: "copy", text: "Copy command" }, ({ target }) => copyText($("code", panel), target))];
  return isCut || alone(index) ? [button({ id: "cut", title: "c", text: isCut ? "Take this cut away" : "Cut here" }, () => toggleCut(index))] : [];
}

/** For each kind of a thing what fills the panel with it. */
const SHOWS = {
  card(index) {
    const card = shown().parts[index];
    const over = isOver(card) ? `, ${size(card.need_bytes - card.budget_bytes)} over` : "";
    fillPanel(titleOf(card), [
      ["device", card.device],
      ["nodes", grouped(card.nodes)],
      ["replicas", card.replicas ? grouped(card.replicas) : null],
      ["weights", size(card.weight_bytes)],
      [card.measure, card.need_bytes >= 0 ? needOf(card) : null],
      ["budget", ifKnown(size, card.budget_bytes)],
      ["of budget", card.budget_bytes ? percent(card.need_bytes / card.budget_bytes) + over : null],
      ["activations", ifKnown(size, card.activation_bytes, leastOf(card))],
      ["compute", ifKnown(flop, card.flops, leastOf(card))],
      ["time", ifKnown(duration, card.busy_s, leastOf(card))],
      ["FLOP per byte", ifKnown(three, card.intensity)],
      ["receives", card.received.tensors ? sizeOf(card.received) : null],
      ["sends", card.sent.tensors ? sizeOf(card.sent) : null],
      ["last node", card.last_node ?? profile.nodes[card.cut]],
      ["reads", listed(card.reads ?? card.read.map(({ tensor }) => tensor))],
      ["writes", listed(card.writes ?? card.written.map(({ tensor }) => tensor))],
    ]);
  },
  bus(index) {
    const { buses, tensors } = shown();
    const { source, readers, tensors: own } = buses[index];
    showFlows(`${names([source])} → ${names(readers)}`, buses[index], own.map((tensor) => tensors[tensor].tensor));
  },
  tensor(index) {
    const tensor = shown().tensors[index];
    fillPanel(tensor.tensor, [
      ["type", tensor.type],
      ["size", sizeOf(tensor)],
      ["kind", kinds[kindOf(tensor)][0]],
      ["made by", names([tensor.source])],
      ["read by", names(tensor.readers)],
    ]);
  },
  node(index) {
    const { nodes, ops, keys, cut_options: options } = profile;
    const cut = ofCut(index);
    fillPanel(nodes[index] || "(no name)", [
      ...cut,
      ["operator", ops[index]],
      ["node", `${grouped(index + 1)} of ${grouped(nodes.length)}`],
      ["part", shown().parts[partIn(index)]?.name],
      ["module", options.find((option) => option.nodes_before === index + 1)?.module],
      ["key node", keys.includes(index) ? "yes" : "no"],
      ...scene.layers.map(({ title, words }) => [title, words[index]]),
      ...cut.length ? [] : ofNode(index),
    ], ...cutting(index, cut.length > 0));
  },
};

/** Shows what is pinned; else the part that needs most, and what one can do. */
export function showPinned() {
  const { parts } = shown();
  if (state.pinned) {
    SHOWS[state.pinned.kind](state.pinned.index);
    return panel.append(button({ text: "Unpin", title: "Esc" }, unpin));
  }
  if (parts.length) SHOWS.card(parts.reduce((best, part, index) => (part.need_bytes > parts[best].need_bytes ? index : best), 0));
  else fillPanel(scene.title, []);
  panel.classList.add("idle");
  return panel.append(html("p", { class: "hint" }, "Point at anything, or reach it with Tab, to read about it here. ? lists the keys."));
}

function markPinned() {
  for (const element of all("[data-kind]")) {
    const { kind, index } = element.dataset;
    const isPinned = kind === state.pinned?.kind && Number(index) === state.pinned.index;
    element.classList.toggle("hot", isPinned);
    element.ariaPressed = isPinned;
  }
}

/** Makes an element the picture of a thing: something to point at, to focus and to pin. */
export function isOne(element, kind, index) {
  const choose = () => pin(kind, index);
  Object.assign(element.dataset, { kind, index });
  Object.assign(element, { tabIndex: 0, role: "button", ariaPressed: false });
  listen(element, { "pointerenter focus": () => SHOWS[kind](index), "pointerleave blur": showPinned, click: choose });
  onKeys(element, { Enter: choose, " ": choose });
  return element;
}

export function startPanel() {
  showPinned();
  when("pinned", showPinned);
  when("pinned", markPinned);
  when("cut", () => { // parts and tensors are others now
    if (state.pinned && state.pinned.kind !== "node") unpin();
    else showPinned();
  });
}
