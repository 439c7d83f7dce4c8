/* Starts the page, and watches what concerns all of it: theme, keys, size, print. */

import { startAddress } from "./address.js";
import { redo, toggleCut, undo } from "./cuts.js";
import { $, letKeysScroll } from "./elements.js";
import { startFlows } from "./flow_chart.js";
import { enterGraph, startGraph } from "./graph.js";
import { startMatrix } from "./matrix.js";
import { drawRows, startNodes } from "./node_list.js";
import { startPanel, unpin } from "./panel.js";
import { startParts } from "./parts.js";
import { selectKey, startProfile } from "./profile.js";
import { drawInTheme, measure } from "./profile_drawing.js";
import { startReasons } from "./reasons.js";
import { cutter, profile, started } from "./scene.js";
import { startSchedule } from "./schedule.js";
import { startCutPoints, startDetails, startMap, startOtherPlans, startRecomputed } from "./sections.js";
import { state } from "./state.js";
import { startPictures } from "./things.js";

const wantsDark = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

function switchTheme() {
  const dark = (root.dataset.theme ?? (wantsDark.matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "light" : "dark";
  drawInTheme();
}

function watchKeys() {
  const dialog = $("#keys");
  $("#theme").addEventListener("click", switchTheme);
  $("#help").addEventListener("click", () => dialog.showModal());
  const keys = { t: switchTheme, "?": () => dialog.showModal(), Escape: unpin };
  if (profile) {
    keys["/"] = () => $("#search").focus();
    // With or without a modifier: on many keyboards these two need AltGr.
    keys["["] = () => selectKey(-1);
    keys["]"] = () => selectKey(1);
    keys.g = enterGraph;
    if (cutter) keys.c = () => { if (state.at !== null) toggleCut(state.at); };
  }
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, textarea");
    const change = { z: event.shiftKey ? redo : undo, Z: redo, y: redo }[event.key];
    if (cutter && change && (event.ctrlKey || event.metaKey) && !isTyping) {
      event.preventDefault();
      return change();
    }
    if (dialog.open || !(event.key in keys) || (isTyping && event.key !== "Escape")) return undefined;
    if ((event.ctrlKey || event.metaKey) && !"[]".includes(event.key)) return undefined;
    event.preventDefault();
    if (isTyping) event.target.blur();
    return keys[event.key]();
  });
}

/** Draws again when the width changes; a frame of a notebook gets its width only after the script has run. */
function watchSize() {
  let drawnWidth = 0;
  let request = 0;
  new ResizeObserver(() => {
    if ($("main").clientWidth === drawnWidth) return;
    cancelAnimationFrame(request);
    request = requestAnimationFrame(() => {
      drawnWidth = $("main").clientWidth;
      measure();
      drawRows();
      letKeysScroll();
    });
  }).observe($("main"));
  wantsDark.addEventListener("change", drawInTheme);
}

/** Prints the light theme: canvases have to be drawn again for it. */
function watchPrint() {
  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    $(".notes").open = true;
    root.dataset.theme = "light";
    drawInTheme();
  });
  window.addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    drawInTheme();
  });
}

$(".tools").hidden = false;
startPictures();
startMap();
startSchedule();
startMatrix();
startParts();
startFlows();
startProfile();
startCutPoints();
startRecomputed();
startReasons();
startOtherPlans();
startDetails();
startNodes();
startPanel();
drawRows();
watchKeys();
watchSize();
watchPrint();
startAddress();
root.dataset.milliseconds = Math.round((performance.now() - started) * 10) / 10;
root.dataset.ready = "yes";
await startGraph();
