/* What the planner predicts for parts, and how cuts compare with its plan (predictions.py; a test compares). */

import { memoryOfAll } from "./memory.js";
import { timesOf } from "./times.js";
import { againstMean, duration, flop, signed, size, sumOf, three } from "./number_words.js";

/** What `costsOf` found, with what the planner predicts for the parts on the devices `on`; times are left out if they are not known. */
export function predicted(costs, found, on) {
  if (!costs) return found;
  const nodes = found.parts.map(() => []);
  found.part.forEach((own, node) => nodes[own].push(node));
  const places = nodes.map((_, i) => (costs.is_cluster ? on?.[i] ?? i % costs.devices.length : 0));
  const devices = places.map((place, i) => (costs.is_cluster ? costs.devices[place] : { ...costs.devices[0], name: String(i) }));
  const memory = memoryOfAll(costs, nodes);
  const parts = found.parts.map((one, i) => ({
    ...one, ...memory[i], flops: sumOf(nodes[i], (node) => costs.flops[node]),
    place: places[i],
    budget_bytes: costs.is_cluster ? devices[i].memory_bytes : costs.budget_bytes,
  }));
  const run = nodes.map((own, i) => sumOf(own, (node) => costs.seconds[costs.kinds[places[i]]][node]));
  const holders = (tensor) => [...new Set(costs.readers[tensor].map((node) => found.part[node]))];
  const flows = found.tensors.map((flow) => ({ ...flow }));
  for (const [tensor, bytes] of costs.is_cluster ? costs.sent : []) {
    const writer = costs.writers[tensor], source = writer < 0 ? -1 : found.part[writer];
    const readers = holders(tensor).filter((own) => own !== source).sort((a, b) => a - b);
    const same = flows.find((flow) => flow.source === source && flow.bytes === bytes && String(flow.readers) === String(readers));
    if (source < 0) flows.push({ bytes, source, readers });
    else if (same) same.readers = [...same.readers, -1]; // another part reads this output
    else flows.push({ bytes, source, readers: [-1] });
  }
  const times = timesOf(costs, flows, run, devices);
  return { ...found, on, parts: parts.map((one, i) => ({ ...one, busy_s: times.busy_s[i] })), times };
}

const textOf = { s: duration, bytes: size, flops: flop, "tokens/s": (rate) => `${three(rate)} tokens/s` };

/** What the goal of the plan minimizes, for your cuts; null if it is not known. */
export function valueOf(costs, { parts, times }) {
  const name = costs?.value;
  if (!name || (name.endsWith("_s") && !times)) return null;
  if (name === "token_s") return costs.step_tokens / Math.max(times.latency_s / costs.in_flight, times.period_s);
  return name in parts[0] ? Math.max(...parts.map((one) => one[name])) : times[name];
}

/** What cuts change against the plan of `scene`, whose parts may compute again what these send. */
export function against({ cards, boundaries }, costs, yours) {
  if (!cards.length) return "";
  const most = (parts, name) => Math.max(...parts.map((one) => one[name] ?? NaN));
  const value = valueOf(costs, yours);
  const best = costs?.best;
  const text = best && textOf[best.unit];
  const crossing = (totals) => Math.max(0, ...totals.map((total) => total.bytes));
  const found = [];
  if (value !== null && best) found.push(`${againstMean(value, best.value)} ${best.objective} (${text(value)}, the plan ${text(best.value)})`);
  for (const [name, words] of [["busy_s", "time of the slowest part"], ["flops", "compute in the largest part"]]) {
    if (!found.length && most(cards, name) > 0 && most(yours.parts, name) > 0) {
      found.push(`${againstMean(most(yours.parts, name), most(cards, name))} ${words}`);
    }
  }
  if (most(yours.parts, "need_bytes") >= 0 && cards[0].measure !== "weights") {
    found.push(`${signed(size, most(yours.parts, "need_bytes") - most(cards, "need_bytes"))} ${cards[0].measure} in the largest part`);
  }
  found.push(`${signed(size, crossing(yours.boundaries) - crossing(boundaries))} at the largest boundary`);
  const isBound = value !== null && best?.bound > 0 && best.bound < Infinity && (!costs.needs_parts || yours.parts.length === cards.length);
  const bound = isBound ? ` No plan${best.keeps_layers ? " that keeps layers whole" : ""} is ${best.unit === "tokens/s" ? "above" : "below"} ${text(best.bound)}.` : "";
  return ` Against the plan: ${found.join(", ")}.${bound}`;
}
