/* The graph: the nodes around a cut, a tensor or a node, a part, or the whole model; boxes are HTML, edges an SVG below them. */

import { $, all, button, coloured, html, inNextFrame, listen, onKeys, svg } from "./elements.js";
import { AROUND, MANY, completed, endsOf, kindOfLink, nodesAround, pictureOf, typed, worded } from "./graph_picture.js";
import { layered, mean } from "./layered_layout.js";
import { fillPanel } from "./panel.js";
import { nodesWith } from "./sections.js";
import { flowsAt, isRanked, kinds, names, partIn, placed, profile, select, shown, state, unpacked, when } from "./shown.js";
import { MAX_ROWS, asTable, table } from "./tables.js";
import { count, grouped, groupsOf, listed, visible } from "./words.js";

const FEW = 250; // more nodes than these are folded by module and repeated block
const CLASSES = { in: "end", out: "end", before: "more", after: "more", copies: "more", fold: "fold", node: "" };
const [place, minimap] = [$("#graph .boxes"), $("#graph .minimap")];
let whole = null; // the graph of the model
let fillTable = null; // makes the table anew, if it is open
let drawn = null; // what is shown: a view, see `startView`

/* What is shown. */

/** What a view shows of the parts: a body has none. */
function partsNow(graph) {
  const flows = graph === whole ? shown().tensors : [];
  return { partOf: graph === whole ? partIn : () => undefined, partName: placed, flows: new Map(flows.map((flow) => [flow.tensor, flow])) };
}

/** Shows the nodes up to `steps` from `start`; all of these if `steps` is null. */
function startView(graph, title, start, steps, { isFolded = start.length > FEW, trail = [], chosen = null } = {}) {
  const nodes = nodesAround(graph, start, steps ?? 0);
  const { zoom = null, picture } = drawn ?? {};
  drawn = { graph, functions: whole.functions, title, start, steps, isFolded, trail, chosen, zoom, picture, opened: null, nodes, goal: start[0] };
  drawGraph();
}

const showWhole = () => startView(whole, "The whole model", [...whole.nodes.keys()], null, { isFolded: whole.nodes.length > 40 });
const showEnds = (title, tensors) => startView(whole, `Around ${title}`, endsOf(whole, tensors), 1);

/** Shows what is around the pinned thing; in the graph itself a node is only chosen. */
function showAround() {
  if (state.pinned === null) return;
  const { kind, index } = state.pinned;
  const { buses, cuts, parts, tensors } = shown();
  const ofKind = {
    card: () => startView(whole, `Part ${parts[index].name}`, [...whole.nodes.keys()].filter((node) => (partIn(node) ?? 0) === index), null),
    tensor: () => showEnds(`the tensor ${tensors[index].tensor}`, [tensors[index].tensor]),
    bus: () => showEnds(`what ${parts[buses[index].source].name} sends to ${names(buses[index].readers)}`, buses[index].tensors.map((one) => tensors[one].tensor)),
    node: () => {
      if (drawn.isChoosing) return; // what is chosen in the graph is drawn after this
      const crossing = cuts.includes(index) ? flowsAt(index).map((flow) => flow.tensor) : null;
      const ends = endsOf(whole, crossing ?? []);
      const title = `Around ${crossing ? "the cut after " : ""}${profile.nodes[index]}${crossing ? `, which ${count(crossing.length, "tensor")} cross` : ""}`;
      startView(whole, title, ends.length ? ends : [index], crossing ? 1 : 2, { chosen: `n${index}` });
    },
  };
  ofKind[kind]?.();
}

/* How it is drawn. */

const drawGraph = inNextFrame(() => {
  const { graph } = drawn;
  const picture = pictureOf(Object.assign(drawn, partsNow(graph)));
  const isDense = picture.boxes.length > 60;
  for (const box of picture.boxes) worded(box, drawn, isDense ? 2 : 6).width = isDense ? 176 : 228;
  const { width, height } = layered(picture.boxes, picture.links);
  picture.boxes.sort((a, b) => a.top - b.top || a.x - b.x);
  drawn.picture = { ...picture, width, height };
  drawn.zoom ??= Math.max(0.7, Math.min(1, (place.clientWidth - 32) / width)); // at first as wide as can be read
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(html("div", { class: "canvas", style: { width: `${width}px`, height: `${height}px`, zoom: drawn.zoom } },
    ...graph === whole && shown().parts.length ? frameElements(picture.boxes) : [],
    svg("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, ...picture.links.map(linkElement)),
    ...picture.boxes.map(boxElement)));
  showTools();
  fillTable();
  const [{ boxes, home }, goal] = [picture, drawn.goal];
  const first = boxes.find((box) => box.key === drawn.chosen) ?? home[goal] ?? home[drawn.start[0]] ?? boxes[0];
  if (!first) return; // a part of constants alone has no boxes
  headOf(first).tabIndex = 0;
  if (focused) focusOn(boxes.find((box) => box.key === focused) ?? first);
  if (goal !== undefined) scrollTo(first, drawn.steps === null && goal === drawn.start[0]);
  delete drawn.goal;
  drawMinimap();
});

/** Where something is in the picture, and the colour of its part, if it is in one, as properties of its style. */
const styleOf = ({ left, top, width, height, part }) => ({
  left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px`, ...part === undefined ? {} : coloured(part) });

function boxElement(box) {
  const said = [[box.head, ...box.tags].join(" "), ...box.lines.map((line) => line.title ?? line.text)].join(", ");
  const head = html("button", { class: "head", tabindex: -1, "data-key": box.key, "aria-label": said, title: box.head },
    html("span", {}, box.head), ...box.tags.flatMap((tag) => [" ", html("i", {}, tag)]));
  const lines = box.lines.map(({ text, title, css }) => (
    html("div", { class: `line ${css ?? ""}`, title: title ?? text, "aria-hidden": "true" }, html("bdi", { dir: "ltr" }, text))));
  const bodies = box.bodies.map(([name, body]) => {
    const open = (event) => {
      event.stopPropagation();
      openBody(box, name, body);
    };
    return html("button", { class: "body", on: { click: open } }, `▸ ${name}, ${count(body.nodes.length, "node")}`);
  });
  const css = `box ${CLASSES[box.kind]}${box.part === undefined ? "" : " own"}${box.key === drawn.chosen ? " chosen" : ""}`;
  return html("div", { class: css, style: styleOf(box), on: { click: () => activate(box) } }, head, ...lines, ...bodies);
}

/** A frame around each part, with its name, where no two of them overlap. */
function frameElements(boxes) {
  const around = [...groupsOf(boxes.filter((box) => box.part !== undefined), (box) => box.part)].map(([part, own]) => {
    const [left, top] = ["left", "top"].map((side) => Math.min(...own.map((box) => box[side])));
    const right = Math.max(...own.map((box) => box.left + box.width));
    const bottom = Math.max(...own.map((box) => box.top + box.height));
    return { part, left: left - 12, top: top - 20, width: right - left + 24, height: bottom - top + 30 };
  });
  const isApart = (a, b) => a.left + a.width <= b.left || a.top + a.height <= b.top;
  const areApart = around.every((a, i) => around.slice(i + 1).every((b) => isApart(a, b) || isApart(b, a)));
  return areApart ? around.map((one) => html("div", { class: "frame", style: styleOf(one) }, html("b", {}, placed(one.part)))) : [];
}

function linkElement(link) {
  const { from, to, tensors, path: d, tip: [x, y, up] } = link;
  const kind = kindOfLink(link, drawn);
  const css = kinds[kind]?.[1] ?? "";
  const click = () => showTensors(`${from.head} → ${to.head}`, tensors, kind);
  return svg("g", { on: { click } }, svg("title", {}, tensors.map((tensor) => typed(drawn.graph, tensor)).join("\n")),
    svg("path", { class: css, d }), svg("path", { class: "hit", d }),
    svg("path", { class: `tip ${css}`, d: `M${x - 4},${y + 8 * up}h8L${x},${y}Z` }));
}

/** A small picture of all that is drawn, with what is in sight of it; none if all is in sight. */
function drawMinimap() {
  const { picture: { boxes, width, height }, zoom } = drawn;
  minimap.toggleAttribute("hidden", place.scrollWidth <= place.clientWidth && place.scrollHeight <= place.clientHeight);
  minimap.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const rect = (css, [x, y, across, down], style = {}) => svg("rect", { class: css, x, y, width: across, height: down, style });
  const seen = [place.scrollLeft, place.scrollTop, place.clientWidth, place.clientHeight].map((pixels) => pixels / zoom);
  const all = boxes.map((box) => rect("", [box.left, box.top, box.width, box.height], box.part === undefined ? {} : coloured(box.part)));
  minimap.replaceChildren(...all, rect("seen", seen));
}

function scrollByMinimap({ clientX, clientY, buttons }) {
  if (!buttons) return;
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(minimap.getScreenCTM().inverse());
  place.scrollTo(x * drawn.zoom - place.clientWidth / 2, y * drawn.zoom - place.clientHeight / 2);
}

/** Brings a box in sight; the first one with the middle of what is beside it. */
function scrollTo(box, isFirst) {
  const { picture: { boxes }, zoom } = drawn;
  const x = isFirst ? mean(boxes.filter(({ top }) => top * zoom < place.clientHeight).map((one) => one.x)) : box.x;
  const y = (box.top + box.height / 2 + 14) * zoom - place.clientHeight / 2;
  place.scrollTo((x + 14) * zoom - place.clientWidth / 2, isFirst ? 0 : y);
}

const headOf = (box) => $(`.head[data-key="${CSS.escape(visible(box.key))}"]`, place);

function focusOn(box) {
  for (const head of all(".head[tabindex='0']", place)) head.tabIndex = -1;
  headOf(box).tabIndex = 0;
  headOf(box).focus();
}

/* What one can do with it. */

function showTensors(title, own, kind) {
  const { tensors, types } = drawn.graph;
  fillPanel(title, [
    ["kind", kinds[kind]?.[0]],
    ...own.slice(0, 12).map((tensor) => [tensors[tensor], types[tensor] || "type unknown"]),
    ["more", own.length > 12 ? grouped(own.length - 12) : null],
  ]);
}

function openBody(box, name, body) {
  const title = `${name === "function" ? "Function" : `Subgraph ${name}`} of ${box.head} ${drawn.graph.nodes[box.nodes[0]]}`;
  startView(completed(body), title, [...body.nodes.keys()], null, { trail: [...drawn.trail, drawn] });
}

/** What a click on a box does: opens a fold, adds nodes, or tells about a node; a second click on a node shows what is around it. */
function activate(box) {
  const { graph, trail } = drawn;
  const [node] = box.nodes;
  if (box.kind === "node" && drawn.chosen === box.key && drawn.steps === null) {
    return startView(graph, `Around ${graph.nodes[node]}`, box.nodes, 2, { chosen: box.key, trail });
  }
  if (box.kind === "node") {
    Object.assign(drawn, { chosen: box.key, isChoosing: true });
    if (graph === whole) select(node);
    else fillPanel(graph.nodes[node], [["operator", graph.ops[node]], ...box.lines.slice(1).map((line) => ["", line.title ?? line.text])]);
    drawn.isChoosing = false;
    return drawGraph();
  }
  if (!["fold", "before", "after"].includes(box.kind)) return showTensors(box.head, box.tensors, "");
  drawn.goal = node;
  if (box.kind === "fold") drawn.opened.add(box.fold.key);
  else for (const one of box.nodes.slice(0, 40)) drawn.nodes.add(one);
  drawn.isOpened ||= box.kind === "fold";
  return drawGraph();
}

const isAll = () => drawn.nodes.size === drawn.graph.nodes.length;

/** The buttons: a name, a text, a title, what they do, and when there is nothing to do. */
const TOOLS = [
  ["back", "‹ back", "leave the subgraph", () => { drawn = drawn.trail.at(-1); }, () => !drawn.trail.length],
  ["fewer", "Fewer steps", "", () => changeSteps(-1), () => drawn.steps === null],
  ["more", "More steps", "", () => changeSteps(1), () => drawn.steps === null],
  ["fold", "Fold", "by module and repeated block", () => { drawn.isFolded = !drawn.isFolded; drawn.opened = null; },
    () => drawn.nodes.size > FEW || drawn.nodes.size < 20],
  ["whole", "Whole model", "", showWhole, () => drawn.graph === whole && isAll()],
  ["collapse", "Collapse", "to layers", () => { drawn.opened = null; drawn.isOpened = false; }, () => !drawn.isFolded || !drawn.isOpened],
  ["fit", "Fit", "the whole picture in sight", fit, () => false],
  ["smaller", "Zoom out", "", () => { drawn.zoom = Math.max(0.1, drawn.zoom / 1.25); }, () => false],
  ["larger", "Zoom in", "", () => { drawn.zoom = Math.min(2, drawn.zoom * 1.25); }, () => false],
];

function fit() {
  const { width, height } = drawn.picture;
  drawn.zoom = Math.max(0.1, Math.min(1, (place.clientWidth - 32) / width, (place.clientHeight - 32) / height));
}

/** Chooses the next node with these letters in its name or its operator. */
function find(words) {
  const hits = words.trim() ? nodesWith(words) : [];
  if (hits.length) select(hits.find((node) => node > (state.at ?? -1)) ?? hits[0]);
}

function changeSteps(by) {
  drawn.steps += by;
  drawn.nodes = nodesAround(drawn.graph, drawn.start, drawn.steps);
}

function showTools() {
  const { graph, nodes, steps, title, isFolded, picture } = drawn;
  for (const [name, , , , isIdle] of TOOLS) $(`#graph-${name}`).hidden = isIdle();
  $("#graph-fewer").disabled = steps === 0;
  $("#graph-more").disabled = nodes.size >= AROUND || isAll();
  $("#graph-fold").setAttribute("aria-pressed", isFolded);
  const around = steps === null ? "" : `, within ${count(steps, "step")}`;
  $("#graph .lead").textContent = visible([
    `${title}${around}: ${grouped(nodes.size)} of ${count(graph.nodes.length, "node")}.`,
    graph !== whole ? "" : isRanked ? "Blue edges go to another rank." : shown().cuts.length ? "Blue edges go to the next part only, dashed orange ones skip a part." : "",
    picture.boxes.some((box) => box.kind === "fold") ? "Double frames open." : "",
    picture.boxes.some((box) => box.far.length) ? `What more than ${MANY} boxes read is named in each, after ←.` : "",
  ].filter(Boolean).join(" "));
}

function linkTable() {
  const { graph, picture } = drawn;
  const named = ({ head, kind, nodes }) => (kind === "node" ? `${head} ${graph.nodes[nodes[0]]}` : head);
  return [table("edges of the graph", [
    ["from", "name", ({ from }) => named(from)],
    ["to", "name", ({ to }) => named(to)],
    ["tensors", "", ({ tensors: own }) => listed(own.map((tensor) => typed(graph, tensor)))],
    ["kind", "", (link) => kindOfLink(link, drawn)],
  ], picture.links.slice(0, MAX_ROWS))];
}

/** For each arrow the boxes that it can lead to: along edges, or the neighbours in the layer; the nearest is taken. */
const STEPS = {
  ArrowDown: (at, { links }) => links.filter((link) => link.from === at).map((link) => link.to),
  ArrowUp: (at, { links }) => links.filter((link) => link.to === at).map((link) => link.from),
  ArrowLeft: (at, { boxes }) => boxes.filter((box) => box.layer === at.layer && box.x < at.x),
  ArrowRight: (at, { boxes }) => boxes.filter((box) => box.layer === at.layer && box.x > at.x),
};

function stepInGraph({ key }) {
  const at = drawn.picture.boxes.find((box) => box.key === document.activeElement.dataset.key);
  const [next] = at ? STEPS[key](at, drawn.picture).sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x)) : [];
  if (next) focusOn(next);
}

export function enterGraph() {
  $("#graph").scrollIntoView({ block: "nearest" });
  $(".head[tabindex='0']", place)?.focus();
}

export async function startGraph() {
  if (!profile || !$("#graph-data").textContent) return;
  whole = completed(Object.assign(await unpacked("graph-data"), { nodes: profile.nodes, ops: profile.ops }));
  $("#graph").hidden = false;
  for (const [name, text, title, action] of TOOLS) {
    $("#graph .toolbar").append(button({ id: `graph-${name}`, text, title }, () => { action(); drawGraph(); }));
  }
  onKeys($("#graph-search"), { Enter: ({ target }) => find(target.value) });
  place.addEventListener("scroll", drawMinimap, { passive: true });
  listen(minimap, { "pointerdown pointermove": scrollByMinimap });
  fillTable = asTable("graph", linkTable);
  onKeys(place, Object.fromEntries(Object.keys(STEPS).map((key) => [key, stepInGraph])));
  showWhole();
  showAround();
  when("pinned", showAround);
  when("cut", () => { if (!state.drag) drawGraph(); });
}
