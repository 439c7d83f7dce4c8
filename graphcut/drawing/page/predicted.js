/* What the planner predicts for parts on devices, and how cuts compare with its plan, by its formulas (weighing.py,
   disk_size.py, predictions.py, transfers.py; a test compares). Costs are those of cut_costs.py, completed; a part is the
   list of its nodes, ascending. */

import { againstMean, duration, flop, groupsOf, size, sumOf, three } from "./words.js";

/** The costs of a model with what follows from both. */
export function completedCosts(model, costs) {
  const [outputs, pasts, presents] = ["outputs", "pasts", "presents"].map((name) => new Set(costs[name]));
  const states = costs.pasts.map((past, i) => [past, costs.presents[i]]);
  return { ...model, ...costs, outputs, pasts, presents, casts: new Map(costs.casts), states, lastMemory: new Map() };
}

/** The order in which ONNX Runtime runs nodes that are listed ascending, where what some write is cast for a reader. */
export function runOrder(costs, nodes, inside, casts = new Map()) {
  const before = (node) => [...new Set(costs.before[node])].filter((writer) => inside.has(writer));
  const last = (writer, reader) => (casts.get(reader) ?? []).indexOf(writer);
  const read = new Set(nodes.flatMap(before));
  const stack = nodes.filter((node) => !read.has(node));
  const [seen, order] = [new Set(), new Set()];
  while (stack.length) {
    const node = stack.at(-1);
    if (seen.has(node)) order.add(stack.pop()); // a node that is on the stack again was run already
    else stack.push(...before(node).sort((a, b) => last(a, node) - last(b, node) || a - b).filter((one) => !seen.has(one)));
    seen.add(node);
  }
  return [...order];
}

/** The most bytes alive at once while nodes run in this order, with what the kernel of each takes. */
export function peakOf(costs, order, isOwn, isKept, bytesOf, workOf = () => 0) {
  const last = new Map();
  for (const node of order) for (const tensor of costs.used[node]) last.set(tensor, node);
  let held = sumOf([...last.keys()], (tensor) => (isOwn(tensor) ? 0 : bytesOf(tensor)));
  let peak = order.length ? 0 : held;
  for (const node of order) {
    for (const tensor of costs.writes[node]) held += bytesOf(tensor);
    peak = Math.max(peak, held + workOf(node));
    for (const tensor of costs.used[node]) if (last.get(tensor) === node && isOwn(tensor) && !isKept(tensor)) held -= bytesOf(tensor);
  }
  return peak;
}

/** What ONNX Runtime holds of the weights of a part besides its files, and what it takes besides while it opens the part. */
function heldBytes(costs, inside) {
  let [more, largest, every, later] = [0, 0, 0, 0];
  for (const [bytes, users] of costs.held.toReversed()) {
    const own = users.filter(([node]) => inside.has(node));
    if (!own.length) continue;
    const isRecast = own.filter((use) => use[4]).length > 1;
    const isPackedTwice = !isRecast && own.filter((use) => use[2] > 0).length > 1;
    const [open, one, all, reordered] = [1, 2, 3, 5].map((field) => Math.max(...own.map((use) => use[field])));
    more += bytes * ((isRecast ? 1 : open) - 1);
    largest = Math.max(largest, bytes * one * (isPackedTwice ? 2 : 1), bytes * reordered - later);
    every += bytes * all;
    if (reordered) later += (bytes * open * 7) / 8;
  }
  return [Math.ceil(more), Math.ceil(largest + every)];
}

export function memoryOf(costs, nodes) {
  const inside = new Set(nodes);
  const isOwn = (tensor) => inside.has(costs.writers[tensor]);
  const isKept = (tensor) => costs.outputs.has(tensor) || costs.readers[tensor].some((reader) => !inside.has(reader));
  const reads = [...new Set(nodes.flatMap((node) => costs.reads[node]))].filter((tensor) => !isOwn(tensor));
  const writes = nodes.flatMap((node) => costs.writes[node]).filter(isKept);
  const order = runOrder(costs, nodes, inside, costs.casts);
  const bytesOf = (tensor) => costs.bytes[tensor];
  const computedOf = (tensor) => (isOwn(tensor) && !costs.presents.has(tensor) ? costs.computed[tensor] : 0);
  const workOf = (node) => {
    const [always, reading, writing, ends] = costs.work[node];
    const isWhole = costs.reads[node].every(isOwn) && ends.every((end) => inside.has(end));
    return Math.max(always, isWhole ? always : reading, costs.writes[node].some(isKept) ? writing : always);
  };
  const ofNodes = (bytes) => sumOf(nodes, (node) => bytes[node]);
  const ofUsed = (items) => sumOf(items, ([bytes, users]) => (users.some((node) => inside.has(node)) ? bytes : 0));
  const [more, opening] = heldBytes(costs, inside);
  const cached = [...reads.filter((tensor) => costs.pasts.has(tensor)), ...writes.filter((tensor) => costs.presents.has(tensor))];
  const counted = {
    inputs: () => sumOf(reads.filter((tensor) => !costs.pasts.has(tensor)), bytesOf),
    cache: () => sumOf(cached, bytesOf),
    activations: () => Math.max(opening, peakOf(costs, order, isOwn, isKept, computedOf, workOf)),
  };
  const written_bytes = costs.part + ofNodes(costs.nodes) + ofUsed(costs.shared)
    + sumOf([...reads, ...writes], (tensor) => costs.declared[tensor]) - sumOf(writes, (tensor) => costs.listed[tensor]);
  const loaded = costs.session + ofNodes(costs.inner) + ofUsed(costs.loaded) + more;
  return {
    written_bytes,
    need_bytes: costs.counting.length ? loaded + sumOf(costs.counting, (what) => counted[what]()) : written_bytes,
    activation_bytes: peakOf(costs, costs.casts.size ? runOrder(costs, nodes, inside) : order, isOwn, isKept, bytesOf),
    is_exact: nodes.every((node) => costs.used[node].every((tensor) => costs.exact[tensor])),
  };
}

/** The memory of parts. Kept for the next cuts: a cut that moves changes two parts. */
export function memoryOfAll(costs, parts) {
  const keys = parts.map(String);
  costs.lastMemory = new Map(keys.map((key, i) => [key, costs.lastMemory.get(key) ?? memoryOf(costs, parts[i])]));
  return keys.map((key) => costs.lastMemory.get(key));
}

/** What `costsOf` found, with what the planner predicts for the parts on the devices `on`; without costs as it is. */
export function predicted(costs, found, on) {
  if (!costs) return found;
  const nodes = found.parts.map(() => []);
  found.part.forEach((own, node) => nodes[own].push(node));
  const places = nodes.map((_, i) => (costs.is_cluster ? on?.[i] ?? i % costs.devices.length : 0));
  const devices = places.map((place, i) => (costs.is_cluster ? costs.devices[place] : { ...costs.devices[0], name: String(i) }));
  const run = nodes.map((own, i) => sumOf(own, (node) => costs.seconds[costs.kinds[places[i]]][node]));
  const times = timesOf(costs, allFlows(costs, found), run, devices);
  const memory = memoryOfAll(costs, nodes);
  const parts = found.parts.map((one, i) => ({
    ...one, ...memory[i], place: places[i], busy_s: times.busy_s[i], flops: sumOf(nodes[i], (node) => costs.flops[node]),
    budget_bytes: costs.is_cluster ? devices[i].memory_bytes : costs.budget_bytes,
  }));
  return { ...found, on, parts, times };
}

/** What the driver of a cluster sends and gets for a request, with its bytes: states, too, that a cut separates. */
function drivenTensors(costs, part) {
  const driven = new Map(costs.sent);
  for (const [past, present] of costs.states) {
    const readers = new Set(costs.readers[past].map((node) => part[node]));
    const isKept = readers.size === 0 || (readers.size === 1 && readers.has(part[costs.writers[present]]));
    for (const tensor of isKept ? [] : [past, present]) driven.set(tensor, costs.bytes[tensor]);
  }
  return driven;
}

/** The flows between parts, and those from and to the driver of a cluster, which is -1. */
function allFlows(costs, { part, tensors }) {
  const flows = tensors.map((flow) => ({ ...flow }));
  for (const [tensor, bytes] of costs.is_cluster ? drivenTensors(costs, part) : []) {
    const source = part[costs.writers[tensor]] ?? -1;
    const readers = [...new Set(costs.readers[tensor].map((node) => part[node]))].filter((own) => own !== source).sort((a, b) => a - b);
    const same = flows.find((flow) => flow.source === source && flow.bytes === bytes && String(flow.readers) === String(readers));
    if (source < 0) flows.push({ bytes, source, readers });
    else if (same) same.readers = [...same.readers, -1]; // another part reads this output
    else flows.push({ bytes, source, readers: [-1] });
  }
  return flows;
}

/** The links from one machine to another, each with its bytes per second, and the latency. */
export function routeOf(costs, from, to) {
  const direct = costs.links.find(({ between }) => between.includes(from.name) && between.includes(to.name));
  if (direct) return { rates: [[JSON.stringify([from.name, to.name]), direct.bytes_per_s]], late: direct.latency_s, last: direct.bytes_per_s };
  const rates = [[JSON.stringify([from.name, null]), from.link_bytes_per_s], [JSON.stringify([null, to.name]), to.link_bytes_per_s]];
  return { rates, late: to.latency_s, last: to.link_bytes_per_s };
}

/** How much longer a part waits for what it reads, since what goes on from its step before uses the driver's link, too. */
function slowed(part, carried) {
  const read = carried.filter(({ reader }) => reader === part);
  const own = { ...read[0], bytes: sumOf(read, ({ bytes }) => bytes) };
  return read.length ? sumOf(carried.filter(({ source }) => source === part), (other) => slowedBy(other, own)) : 0;
}

/** How much longer one transfer takes since another one uses its link, too, in max-min fair shares. */
export function slowedBy(other, own) {
  const [mine, theirs] = [[own, other], [other, own]].map(([one, two]) => {
    const rate = Math.min(one.rate, Math.max(own.most / 2, own.most - two.rate));
    return { rate, seconds: Math.max(one.bytes - Math.max(two.begins - one.begins, 0) * one.rate, 0) / rate };
  });
  return Math.min(mine.seconds, theirs.seconds) * (1 - mine.rate / own.rate);
}

/** Seconds of parts that run for `run` on their devices. */
export function timesOf(costs, transfers, run, devices) {
  const inTurn = costs.overlap === "none";
  const machines = [...devices, costs.driver].map((device, i) => ({ device, run: run[i] ?? 0, received: 0, reported: 0, stored: 0, sent: 0, late: 0 }));
  const { load, carried } = addTransfers(costs, transfers, machines);
  for (const one of machines) {
    const { device, received, reported, stored, sent, late } = one;
    const isDriven = !inTurn && one !== machines.at(-1);
    const message = device.name === costs.driver.name || !isDriven ? 0 : routeOf(costs, costs.driver, device).late;
    one.step = one.run + (isDriven ? 2 * message + costs.step_s : 0) + received + reported + stored + late + (inTurn ? sent : 0);
  }
  const latency_s = sumOf(machines, ({ step }) => step);
  const parts = machines.slice(0, -1);
  const ofDevices = (all, name) => [...groupsOf(all, ({ device }) => device.name).values()].map((own) => sumOf(own, (one) => one[name]));
  const step_s = parts.map(({ step }) => step);
  if (inTurn) return { step_s, busy_s: step_s, period_s: Math.max(...ofDevices(machines, "step")), latency_s };
  // A device has two steps at a time: it computes the first, and messages and inputs of the other one come meanwhile.
  // Both receive, or report, at the same time where that takes longer than computing.
  parts.forEach((one, i) => {
    const both = Math.max(one.received - one.run, 0) + Math.max(one.reported - one.run, 0);
    one.half = (one.step + slowed(i, carried) + both) / 2;
  });
  const busy_s = parts.map((one) => Math.max(one.run, one.half, one.received, one.sent));
  return { step_s, busy_s, period_s: Math.max(...ofDevices(parts, "run"), ...ofDevices(parts, "half"), ...load.values(), 0), latency_s };
}

/** Adds to machines, the last of which is the driver, the seconds of transfers; the load of links, and what the driver's carries. */
function addTransfers(costs, transfers, machines) {
  const inTurn = costs.overlap === "none";
  const [load, carried] = [new Map(), new Map()];
  for (const { bytes, source, readers } of transfers) {
    const reached = new Set([machines.at(source).device.name]);
    const used = new Set();
    const far = readers.filter((reader) => bytes && !reached.has(machines.at(reader).device.name));
    const isSmall = bytes <= costs.message_bytes;
    const isRelayed = isSmall && far.length > 0 && source !== -1;
    for (const reader of isRelayed ? [-1, ...far] : far) {
      const to = machines.at(reader);
      if (reached.has(to.device.name)) continue;
      reached.add(to.device.name);
      const from = machines.at(isRelayed && reader !== -1 ? -1 : source);
      const route = routeOf(costs, from.device, to.device);
      const [first, rate] = route.rates[0];
      const slowest = Math.min(...route.rates.map(([, one]) => one));
      const seconds = bytes / (inTurn ? route.last : slowest);
      if (isSmall && reader === -1) machines.at(source).reported += seconds;
      else to.received += seconds;
      if (!isSmall) to.stored += costs.store_s;
      if (!isSmall) to.late = Math.max(to.late, route.late);
      if (!inTurn || !used.has(first)) from.sent += bytes / rate;
      used.add(first);
      for (const [link, one] of route.rates) load.set(link, (load.get(link) ?? 0) + bytes / one);
      if (first !== JSON.stringify([costs.driver.name, null])) continue;
      const before = carried.get(`${source} ${reader}`)?.bytes ?? 0;
      carried.set(`${source} ${reader}`, { source, reader, bytes: before + bytes, rate: slowest, begins: route.late, most: rate });
    }
  }
  return { load, carried: [...carried.values()] };
}

const textOf = { s: duration, bytes: size, flops: flop, "tokens/s": (rate) => `${three(rate)} tokens/s` };
const most = (all, name) => Math.max(0, ...all.map((one) => one[name] ?? NaN));

/** What the goal of the plan minimizes, for your cuts; null if it is not known. */
export function valueOf(costs, { parts, times }) {
  const name = costs?.value;
  if (!name || (name.endsWith("_s") && !times)) return null;
  if (name === "token_s") return costs.step_tokens / Math.max(times.latency_s / costs.in_flight, times.period_s);
  return name in parts[0] ? most(parts, name) : times[name];
}

/** What your cuts reach of what the plan minimizes, and its bound, if that is one of plans with as many parts; empty if it is not known. */
export function against(costs, yours, planned) {
  const best = costs?.best;
  const value = best ? valueOf(costs, yours) : null;
  if (value === null) return "";
  const text = textOf[best.unit];
  const isBound = best.bound > 0 && best.bound < Infinity && (!costs.needs_parts || yours.parts.length === planned);
  const bound = isBound ? ` No plan${best.keeps_layers ? " that keeps layers whole" : ""} is ${best.unit === "tokens/s" ? "above" : "below"} ${text(best.bound)}.` : "";
  return ` Against the plan: ${againstMean(value, best.value)} ${best.objective} (${text(value)}, the plan ${text(best.value)}).${bound}`;
}
