/* The graph of the model, folded by its modules; what is chosen anywhere opens in it. Boxes are HTML, edges an SVG below them. */

import { $, all, button, coloured, html, inNextFrame, listen, onKeys, svg } from "./elements.js";
import { completed, foldedLists, kindOfLink, openedFirst, pictureOf, typed, worded } from "./graph_picture.js";
import { layered } from "./layered_layout.js";
import { fillPanel } from "./panel.js";
import { kinds, partIn, placed, profile, select, shown, state, unpacked, when } from "./shown.js";
import { count, grouped, groupsOf, visible } from "./words.js";

const MOST_NODES = 250; // more are not all shown without folds
const MOST_BOXES = 150; // with more, what was opened is closed when something else opens
const CLASSES = { in: "end", out: "end", copies: "more", fold: "fold", node: "" };
const [place, minimap] = [$("#graph .boxes"), $("#graph .minimap")];
let whole = null; // the view of the model
let drawn = null; // the view that is shown: that one, or that of a body
let zoom = null;

/* What is shown. */

/** A view of a graph, see graph_picture.js: what the reader opened, the node to bring in sight, the view that it was opened from. */
const viewOf = (graph, title, from = null) => withFolds({ graph, title, from, opened: new Set(), goal: 0, chosen: null });

/** Adds to a view the parts and what they send, of which a body has none, and the folds for these. */
function withFolds(view) {
  const hasParts = !view.from && shown().parts.length > 1;
  const flows = new Map(hasParts ? shown().tensors.map((flow) => [flow.tensor, flow]) : []);
  Object.assign(view, { partOf: hasParts ? partIn : () => undefined, partName: placed, flows });
  const lists = foldedLists(view);
  return Object.assign(view, { lists, first: openedFirst(lists), picture: null });
}

/** The node at which a thing is: the first one of a part, that which writes a tensor; undefined or -1 if there is none. */
function nodeOf({ kind, index }) {
  const { graph } = whole;
  const { buses, tensors } = shown();
  if (kind === "node") return index;
  if (kind === "card") return graph.nodes.findIndex((_, node) => (partIn(node) ?? 0) === index);
  const flow = { tensor: tensors[index], bus: tensors[buses[index]?.tensors[0]] }[kind];
  return graph.writer[graph.tensors.indexOf(flow?.tensor)];
}

/** Brings what is pinned in sight; the folds around a node, or the writer of a tensor, open. */
function showPinned() {
  const goal = state.pinned ? nodeOf(state.pinned) : -1;
  if (!(goal >= 0)) return;
  drawn = Object.assign(whole, { goal, chosen: goal });
  if (state.pinned.kind !== "card") openFolds(whole.lists.find(({ nodes }) => nodes.includes(goal)).folds);
  drawGraph();
}

function openFolds(folds) {
  if (folds.every(({ key }) => drawn.first.has(key) || drawn.opened.has(key))) return;
  if (drawn.picture?.boxes.length > MOST_BOXES) drawn.opened.clear();
  for (const { key } of folds) drawn.opened.add(key);
  drawn.picture = null;
}

/* How it is drawn. */

function laidOut(view) {
  const { boxes, links, home } = pictureOf(view);
  const isDense = boxes.length > 60;
  for (const box of boxes) worded(box, view, isDense ? 2 : 6).width = isDense ? 176 : 228;
  return { links, home, ...layered(boxes, links), boxes: boxes.sort((a, b) => a.top - b.top || a.x - b.x) };
}

const drawGraph = inNextFrame(() => {
  const focused = $(":focus", place)?.dataset.key;
  drawn.picture ??= laidOut(drawn);
  const { boxes, home, links, width, height } = drawn.picture;
  zoom ??= Math.max(0.7, Math.min(1, (place.clientWidth - 32) / width)); // at first as wide as can be read
  place.replaceChildren(html("div", { class: "canvas", style: { width: `${width}px`, height: `${height}px`, zoom } },
    ...frameElements(boxes),
    svg("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, ...links.map(linkElement)),
    ...boxes.map(boxElement)));
  showTools();
  const goal = home[drawn.goal] ?? home[0] ?? boxes[0];
  if (!goal) return; // a part of constants alone has no boxes
  goal.button.tabIndex = 0;
  if (focused) focusOn(boxes.find((box) => box.key === focused) ?? goal);
  if (drawn.goal !== null && !isInSight(goal)) scrollTo(goal.x, goal.top + goal.height / 2);
  drawn.goal = null;
  drawMinimap();
});

/** Where something is in the picture, and the colour of its part, if it is in one, as properties of its style. */
const styleOf = ({ left, top, width, height, part }) => ({
  left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px`, ...coloured(part) });

function boxElement(box) {
  const said = [[box.head, ...box.tags].join(" "), ...box.lines.map((line) => line.title ?? line.text)].join(", ");
  box.button = html("button", { class: "head", tabindex: -1, "data-key": box.key, "aria-label": said, title: box.head },
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
  const css = `box ${CLASSES[box.kind]}${box.part === undefined ? "" : " own"}${box.nodes[0] === drawn.chosen && box.kind === "node" ? " chosen" : ""}`;
  return html("div", { class: css, style: styleOf(box), on: { click: () => activate(box) } }, box.button, ...lines, ...bodies);
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
  if (!drawn.picture) return; // it is drawn in the next frame
  const { boxes, width, height } = drawn.picture;
  minimap.toggleAttribute("hidden", place.scrollWidth <= place.clientWidth && place.scrollHeight <= place.clientHeight);
  minimap.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const [x, y, across, down] = [place.scrollLeft, place.scrollTop, place.clientWidth, place.clientHeight].map((pixels) => pixels / zoom);
  minimap.replaceChildren(
    ...boxes.map((box) => svg("rect", { x: box.left, y: box.top, width: box.width, height: box.height, style: coloured(box.part) })),
    svg("rect", { class: "seen", x, y, width: across, height: down }));
}

function scrollByMinimap({ clientX, clientY, buttons }) {
  if (!buttons) return;
  const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(minimap.getScreenCTM().inverse());
  scrollTo(x - 14, y - 14);
}

/** Scrolls so that a place in the picture is in the middle; it has a margin of 14. */
const scrollTo = (x, y) => place.scrollTo((x + 14) * zoom - place.clientWidth / 2, (y + 14) * zoom - place.clientHeight / 2);

function isInSight({ left, top, width, height }) {
  const [x, y] = [place.scrollLeft, place.scrollTop].map((start) => start / zoom - 14);
  return left >= x && left + width <= x + place.clientWidth / zoom && top >= y && top + height <= y + place.clientHeight / zoom;
}

function focusOn(box) {
  for (const head of all(".head[tabindex='0']", place)) head.tabIndex = -1;
  box.button.tabIndex = 0;
  box.button.focus();
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
  drawn = viewOf(completed(body, drawn.graph.functions), title, drawn);
  drawGraph();
}

/** What a click on a box does: opens a fold, or tells about a node or tensors. */
function activate({ kind, fold, nodes: [node], head, lines, tensors }) {
  if (kind === "fold") {
    openFolds([fold]);
    drawn.goal = node;
  } else if (kind !== "node") return showTensors(head, tensors, "");
  else if (drawn === whole) return select(node);
  else {
    const { nodes, ops } = drawn.graph;
    drawn.chosen = node;
    fillPanel(nodes[node], [["operator", ops[node]], ...lines.slice(1).map((line) => ["", line.title ?? line.text])]);
  }
  return drawGraph();
}

/** The buttons: a name, a text, a title, what they do, and when there is nothing to do. */
const TOOLS = [
  ["back", "‹ back", "leave the subgraph", () => { drawn = drawn.from; }, () => !drawn.from],
  ["expand", "Expand", "all nodes", () => openFolds(drawn.lists.flatMap(({ folds }) => folds)),
    () => drawn.graph.nodes.length > MOST_NODES || !drawn.picture.boxes.some((box) => box.kind === "fold")],
  ["collapse", "Collapse", "to layers", () => { drawn.opened.clear(); drawn.picture = null; }, () => !drawn.opened.size],
  ["fit", "Fit", "the whole picture in sight", fit, () => false],
  ["smaller", "Zoom out", "", () => { zoom = Math.max(0.1, zoom / 1.25); }, () => false],
  ["larger", "Zoom in", "", () => { zoom = Math.min(2, zoom * 1.25); }, () => false],
];

function fit() {
  const { width, height } = drawn.picture;
  zoom = Math.max(0.1, Math.min(1, (place.clientWidth - 32) / width, (place.clientHeight - 32) / height));
}

function showTools() {
  for (const [name, , , , isIdle] of TOOLS) $(`#graph-${name}`).hidden = isIdle();
  $("#graph .lead").textContent = visible(`${drawn.title}: ${count(drawn.graph.nodes.length, "node")}.`);
}

/** For each arrow the boxes that it can lead to: along edges, or the neighbours in the layer; the nearest is taken. */
const STEPS = {
  ArrowDown: (at, { links }) => links.filter((link) => link.from === at).map((link) => link.to),
  ArrowUp: (at, { links }) => links.filter((link) => link.to === at).map((link) => link.from),
  ArrowLeft: (at, { boxes }) => boxes.filter((box) => box.layer === at.layer && box.x < at.x),
  ArrowRight: (at, { boxes }) => boxes.filter((box) => box.layer === at.layer && box.x > at.x),
};

function stepInGraph({ key }) {
  const at = drawn.picture.boxes.find((box) => box.button === document.activeElement);
  const [next] = at ? STEPS[key](at, drawn.picture).sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x)) : [];
  if (next) focusOn(next);
}

export function enterGraph() {
  $("#graph").scrollIntoView({ block: "nearest" });
  $(".head[tabindex='0']", place)?.focus();
}

export async function startGraph() {
  if (!profile || !$("#graph-data").textContent) return;
  const graph = Object.assign(await unpacked("graph-data"), { nodes: profile.nodes, ops: profile.ops });
  whole = drawn = viewOf(completed(graph), "The whole model");
  $("#graph").hidden = false;
  for (const [name, text, title, action] of TOOLS) {
    $("#graph .toolbar").append(button({ id: `graph-${name}`, text, title }, () => { action(); drawGraph(); }));
  }
  place.addEventListener("scroll", drawMinimap, { passive: true });
  listen(minimap, { "pointerdown pointermove": scrollByMinimap });
  onKeys(place, Object.fromEntries(Object.keys(STEPS).map((key) => [key, stepInGraph])));
  drawGraph();
  showPinned();
  when("pinned", showPinned);
  when("cut", () => {
    if (state.drag) return;
    withFolds(whole);
    drawGraph();
  });
}
