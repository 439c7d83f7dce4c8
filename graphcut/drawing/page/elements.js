/* Elements of the page. Text is only ever set as text: names come from models and may look like markup. */

import { visible } from "./names.js";

export const $ = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** A colour for each part: neighbours differ. */
export const colourOf = (index) => `hsl(${(215 + 137.5 * index) % 360} 60% 50%)`;

/** Whether the window is as narrow as that of a phone. */
export const isNarrow = matchMedia("(max-width: 640px)").matches;

/** Calls listeners, which are by the names of their events: `{ "focus pointerenter": show }`. */
export function listen(element, listeners) {
  for (const [events, listener] of Object.entries(listeners)) for (const event of events.split(" ")) element.addEventListener(event, listener);
}

/** Calls the action of a key, if there is one. */
export function onKeys(element, actions) {
  listen(element, { keydown: (event) => {
    if (event.ctrlKey || event.metaKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key](event);
  } });
}

/**
 * An element with attributes, those of them that are not null. `text` may break after separators, texts among the
 * children do not; `style` has properties of its style, `on` its listeners.
 */
export function html(tag, { text = "", style = {}, on = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  const said = visible(text);
  const pieces = said.length > 20 ? said.split(/(?<=[/.:_])/).flatMap((piece) => [piece, document.createElement("wbr")]) : [said];
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, visible(value));
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
  listen(element, on);
  element.append(...pieces, ...children.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

export const button = (attributes, action) => html("button", { ...attributes, on: { click: action } });

/** Shows a section, with `content` in it. */
export function show(id, ...content) {
  const section = $(`#${id}`);
  section.hidden = false;
  ($(".scroll", section) ?? section).append(...content);
}

/** Copies the text of an element; where a page may not, it is selected for the reader to do so. */
export async function copyText(element, button) {
  const isCopied = await navigator.clipboard?.writeText(element.textContent).then(() => true, () => false);
  if (!isCopied) getSelection().selectAllChildren(element);
  button.textContent = isCopied ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => { button.textContent = "Copy command"; }, 1600);
}
