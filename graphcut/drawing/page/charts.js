/* The pictures of parts: what crosses between them, their schedule, the dependency maps as a matrix. */

import { kindOf } from "./cutting.js";
import { $, coloured, html, isNarrow, narrowed, share } from "./elements.js";
import { isOne, showFlows, showPinned } from "./panel.js";
import { kinds, names, shown, when, whenCutRests } from "./shown.js";
import { asTable, table } from "./tables.js";
import { count, duration, figuresOf, grouped, groupsOf, isOver, shortPart, size, sizeOf, sumOf, withoutCommon } from "./words.js";

const [FEW_TENSORS, MOST_ROWS] = [12, 40]; // more tensors are a line for all with the same ends
const MAX_ROWS = 1000; // of a table
const MOST_TOTALS = isNarrow ? 5 : 10;
const FEW_COLUMNS = isNarrow ? 5 : 8; // of a matrix with room for the bytes in each cell

const mark = (css, left, style = {}, text = "") => html("i", { class: css, style: { left: share(left), ...style } }, text);

const row = (css, name, amount, title, ...marks) => html("div", { class: `lane ${css}`, title },
  html("span", { class: "what" }, name), html("span", { class: "bytes" }, amount), html("span", { class: "track" }, ...marks));

function headOf(part) {
  const lines = [part.device, ...figuresOf(part), isOver(part) ? "over budget" : ""].filter(Boolean);
  const title = [part.name, part.content, ...lines].filter(Boolean).join(", ");
  return isOne(html("span", { class: `part${isOver(part) ? " bad" : ""}`, title, style: coloured(part.index) },
    html("b", {}, shortPart(part.name)), ...lines.map((line) => html("span", {}, line))), "card", part.index);
}

/** A line from the part that writes something to the last one that reads it, with a dot in each that does. */
function lane(flow, kind, index, name, short, most) {
  const parts = shown().parts.length;
  const at = (part) => (part + 0.5) / parts;
  const [meaning, css] = kinds[kindOf(flow)];
  const thick = `${4 - 2.5 * Math.min(Math.log2((most + 1) / (flow.bytes + 1)) / 16, 1)}px`;
  const wire = mark("wire", at(flow.source), { width: share((flow.readers.at(-1) - flow.source) / parts), height: thick });
  const title = `${name}, ${sizeOf(flow)}, from ${names([flow.source])} to ${names(flow.readers)}; ${meaning}`;
  return isOne(row(css, short, sizeOf(flow), title, wire, mark("made", at(flow.source)), ...flow.readers.map((part) => mark("read", at(part)))), kind, index);
}

function lanes({ tensors, buses }) {
  const isFew = tensors.length <= FEW_TENSORS;
  const titles = (isFew ? tensors : buses.map((bus) => tensors[bus.tensors[0]])).map(({ tensor }) => tensor);
  const short = withoutCommon(titles);
  const most = Math.max(0, ...tensors.map((flow) => flow.bytes));
  const flows = [...(isFew ? tensors : buses).entries()].sort(([, a], [, b]) => (isFew ? 0 : b.bytes - a.bytes));
  const found = flows.slice(0, MOST_ROWS).map(([index, flow]) => {
    const more = isFew || flow.tensors.length === 1 ? "" : ` and ${flow.tensors.length - 1} more`;
    return lane(flow, isFew ? "tensor" : "bus", index, titles[index] + more, html("span", {}, narrowed(short[index]), more), most);
  });
  const rest = flows.slice(MOST_ROWS).map(([, flow]) => flow);
  const left = () => `and ${count(sumOf(rest, (bus) => bus.tensors.length), "more tensor")}, ${size(sumOf(rest, (bus) => bus.bytes))}`;
  return rest.length ? [...found, html("p", { class: "lead" }, left())] : found;
}

function showParts() {
  const { parts, boundaries } = shown();
  const heads = row("heads", "tensor", "bytes", null, ...parts.map(headOf));
  const totals = row("totals", "crosses in total", "", null, ...boundaries.map((total, i) => mark("total", (i + 1) / parts.length, {}, sizeOf(total))));
  const below = boundaries.length && parts.length <= MOST_TOTALS ? [totals] : [];
  $("#map .chart").replaceChildren(...parts.length ? [heads, ...lanes(shown()), ...below] : []);
}

function tensorTable() {
  const { tensors } = shown();
  return [table("boundary tensors", [
    ["tensor", "name mono", (tensor) => tensor.tensor],
    tensors.some(({ type }) => type) ? ["type", "mono", (tensor) => tensor.type] : null,
    ["bytes", "number", sizeOf],
    ["made by", "", (tensor) => names([tensor.source])],
    ["read by", "", (tensor) => names(tensor.readers)],
    ["kind", "", kindOf],
  ], tensors.slice(0, MAX_ROWS))];
}

function schedule(runs) {
  const end = Math.max(...runs.map((run) => run.began_s + run.seconds)) || 1;
  const lines = [...groupsOf(runs, (run) => run.device)].map(([device, own]) => row("schedule", device, "", null, ...own.map((run) => {
    const block = mark("run", run.began_s / end, { width: share(run.seconds / end), ...coloured(run.part) }, grouped(run.part));
    block.title = `part ${run.part}, request ${run.request + 1}: ${duration(run.seconds)}, from ${duration(run.began_s)} on`;
    return isOne(block, "card", run.part);
  })));
  return [...lines, row("totals", "time", "", null, ...[0, 0.5].map((at) => mark("", at, {}, at ? duration(at * end) : "0")))];
}

function showSchedule() {
  const charts = [...groupsOf(shown().runs, (run) => run.title)].flatMap(([text, own]) => [html("p", { class: "lead", text }), ...schedule(own)]);
  $("#schedule .chart").replaceChildren(...charts);
}

function matrixCell(titles, cell) {
  const title = `${titles[cell.source]} → ${titles[cell.readers[0]]}`;
  const what = `${title}: ${sizeOf(cell)}, ${count(cell.tensors.length, "tensor")}; ${kindOf(cell)}`;
  const isText = titles.length <= FEW_COLUMNS;
  return html("button", {
    class: kinds[kindOf(cell)][1], title: what, "aria-label": what, text: isText ? sizeOf(cell) : "",
    style: { "--share": share(isText ? 0.12 + 0.2 * cell.share : 0.3 + 0.7 * cell.share) },
    on: { "pointerenter focus click": () => showFlows(title, cell, cell.tensors), "pointerleave blur": showPinned },
  });
}

function showMatrix() {
  const { cells, names: titles } = shown().matrix;
  const at = new Map(cells.map((cell) => [`${cell.source} ${cell.readers[0]}`, cell]));
  const short = withoutCommon(titles);
  const cellAt = (line, column) => {
    const cell = at.get(`${line} ${column}`);
    return html("td", { class: column === line ? "own" : null }, cell ? matrixCell(titles, cell) : column === line ? line : "");
  };
  const rows = titles.map((title, line) => html("tr", {},
    html("th", { scope: "row", title }, narrowed(short[line])), ...titles.map((_, column) => cellAt(line, column))));
  $("#matrix .scroll").replaceChildren(...cells.length ? [html("table", { "aria-label": "dependency maps" }, ...rows)] : []);
}

export function startCharts() {
  showParts();
  when("cut", showParts);
  asTable("map", "As a table", tensorTable);
  for (const show of [showSchedule, showMatrix]) {
    show();
    whenCutRests(show);
  }
}
