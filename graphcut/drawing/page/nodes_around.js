/* A graph of nodes, that of the model or of a body: the record of loading/node_graph.py, completed. Nodes and tensors are indices. */

export const AROUND = 80; // the most nodes around something
export const MANY = 6; // a tensor with more readers has its name in each of them instead of an edge to it

/** Adds the writer and the readers of each tensor. */
export function completed(graph) {
  if (graph.writer) return graph;
  graph.writer = new Int32Array(graph.tensors.length).fill(-1);
  graph.readers = graph.tensors.map(() => []);
  graph.writes.forEach((written, node) => { for (const tensor of written) graph.writer[tensor] = node; });
  graph.reads.forEach((read, node) => { for (const tensor of read) graph.readers[tensor].push(node); });
  graph.isInput = new Set(graph.inputs);
  return graph;
}

/** The nodes up to some steps from others, but not many more than `AROUND`; through a tensor with many readers none. */
export function nodesAround(graph, start, steps) {
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

/** The writers and the readers of tensors with some names. */
export function endsOf(graph, names) {
  const wanted = new Set(names);
  return [...new Set(graph.tensors.flatMap((name, tensor) => (wanted.has(name) && (graph.writer[tensor] >= 0 || graph.isInput.has(tensor))
    ? [graph.writer[tensor], ...graph.readers[tensor].slice(0, 2 * MANY)] : [])))].filter((node) => node >= 0);
}

/** Lists of items by what `keyOf` gives for them. */
export function groupsOf(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  return found;
}
