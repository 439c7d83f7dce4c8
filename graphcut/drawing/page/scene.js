/* What the page shows: the scene, from its compressed data, with what follows from it. Nothing changes it. */

import { completedModel } from "./cutting.js";
import { completedCosts } from "./memory.js";

export const started = performance.now();

/** What an element has as compressed JSON. */
export const unpacked = async (id) => (await opened(id)).json(); // `opened` is in page.html

export const scene = await unpacked("data");
scene.model ||= scene.title;

export const LARGE = 20000; // what cuts of more nodes cost takes too long for each frame, and for the opening of the page

/** A profile with what follows from it. */
function completed(profile) {
  for (const name of ["alive", "near"]) profile[name] = Float64Array.from(profile[name]); // read in each frame
  profile.isKey = new Uint8Array(profile.nodes.length);
  for (const key of profile.keys) profile.isKey[key] = 1;
  profile.part_runs = [];
  for (const part of profile.parts) {
    const last = profile.part_runs.at(-1);
    if (last && last[0] === part) last[1] += 1;
    else profile.part_runs.push([part, 1]);
  }
  return profile;
}

export const profile = scene.profile && completed(scene.profile);
export const cutter = scene.cut_model && completedModel(scene.cut_model);
export const costs = cutter && scene.cut_costs && completedCosts(scene.cut_costs);
export const isRanked = scene.cards.some((card) => card.rank !== null);
export const kinds = scene.kinds; // for each kind of a flow what it means, and the class for its colour
