/* A picture of a graph as elements: boxes are HTML, edges an SVG below them, and a small picture of all of it. */

import { $, colourOf, html, isNarrow, listen } from "./elements.js";
import { kindOfLink, typed } from "./graph_picture.js";
import { groupsOf, visible } from "./names.js";
import { count } from "./number_words.js";
import { kinds } from "./shown.js";

const CLASSES = { in: "end", out: "end", before: "more", after: "more", copies: "more", fold: "fold", node: "" };

/** Where something is in the picture, as properties of its style. */
const at = (left, top, width, height) => (
  { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });

/** A box; `activate` is called for a click on it, `openBody` for one on a subgraph of it. */
function boxElement(box, isChosen, activate, openBody) {
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
  const isOwn = box.part !== undefined;
  return html("div", {
    class: `box ${CLASSES[box.kind]}${isOwn ? " own" : ""}${isChosen ? " chosen" : ""}`, on: { click: () => activate(box) },
    style: { ...at(box.x - box.width / 2, box.y, box.width, box.height), ...isOwn ? { "--part": colourOf(box.part) } : {} },
  }, head, ...lines, ...bodies);
}

/** A frame around each part, with its name, where no two of them overlap. */
function frameElements(boxes, titleOfPart) {
  const around = [...groupsOf(boxes.filter((box) => box.part !== undefined), (box) => box.part)].map(([part, own]) => ({
    part, left: Math.min(...own.map((box) => box.x - box.width / 2)) - 12, right: Math.max(...own.map((box) => box.x + box.width / 2)) + 12,
    top: Math.min(...own.map((box) => box.y)) - 20, bottom: Math.max(...own.map((box) => box.y + box.height)) + 10,
  }));
  const overlap = (a, b) => a !== b && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  if (around.some((one) => around.some((other) => overlap(one, other)))) return [];
  return around.map(({ part, left, right, top, bottom }) => html("div", {
    class: "frame", style: { ...at(left, top, right - left, bottom - top), "--part": colourOf(part) } }, html("b", {}, titleOfPart(part))));
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The edges of a view; `showTensors` is called for a click on one. */
function linksElement(links, view, showTensors) {
  return svg("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, ...links.map((link) => {
    const { from, to, path: d, tensors, tip: [x, y, up] } = link;
    const kind = kindOfLink(link, view);
    const css = kinds[kind]?.[1] ?? "";
    const title = svg("title", {}, visible(tensors.map((tensor) => typed(view.graph, tensor)).join("\n")));
    const group = svg("g", {}, title, svg("path", { class: css, d }), svg("path", { class: "hit", d }),
      svg("path", { class: `tip ${css}`, d: `M${x - 4},${y + 8 * up}h8L${x},${y}Z` }));
    listen(group, { click: () => showTensors(`${from.head} → ${to.head}`, tensors, kind, view.graph) });
    return group;
  }));
}

/** The picture of a view; `on` has what clicks on boxes, subgraphs and edges call. */
export function canvasOf(view, hasFrames, { activate, openBody, showTensors }) {
  const { boxes, links, width, height } = view.picture;
  return html("div", { class: "canvas", style: { width: `${width}px`, height: `${height}px`, zoom: view.zoom } },
    ...hasFrames ? frameElements(boxes, view.partName) : [], linksElement(links, view, showTensors),
    ...boxes.map((box) => boxElement(box, box.key === view.chosen, activate, openBody)));
}

const [place, minimap] = [$("#graph .boxes"), $("#graph .minimap")];
const MOST = isNarrow ? { width: 90, height: 90 } : { width: 150, height: 110 };
const scaleOf = ({ width, height }) => Math.min(MOST.width / width, MOST.height / height);

/** A small picture of the whole graph that is drawn, with what is in sight of it; none if all is in sight. */
export function drawMinimap({ picture, zoom }) {
  minimap.hidden = place.scrollWidth <= place.clientWidth && place.scrollHeight <= place.clientHeight;
  if (minimap.hidden) return;
  const scale = scaleOf(picture);
  Object.assign(minimap, { width: Math.max(20, picture.width * scale), height: Math.max(20, picture.height * scale) });
  const context = minimap.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  for (const { x, y, width, height, part } of picture.boxes) {
    context.fillStyle = part === undefined ? style.getPropertyValue("--muted") : colourOf(part);
    context.fillRect((x - width / 2) * scale, y * scale, Math.max(1, width * scale), Math.max(1, height * scale));
  }
  Object.assign(context, { strokeStyle: style.getPropertyValue("--pick"), lineWidth: 2 });
  context.strokeRect(...[place.scrollLeft, place.scrollTop, place.clientWidth, place.clientHeight].map((pixels) => (pixels / zoom) * scale));
}

/** Draws the small picture when the large one is scrolled, and scrolls to where one points in it. */
export function startMinimap(drawnNow) {
  place.addEventListener("scroll", () => drawMinimap(drawnNow()), { passive: true });
  listen(minimap, { "pointerdown pointermove": ({ offsetX, offsetY, buttons }) => {
    const scale = drawnNow().zoom / scaleOf(drawnNow().picture);
    if (buttons) place.scrollTo(offsetX * scale - place.clientWidth / 2, offsetY * scale - place.clientHeight / 2);
  } });
}
