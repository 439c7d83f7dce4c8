/* Cuts that the reader makes: what each would cost, moving, dropping, undoing. */

import { costsOf, namedCut } from "./cutting.js";
import { predicted } from "./predicted.js";
import { costs, cutter, profile, select, shownCuts, state, tell } from "./shown.js";
import { sizeOf } from "./words.js";

const aliveAt = (index) => sizeOf({ bytes: profile.alive[index], is_exact: profile.exact[index] });

let lastAlone = { index: -1, found: null };

/** What one cut after a node of the profile makes, see `costsOf`; null if that is not known. */
export function alone(index) {
  if (cutter && lastAlone.index !== index) lastAlone = { index, found: costsOf(cutter, [index]) };
  return lastAlone.found;
}

export const sentBy = (index) => (alone(index) ? sizeOf(alone(index).boundaries[0]) : aliveAt(index));

/** What cuts after these nodes of the profile make; null if they are not possible. */
export function tried(chosen, on = null) {
  const found = costsOf(cutter, chosen);
  return found && predicted(costs, found, on?.length === found.parts.length ? on : null);
}

const steps = [null]; // the cuts and devices after each change; null is the plan
let now = 0; // which of them are shown

function show(yours) {
  state.yours = yours && shownCuts(yours);
  tell("cut");
}

/** Makes a step; a drag is one. */
function change(yours) {
  if (!state.drag?.isRemembered) now += 1;
  if (state.drag) state.drag.isRemembered = true;
  steps.splice(now, Infinity, yours && [yours.cuts, yours.on]);
  show(yours);
}

export const canStep = (by) => now + by in steps;

/** Undoes a change, by -1, or makes it again, by 1. */
export function step(by) {
  if (!canStep(by)) return;
  now += by;
  show(steps[now] && tried(...steps[now]));
}

/**
 * Cuts the model after these nodes of the profile; false, and nothing changes, if that is not possible.
 * `on` are the devices of the parts; without them parts take devices as in the plan.
 */
export function cutAt(chosen, on = null) {
  const yours = tried(chosen, on);
  if (yours) change(yours);
  return yours !== null;
}

/** Cuts after the nodes with these names, if there are such nodes, and puts the parts on these devices, if there are. */
export function cutAfter(nodes, devices) {
  const cuts = nodes.map((name) => profile.nodes.indexOf(name));
  const places = devices.map((name) => costs?.devices.findIndex((device) => device.name === name));
  if (!cuts.includes(-1)) cutAt(cuts, costs?.is_cluster && devices.length ? places : null);
}

export const stopCutting = () => change(null);
const currentCuts = () => (state.yours ? state.yours.cuts : profile.cuts.map((cut) => namedCut(cutter, cut)));

/** Moves the cut after one node to another; false if that is not possible. */
export function moveCut(from, to) {
  if (!cutter || from === null) return false;
  const cuts = currentCuts();
  const at = cuts.includes(from) ? from : namedCut(cutter, from);
  if (!cuts.includes(at) || cuts.includes(to) || to < 0 || to >= profile.nodes.length) return false;
  return cutAt(cuts.map((cut) => (cut === at ? to : cut)), state.yours?.on);
}

export function dropCut(index) {
  const rest = currentCuts().filter((cut) => cut !== index && cut !== namedCut(cutter, index));
  if (rest.length) cutAt(rest);
  else stopCutting();
}

export function toggleCut(index) {
  if (currentCuts().includes(index)) dropCut(index);
  else cutAt([...currentCuts(), index]);
  select(index);
}
