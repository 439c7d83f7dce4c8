/* Starts the page, and watches what concerns all of it: address, theme, keys. */

import { startCharts } from "./charts.js";
import { cutAfter, redo, toggleCut, undo } from "./cuts.js";
import { $, all, listen } from "./elements.js";
import { enterGraph, startGraph } from "./graph.js";
import { linkTo, linkToCuts, readAddress, thingAt } from "./links.js";
import { startPanel } from "./panel.js";
import { startParts } from "./parts.js";
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
    const change = cutter && isControl && !isTyping ? { z: event.shiftKey ? redo : undo, Z: redo, y: redo }[event.key] : undefined;
    // Brackets with or without a modifier: on many keyboards these two need AltGr.
    const isKey = !dialog.open && event.key in keys && (!isTyping || event.key === "Escape") && (!isControl || "[]".includes(event.key));
    const action = change ?? (isKey ? keys[event.key] : null);
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
  const devices = yours?.on?.map((device) => costs.devices[device]?.name ?? "");
  const words = [
    yours ? linkToCuts(yours.cuts.map((cut) => profile.nodes[cut]), devices) : "",
    pinned ? linkTo(pinned, shown().tensors, profile?.nodes) : "",
  ];
  history.replaceState(null, "", `#${words.filter(Boolean).join("&")}`);
  address = location.hash;
}, 100);

function followAddress() {
  address = location.hash;
  const { cuts, on, link } = readAddress(address);
  if (cuts.length && cutter) cutAfter(cuts, on);
  const thing = thingAt(link, shown().parts, shown().tensors, profile?.nodes ?? []);
  if (thing?.kind === "node") select(thing.index);
  else if (thing) pin(thing.kind, thing.index);
}

$(".tools").hidden = false;
startPanel();
startParts();
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
