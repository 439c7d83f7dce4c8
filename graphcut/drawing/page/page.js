/* Starts the page, and watches what concerns all of it: address, theme, keys. */

import { startCharts } from "./charts.js";
import { cutAfter, step, toggleCut } from "./cuts.js";
import { $, all, listen } from "./elements.js";
import { enterGraph, startGraph } from "./graph.js";
import { linkTo, thingIn } from "./links.js";
import { startPanel } from "./panel.js";
import { selectKey, startProfile } from "./profile.js";
import { startSections } from "./sections.js";
import { costs, cutter, pin, profile, resting, select, shown, started, state, unpin, when } from "./shown.js";

const root = document.documentElement;

const switchTheme = () => { root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark"; };

function watchKeys() {
  const dialog = $("#keys");
  const showKeys = () => dialog.showModal();
  listen($("#theme"), { click: switchTheme });
  listen($("#help"), { click: showKeys });
  const keys = { t: switchTheme, "?": showKeys, Escape: unpin };
  if (profile) Object.assign(keys, { "/": () => $("#search").focus(), "[": () => selectKey(-1), "]": () => selectKey(1), g: enterGraph });
  if (cutter) keys.c = () => { if (state.at !== null) toggleCut(state.at); };
  listen(document, { keydown: (event) => {
    const isTyping = event.target.matches("input, textarea");
    const isControl = event.ctrlKey || event.metaKey;
    const by = cutter && isControl && !isTyping ? { z: event.shiftKey ? 1 : -1, Z: 1, y: 1 }[event.key] : undefined;
    // Brackets with or without a modifier: on many keyboards these two need AltGr.
    const isKey = !dialog.open && event.key in keys && (!isTyping || event.key === "Escape") && (!isControl || "[]".includes(event.key));
    const action = by ? () => step(by) : isKey ? keys[event.key] : null;
    if (!action) return;
    event.preventDefault();
    if (isTyping) event.target.blur();
    action();
  } });
}

let address = location.hash; // as it was last written or followed

/** Writes the address when nothing has changed for a moment: browsers refuse many changes in a short time, and they take long. */
const writeAddress = resting(() => {
  if (location.hash !== address) return; // it was changed just now, and is followed next
  const { pinned, yours } = state;
  const words = new URLSearchParams([
    ...yours ? yours.cuts.map((cut) => ["cut", profile.nodes[cut]]) : [],
    ...yours?.on ? yours.on.map((device) => ["on", costs.devices[device]?.name ?? ""]) : [],
    ...pinned ? linkTo(pinned, shown().tensors, profile?.nodes ?? []) : [],
  ]);
  history.replaceState(null, "", `#${words}`);
  address = location.hash;
}, 100);

function followAddress() {
  address = location.hash;
  const words = new URLSearchParams(address.slice(1));
  if (words.has("cut") && cutter) cutAfter(words.getAll("cut"), words.getAll("on"));
  const thing = thingIn(words, shown().parts, shown().tensors, profile?.nodes ?? []);
  if (thing?.kind === "node") select(thing.index);
  else if (thing) pin(thing.kind, thing.index);
}

$(".tools").hidden = false;
startPanel();
startCharts();
startProfile();
startSections();
watchKeys();
if (window.parent === window) for (const change of ["pinned", "cut"]) when(change, writeAddress); // a frame has no address to share
followAddress();
for (const section of all("section")) section.setAttribute("aria-label", $("h2", section).textContent);
listen(window, { hashchange: followAddress });
root.dataset.milliseconds = Math.round((performance.now() - started) * 10) / 10;
root.dataset.ready = "yes";
await startGraph();
