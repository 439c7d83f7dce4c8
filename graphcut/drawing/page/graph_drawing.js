/* A picture of a graph as elements: boxes are HTML, edges an SVG below them. */

import { html, inLine } from "./elements.js";
import { kindOfLink } from "./graph_picture.js";
import { typed } from "./graph_words.js";
import { visible } from "./names.js";
import { groupsOf } from "./nodes_around.js";
import { colourOf } from "./part_words.js";
import { kinds } from "./scene.js";
import { count } from "./number_words.js";

/** A box; `activate` is called for a click on it, `openBody` for one on a subgraph of it. */
export function boxElement(box, isChosen, activate, openBody) {
  const said = [[box.head, ...box.tags].join(" "), ...box.lines.map((line) => line.title ?? line.text)].join(", ");
  const head = html("button", { class: "head", tabindex: -1, "data-key": box.key, "aria-label": said, title: box.head });
  head.append(inLine("span", null, box.head), ...box.tags.flatMap((text) => [" ", inLine("i", null, text)]));
  const lines = box.lines.map(({ text, title, css }) => {
    const line = html("div", { class: `line ${css ?? ""}`, title: title ?? text, "aria-hidden": "true" });
    line.append(inLine("bdi", null, text));
    line.firstChild.setAttribute("dir", "ltr");
    return line;
  });
  const bodies = box.bodies.map(([name, body]) => {
    const button = inLine("button", "body", `▸ ${name}, ${count(body.nodes.length, "node")}`);
    button.addEventListener("click", (event) => {
      event.stopPropagation();
      openBody(box, name, body);
    });
    return button;
  });
  const css = { in: "end", out: "end", before: "more", after: "more", copies: "more", fold: "fold" }[box.kind] ?? "";
  const isOwn = box.part !== undefined;
  const element = html("div", { class: `box ${css}${isOwn ? " own" : ""}${isChosen ? " chosen" : ""}` }, head, ...lines, ...bodies);
  if (isOwn) element.style.setProperty("--part", colourOf(box.part));
  Object.assign(element.style, { left: `${box.x - box.width / 2}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` });
  element.addEventListener("click", () => activate(box));
  return element;
}

/** A frame around each part, with its name, where no two of them overlap. */
export function frameElements(boxes, titleOfPart) {
  const around = [...groupsOf(boxes.filter((box) => box.part !== undefined), (box) => box.part)].map(([part, own]) => ({
    part, left: Math.min(...own.map((box) => box.x - box.width / 2)) - 12, right: Math.max(...own.map((box) => box.x + box.width / 2)) + 12,
    top: Math.min(...own.map((box) => box.y)) - 20, bottom: Math.max(...own.map((box) => box.y + box.height)) + 10,
  }));
  const overlap = (a, b) => a !== b && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  if (around.some((one) => around.some((other) => overlap(one, other)))) return [];
  return around.map(({ part, left, right, top, bottom }) => {
    const frame = html("div", { class: "frame" }, inLine("b", null, titleOfPart(part)));
    Object.assign(frame.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    frame.style.setProperty("--part", colourOf(part));
    return frame;
  });
}

/** The edges of a view; `showTensors` is called for a click on one. */
export function linksElement(links, view, showTensors) {
  const element = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  return element("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, ...links.map((link) => {
    const kind = kindOfLink(link, view);
    const css = kinds[kind]?.[1] ?? "";
    const [x, y, up] = link.tip;
    const title = element("title", {}, visible(link.tensors.map((tensor) => typed(view.graph, tensor)).join("\n")));
    const group = element("g", {}, title, element("path", { class: css, d: link.path }), element("path", { class: "hit", d: link.path }),
      element("path", { class: `tip ${css}`, d: `M${x - 4},${y + 8 * up}h8L${x},${y}Z` }));
    group.addEventListener("click", () => showTensors(`${link.from.head} → ${link.to.head}`, link.tensors, kind, view.graph));
    return group;
  }));
}
