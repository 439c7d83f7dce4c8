/* ---- The graph: the nodes around a cut, a tensor or a node, a part, or the whole model. Boxes are HTML, edges an SVG below them. ---- */

const FEW = 250; // more nodes than these are folded by module and repeated block
const AROUND = 80; // the most nodes around something
const MANY = 6; // a tensor with more readers has its name in each of them instead of an edge to it
const ROW = 17;
let whole = null; // the graph of the model
let drawn = null; // what is shown: a view, see `startView`

/** Adds the writer and the readers of each tensor. */
function completed(graph) {
  if (graph.writer) return graph;
  graph.writer = new Int32Array(graph.tensors.length).fill(-1);
  graph.readers = graph.tensors.map(() => []);
  graph.writes.forEach((written, node) => { for (const tensor of written) graph.writer[tensor] = node; });
  graph.reads.forEach((read, node) => { for (const tensor of read) graph.readers[tensor].push(node); });
  graph.isInput = new Set(graph.inputs);
  return graph;
}

const operatorIn = (graph, node) => graph.ops[node].replace(/^.*[.:]/, "");
const partIn = (graph, node) => (graph !== whole ? undefined : yours ? yours.part[cutter.order[node]] : profile.parts[node]);
const partName = (part) => (yours ? `p${part}` : cards[part].name.replace(/\.onnx$/, ""));
const flowsNow = () => new Map((yours ?? scene).tensors.map((flow) => [flow.tensor, flow]));
const tail = (name) => /[^/.:]*.?$/.exec(name.replace(/_output_\d+$/, ""))[0] || name;

/* What is shown. */

function nodesAround(graph, start, steps) {
  const found = new Set(start);
  let edge = [...start];
  for (let step = 0; step < steps && found.size < AROUND; step += 1) {
    const near = edge.flatMap((node) => [
      ...graph.reads[node].map((tensor) => graph.writer[tensor]),
      ...graph.writes[node].filter((tensor) => graph.readers[tensor].length <= 2 * MANY).flatMap((tensor) => graph.readers[tensor]),
    ]);
    edge = [...new Set(near)].filter((node) => node >= 0 && !found.has(node)).slice(0, AROUND - found.size);
    for (const node of edge) found.add(node);
  }
  return found;
}

/** Shows the nodes up to `steps` from `start`; all of these if `steps` is null. */
function startView(graph, title, start, steps, { isFolded = start.length > FEW, trail = [], chosen = null } = {}) {
  const nodes = nodesAround(graph, start, steps ?? 0);
  drawn = { graph, title, start, steps, isFolded, trail, chosen, zoom: drawn?.zoom ?? 1, opened: null, nodes, goal: start[0] };
  drawGraph();
}

const showWhole = () => startView(whole, "The whole model", [...whole.nodes.keys()], null, { isFolded: whole.nodes.length > 40 });

/** The writers and the readers of some tensors. */
function endsOf(names) {
  const wanted = new Set(names);
  return [...new Set(whole.tensors.flatMap((name, tensor) => (wanted.has(name) && (whole.writer[tensor] >= 0 || whole.isInput.has(tensor))
    ? [whole.writer[tensor], ...whole.readers[tensor].slice(0, 2 * MANY)] : [])))].filter((node) => node >= 0);
}

/** Shows what is around the pinned thing; in the graph itself a node is only chosen. */
function showAround(thing) {
  if (!whole || thing === null) return;
  if (thing.kind === "node" && drawn.isChoosing) {
    drawn.chosen = `n${thing.index}`;
    return drawGraph();
  }
  const { kind, index } = thing;
  if (kind === "card") return startView(whole, `Part ${cards[index].name}`, [...whole.nodes.keys()].filter((node) => profile.parts[node] === index), null);
  if (kind === "tensor") return startView(whole, `Around the tensor ${tensors[index].tensor}`, endsOf([tensors[index].tensor]), 1);
  if (kind === "bus") {
    const { source, readers } = buses[index];
    return startView(whole, `Around what ${cards[source].name} sends to ${names(readers)}`, endsOf(buses[index].tensors.map((one) => tensors[one].tensor)), 1);
  }
  const chosen = `n${index}`;
  const part = partIn(whole, index);
  if (!shownCuts().includes(index)) return startView(whole, `Around ${profile.nodes[index]}`, [index], 2, { chosen });
  const crossing = [...flowsNow().values()].filter((flow) => flow.source <= part && flow.readers.at(-1) > part);
  const ends = endsOf(crossing.map((flow) => flow.tensor));
  return startView(whole, `Around the cut after ${profile.nodes[index]}, which ${count(crossing.length, "tensor")} cross`, ends.length ? ends : [index], 1, { chosen });
}

/* Folds: modules, rows of numbered modules, and ranges of long lists; in each part its own. */

/** The ranges around a position, outermost first, so that no list is long. */
function rangesAround(position, length) {
  const found = [];
  let [from, size] = [0, length];
  while (size > 100) {
    const each = Math.max(50, Math.ceil(size / 40));
    const start = from + Math.floor((position - from) / each) * each;
    [from, size] = [start, Math.min(each, from + size - start)];
    found.push([from, from + size - 1]);
  }
  return found;
}

/** Lists of items by what `keyOf` gives for them. */
function groupsOf(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  return found;
}

/** The shown nodes in lists, each with the folds around it, outermost first. */
function foldedLists({ graph, nodes }) {
  const all = graph.modules?.length ?? 1;
  const modules = [...groupsOf(nodes, (node) => (partIn(graph, node) ?? 0) * all + (graph.module?.[node] ?? 0)).values()].map((own) => (
    { own, part: partIn(graph, own[0]), path: graph.module ? graph.modules[graph.module[own[0]]] : [] }));
  const numbers = new Map();
  const walk = ({ part, path }, visit) => path.reduce((key, [name, number]) => {
    const inner = `${key}/${name}${number === null ? "" : `.${number}`}`;
    visit(`${key}/${name}`, name, number, inner);
    return inner;
  }, `${part ?? ""}|`);
  for (const module of modules) walk(module, (row, name, number) => {
    if (number !== null) numbers.set(row, (numbers.get(row) ?? new Set()).add(number));
  });
  for (const [row, found] of numbers) numbers.set(row, [...found].sort((a, b) => a - b));
  const folds = new Map();
  const fold = (key, title, part, times = 1) => {
    if (!folds.has(key)) folds.set(key, { key, title, part, times, size: 0 });
    return folds.get(key);
  };
  return modules.flatMap((module) => {
    const { own, part } = module;
    const chain = [];
    let outer = ""; // the numbered module around these
    const last = walk(module, (row, name, number, inner) => {
      const all = numbers.get(row) ?? [];
      const rows = all.length > 1 ? [[0, all.length - 1], ...rangesAround(all.indexOf(number), all.length)] : [];
      if (number !== null) for (const [from, to] of rows) chain.push(fold(`${row}#${from}-${to}`, `${outer}${name} ${all[from]}-${all[to]}`, part, to - from + 1));
      chain.push(fold(inner, outer + (number === null ? name : `${name}.${number}`), part));
      if (number !== null) outer = `${name}.${number}/`;
    });
    const lists = groupsOf([...own.keys()], (i) => JSON.stringify(rangesAround(i, own.length)));
    return [...lists].map(([ranges, places]) => {
      const list = { nodes: places.map((i) => own[i]), folds: [...chain] };
      for (const [from, to] of JSON.parse(ranges)) list.folds.push(fold(`${last}:${from}-${to}`, `nodes ${from + 1}-${to + 1}`, part));
      for (const one of list.folds) one.size += list.nodes.length;
      return list;
    });
  });
}

/** The outermost fold that is not open, or the innermost one with the same nodes; a fold of one node is none. */
function closedFold({ folds }, opened) {
  const outermost = folds.find((fold) => fold.size > 1 && !opened.has(fold.key));
  return folds.findLast((fold) => fold.size === outermost?.size);
}

/** The folds to open at first: the largest ones, as long as there are few boxes. */
function openedFirst(lists) {
  const opened = new Set();
  const tried = new Set();
  const shown = () => {
    const folds = new Set();
    let boxes = 0;
    for (const list of lists) {
      const fold = closedFold(list, opened);
      if (fold) folds.add(fold);
      else boxes += list.nodes.length;
    }
    return { folds: [...folds].sort((a, b) => b.size - a.size), boxes: boxes + folds.size };
  };
  for (;;) {
    const { folds, boxes } = shown();
    const next = folds.find((fold) => !tried.has(fold.key) && (fold.times === 1 || boxes === 1));
    if (!next) return opened;
    tried.add(next.key);
    opened.add(next.key);
    if (boxes > 1 && shown().boxes > 30) opened.delete(next.key);
  }
}

/* Boxes and the links between them. */

/** The boxes of a view, and the links between them with their tensors. */
function pictureOf(view) {
  const { graph, nodes } = view;
  const boxes = new Map();
  const box = (key, made) => {
    if (!boxes.has(key)) boxes.set(key, { key, id: boxes.size, nodes: [], tensors: [], far: [], ...made() });
    return boxes.get(key);
  };
  const home = []; // sparse: mostly few nodes of many are shown
  const lists = view.isFolded ? foldedLists(view) : [{ nodes: [...nodes], folds: [] }];
  view.opened ??= openedFirst(lists);
  for (const list of lists) {
    const fold = closedFold(list, view.opened);
    for (const node of list.nodes) {
      const own = box(fold ? `f${fold.key}` : `n${node}`, () => ({ kind: fold ? "fold" : "node", fold, part: partIn(graph, node), rank: node }));
      own.rank = Math.min(own.rank, node);
      own.nodes.push(node);
      home[node] = own;
    }
  }
  const links = new Map();
  const link = (from, to, tensor) => {
    const key = `${from.id} ${to.id}`;
    if (!links.has(key)) links.set(key, { from, to, tensors: [] });
    links.get(key).tensors.push(tensor);
  };
  /** A box for what is not shown: inputs, outputs, nodes before or after. */
  const end = (kind, partners, part, tensor, hidden) => {
    const rank = Math.min(...partners.map((one) => one.rank)) + (kind === "in" || kind === "before" ? -0.5 : 0.5);
    const own = box(`${kind} ${part ?? ""} ${partners.map((one) => one.id)}`, () => ({ kind, part, rank }));
    own.tensors.push(tensor);
    for (const node of hidden) if (!own.nodes.includes(node)) own.nodes.push(node);
    return own;
  };
  const withParts = (one, parts) => Object.assign(one, { parts: [...new Set([...one.parts ?? [], ...parts])].sort((a, b) => a - b) });
  const isOutput = new Set(graph.outputs);
  const flows = flowsNow();
  const parts = new Set([...boxes.values()].map((one) => one.part));
  view.onlyPart = parts.size === 1 ? [...parts][0] : undefined;
  const touched = new Set();
  for (const node of nodes) {
    for (const tensor of graph.reads[node]) touched.add(tensor);
    for (const tensor of graph.writes[node]) touched.add(tensor);
  }
  for (const tensor of touched) {
    const writer = graph.writer[tensor];
    if (writer < 0 && !graph.isInput.has(tensor)) continue; // an initializer is in the box of its reader
    const own = home[writer];
    if (own && !isOutput.has(tensor) && !flows.has(graph.tensors[tensor]) && graph.readers[tensor].every((node) => home[node] === own)) continue;
    const readers = [...new Set(graph.readers[tensor].map((node) => home[node]))].filter((one) => one && one !== own);
    if (readers.length > MANY) for (const one of readers) one.far.push(tensor);
    else if (readers.length) {
      const from = own ?? (writer < 0 ? end("in", readers, undefined, tensor, []) : end("before", readers, partIn(graph, writer), tensor, [writer]));
      for (const one of readers) link(from, one, tensor);
    }
    if (!own) continue;
    const hidden = groupsOf(graph.readers[tensor].filter((node) => !home[node]), (node) => partIn(graph, node));
    for (const [part, after] of hidden) link(own, end("after", [own], part, tensor, after), tensor);
    if (isOutput.has(tensor)) link(own, end("out", [own], undefined, tensor, []), tensor);
    const known = new Set([own.part, ...graph.readers[tensor].map((node) => partIn(graph, node))]);
    const copies = graph === whole ? flows.get(graph.tensors[tensor])?.readers.filter((part) => !known.has(part)) ?? [] : [];
    if (copies.length) link(own, withParts(end("copies", [own], undefined, tensor, []), copies), tensor);
  }
  return { boxes: [...boxes.values()], links: [...links.values()], home };
}

const typed = (graph, tensor) => [graph.tensors[tensor], graph.types[tensor]].filter(Boolean).join(" ");

/** Some lines, the first of them shown; `css` is what they are. */
function few(lines, most) {
  if (lines.length <= most) return lines;
  return [...lines.slice(0, most - 1), { text: `and ${grouped(lines.length - most + 1)} more`, title: lines.slice(most - 1).map((line) => line.title ?? line.text).join("\n") }];
}

function linesOfNode(graph, node, most) {
  const isValue = (tensor) => graph.writer[tensor] < 0 && !graph.isInput.has(tensor);
  const values = graph.reads[node].filter(isValue).map((tensor) => (
    { text: `${tail(graph.tensors[tensor])} ${graph.types[tensor]}`, title: typed(graph, tensor) }));
  return [
    { text: graph.nodes[node], css: "name" },
    ...few([...graph.attributes[node].map((text) => ({ text })), ...values], most),
    ...few(graph.writes[node].map((tensor) => ({ text: `→ ${graph.types[tensor] || graph.tensors[tensor]}`, title: typed(graph, tensor) })), 3),
  ];
}

/** Gives a box its words: a head, a tag and lines. */
function worded(box, graph, most) {
  const { kind, nodes, tensors: own } = box;
  const isOne = nodes.length === 1;
  const tensorLines = () => few(own.map((tensor) => ({ text: graph.types[tensor] || graph.tensors[tensor], title: typed(graph, tensor) })), 3);
  const parts = (box.parts ?? [box.part]).filter((part) => part !== undefined && part !== drawn.onlyPart).map(partName);
  const ended = (noun) => ({
    head: own.length === 1 ? noun : count(own.length, noun), tags: [],
    lines: [...own.length === 1 ? [{ text: graph.tensors[own[0]], css: "name" }] : [], ...tensorLines()],
  });
  const words = {
    node: () => ({ head: operatorIn(graph, nodes[0]), tags: parts, lines: linesOfNode(graph, nodes[0], most) }),
    fold: () => {
      const operators = [...groupsOf(nodes, (node) => operatorIn(graph, node))].sort((a, b) => b[1].length - a[1].length);
      const text = few(operators.map(([name, found]) => ({ text: `${grouped(found.length)} ${name}` })), 4).map((line) => line.text).join(", ");
      return { head: box.fold.title, tags: [...(box.fold.times > 1 ? [`× ${box.fold.times}`] : []), ...parts], lines: [{ text: count(nodes.length, "node") }, { text }] };
    },
    in: () => ended("input"),
    out: () => ended("output"),
    copies: () => ({ head: "replicas", tags: parts.length > 1 ? [count(parts.length, "part")] : parts, lines: [{ text: "compute again what reads it here", title: parts.join(", ") }] }),
    more: () => ({
      head: isOne ? operatorIn(graph, nodes[0]) : count(nodes.length, "node"), tags: [kind, ...parts],
      lines: isOne ? [{ text: graph.nodes[nodes[0]], css: "name" }] : [],
    }),
  };
  Object.assign(box, (words[kind] ?? words.more)());
  if (box.far.length) box.lines.push(...few(box.far.map((tensor) => ({ text: `← ${tail(graph.tensors[tensor])}`, title: typed(graph, tensor) })), 3));
  box.bodies = (kind === "node" ? graph.bodies[nodes[0]] ?? [] : []).map(([name, body]) => [name, whole.functions[body] ?? body]);
  box.height = (kind === "fold" ? 32 : 28) + ROW * box.lines.length + 26 * box.bodies.length;
  return box;
}

/* Drawing, and what one can do. */

function boxElement(box) {
  const said = [[box.head, ...box.tags].join(" "), ...box.lines.map((line) => line.title ?? line.text)].join(", ");
  const head = html("button", { class: "head", tabindex: -1, "data-key": box.key, "aria-label": said, title: box.head });
  head.append(inLine("span", null, box.head), ...box.tags.flatMap((text) => [" ", inLine("i", null, text)]));
  const lines = box.lines.map(({ text, title, css }) => {
    const line = html("div", { class: `line ${css ?? ""}`, title: title ?? text, "aria-hidden": "true" });
    line.append(inLine("bdi", null, text));
    line.firstChild.setAttribute("dir", "ltr");
    return line;
  });
  const bodies = box.bodies.map(([name, body]) => {
    const button = inLine("button", "body", `▸ ${name}, ${count(body.nodes.length, "node")}`);
    button.addEventListener("click", (event) => {
      event.stopPropagation();
      openBody(box, name, body);
    });
    return button;
  });
  const isChosen = box.key === drawn.chosen;
  const css = { in: "end", out: "end", before: "more", after: "more", copies: "more", fold: "fold" }[box.kind] ?? "";
  const element = html("div", { class: `box ${css}${isChosen ? " chosen" : ""}` }, head, ...lines, ...bodies);
  Object.assign(element.style, { left: `${box.x - box.width / 2}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` });
  element.addEventListener("click", () => activate(box));
  return element;
}

/** The kind of what crosses a boundary on an edge, of `KINDS`; empty if nothing does. */
function kindOfLink({ from, to, tensors: own }, graph, flows) {
  const isInside = from.part === undefined || to.part === undefined || from.part === to.part;
  if (graph !== whole || (isInside && to.kind !== "copies")) return "";
  const kinds = own.map((tensor) => flows.get(graph.tensors[tensor])).filter(Boolean).map(kindOf);
  return kinds.find((kind) => kind === "residual" || kind === "exchange") ?? kinds[0] ?? ""; // or it is computed again
}

function drawLinks(links, graph) {
  const element = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const flows = flowsNow();
  return element("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, ...links.map((link) => {
    const kind = kindOfLink(link, graph, flows);
    const css = KINDS[kind]?.[1] ?? "";
    const [x, y, up] = link.tip;
    const title = element("title", {}, visible(link.tensors.map((tensor) => typed(graph, tensor)).join("\n")));
    const group = element("g", {}, title, element("path", { class: css, d: link.path }), element("path", { class: "hit", d: link.path }),
      element("path", { class: `tip ${css}`, d: `M${x - 4},${y + 8 * up}h8L${x},${y}Z` }));
    group.addEventListener("click", () => showTensors(`${link.from.head} → ${link.to.head}`, link.tensors, kind, graph));
    return group;
  }));
}

function showTensors(title, own, kind, graph) {
  fillPanel(title, [
    ["kind", KINDS[kind]?.[0] ?? null],
    ...own.slice(0, 12).map((tensor) => [graph.tensors[tensor], graph.types[tensor] || "type unknown"]),
    ["more", own.length > 12 ? grouped(own.length - 12) : null],
  ]);
}

let frame = 0;

/** Draws at most once a frame. */
function drawGraph() {
  if (!whole) return;
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(drawNow);
}

function drawNow() {
  const { graph } = drawn;
  const place = $("#graph .boxes");
  const picture = pictureOf(drawn);
  const isDense = picture.boxes.length > 60;
  for (const box of picture.boxes) worded(box, graph, isDense ? 2 : 6).width = isDense ? 176 : 228;
  const { width, height } = layered(picture.boxes, picture.links);
  const hadFocus = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const canvas = html("div", { class: "canvas" });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, zoom: drawn.zoom });
  const ordered = [...picture.boxes].sort((a, b) => a.y - b.y || a.x - b.x);
  canvas.append(drawLinks(picture.links, graph), ...ordered.map(boxElement));
  place.replaceChildren(canvas);
  drawn.picture = { ...picture, boxes: ordered };
  const near = drawn.goal === undefined ? null : picture.home[drawn.goal];
  const first = picture.boxes.find((box) => box.key === drawn.chosen) ?? near ?? picture.home[drawn.start[0]] ?? ordered[0];
  headOf(first).setAttribute("tabindex", 0);
  showTools();
  fillGraphTable();
  if (hadFocus) focusOn(picture.boxes.find((box) => box.key === hadFocus) ?? first);
  if (drawn.goal !== undefined) {
    const isTop = drawn.steps === null && drawn.goal === drawn.start[0]; // then in the middle of what is in sight
    const x = isTop ? mean(ordered.filter((box) => box.y * drawn.zoom < place.clientHeight).map((box) => box.x)) : first.x;
    place.scrollTo((x + 14) * drawn.zoom - place.clientWidth / 2, isTop ? 0 : (first.y + first.height / 2 + 14) * drawn.zoom - place.clientHeight / 2);
    delete drawn.goal;
  }
}

const headOf = (box) => $(`#graph .head[data-key="${CSS.escape(visible(box.key))}"]`);

function focusOn(box) {
  for (const head of document.querySelectorAll("#graph .head[tabindex='0']")) head.setAttribute("tabindex", -1);
  headOf(box).setAttribute("tabindex", 0);
  headOf(box).focus();
}

function openBody(box, name, body) {
  const title = `${name === "function" ? "Function" : `Subgraph ${name}`} of ${box.head} ${drawn.graph.nodes[box.nodes[0]]}`;
  startView(completed(body), title, [...body.nodes.keys()], null, { trail: [...drawn.trail, drawn] });
}

/** What a click on a box does: opens a fold, adds nodes, or tells about a node; a second click on a node shows what is around it. */
function activate(box) {
  const { graph } = drawn;
  drawn.goal = box.nodes[0];
  if (box.kind === "fold") drawn.opened.add(box.fold.key);
  else if (box.kind === "before" || box.kind === "after") for (const node of box.nodes.slice(0, 40)) drawn.nodes.add(node);
  else if (box.kind !== "node") return showTensors(box.head, box.tensors, "", graph);
  else if (drawn.chosen === box.key && drawn.steps === null) return startView(graph, `Around ${graph.nodes[box.nodes[0]]}`, box.nodes, 2, { chosen: box.key, trail: drawn.trail });
  else {
    delete drawn.goal;
    drawn.chosen = box.key;
    drawn.isChoosing = true;
    if (graph === whole) select(box.nodes[0]);
    else fillPanel(graph.nodes[box.nodes[0]], [["operator", graph.ops[box.nodes[0]]], ...box.lines.slice(1).map((line) => ["", line.title ?? line.text])]);
    drawn.isChoosing = false;
  }
  return drawGraph();
}

const TOOLS = [
  ["back", "‹ back", "leave the subgraph", () => { drawn = drawn.trail.at(-1); }],
  ["fewer", "Fewer steps", "", () => changeSteps(-1)],
  ["more", "More steps", "", () => changeSteps(1)],
  ["fold", "Fold", "by module and repeated block", () => { drawn.isFolded = !drawn.isFolded; drawn.opened = null; }],
  ["whole", "Whole model", "", showWhole],
  ["smaller", "Zoom out", "", () => { drawn.zoom = Math.max(0.25, drawn.zoom / 1.25); }],
  ["larger", "Zoom in", "", () => { drawn.zoom = Math.min(2, drawn.zoom * 1.25); }],
];

function changeSteps(by) {
  drawn.steps += by;
  drawn.nodes = nodesAround(drawn.graph, drawn.start, drawn.steps);
}

function showTools() {
  const { graph, nodes, steps, trail, title, isFolded, picture } = drawn;
  const tool = (name) => $(`#graph-${name}`);
  tool("back").hidden = !trail.length;
  for (const name of ["fewer", "more"]) tool(name).hidden = steps === null;
  tool("fewer").disabled = steps === 0;
  tool("more").disabled = nodes.size >= AROUND || nodes.size === graph.nodes.length;
  tool("fold").hidden = nodes.size > FEW || nodes.size < 20;
  tool("fold").setAttribute("aria-pressed", isFolded);
  tool("whole").hidden = graph === whole && nodes.size === graph.nodes.length;
  const around = steps === null ? "" : `, within ${count(steps, "step")}`;
  $("#graph .lead").textContent = visible([
    `${title}${around}: ${grouped(nodes.size)} of ${count(graph.nodes.length, "node")}.`,
    graph !== whole ? "" : isRanked ? "Blue edges go to another rank." : shownCuts().length ? "Blue edges go to the next part only, dashed orange ones skip a part." : "",
    picture.boxes.some((box) => box.kind === "fold") ? "Double frames open." : "",
    picture.boxes.some((box) => box.far.length) ? `What more than ${MANY} boxes read is named in each, after ←.` : "",
  ].filter(Boolean).join(" "));
}

/** The links as a table, if it is open. */
function fillGraphTable() {
  const details = $("#graph details");
  const place = $(".scroll", details);
  place.replaceChildren();
  const { graph, picture } = drawn;
  const named = ({ head, kind, nodes }) => (kind === "node" ? `${head} ${graph.nodes[nodes[0]]}` : head);
  if (details.open) place.append(table("edges of the graph", [
    ["from", "name", ({ from }) => named(from)],
    ["to", "name", ({ to }) => named(to)],
    ["tensors", "", ({ tensors: own }) => listed(own.map((tensor) => typed(graph, tensor)))],
    ["kind", "", (link) => kindOfLink(link, graph, flowsNow())],
  ], picture.links.slice(0, MAX_ROWS)));
}

/** Steps from the focused box: along an edge, or to its neighbour in the layer. */
function stepInGraph(key) {
  const { boxes, links } = drawn.picture;
  const at = boxes.find((box) => box.key === document.activeElement.dataset.key);
  if (!at) return;
  const near = {
    ArrowDown: links.filter((link) => link.from === at).map((link) => link.to),
    ArrowUp: links.filter((link) => link.to === at).map((link) => link.from),
    ArrowLeft: boxes.filter((box) => box.layer === at.layer && box.x < at.x),
    ArrowRight: boxes.filter((box) => box.layer === at.layer && box.x > at.x),
  }[key];
  const next = near.sort((a, b) => Math.abs(a.x - at.x) - Math.abs(b.x - at.x))[0];
  if (next) focusOn(next);
}

function enterGraph() {
  $("#graph").scrollIntoView({ block: "nearest" });
  $("#graph .head[tabindex='0']")?.focus();
}

async function startGraph() {
  if (!profile || !$("#graph-data").textContent) return;
  const graph = await unpacked("graph-data");
  whole = completed(Object.assign(graph, { nodes: profile.nodes, ops: profile.ops }));
  $("#graph").hidden = false;
  for (const [name, text, title, action] of TOOLS) {
    const button = html("button", { id: `graph-${name}`, text, title });
    button.addEventListener("click", () => { action(); drawGraph(); });
    $("#graph .toolbar").append(button);
  }
  $("#graph details").addEventListener("toggle", fillGraphTable);
  onKeys($("#graph .boxes"), Object.fromEntries(["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].map((key) => [key, () => stepInGraph(key)])));
  showWhole();
  showAround(pinned);
}
