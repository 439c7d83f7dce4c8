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

let asked = 0;

/** Makes what scrolls reachable with Tab, so that arrow keys scroll it: in the next frame, since it has to be laid out for that. */
export function letKeysScroll() {
  cancelAnimationFrame(asked);
  asked = requestAnimationFrame(() => {
    for (const box of all(".scroll")) {
      const index = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
      if (box.tabIndex !== index) box.tabIndex = index;
    }
  });
}

export async function copy(text, button) {
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyBySelection(text);
  button.textContent = isCopied ? "Copied" : "Select the command and copy";
  setTimeout(() => { button.textContent = "Copy command"; }, 1600);
}

/** For pages that may not use the clipboard, such as those inside a notebook. */
function copyBySelection(text) {
  const area = html("textarea", { "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}
