/* Elements of the page. Text is only ever set as text: names come from models and may look like markup. */

import { visible } from "./names.js";

export const $ = (selector, root = document) => root.querySelector(selector);

/** Lets long names break after separators. */
function breakable(element) {
  const pieces = element.textContent.split(/(?<=[/.:_])/);
  if (element.textContent.length > 20 && pieces.length > 1) {
    element.replaceChildren(...pieces.flatMap((piece) => [piece, document.createElement("wbr")]));
  }
}

export function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name !== "text" && value !== null) element.setAttribute(name, visible(value));
  }
  if ("text" in attributes) {
    element.textContent = visible(attributes.text);
    breakable(element);
  }
  element.append(...children);
  return element;
}

/** A button, and what a click on it does. */
export function button(attributes, action) {
  const element = html("button", attributes);
  element.addEventListener("click", action);
  return element;
}

/** An element on one line: `html` lets long texts break. */
export function inLine(tag, css, text) {
  const element = html(tag, { class: css });
  element.textContent = visible(text);
  return element;
}

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
  asked = requestAnimationFrame(letKeysScrollNow);
}

function letKeysScrollNow() {
  for (const box of document.querySelectorAll(".scroll")) {
    const index = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
    if (box.tabIndex !== index) box.tabIndex = index;
  }
}

/** Calls the action of a key, if there is one. */
export function onKeys(element, actions) {
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key](event);
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
