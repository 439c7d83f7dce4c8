/* Flows: tensors that parts send. A flow has `source`, the part that writes it, and `readers`, those that read it, ascending. */

/** The kind of a flow: between ranks an exchange or kept, else sequential or residual. */
export const kindOf = ({ source, readers, is_exchange: isMet = null }) =>
  isMet === null ? (readers.at(-1) > source + 1 ? "residual" : "sequential") : isMet ? "exchange" : "kept";

/** No flow, and a total of flows with one more. */
export const NOTHING = { bytes: 0, is_exact: true, tensors: 0 };
export const plus = (total, flow) => ({
  bytes: total.bytes + flow.bytes, is_exact: total.is_exact && flow.is_exact, tensors: total.tensors + 1,
});

export const totalOf = (flows) => flows.reduce(plus, NOTHING);

/** Flows grouped by source and readers, in the order in which the groups first occur. */
export function busesOf(flows) {
  const groups = new Map();
  flows.forEach((flow, tensor) => {
    const key = `${flow.source} ${flow.readers}`;
    const bus = groups.get(key) ?? { source: flow.source, readers: flow.readers, bytes: 0, is_exact: true, tensors: [] };
    groups.set(key, { ...bus, bytes: bus.bytes + flow.bytes, is_exact: bus.is_exact && flow.is_exact, tensors: [...bus.tensors, tensor] });
  });
  return [...groups.values()];
}

/** The dependency maps of parts as a matrix: a cell has what one part sends to another. */
export function matrixOf({ parts, tensors: flows }) {
  const cells = new Map();
  for (const flow of flows) for (const reader of flow.readers) {
    const key = flow.source * parts.length + reader;
    const cell = cells.get(key) ?? { source: flow.source, readers: [reader], bytes: 0, is_exact: true, tensors: [] };
    cells.set(key, { ...cell, bytes: cell.bytes + flow.bytes, is_exact: cell.is_exact && flow.is_exact, tensors: [...cell.tensors, flow.tensor] });
  }
  const most = Math.max(0, ...[...cells.values()].map((cell) => cell.bytes));
  for (const cell of cells.values()) cell.share = Math.max(0, 1 - Math.log2((most + 1) / (cell.bytes + 1)) / 16);
  return { names: parts.map((one) => one.name), cells: [...cells.values()] };
}
