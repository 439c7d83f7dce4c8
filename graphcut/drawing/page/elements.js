/* Elements of the page. Text is only ever set as text: names come from models and may look like markup. */

import { visible } from "./words.js";

export const $ = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** The colour of a part, as a property of a style: neighbours differ. */
export const coloured = (part) => (part === undefined ? {} : { "--part": `hsl(${(215 + 137.5 * part) % 360} 60% 50%)` });
export const share = (part) => `${part * 100}%`;

export const isNarrow = matchMedia("(max-width: 640px)").matches;

/** Calls listeners, which are by the names of their events: `{ "focus pointerenter": show }`. */
export function listen(element, listeners) {
  for (const [events, listener] of Object.entries(listeners)) {
    for (const event of events.split(" ")) element.addEventListener(event, listener);
  }
}

export function onKeys(element, actions) {
  listen(element, { keydown: (event) => {
    if (event.ctrlKey || event.metaKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key](event);
  } });
}

/**
 * Fills an element with attributes, those of them that are not null. `text` may break after separators, texts among the
 * children do not; `style` has properties of its style, `on` its listeners.
 */
function filled(element, { text = "", style = {}, on = {}, ...attributes } = {}, children) {
  const said = visible(text);
  const pieces = said.length > 20 ? said.split(/(?<=[/.:_])/).flatMap((piece) => [piece, html("wbr")]) : [said];
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, visible(value));
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
  listen(element, on);
  element.append(...pieces, ...children.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

export const html = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A name that loses letters in its middle where it has no room: after its first number, which tells layers apart. */
export function narrowed(name) {
  const [head] = /^.{0,16}?\d+|^.{0,10}/su.exec(name);
  return html("span", { class: "middle", title: name }, html("span", {}, head), html("span", {}, html("bdi", { dir: "ltr" }, name.slice(head.length))));
}

export const button = (attributes, action) => html("button", { ...attributes, on: { click: action } });

/** Draws in the next frame, once however often it was asked for. */
export function inNextFrame(draw) {
  let frame = 0;
  return () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  };
}

/** Copies the text of an element; where a page may not, it is selected for the reader to do so. */
export async function copyText(element, button) {
  const isCopied = await navigator.clipboard?.writeText(element.textContent).then(() => true, () => false);
  if (!isCopied) getSelection().selectAllChildren(element);
  button.textContent = isCopied ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy command"; }, 1600);
}
