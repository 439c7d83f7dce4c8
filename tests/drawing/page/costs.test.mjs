import assert from "node:assert/strict";
import { test } from "node:test";

import { completedModel } from "../../../graphcut/drawing/page/cutting.js";
import { against, completedCosts, memoryOf, memoryOfAll, peakOf, predicted, routeOf, runOrder, slowedBy, timesOf, valueOf } from "../../../graphcut/drawing/page/predicted.js";
import { sumOf } from "../../../graphcut/drawing/page/words.js";

/* Nodes 0, 1, 2 in a chain with input `x`, and what the first writes is read by the last again:
   x (1) > 0 > a (10) > 1 > b (100) > 2 > y (1000, an output); 2 reads a, too. */
const CHAIN = {
  writers: [-1, 0, 1, 2], readers: [[0], [1, 2], [2], []], bytes: [1, 10, 100, 1000], computed: [1, 10, 100, 1000], held: [], work: [[0, 0, 0, []], [0, 0, 0, []], [0, 0, 0, []]], exact: [true, true, true, false],
  declared: [5, 5, 5, 5], listed: [0, 2, 2, 0], outputs: [3], pasts: [], presents: [], sent: [],
  nodes: [30, 40, 50], shared: [[7, [0, 2]]], part: 200, flops: [3, 4, 5], seconds: [[1, 2, 4]], kinds: [0, 0, 0, []], is_cluster: false,
  devices: [{ name: "one" }], links: [], driver: { name: "driver", link_bytes_per_s: 100, latency_s: 0 }, overlap: "none", message_bytes: -1,
  store_s: 0, step_s: 0, session: 300, inner: [3, 4, 5], loaded: [[8, [0, 2]]], counting: ["activations", "inputs"], budget_bytes: null, value: "", in_flight: 1, step_tokens: 1, best: null, needs_parts: false,
};
const completed = (costs) => completedCosts(completedModel({ ...costs, order: [...costs.nodes.keys()] }), costs);
const machine = (name, more = {}) => ({ name, link_bytes_per_s: 100, latency_s: 0.5, memory_bytes: null, ...more });

test("a part counts its file, what it reads and what it holds at most at once", () => {
  const costs = completed(CHAIN);
  assert.deepEqual(memoryOf(costs, [0, 1, 2]), {
    written_bytes: 200 + 30 + 40 + 50 + 5 + 5 + 7, // what is shared, once
    need_bytes: 300 + 3 + 4 + 5 + 8 + (10 + 100 + 1000) + 1, // a session, nodes, weights, what it computes and reads
    activation_bytes: 1 + 10 + 100 + 1000, // a and b live until the last node
    is_exact: false,
  });
  const middle = memoryOf(costs, [1]);
  assert.deepEqual(middle, { written_bytes: 200 + 40 + 5 + 5 - 2, need_bytes: 300 + 4 + 100 + 10, activation_bytes: 110, is_exact: true });
});

test("what another part reads is kept, and what is shared counts where one of its nodes is", () => {
  const first = memoryOf(completed({ ...CHAIN, writers: [-1, 0, 1, 2], readers: [[0], [1, 2], [], []] }), [0, 1]);
  assert.equal(first.written_bytes, 200 + 30 + 40 + 5 + 5 - 2 + 7); // it declares x and a
  const both = memoryOf(completed(CHAIN), [0, 1]);
  assert.equal(both.written_bytes, first.written_bytes + 5 - 2); // and b
  assert.equal(both.activation_bytes, 1 + 10 + 100);
});

test("caches count once each where they count, and are no activations", () => {
  const costs = completed({ ...CHAIN, pasts: [0], presents: [3], counting: ["activations", "inputs", "cache"] });
  const loaded = 300 + 3 + 4 + 5 + 8;
  assert.equal(memoryOf(costs, [0, 1, 2]).need_bytes - loaded, (10 + 100) + 0 + (1 + 1000));
});

test("a weight that is widened counts as it is held, and once where several nodes of a part widen it in each run", () => {
  const widened = [2, 2, 0, 1, 0];
  const need = (held, nodes) => {
    const costs = { ...CHAIN, session: 0, inner: [0, 0, 0, []], loaded: [], counting: ["activations"], held };
    return memoryOf(completed(costs), nodes).need_bytes;
  };
  assert.equal(need([[5000, [[0, ...widened]]]], [0, 1]), 5000 + 10000); // 5000 more, and the largest while it opens
  assert.equal(need([[5000, [[0, ...widened], [1, ...widened]]]], [0, 1]), 10000); // as in its file, one cast at a time
  assert.equal(need([[5000, [[0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]]], [0, 1]), 10000); // packed by two nodes
  assert.equal(need([[5000, [[2, ...widened]]]], [0, 1]), 10 + 100); // another part has it: the activations
  const blocks = [1, 1, 0, 0, 3];
  assert.equal(need([[8000, [[0, ...blocks]]], [800, [[1, ...blocks]]]], [0, 1]), 24000 - 700); // most of the second is not there yet
});

test("kernels take memory besides: always, where they read from another part, where another part reads", () => {
  const need = (nodes) => memoryOf(completed({ ...CHAIN, work: [[0, 0, 0, []], [5, 50, 500, []], [0, 0, 0, []]], counting: ["activations"] }), nodes).need_bytes;
  const loaded = 300 + 4;
  assert.equal(need([1]) - loaded, 100 + 500); // both neighbours are in other parts
  assert.equal(need([0, 1]) - loaded - 3 - 8, 10 + 100 + 500);
  assert.equal(need([1, 2]) - loaded - 5 - 8, 100 + 1000); // before the last node writes, 100 + 50
});

test("a node that is fused has no memory of its own, if all that are fused are in the part", () => {
  const need = (nodes) => memoryOf(completed({ ...CHAIN, work: [[0, 0, 0, []], [-10, 0, -10, [0, 1]], [0, 0, 0, []]], counting: ["activations"] }), nodes).need_bytes;
  const without = (nodes) => memoryOf(completed({ ...CHAIN, counting: ["activations"] }), nodes).need_bytes;
  assert.equal(need([0, 1]), without([0, 1]) - 10);
  assert.equal(need([1]), without([1]));
});

test("what is cast for a node runs before what else it reads", () => {
  const costs = { before: [[], [], [0, 1]] };
  assert.deepEqual(runOrder(costs, [0, 1, 2], new Set([0, 1, 2])), [1, 0, 2]);
  assert.deepEqual(runOrder(costs, [0, 1, 2], new Set([0, 1, 2]), new Map([[2, [0]]])), [0, 1, 2]);
});

test("a tensor is freed after the last node that reads it", () => {
  const costs = completed({ ...CHAIN, readers: [[0], [1], [2], []] });
  const sizes = (tensor) => costs.bytes[tensor];
  const isOwn = (tensor) => tensor > 0;
  assert.equal(peakOf(costs, [0, 1, 2], isOwn, (tensor) => tensor === 3, sizes), 1 + 100 + 1000); // the input stays
  assert.equal(peakOf(costs, [0, 1, 2], isOwn, () => true, sizes), 1111); // what is kept is not freed
});

test("nodes run as ONNX Runtime lists them: from what nobody reads backwards", () => {
  // 0 and 1 have no inputs, 2 reads both in one tensor each, 3 stands alone.
  const costs = completed({ ...CHAIN, nodes: [1, 1, 1, 1], writers: [0, 1, 2, 3], readers: [[2], [2], [], []] });
  assert.deepEqual(runOrder(costs, [0, 1, 2, 3], new Set([0, 1, 2, 3])), [3, 1, 0, 2]);
  assert.deepEqual(runOrder(costs, [0, 2], new Set([0, 2])), [0, 2]);
});

test("memory is kept for parts that the next cuts have again, of each model its own", () => {
  const [one, other] = [completed(CHAIN), completed({ ...CHAIN, part: 1 })];
  const [first] = memoryOfAll(one, [[0], [1, 2]]);
  assert.equal(memoryOfAll(one, [[0], [1], [2]])[0], first);
  assert.notEqual(memoryOfAll(other, [[0], [1, 2]])[0].written_bytes, first.written_bytes);
});

test("a transfer takes the slower of both links, or the direct one", () => {
  const [a, b] = [machine("a"), machine("b", { link_bytes_per_s: 20, latency_s: 3 })];
  const links = [{ between: ["b", "a"], bytes_per_s: 7, latency_s: 0.1 }];
  assert.deepEqual(routeOf({ links: [] }, a, b), { rates: [['["a",null]', 100], ['[null,"b"]', 20]], late: 3, last: 20 });
  assert.deepEqual(routeOf({ links }, a, b), { rates: [['["a","b"]', 7]], late: 0.1, last: 7 });
});

test("in turn a step computes, receives and sends, and a tensor goes once to each device", () => {
  const costs = { ...CHAIN, driver: machine("driver") };
  const flows = [{ bytes: 200, source: 0, readers: [1, 2] }];
  const far = timesOf(costs, flows, [1, 2, 4], ["a", "b", "c"].map((name) => machine(name)));
  assert.deepEqual(far.busy_s, [1 + 2, 2 + 2 + 0.5, 4 + 2 + 0.5]); // on its way out it is sent once
  assert.equal(far.latency_s, 3 + 4.5 + 6.5);
  assert.equal(far.period_s, 6.5);
  const near = timesOf(costs, flows, [1, 2, 4], ["a", "b", "b"].map((name) => machine(name)));
  assert.deepEqual(near.busy_s, [3, 4.5, 4]); // part 2 has it from part 1's device
  assert.equal(near.period_s, 8.5); // both parts of one device
  const same = timesOf(costs, flows, [1, 2, 4], ["a", "a", "a"].map((name) => machine(name)));
  assert.deepEqual(same, { step_s: [1, 2, 4], busy_s: [1, 2, 4], period_s: 7, latency_s: 7 });
});

test("small tensors go through the driver, large ones to their reader", () => {
  const costs = { ...CHAIN, overlap: "both", message_bytes: 50, store_s: 0.25, step_s: 0, driver: machine("driver", { link_bytes_per_s: 10, latency_s: 0 }) };
  const devices = ["a", "b"].map((name) => machine(name, { latency_s: 0 }));
  const run = (bytes) => timesOf(costs, [{ bytes, source: 0, readers: [1] }], [1, 1], devices);
  assert.equal(run(50).latency_s, 2 + 5 + 5); // to the driver and from it, at its 10 bytes a second
  assert.equal(run(60).latency_s, 2 + 0.6 + 0.25); // past it, and kept
  assert.equal(run(50).period_s, 5); // its link, in one direction
});

test("a device computes one step while inputs of the next come, and waits for the longer of these", () => {
  const costs = { ...CHAIN, overlap: "both", message_bytes: 50, store_s: 0.25, step_s: 0, driver: machine("driver", { link_bytes_per_s: 10, latency_s: 0 }) };
  const devices = ["a", "b"].map((name) => machine(name, { latency_s: 0 }));
  const large = timesOf(costs, [{ bytes: 300, source: 0, readers: [1] }], [1, 0.125], devices);
  assert.deepEqual(large, { step_s: [1, 0.125 + 3 + 0.25], busy_s: [3, (0.125 + 3 + 0.25 + 2.875) / 2], period_s: 3.125, latency_s: 4.375 }); // sends 3 s, receives 3 s
  // Part 0 reads 100 bytes from the driver, whose link also passes on the 50 that it sends: 5 s more.
  const shared = timesOf(costs, [{ bytes: 100, source: -1, readers: [0] }, { bytes: 50, source: 0, readers: [1] }], [1, 1], devices);
  const step = 1 + 10 + 5 + 0.25;
  assert.deepEqual(shared, { step_s: [step, 6], busy_s: [(step + 5 + 9 + 4) / 2, (6 + 4) / 2], period_s: 17.125, latency_s: step + 6 });
});

test("two transfers share a link fairly, unless one can't use its half", () => {
  const one = (bytes, rate, begins = 0) => ({ bytes, rate, begins, most: 10 });
  assert.equal(slowedBy(one(50, 10), one(50, 10)), 5); // both take twice as long
  assert.ok(Math.abs(slowedBy(one(50, 2), one(80, 10)) - 2) < 1e-12); // 8 of 10 are left, for 10 seconds
  assert.equal(slowedBy(one(50, 10, 9), one(50, 10)), 0); // it begins when the other one is over
});

const FOUND = {
  part: [0, 0, 1], parts: [{ name: "p0" }, { name: "p1" }], boundaries: [{ bytes: 110 }],
  tensors: [{ source: 0, readers: [1], bytes: 10, tensor: "a" }, { source: 0, readers: [1], bytes: 100, tensor: "b" }],
};

test("parts have memory, operations and times, and a cluster's parts the budgets of their devices", () => {
  const { parts, times } = predicted(completed({ ...CHAIN, budget_bytes: 9 }), FOUND, null);
  assert.deepEqual(parts.map((one) => [one.flops, one.budget_bytes, one.place]), [[7, 9, 0], [5, 9, 0]]);
  assert.equal(times.latency_s, parts[0].busy_s + parts[1].busy_s);
  const devices = [machine("a", { memory_bytes: 5 }), machine("b", { memory_bytes: 6 })];
  const cluster = { ...CHAIN, is_cluster: true, devices, seconds: [[1, 2, 4], [10, 20, 40]], kinds: [0, 1], sent: [[0, 100], [3, 1000]] };
  const swapped = predicted(completed(cluster), FOUND, [1, 0]);
  assert.deepEqual(swapped.parts.map((one) => [one.budget_bytes, one.place]), [[6, 1], [5, 0]]);
  // Part 0 computes 30 s, has 100 bytes from the driver and sends 110; part 1 computes 4 s, receives these and sends 1000.
  assert.deepEqual(swapped.parts.map((one) => one.busy_s), [30 + 1 + 0.5 + 1.1, 4 + 1.1 + 0.5 + 10]);
  // An output that part 1 reads, too, is sent from there to the driver once: 10 bytes, in the same transfer.
  const output = predicted(completed({ ...cluster, outputs: [1], sent: [[1, 10]] }), FOUND, [0, 1]);
  assert.deepEqual(output.parts.map((one) => one.busy_s), [3 + 1.1, 40 + 1.1 + 0.5]);
  assert.equal(predicted(null, FOUND, null), FOUND);
});

test("a state that a cut separates goes to the driver and from it at each step; one that stays in its part does not", () => {
  const devices = [machine("a"), machine("b")];
  const costs = { ...CHAIN, is_cluster: true, devices, seconds: [[1, 2, 4]], kinds: [0, 0], pasts: [0] };
  const separated = predicted(completed({ ...costs, presents: [3] }), FOUND, null); // node 0 reads it, node 2 writes it
  assert.deepEqual(separated.parts.map((one) => one.busy_s), [3 + 0.01 + 0.5 + 1.1, 4 + 1.1 + 0.5 + 10]);
  const kept = predicted(completed({ ...costs, presents: [1] }), FOUND, null);
  assert.deepEqual(kept.parts.map((one) => one.busy_s), [3 + 1.1, 4 + 1.1 + 0.5]);
});

test("parts more than there are devices take turns on them", () => {
  const costs = completed({ ...CHAIN, is_cluster: true, devices: [machine("a")], kinds: [0] });
  const found = predicted(costs, FOUND, null);
  assert.deepEqual(found.parts.map((one) => one.place), [0, 0]);
  assert.equal(found.times.period_s, sumOf(found.parts, (one) => one.busy_s)); // both are on its one device
});

test("what the goal minimizes is known where it is a figure of parts or of times", () => {
  const yours = { parts: [{ flops: 3 }, { flops: 9 }], times: { latency_s: 6, period_s: 2 } };
  const values = ["flops", "latency_s", "token_s", ""].map((value) => valueOf({ value, in_flight: 2, step_tokens: 3 }, yours));
  assert.deepEqual(values, [9, 6, 1, null]);
  assert.equal(valueOf({ value: "latency_s" }, { parts: yours.parts }), null);
  assert.equal(valueOf(null, yours), null);
});

test("your cuts are compared with the plan by its own measure", () => {
  const yours = { parts: [{ busy_s: 3 }, { busy_s: 1 }], times: { period_s: 3 } };
  const best = { objective: "period", unit: "s", value: 2, bound: 1.5, keeps_layers: false };
  const costs = { value: "period_s", best, needs_parts: true };
  assert.equal(against(costs, yours, 2), " Against the plan: +50 % period (3 s, the plan 2 s). No plan is below 1.5 s.");
  assert.ok(!against(costs, yours, 3).includes("No plan")); // the bound is one of three parts
  assert.equal(against(null, yours, 2) + against({ ...costs, best: null }, yours, 2), "");
});
