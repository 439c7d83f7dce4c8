/* Two pages by hand: a plan for a cluster, whose model can be cut anywhere, and an analysis without its model.
   Names are what a file may have in it. */

export const MARKUP = "/m/<img src=x onerror=alert(1)>";
export const QUOTED = "/m/it's \"quoted\"";
export const FAST = "<b>fast</b>";

const kinds = {
  sequential: ["sequential: read by the next part only", "near"], residual: ["residual: skips a part", "far"],
  exchange: ["exchange: read by another rank", "near"], kept: ["kept: read by its own rank only", "muted"],
};
const option = (node, nodes_before, bytes, tensors, weights_before, weights_after, is_key) => (
  { node, nodes_before, bytes, is_exact: true, tensors, weights_before, weights_after, is_key, module: "" });

/* conv writes `a` (4 KiB), which the node with markup and add read; it writes `b` (1 KiB) for the quoted one, which writes `c` (2 KiB)
   for add. conv and add read a weight of 10 KiB, the quoted one reads another of 1 KiB. */
const nodes = ["/m/conv", MARKUP, QUOTED, "/m/add"];
const [BYTES, WEIGHTS] = [[512, 4096, 1024, 2048, 256], [[10240, [0, 3]], [1024, [2]]]];
const card = (index, more) => ({
  name: `p${index}.onnx`, rank: null, content: "", runs: "", replicas: 0, measure: "needs", need_exact: true, is_exact: true, depth: index, intensity: null, ...more });
const pi = { name: "pi", memory_bytes: 16384, link_bytes_per_s: 40960, latency_s: 0 };
const cut_model = {
  order: [0, 1, 2, 3], ends: [3], tensors: ["x", "/m/a", MARKUP, QUOTED, "y"], writers: [-1, 0, 1, 2, 3], readers: [[0], [1, 3], [2], [3], []],
  bytes: BYTES, exact: [true, true, true, true, true], prices: BYTES, weights: WEIGHTS.map(([bytes]) => bytes), users: WEIGHTS.map(([, users]) => users),
  dims: { batch: 1 },
};
const cut_costs = {
  computed: BYTES, declared: [0, 0, 0, 0, 0], listed: [0, 0, 0, 0, 0], outputs: [4], pasts: [], presents: [], sent: [], held: [], casts: [],
  work: nodes.map(() => [0, 0, 0, []]), nodes: [100, 100, 100, 100], shared: WEIGHTS, part: 0, flops: [2e9, 5e8, 5e8, 3e9], inner: [0, 0, 0, 0], loaded: WEIGHTS,
  session: 1024, devices: [pi, { ...pi, name: FAST, memory_bytes: 32768 }], kinds: [0, 1], seconds: [[0.25, 0.25, 0.5, 0.125], [0.125, 0.125, 0.25, 0.0625]],
  links: [], driver: { name: "driver", link_bytes_per_s: 40960, latency_s: 0 }, overlap: "none", message_bytes: -1, store_s: 0, step_s: 0, is_cluster: true,
  counting: ["activations", "inputs"], budget_bytes: null, value: "period_s", in_flight: 1, step_tokens: 1,
  best: { objective: "time between requests", value: 0.5, unit: "s", bound: 0.25, keeps_layers: false }, needs_parts: false,
};

/** Cut after conv and after the quoted node: `a` is residual, `c` sequential. */
export const planned = {
  kinds, title: "model.onnx", sentence: "Cut into 3 parts.", model: "my model.onnx", reasons: [`cut 0 after /m/conv\nafter ${MARKUP}: equally good`, `cut 1 after ${QUOTED}`],
  cards: [
    card(0, { device: "pi", content: "stem", nodes: 1, weight_bytes: 10240, need_bytes: 20480, budget_bytes: 16384, activation_bytes: 4608, flops: 2e9, busy_s: 0.25,
      reads: ["x"], writes: ["/m/a"], intensity: 8.125, last_node: "/m/conv" }),
    card(1, { device: FAST, nodes: 2, weight_bytes: 1024, need_bytes: 8192, budget_bytes: 32768, activation_bytes: 7168, flops: 1e9, busy_s: 0.5,
      reads: ["/m/a"], writes: [QUOTED], last_node: QUOTED }),
    card(2, { device: "pi", nodes: 1, weight_bytes: 10240, need_bytes: 12288, budget_bytes: 16384, activation_bytes: 6400, flops: 3e9, busy_s: 0.125,
      reads: ["/m/a", QUOTED], writes: ["y"], last_node: "/m/add" }),
  ],
  tensors: [
    { tensor: "/m/a", type: "float32[1,1024]", bytes: 4096, is_exact: true, is_exchange: null, source: 0, readers: [1, 2] },
    { tensor: QUOTED, type: "float32[1,512]", bytes: 2048, is_exact: false, is_exchange: null, source: 1, readers: [2] },
  ],
  buses: [
    { source: 0, readers: [1, 2], bytes: 4096, is_exact: true, is_exchange: null, tensors: [0] },
    { source: 1, readers: [2], bytes: 2048, is_exact: false, is_exchange: null, tensors: [1] },
  ],
  matrix: {
    names: ["p0", "p1", "p2"],
    cells: [[0, 1, 4096, "/m/a", 1], [0, 2, 4096, "/m/a", 1], [1, 2, 2048, QUOTED, 0.9375]].map(([source, reader, bytes, tensor, share]) => (
      { source, readers: [reader], bytes, is_exact: true, is_exchange: null, tensors: [tensor], share })),
  },
  layers: [{ title: "measured", legend: "seconds", heights: [0, 0.5, 1, 0.25], words: ["", "0.1 s", "0.2 s", ""] }],
  schedules: [{
    title: "by the predicted times", devices: ["pi", FAST], exchanges: [[0, 1], [1, 2]],
    runs: [[0, 0, 0, 0.5], [1, 1, 0.5, 1], [0, 2, 1.5, 0.5]].map(([worker, part, began_s, seconds]) => ({ worker, part, request: 0, began_s, seconds })),
  }],
  other_plans: [
    { period_s: 0.5, latency_s: 1, after: ["/m/conv", QUOTED], devices: ["pi", FAST, "pi"], is_chosen: true },
    { period_s: 0.75, latency_s: 0.875, after: [MARKUP], devices: [FAST, "pi"], is_chosen: false },
  ],
  profile: {
    nodes, ops: ["Conv", "<i>Relu</i>", "Relu", "Add"], modules: null, alive: [4096, 5120, 6144, 0], exact: [true, true, false, true], tensors: [1, 2, 2, 0],
    weights: [10240, 10240, 11264, 11264], keys: [0], parts: [0, 1, 1, 2], cuts: [0, 2], best: [1],
    cut_options: [option("/m/conv", 1, 4096, 1, 10240, 11264, true), option(MARKUP, 2, 5120, 2, 10240, 11264, false), option(QUOTED, 3, 6144, 2, 11264, 10240, false)],
  },
  cut_model, cut_costs,
};

/** The graph of the plan's model; the markup node has a subgraph. */
export const graph = {
  tensors: ["x", "/m/a", MARKUP, QUOTED, "y", "conv.weight"], types: ["float32[128]", "float32[1,1024]", "", "float32[1,512]", "float32[64]", "float32[2560]"],
  reads: [[0, 5], [1], [2], [3, 1]], writes: [[1], [2], [3], [4]], inputs: [0], outputs: [4], attributes: [["pads = 1"], [], [], []], functions: {},
  bodies: { 1: [["then_branch", {
    tensors: ["/m/a", "inside"], types: ["", "float32[8]"], nodes: ["<s>inner</s>"], ops: ["Neg"], reads: [[0]], writes: [[1]], inputs: [0], outputs: [1],
    attributes: [[]], bodies: {},
  }]] },
};

/** Three nodes that were not cut, of a model that is not at hand. */
export const analyzed = {
  kinds, title: "<u>model</u>", model: "", cards: [], tensors: [], buses: [], matrix: { names: [], cells: [] }, layers: [], schedules: [], other_plans: [], reasons: [],
  profile: {
    nodes: ["a", MARKUP, ""], ops: ["Add", "Add", "Mul"], modules: null, alive: [1000, 2048, 5], exact: [true, false, true], tensors: [1, 2, 1],
    weights: [0, 1024, 3072], keys: [], parts: [], cuts: [], best: [1, 2],
    cut_options: [{ ...option("a", 1, 1000, 1, 0, 3072, false), module: "layers.0" }, { ...option(MARKUP, 2, 2048, 2, 1024, 2048, true), is_exact: false }],
  },
  cut_model: null, cut_costs: null,
};
