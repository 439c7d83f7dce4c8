/* What the page shows: the scene, from its compressed data, and in it the parts of the plan, or those of your cuts. */

import { boundariesOf, busesOf, completedModel, flowsOver, matrixOf, totalOf } from "./cutting.js";
import { completedCosts } from "./predicted.js";
import { groupsOf, shortPart } from "./words.js";

export const started = performance.now();

/** What an element has as compressed JSON. */
export const unpacked = async (id) => (await opened(id)).json(); // `opened` is in page.html

export const scene = await unpacked("data");
export const profile = scene.profile;
export const kinds = scene.kinds; // for each kind of a flow what it means, and the class for its colour
export const LARGE = 20000; // what cuts of more nodes cost takes too long for each frame, and for the opening of the page
export const cutter = scene.cut_model && completedModel(scene.cut_model);
export const costs = cutter && scene.cut_costs && completedCosts(cutter, scene.cut_costs);

scene.model ||= scene.title;
if (profile) profile.alive = Float64Array.from(profile.alive); // it is read in each frame

/* What the reader changes, and who is told of it. */

export const state = {
  pinned: null, // the thing in the panel: its kind and its index
  at: null, // the chosen node of the profile
  drag: null, // what the pointer drags in the profile
  yours: null, // what `predicted` gives while the reader cuts
};
const listeners = { pinned: [], chosen: [], cut: [] };
const REST_MS = 120;

/** Calls an action when it was not asked for again for some time. */
export function resting(action, milliseconds) {
  let waiting = 0;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(action, milliseconds);
  };
}

/** Calls `listener` after each change of one kind, in the order in which listeners were added. */
export const when = (change, listener) => listeners[change].push(listener);
export const tell = (change) => listeners[change].forEach((listener) => listener());

/** Calls a function after a change of the cuts: while a cut is dragged only when it rests. For what is below the fold, and takes long. */
export function whenCutRests(listener) {
  const later = resting(listener, REST_MS);
  when("cut", () => (state.drag ? later() : listener()));
}

function setPinned(thing) {
  state.pinned = thing;
  tell("pinned");
}

export const pin = (kind, index) => setPinned({ kind, index });
export const unpin = () => { if (state.pinned) setPinned(null); };

/** Chooses a node of the profile, or the one next to it that there is. */
export function select(index) {
  state.at = Math.max(0, Math.min(profile.nodes.length - 1, index));
  tell("chosen"); // draws before the panel changes, which would have to be laid out for it
  pin("node", state.at);
}

/* The plan and your cuts in records of one form. */

/** Cuts with what follows from them: what each part receives, sends, and what crosses behind it. */
function completed(made) {
  const { cuts, tensors, boundaries } = made;
  const parts = made.parts.map((one, index) => {
    const [read, written] = [tensors.filter((flow) => flow.readers.includes(index)), tensors.filter((flow) => flow.source === index)];
    return { ...one, index, cut: cutter ? cuts[index] : undefined, crosses: boundaries[index], received: totalOf(read), sent: totalOf(written), read, written };
  });
  return { ...made, parts };
}

export const plan = completed({
  cuts: profile?.cuts ?? [], tensors: scene.tensors, buses: scene.buses, matrix: scene.matrix,
  parts: scene.cards.map((card) => ({ ...card, content: [card.content, card.runs].filter(Boolean).join(", ") })),
  boundaries: boundariesOf(scene.cards, scene.tensors),
  spans: [...groupsOf(profile?.parts ?? [], (part) => part)].map(([part, own]) => [part, own.length]), // parts in the order of the profile
  runs: scene.schedules.flatMap(({ title, devices, runs }) => runs.map((run) => ({ ...run, title, device: devices[run.worker] }))),
});

const REQUESTS = 3;

/** The runs of parts for the first requests: each begins when the part before has ended, and its device has time for it. */
function runsOf(parts, times) {
  const [runs, free] = [[], new Map()];
  const title = `${REQUESTS} requests in flight, by the predicted times; a block is a part with its waiting for what it reads`;
  for (let request = 0; request < (times && costs.is_cluster ? REQUESTS : 0); request += 1) {
    let end = 0;
    parts.forEach(({ device, busy_s }, part) => {
      const began_s = Math.max(end, free.get(device) ?? 0);
      runs.push({ part, request, device, began_s, seconds: times.step_s[part], title });
      end = began_s + times.step_s[part];
      free.set(device, began_s + busy_s);
    });
  }
  return runs;
}

/** What `predicted` gives for your cuts, as the plan is shown. */
export function shownCuts(yours) {
  const most = scene.cards[0]?.measure ?? "weights";
  const parts = yours.parts.map((one) => ({
    ...one, content: "", replicas: 0, rank: null, need_exact: !costs?.counting.length || one.is_exact,
    device: costs?.is_cluster ? costs.devices[one.place]?.name ?? "" : "", measure: most === "weights" ? "weights and graph" : most,
  }));
  const ends = [...yours.cuts.map((cut) => cut + 1).sort((a, b) => a - b), profile.nodes.length];
  const spans = ends.map((end, i) => [i, end - (ends[i - 1] ?? 0)]);
  return { ...completed({ ...yours, parts }), buses: busesOf(yours.tensors), matrix: matrixOf(yours), runs: runsOf(parts, yours.times), spans };
}

export const shown = () => state.yours ?? plan;
export const names = (parts) => parts.map((part) => shown().parts[part].name).join(", ");

export const placed = (part) => [shortPart(shown().parts[part].name), shown().parts[part].device].filter(Boolean).join(" · ");

/** The index of the part of a node of the profile; undefined if nothing is cut. */
export const partIn = (index) => (state.yours ? state.yours.part[cutter.order[index]] : profile.parts[index]);

export const crossesAt = (cut) => shown().boundaries[partIn(cut)];
export const flowsAt = (cut) => flowsOver(shown().tensors, partIn(cut));
