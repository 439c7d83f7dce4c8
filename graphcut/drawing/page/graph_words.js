/* What the boxes of a graph say: a head, tags and lines. */

import { shortOperator } from "./names.js";
import { groupsOf } from "./nodes_around.js";
import { count, grouped } from "./number_words.js";

const ROW = 17;

/** The last word of a name. */
export const tail = (name) => /[^/.:]*.?$/.exec(name.replace(/_output_\d+$/, ""))[0] || name;
export const typed = (graph, tensor) => [graph.tensors[tensor], graph.types[tensor]].filter(Boolean).join(" ");

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

/** Gives a box of a view its words and its height; `most` is the number of lines between its name and what it writes. */
export function worded(box, { graph, onlyPart, partName, functions }, most) {
  const { kind, nodes, tensors: own } = box;
  const isOne = nodes.length === 1;
  const tensorLines = () => few(own.map((tensor) => ({ text: graph.types[tensor] || graph.tensors[tensor], title: typed(graph, tensor) })), 3);
  const parts = (box.parts ?? [box.part]).filter((part) => part !== undefined && part !== onlyPart).map(partName);
  const ended = (noun) => ({
    head: own.length === 1 ? noun : count(own.length, noun), tags: [],
    lines: [...own.length === 1 ? [{ text: graph.tensors[own[0]], css: "name" }] : [], ...tensorLines()],
  });
  const words = {
    node: () => ({ head: shortOperator(graph.ops[nodes[0]]), tags: parts, lines: linesOfNode(graph, nodes[0], most) }),
    fold: () => {
      const operators = [...groupsOf(nodes, (node) => shortOperator(graph.ops[node]))].sort((a, b) => b[1].length - a[1].length);
      const text = few(operators.map(([name, found]) => ({ text: `${grouped(found.length)} ${name}` })), 4).map((line) => line.text).join(", ");
      return { head: box.fold.title, tags: [...(box.fold.times > 1 ? [`× ${box.fold.times}`] : []), ...parts], lines: [{ text: count(nodes.length, "node") }, { text }] };
    },
    in: () => ended("input"),
    out: () => ended("output"),
    copies: () => ({ head: "replicas", tags: parts.length > 1 ? [count(parts.length, "part")] : parts, lines: [{ text: "compute again what reads it here", title: parts.join(", ") }] }),
    more: () => ({
      head: isOne ? shortOperator(graph.ops[nodes[0]]) : count(nodes.length, "node"), tags: [kind, ...parts],
      lines: isOne ? [{ text: graph.nodes[nodes[0]], css: "name" }] : [],
    }),
  };
  Object.assign(box, (words[kind] ?? words.more)());
  if (box.far.length) box.lines.push(...few(box.far.map((tensor) => ({ text: `← ${tail(graph.tensors[tensor])}`, title: typed(graph, tensor) })), 3));
  box.bodies = (kind === "node" ? graph.bodies[nodes[0]] ?? [] : []).map(([name, body]) => [name, functions[body] ?? body]);
  box.height = (kind === "fold" ? 32 : 28) + ROW * box.lines.length + 26 * box.bodies.length;
  return box;
}
