/* What the page shows: the parts of the plan, or those of your cuts, in records of one form. */

import { busesOf, totalOf } from "./flows.js";
import { shortPart } from "./names.js";
import { costs, cutter, profile, scene } from "./scene.js";
import { state } from "./state.js";

/** The parts of cuts as the cards of a scene: with what each receives, sends, and what crosses behind it. */
function cardsOf(parts, { cuts, tensors, boundaries }) {
  return parts.map((one, index) => {
    const [read, written] = [tensors.filter((flow) => flow.readers.includes(index)), tensors.filter((flow) => flow.source === index)];
    return { ...one, index, cut: cuts[index], crosses: boundaries[index], received: totalOf(read), sent: totalOf(written), read, written };
  });
}

const { cards, tensors, buses } = scene;
const boundaries = cards.slice(1).map((_, part) => totalOf(tensors.filter((flow) => flow.source <= part && flow.readers.at(-1) > part)));
const planned = {
  cuts: profile?.cuts ?? [], tensors, buses, boundaries,
  runs: scene.schedules.flatMap(({ title, devices, runs }) => runs.map((run) => ({ ...run, title, device: devices[run.worker] }))),
  parts: cardsOf(cards, { cuts: cutter ? profile.cuts : [], tensors, boundaries }),
};

const REQUESTS = 3;

/** The runs of parts for the first requests: each begins when the part before has ended, and its device has time for it. */
function runsOf(parts, times) {
  const [runs, free] = [[], new Map()];
  for (let request = 0; request < (times && costs.is_cluster ? REQUESTS : 0); request += 1) {
    let end = 0;
    parts.forEach((part, index) => {
      const began_s = Math.max(end, free.get(part.device) ?? 0);
      runs.push({ part: index, request, device: part.device, began_s, seconds: times.step_s[index] });
      end = began_s + times.step_s[index];
      free.set(part.device, began_s + part.busy_s);
    });
  }
  return runs;
}

/** What `predicted` gives for your cuts, as the plan is shown. */
export function completed(yours) {
  const most = cards[0]?.measure ?? "weights";
  const parts = yours.parts.map((one) => ({
    ...one, content: "", replicas: 0, rank: null, need_exact: !costs?.counting.length || one.is_exact,
    device: costs?.is_cluster ? costs.devices[one.place]?.name ?? "" : "", measure: most === "weights" ? "weights and graph" : most,
  }));
  return { ...yours, parts: cardsOf(parts, yours), buses: busesOf(yours.tensors), runs: runsOf(parts, yours.times), title: `${REQUESTS} requests in flight, by the predicted times; a block is a part with its waiting for what it reads` };
}

export const plan = () => planned;
export const shown = () => state.yours ?? planned;
export const names = (parts) => parts.map((part) => shown().parts[part].name).join(", ");
export const partName = (part) => shortPart(shown().parts[part].name);

/** The name of a part, with that of its device. */
export const placed = (part) => [partName(part), shown().parts[part].device].filter(Boolean).join(" · ");

/** The index of the part of a node of the profile; undefined if nothing is cut. */
export const partIn = (index) => (state.yours ? state.yours.part[cutter.order[index]] : profile.parts[index]);

/** The parts in the order of the profile, each with its number of nodes in a row. */
export function partRuns() {
  if (!state.yours) return profile.part_runs;
  const ends = [...state.yours.cuts.map((cut) => cut + 1).sort((a, b) => a - b), profile.nodes.length];
  return ends.map((end, i) => [i, end - (ends[i - 1] ?? 0)]);
}

/** What crosses a cut after a node of the profile; undefined if there is none. */
export function crossing(cut) {
  const at = shown().cuts.indexOf(cut);
  return at < 0 || state.yours ? state.yours?.boundaries[at] : boundaries[profile.parts[cut]];
}
