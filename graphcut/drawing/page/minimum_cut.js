/* A minimum cut: the free nodes between two parts go where the fewest bytes cross. */

/** The free nodes that go before a cut so that the fewest bytes cross it: the largest minimum cut. */
export function cheapestCut(model, free, side) {
  if (!free.length) return [];
  const vertices = new Map(free.map((node, i) => [node, i + 2]));
  const vertex = (node) => vertices.get(node) ?? side(node);
  const leaving = Array.from({ length: free.length + 2 }, () => []);
  const target = [];
  const residual = [];
  const arc = (source, to, capacity) => {
    leaving[source].push(target.length);
    leaving[to].push(target.length + 1);
    target.push(to, source);
    residual.push(capacity, 0);
  };
  for (const tensor of new Set(free.flatMap((node) => model.touched[node]))) {
    const writer = vertex(model.writers[tensor]);
    const readers = [...new Set(model.readers[tensor].map(vertex))].filter((reader) => reader !== 0);
    if (writer === 1 || !readers.some((reader) => reader !== writer)) continue;
    const own = leaving.push([]) - 1;
    arc(writer, own, model.prices[tensor]);
    for (const reader of readers) {
      arc(own, reader, Infinity);
      if (writer !== 0 && reader !== 1) arc(reader, writer, Infinity);
    }
  }
  while (augment(leaving, target, residual));
  const late = reachable(1, leaving, (one) => (residual[one ^ 1] ? target[one] : -1));
  return free.filter((node) => !late.has(vertices.get(node)));
}

function reachable(start, leaving, next, found = new Map([[start, -1]])) {
  const waiting = [start];
  for (let i = 0; i < waiting.length; i += 1) {
    for (const one of leaving[waiting[i]]) {
      const to = next(one);
      if (to < 0 || found.has(to)) continue;
      found.set(to, one);
      waiting.push(to);
    }
  }
  return found;
}

/** Saturates a shortest path from the source 0 to the sink 1. */
function augment(leaving, target, residual) {
  const found = reachable(0, leaving, (one) => (residual[one] ? target[one] : -1));
  if (!found.has(1)) return false;
  const path = [];
  for (let at = 1; at !== 0; at = target[path[path.length - 1] ^ 1]) path.push(found.get(at));
  const sent = Math.min(...path.map((one) => residual[one]));
  for (const one of path) {
    residual[one] -= sent;
    residual[one ^ 1] += sent;
  }
  return true;
}
