/* The parts side by side, and below them a line for what each sends to which others: it follows the cuts. */

import { $, html, inLine } from "./elements.js";
import { kindOf } from "./flows.js";
import { shortPart, shortened, visible } from "./names.js";
import { colourOf, figuresOf, isOver } from "./part_words.js";
import { cutter, kinds } from "./scene.js";
import { names, shown } from "./shown.js";
import { when } from "./state.js";
import { isOne } from "./things.js";
import { count, grouped, size, sizeOf, sumOf } from "./number_words.js";

const [FEW_TENSORS, MOST_ROWS] = [12, 40]; // more tensors are a line for all with the same ends
const [MOST_TOTALS, MOST_HEADS] = matchMedia("(max-width: 640px)").matches ? [5, 4] : [10, 9];

function placed(css, left, width = null, text = "") {
  const mark = inLine("i", css, text);
  mark.style.left = `${left * 100}%`;
  if (width !== null) mark.style.width = `${width * 100}%`;
  return mark;
}

function row(css, name, amount, ...content) {
  const title = name.title ?? name;
  const cells = [inLine("span", "what", name.short ?? name), inLine("span", "bytes", amount), html("span", { class: "track" }, ...content)];
  return html("div", { class: `lane ${css}`, title }, ...cells);
}

function headOf(part) {
  const lines = [part.device, ...figuresOf(part), isOver(part) ? "over budget" : ""].filter(Boolean);
  const shownLines = shown().parts.length > MOST_HEADS ? [] : lines; // no room for them
  const head = html("span", { class: `part${isOver(part) ? " bad" : ""}`, title: [part.name, part.content, ...lines].filter(Boolean).join(", ") });
  head.append(inLine("b", null, shortPart(part.name)), ...shownLines.map((text) => inLine("span", null, text)));
  head.style.setProperty("--part", colourOf(part.index));
  return isOne(head, "card", part.index);
}

/** A line from the part that writes something to the last one that reads it, with a dot in each that does. */
function lane(flow, kind, index, name, most) {
  const all = shown().parts.length;
  const at = (part) => (part + 0.5) / all;
  const last = flow.readers.at(-1);
  const wire = placed("wire", at(flow.source), (last - flow.source) / all);
  wire.style.height = `${4 - 2.5 * Math.min(Math.log2((most + 1) / (flow.bytes + 1)) / 16, 1)}px`;
  const title = `${name.title}, ${sizeOf(flow)}, from ${names([flow.source])} to ${names(flow.readers)}; ${kinds[kindOf(flow)][0]}`;
  return isOne(row(kinds[kindOf(flow)][1], { ...name, title }, sizeOf(flow),
    wire, placed("made", at(flow.source)), ...flow.readers.map((reader) => placed("read", at(reader)))), kind, index);
}

function lanes({ tensors, buses }) {
  const isFew = tensors.length <= FEW_TENSORS;
  const titles = (isFew ? tensors : buses.map((bus) => tensors[bus.tensors[0]])).map(({ tensor }) => visible(tensor));
  const short = shortened(titles, matchMedia("(max-width: 640px)").matches ? 12 : 32);
  const most = Math.max(0, ...tensors.map((flow) => flow.bytes));
  const flows = [...(isFew ? tensors : buses).entries()].sort(([, a], [, b]) => (isFew ? 0 : b.bytes - a.bytes));
  const found = flows.slice(0, MOST_ROWS).map(([index, flow]) => {
    const more = isFew || flow.tensors.length === 1 ? "" : ` and ${flow.tensors.length - 1} more`;
    return lane(flow, isFew ? "tensor" : "bus", index, { short: short[index] + more, title: titles[index] + more }, most);
  });
  const rest = flows.slice(MOST_ROWS).map(([, flow]) => flow);
  if (rest.length) found.push(html("p", { class: "lead", text: `and ${count(sumOf(rest, (bus) => bus.tensors.length), "more tensor")}, ${size(sumOf(rest, (bus) => bus.bytes))}` }));
  return found;
}

function showFlows() {
  const { parts, boundaries } = shown();
  $("#map").hidden = !parts.length;
  if (!parts.length) return;
  const heads = row("heads", "tensor", "bytes", ...parts.map(headOf));
  const totals = row("totals", "crosses in total", "", ...boundaries.map((total, i) => placed("total", (i + 1) / parts.length, null, sizeOf(total))));
  $("#map .chart").replaceChildren(heads, ...lanes(shown()), ...(boundaries.length && parts.length <= MOST_TOTALS ? [totals] : []));
}

export function startFlows() {
  if (!cutter) return; // the pictures of parts stay: no cut changes them
  $("#lanes").remove();
  showFlows();
  when("cut", showFlows);
}
