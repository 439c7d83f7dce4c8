/* The cuts that the page shows: those of the plan, or yours. */

import { costsOf, namedCut } from "./cutting.js";
import { $ } from "./elements.js";
import { select } from "./panel.js";
import { predicted } from "./predicted.js";
import { costs, cutter, profile, scene } from "./scene.js";
import { state, tell } from "./state.js";
import { sizeOf } from "./number_words.js";

const OF_THE_PLAN = ["map", "lanes", "balance", "schedule", "recomputed", "reasons"];
let hidden = []; // sections of the plan that are not shown while the reader cuts

export const aliveAt = (index) => sizeOf({ bytes: profile.alive[index], is_exact: profile.exact[index] });
export const nearAt = (index) => sizeOf({ bytes: profile.near[index], is_exact: profile.near_exact[index] });

let lastAlone = { index: -1, found: null };

/** What one cut after a node of the profile makes, see `costsOf`; null if that is not known. */
export function alone(index) {
  if (cutter && lastAlone.index !== index) lastAlone = { index, found: costsOf(cutter, [index]) };
  return lastAlone.found;
}

export const sentBy = (index) => (alone(index) ? sizeOf(alone(index).boundaries[0]) : aliveAt(index));

/** Cuts after the nodes with these names, if there are such nodes, and puts the parts on these devices, if there are. */
export function cutAfter(nodes, devices) {
  const cuts = nodes.map((name) => profile.nodes.indexOf(name));
  const placeOf = (name) => costs.devices.findIndex((device) => device.name === name);
  const on = costs?.is_cluster && devices.length ? devices.map(placeOf) : null;
  if (!cuts.includes(-1)) cutAt(cuts, on);
}

/**
 * Cuts the model after these nodes of the profile; false, and nothing changes, if that is not possible.
 * `on` are the devices of the parts; without them parts take devices as in the plan.
 */
export function cutAt(chosen, on = null) {
  const found = chosen.length ? costsOf(cutter, chosen) : null;
  if (!found) return false;
  if (!state.yours) hidden = OF_THE_PLAN.map((id) => $(`#${id}`)).filter((section) => !section.hidden);
  state.yours = predicted(costs, found, on?.length === found.parts.length ? on : null);
  // What is hidden above the profile must not move it while a cut is dragged.
  const above = () => $("#profile").getBoundingClientRect().top;
  const top = above();
  for (const section of hidden) section.hidden = true;
  window.scrollBy(0, above() - top);
  tell("cut");
  return true;
}

export function stopCutting() {
  state.yours = null;
  for (const section of hidden) section.hidden = false;
  tell("cut");
}

/** The name of the part of a node of the profile; empty if nothing is cut. */
export function partOf(index) {
  if (state.yours) return `p${state.yours.part[cutter.order[index]]}`;
  return profile.parts.length ? scene.cards[profile.parts[index]].name : "";
}

export const shownCuts = () => (state.yours ?? profile).cuts;
export const currentCuts = () => (state.yours ? state.yours.cuts : profile.cuts.map((cut) => namedCut(cutter, cut)));

/** The parts in the order of the profile, each with its number of nodes in a row. */
export function partRuns() {
  if (!state.yours) return profile.part_runs;
  const ends = [...state.yours.cuts.map((cut) => cut + 1).sort((a, b) => a - b), profile.nodes.length];
  return ends.map((end, i) => [i, end - (ends[i - 1] ?? 0)]);
}

/** Moves the cut after one node to another; false if that is not possible. */
export function moveCut(from, to) {
  if (!cutter || from === null) return false;
  const cuts = currentCuts();
  const at = cuts.includes(from) ? from : namedCut(cutter, from);
  if (!cuts.includes(at) || cuts.includes(to) || to < 0 || to >= profile.nodes.length) return false;
  return cutAt(cuts.map((cut) => (cut === at ? to : cut)), state.yours?.on);
}

export function toggleCut(index) {
  const cuts = currentCuts();
  const rest = cuts.filter((cut) => cut !== index);
  if (rest.length === cuts.length) cutAt([...cuts, index]);
  else if (rest.length) cutAt(rest);
  else stopCutting();
  select(index);
}
