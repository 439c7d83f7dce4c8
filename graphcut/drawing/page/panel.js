/* The panel: it tells of what is under the pointer, focused or pinned. A chosen node of the profile is pinned, too. */

import { $, button, html } from "./elements.js";
import { profile } from "./scene.js";
import { state, tell, when } from "./state.js";

const panel = $("#panel");

/** For each kind of a thing what shows one in the panel; `start` is for nothing. */
export const shows = {};

/** A title and pairs of a word and a value; pairs without a value are left out. */
export function fillPanel(title, pairs, ...content) {
  const list = html("dl");
  for (const [word, value] of pairs) {
    if (value === null || value === "") continue;
    list.append(html("dt", { text: word }), html("dd", { class: value.length > 28 ? "long" : null, text: value }));
  }
  panel.replaceChildren(html("h2", { text: title }), ...(pairs.length ? [list] : []), ...content);
  panel.classList.remove("idle");
}

/** Says what one can do, if nothing is pinned. */
export function showHint(text) {
  panel.classList.add("idle");
  panel.append(html("p", { class: "hint", text }));
}

export function showPinned() {
  if (!state.pinned) return shows.start();
  shows[state.pinned.kind](state.pinned.index);
  return panel.append(button({ text: "Unpin", title: "Esc" }, unpin));
}

function markPinned() {
  const { pinned } = state;
  for (const element of document.querySelectorAll("[data-kind]")) {
    const isPinned = pinned !== null && element.dataset.kind === pinned.kind && Number(element.dataset.index) === pinned.index;
    element.classList.toggle("hot", isPinned);
    element.setAttribute("aria-pressed", isPinned);
  }
}

function setPinned(thing) {
  state.pinned = thing;
  showPinned();
  markPinned();
  tell("pinned");
}

export const pin = (kind, index) => setPinned({ kind, index });

export function unpin() {
  if (state.pinned !== null) setPinned(null);
}

/** Chooses a node of the profile, or the one next to it that there is. */
export function select(index) {
  state.at = Math.max(0, Math.min(profile.nodes.length - 1, index));
  tell("chosen"); // draws before the panel changes, which would have to be laid out for it
  pin("node", state.at);
}

export function startPanel() {
  panel.hidden = false;
  when("cut", () => { // parts and tensors are others now
    if (state.pinned && state.pinned.kind !== "node") unpin();
    else showPinned();
  });
  shows.start();
}
