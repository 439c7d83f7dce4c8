/* What the page's modules use of a browser, for Node.js: the elements of page.html, and frames and timers that a test calls.
   Text never becomes elements here, and what would make it so is refused. What has to be laid out is for the tests with a browser. */

import { readFileSync } from "node:fs";

const dashed = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);

class Node {
  parentNode = null;
  remove() {
    this.parentNode?.childNodes.splice(this.parentNode.childNodes.indexOf(this), 1);
    this.parentNode = null;
  }
}

function* descendantsOf(element) {
  for (const child of element.childNodes) {
    if (!(child instanceof Element)) continue;
    yield child;
    yield* descendantsOf(child);
  }
}

class Text extends Node {
  constructor(text) {
    super();
    this.textContent = text;
  }
}

class Element extends Node {
  attributes = new Map();
  childNodes = [];
  listeners = [];
  style = Object.assign(new Map(), { setProperty: (name, value) => this.style.set(name, value) });
  dataset = new Proxy({}, {
    get: (_, name) => this.getAttribute(`data-${dashed(name)}`) ?? undefined,
    set: (_, name, value) => this.setAttribute(`data-${dashed(name)}`, value) ?? true,
  });
  classList = {
    contains: (name) => this.classes.includes(name),
    add: (name) => this.classList.toggle(name, true),
    remove: (name) => this.classList.toggle(name, false),
    toggle: (name, isOn = !this.classes.includes(name)) => {
      this.setAttribute("class", [...this.classes.filter((one) => one !== name), ...isOn ? [name] : []].join(" "));
    },
  };
  constructor(tag) {
    super();
    this.tag = tag;
    Object.assign(this, { clientWidth: 0, clientHeight: 0, scrollLeft: 0, scrollTop: 0, scrollWidth: 0, scrollHeight: 0, value: "" });
  }
  get classes() { return (this.getAttribute("class") ?? "").split(" ").filter(Boolean); }
  getAttribute(name) { return this.attributes.get(name) ?? null; }
  setAttribute(name, value) { this.attributes.set(name, String(value)); }
  toggleAttribute(name, isOn) { if (isOn) this.setAttribute(name, ""); else this.attributes.delete(name); }
  append(...added) {
    for (const one of added) {
      const node = one instanceof Node ? one : new Text(String(one));
      node.remove();
      node.parentNode = this;
      this.childNodes.push(node);
    }
  }
  replaceChildren(...added) {
    for (const node of [...this.childNodes]) node.remove();
    this.append(...added);
  }
  get textContent() { return this.childNodes.map((node) => node.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }
  get children() { return this.childNodes.filter((node) => node instanceof Element); }
  get nextElementSibling() { return this.parentNode.children[this.parentNode.children.indexOf(this) + 1] ?? null; }
  get descendants() { return [...descendantsOf(this)]; }
  matches(selector) { return pathsOf(selector).some((path) => matchesPath(this, path)); }
  querySelectorAll(selector) {
    const paths = pathsOf(selector);
    return this.descendants.filter((element) => paths.some((path) => matchesPath(element, path)));
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  addEventListener(type, listener) { this.listeners.push([type, listener]); }
  focus() {
    document.activeElement = this;
    happen(this, "focus");
  }
  blur() { document.activeElement = null; }
  click() { happen(this, "click"); }
  scrollIntoView() {}
  scrollTo() {}
  setPointerCapture() {}
  showModal() { this.open = true; }
  set innerHTML(text) { throw new Error(`markup: ${text}`); }
  set outerHTML(text) { throw new Error(`markup: ${text}`); }
  insertAdjacentHTML(_, text) { throw new Error(`markup: ${text}`); }
}

/* Properties that are attributes, as in browsers. */
for (const name of ["id", "title", "role", "tabIndex", "ariaPressed", "ariaValueNow", "ariaValueText", "ariaValueMax"]) {
  const attribute = name.startsWith("aria") ? `aria-${name.slice(4).toLowerCase()}` : name.toLowerCase();
  Object.defineProperty(Element.prototype, name, {
    get() { return this.getAttribute(attribute); },
    set(value) { this.setAttribute(attribute, value); },
  });
}
for (const name of ["hidden", "disabled", "open"]) {
  Object.defineProperty(Element.prototype, name, {
    get() { return this.attributes.has(name); },
    set(value) { this.toggleAttribute(name, value); },
  });
}

/** A selector as lists of what elements have to be, each below the one before. */
const pathsOf = (selector) => selector.split(", ").map((path) => path.split(" ").map((step) => (
  [...step.matchAll(/([#.]?)([\w-]+)|\[([\w-]+)(?:='?([\w-]+)'?)?\]|:(focus)/g)].map(([, sign, name, attribute, value, focus]) => {
    if (focus) return (element) => document.activeElement === element;
    if (attribute) return (element) => (value === undefined ? element.attributes.has(attribute) : element.getAttribute(attribute) === value);
    return { "#": (element) => element.id === name, ".": (element) => element.classes.includes(name), "": (element) => element.tag === name }[sign];
  }))));

function matchesPath(element, path) {
  const isSo = path.at(-1).every((test) => test(element));
  if (!isSo || path.length === 1) return isSo;
  for (let above = element.parentNode; above; above = above.parentNode) if (matchesPath(above, path.slice(0, -1))) return true;
  return false;
}

/** Lets an event happen at an element, and at those around it; whether what browsers do for it was prevented. */
export function happen(element, type, more = {}) {
  let [isStopped, isPrevented] = [false, false];
  const event = { type, target: element, stopPropagation: () => { isStopped = true; }, preventDefault: () => { isPrevented = true; }, ...more };
  for (let at = element; at && !isStopped; at = at.parentNode) {
    for (const [own, listener] of [...at.listeners]) if (own === type) listener(event);
  }
  return isPrevented;
}

export const press = (element, key, more = {}) => happen(element, "keydown", { key, ...more });
export const find = (selector, root = document) => root.querySelector(selector);
export const findAll = (selector, root = document) => root.querySelectorAll(selector);
export const texts = (selector, root = document) => findAll(selector, root).map((element) => element.textContent);
/** The texts of the cells of a table, row by row, without its head. */
export const rowsOf = (table) => findAll("tbody tr", table).map((row) => row.children.map((cell) => cell.textContent));

/** The elements of page.html, without what Python fills in. */
function parsed(markup) {
  const root = new Element("html");
  let at = root;
  for (const [, comment, end, tag, attributes, text] of markup.matchAll(/(<!--.*?-->)|<(\/?)(\w+)([^>]*)>|([^<]+)/gs)) {
    if (comment) continue;
    if (text) at.append(text);
    else if (end) at = at.parentNode;
    else {
      const element = new Element(tag);
      for (const [, name, value = ""] of attributes.matchAll(/([\w-]+)(?:="([^"]*)")?/g)) element.setAttribute(name, value);
      at.append(element);
      if (!["input", "br"].includes(tag)) at = element;
    }
  }
  return root;
}

/* Timers and frames: time passes when a test says so. */

const [timers, frames] = [new Map(), new Map()];
let [now, last] = [0, 0];

/** Lets time pass, and with it what waits for that, also what begins to wait meanwhile. */
export async function pass(milliseconds) {
  const end = now + milliseconds;
  for (;;) {
    await new Promise(setImmediate); // what was promised comes first
    const [next] = [...timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at);
    if (!next) break;
    timers.delete(next[0]);
    now = next[1].at;
    next[1].action();
  }
  now = end;
}

/** Draws what waits for the next frame. */
export function frame() {
  const drawn = [...frames.values()];
  frames.clear();
  for (const draw of drawn) draw();
}

const set = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });

/** Makes this process look like a browser that opened a page with this data; `graph` is that of the graph, if there is one. */
export function openPage(data, { graph = null, hash = "" } = {}) {
  const markup = readFileSync(new URL("../../../graphcut/drawing/page/page.html", import.meta.url), "utf8");
  const root = parsed(/<body>.*<\/body>/s.exec(markup)[0].replaceAll(/\{\{\w+\}\}/g, ""));
  set("document", Object.assign(root, {
    documentElement: root, activeElement: null,
    createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag),
  }));
  find(".answer").textContent = data.sentence;
  if (graph) find("#graph-data").textContent = "packed";
  const location = { hash };
  const values = {
    Node, Element, location, opened: async (id) => ({ json: async () => structuredClone({ data, "graph-data": graph }[id]) }),
    matchMedia: () => ({ matches: false }), getComputedStyle: () => ({ colorScheme: "light" }), getSelection: () => ({ selectAllChildren() {} }),
    history: { replaceState: (_, title, address) => { location.hash = address; } },
    setTimeout: (action, wait = 0) => { timers.set(last += 1, { action, at: now + wait }); return last; },
    clearTimeout: (timer) => timers.delete(timer),
    requestAnimationFrame: (draw) => { frames.set(last += 1, draw); return last; },
    cancelAnimationFrame: (one) => frames.delete(one),
    window: Object.assign(new Element("window")),
  };
  for (const [name, value] of Object.entries(values)) set(name, value);
  set("navigator", { clipboard: { writeText: async (text) => { set("copied", text); } } });
  window.parent = window;
}
