/* The graph: the nodes around a cut, a tensor or a node, a part, or the whole model. */

import { $, button, html, onKeys } from "./elements.js";
import { boxElement, frameElements, linksElement } from "./graph_drawing.js";
import { kindOfLink, pictureOf } from "./graph_picture.js";
import { typed, worded } from "./graph_words.js";
import { layered, mean } from "./layered_layout.js";
import { drawMinimap, startMinimap } from "./minimap.js";
import { listed, visible } from "./names.js";
import { AROUND, MANY, completed, endsOf, nodesAround } from "./nodes_around.js";
import { fillPanel, select } from "./panel.js";
import { isRanked, kinds, profile, unpacked } from "./scene.js";
import { names, partIn, placed, shown } from "./shown.js";
import { state, when } from "./state.js";
import { MAX_ROWS, table } from "./tables.js";
import { count, grouped } from "./number_words.js";

const FEW = 250; // more nodes than these are folded by module and repeated block
let whole = null; // the graph of the model
let drawn = null; // what is shown: a view, see `startView`

/** What a view shows of the parts: a body has none. */
function partsNow(graph) {
  const flows = graph === whole ? shown().tensors : [];
  return { partOf: graph === whole ? partIn : () => undefined, partName: placed, flows: new Map(flows.map((flow) => [flow.tensor, flow])) };
}

/** Shows the nodes up to `steps` from `start`; all of these if `steps` is null. */
function startView(graph, title, start, steps, { isFolded = start.length > FEW, trail = [], chosen = null } = {}) {
  const nodes = nodesAround(graph, start, steps ?? 0);
  drawn = { graph, title, start, steps, isFolded, trail, chosen, zoom: drawn?.zoom ?? null, opened: null, nodes, goal: start[0] };
  drawGraph();
}

const showWhole = () => startView(whole, "The whole model", [...whole.nodes.keys()], null, { isFolded: whole.nodes.length > 40 });

/** Shows what is around the pinned thing; in the graph itself a node is only chosen. */
function showAround() {
  if (state.pinned === null) return;
  const { kind, index } = state.pinned;
  const { buses, parts, tensors } = shown();
  if (kind === "run" || (kind === "node" && drawn.isChoosing)) return; // what is chosen in the graph is drawn after this
  if (kind === "card") return startView(whole, `Part ${parts[index].name}`, [...whole.nodes.keys()].filter((node) => (partIn(node) ?? 0) === index), null);
  if (kind === "tensor") return startView(whole, `Around the tensor ${tensors[index].tensor}`, endsOf(whole, [tensors[index].tensor]), 1);
  if (kind === "bus") {
    const { source, readers } = buses[index];
    return startView(whole, `Around what ${parts[source].name} sends to ${names(readers)}`, endsOf(whole, buses[index].tensors.map((one) => tensors[one].tensor)), 1);
  }
  const chosen = `n${index}`;
  const part = partIn(index);
  if (!shown().cuts.includes(index)) return startView(whole, `Around ${profile.nodes[index]}`, [index], 2, { chosen });
  const crossing = shown().tensors.filter((flow) => flow.source <= part && flow.readers.at(-1) > part);
  const ends = endsOf(whole, crossing.map((flow) => flow.tensor));
  return startView(whole, `Around the cut after ${profile.nodes[index]}, which ${count(crossing.length, "tensor")} cross`, ends.length ? ends : [index], 1, { chosen });
}

function showTensors(title, own, kind, graph) {
  fillPanel(title, [
    ["kind", kinds[kind]?.[0] ?? null],
    ...own.slice(0, 12).map((tensor) => [graph.tensors[tensor], graph.types[tensor] || "type unknown"]),
    ["more", own.length > 12 ? grouped(own.length - 12) : null],
  ]);
}

let frame = 0;

/** Draws at most once a frame. */
function drawGraph() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(drawNow);
}

function drawNow() {
  const { graph } = drawn;
  const place = $("#graph .boxes");
  const picture = pictureOf(Object.assign(drawn, partsNow(graph), { functions: whole.functions }));
  const isDense = picture.boxes.length > 60;
  for (const box of picture.boxes) worded(box, drawn, isDense ? 2 : 6).width = isDense ? 176 : 228;
  const { width, height } = layered(picture.boxes, picture.links);
  drawn.zoom ??= Math.max(0.7, Math.min(1, (place.clientWidth - 32) / width)); // at first as wide as can be read
  const hadFocus = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const canvas = html("div", { class: "canvas" });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, zoom: drawn.zoom });
  const ordered = [...picture.boxes].sort((a, b) => a.y - b.y || a.x - b.x);
  const frames = graph === whole && shown().parts.length ? frameElements(ordered, placed) : [];
  canvas.append(...frames, linksElement(picture.links, drawn, showTensors), ...ordered.map((box) => boxElement(box, box.key === drawn.chosen, activate, openBody)));
  place.replaceChildren(canvas);
  drawn.picture = { ...picture, boxes: ordered, width, height };
  const near = drawn.goal === undefined ? null : picture.home[drawn.goal];
  const first = picture.boxes.find((box) => box.key === drawn.chosen) ?? near ?? picture.home[drawn.start[0]] ?? ordered[0];
  showTools();
  fillGraphTable();
  if (!first) return; // a part of constants alone has no boxes
  headOf(first).setAttribute("tabindex", 0);
  if (hadFocus) focusOn(picture.boxes.find((box) => box.key === hadFocus) ?? first);
  if (drawn.goal !== undefined) {
    const isTop = drawn.steps === null && drawn.goal === drawn.start[0]; // then in the middle of what is in sight
    const x = isTop ? mean(ordered.filter((box) => box.y * drawn.zoom < place.clientHeight).map((box) => box.x)) : first.x;
    place.scrollTo((x + 14) * drawn.zoom - place.clientWidth / 2, isTop ? 0 : (first.y + first.height / 2 + 14) * drawn.zoom - place.clientHeight / 2);
    delete drawn.goal;
  }
  drawMinimap({ boxes: ordered, width, height, zoom: drawn.zoom });
}

const headOf = (box) => $(`#graph .head[data-key="${CSS.escape(visible(box.key))}"]`);

function focusOn(box) {
  for (const head of document.querySelectorAll("#graph .head[tabindex='0']")) head.setAttribute("tabindex", -1);
  headOf(box).setAttribute("tabindex", 0);
  headOf(box).focus();
}

function openBody(box, name, body) {
  const title = `${name === "function" ? "Function" : `Subgraph ${name}`} of ${box.head} ${drawn.graph.nodes[box.nodes[0]]}`;
  startView(completed(body), title, [...body.nodes.keys()], null, { trail: [...drawn.trail, drawn] });
}

/** What a click on a box does: opens a fold, adds nodes, or tells about a node; a second click on a node shows what is around it. */
function activate(box) {
  const { graph } = drawn;
  drawn.goal = box.nodes[0];
  if (box.kind === "fold") {
    drawn.opened.add(box.fold.key);
    drawn.isOpened = true;
  }
  else if (box.kind === "before" || box.kind === "after") for (const node of box.nodes.slice(0, 40)) drawn.nodes.add(node);
  else if (box.kind !== "node") return showTensors(box.head, box.tensors, "", graph);
  else if (drawn.chosen === box.key && drawn.steps === null) return startView(graph, `Around ${graph.nodes[box.nodes[0]]}`, box.nodes, 2, { chosen: box.key, trail: drawn.trail });
  else {
    delete drawn.goal;
    drawn.chosen = box.key;
    drawn.isChoosing = true;
    if (graph === whole) select(box.nodes[0]);
    else fillPanel(graph.nodes[box.nodes[0]], [["operator", graph.ops[box.nodes[0]]], ...box.lines.slice(1).map((line) => ["", line.title ?? line.text])]);
    drawn.isChoosing = false;
  }
  return drawGraph();
}

const TOOLS = [
  ["back", "‹ back", "leave the subgraph", () => { drawn = drawn.trail.at(-1); }],
  ["fewer", "Fewer steps", "", () => changeSteps(-1)],
  ["more", "More steps", "", () => changeSteps(1)],
  ["fold", "Fold", "by module and repeated block", () => { drawn.isFolded = !drawn.isFolded; drawn.opened = null; }],
  ["whole", "Whole model", "", showWhole],
  ["collapse", "Collapse", "to layers", () => { drawn.opened = null; drawn.isOpened = false; }],
  ["fit", "Fit", "the whole picture in sight", fit],
  ["smaller", "Zoom out", "", () => { drawn.zoom = Math.max(0.1, drawn.zoom / 1.25); }],
  ["larger", "Zoom in", "", () => { drawn.zoom = Math.min(2, drawn.zoom * 1.25); }],
];

function fit() {
  const { clientWidth, clientHeight } = $("#graph .boxes");
  drawn.zoom = Math.max(0.1, Math.min(1, (clientWidth - 32) / drawn.picture.width, (clientHeight - 32) / drawn.picture.height));
}

/** Chooses the next node with these letters in its name or its operator. */
function find(words) {
  const wanted = words.trim().toLowerCase();
  const all = profile.nodes.length;
  const isHit = (index) => `${profile.nodes[index]} ${profile.ops[index]}`.toLowerCase().includes(wanted);
  for (let i = 1; wanted && i <= all; i += 1) {
    const index = ((state.at ?? -1) + i) % all;
    if (isHit(index)) return select(index);
  }
  return undefined;
}

function changeSteps(by) {
  drawn.steps += by;
  drawn.nodes = nodesAround(drawn.graph, drawn.start, drawn.steps);
}

function showTools() {
  const { graph, nodes, steps, trail, title, isFolded, picture } = drawn;
  const tool = (name) => $(`#graph-${name}`);
  tool("back").hidden = !trail.length;
  for (const name of ["fewer", "more"]) tool(name).hidden = steps === null;
  tool("fewer").disabled = steps === 0;
  tool("more").disabled = nodes.size >= AROUND || nodes.size === graph.nodes.length;
  tool("fold").hidden = nodes.size > FEW || nodes.size < 20;
  tool("fold").setAttribute("aria-pressed", isFolded);
  tool("collapse").hidden = !isFolded || !drawn.isOpened;
  tool("whole").hidden = graph === whole && nodes.size === graph.nodes.length;
  const around = steps === null ? "" : `, within ${count(steps, "step")}`;
  $("#graph .lead").textContent = visible([
    `${title}${around}: ${grouped(nodes.size)} of ${count(graph.nodes.length, "node")}.`,
    graph !== whole ? "" : isRanked ? "Blue edges go to another rank." : shown().cuts.length ? "Blue edges go to the next part only, dashed orange ones skip a part." : "",
    picture.boxes.some((box) => box.kind === "fold") ? "Double frames open." : "",
    picture.boxes.some((box) => box.far.length) ? `What more than ${MANY} boxes read is named in each, after ←.` : "",
  ].filter(Boolean).join(" "));
}

/** The links as a table, if it is open. */
function fillGraphTable() {
  const details = $("#graph details");
  const place = $(".scroll", details);
  place.replaceChildren();
  const { graph, picture } = drawn;
  const named = ({ head, kind, nodes }) => (kind === "node" ? `${head} ${graph.nodes[nodes[0]]}` : head);
  if (details.open) place.append(table("edges of the graph", [
    ["from", "name", ({ from }) => named(from)],
    ["to", "name", ({ to }) => named(to)],
    ["tensors", "", ({ tensors: own }) => listed(own.map((tensor) => typed(graph, tensor)))],
    ["kind", "", (link) => kindOfLink(link, drawn)],
  ], picture.links.slice(0, MAX_ROWS)));
}

/** Steps from the focused box: along an edge, or to its neighbour in the layer. */
function stepInGraph(key) {
  const { boxes, links } = drawn.picture;
  const at = boxes.find((box) => box.key === document.activeElement.dataset.key);
  if (!at) return;
  const near = {
    ArrowDown: links.filter((link) => link.from === at).map((link) => link.to),
    ArrowUp: links.filter((link) => link.to === at).map((link) => link.from),
    ArrowLeft: boxes.filter((box) => box.layer === at.layer && box.x < at.x),
    ArrowRight: boxes.filter((box) => box.layer === at.layer && box.x > at.x),
  }[key];
  const next = near.sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x))[0];
  if (next) focusOn(next);
}

export function enterGraph() {
  $("#graph").scrollIntoView({ block: "nearest" });
  $("#graph .head[tabindex='0']")?.focus();
}

export async function startGraph() {
  if (!profile || !$("#graph-data").textContent) return;
  const graph = await unpacked("graph-data");
  whole = completed(Object.assign(graph, { nodes: profile.nodes, ops: profile.ops }));
  $("#graph").hidden = false;
  for (const [name, text, title, action] of TOOLS) {
    $("#graph .toolbar").append(button({ id: `graph-${name}`, text, title }, () => { action(); drawGraph(); }));
  }
  $("#graph-search").addEventListener("keydown", ({ key, target }) => { if (key === "Enter") find(target.value); });
  startMinimap();
  $("#graph details").addEventListener("toggle", fillGraphTable);
  onKeys($("#graph .boxes"), Object.fromEntries(["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].map((key) => [key, () => stepInGraph(key)])));
  showWhole();
  showAround();
  when("pinned", showAround);
  when("cut", () => { if (!state.drag) drawGraph(); });
}
