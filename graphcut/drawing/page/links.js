/* Links into the page: #part=2, #tensor=NAME, #node=NAME, #at=1234 (the number of a node, from 1),
   #cuts=NAME,NAME&on=DEVICE,DEVICE. A thing has a `kind` (card, tensor, node) and an `index` in the list of its kind. */

const encoded = (name) => encodeURIComponent(name.toWellFormed());

/** The link to a thing, without #; a node with an ambiguous name is linked by its number. Empty if there is none. */
export function linkTo({ kind, index }, tensors, nodes) {
  if (kind === "card") return `part=${index}`;
  if (kind === "tensor") return `tensor=${encoded(tensors[index].tensor)}`;
  if (kind !== "node") return "";
  return nodes[index] && nodes.indexOf(nodes[index]) === index ? `node=${encoded(nodes[index])}` : `at=${index + 1}`;
}

/** The link to cuts after nodes with these names, with the parts on these devices, or null. */
export const linkToCuts = (nodes, devices) =>
  `cuts=${nodes.map(encoded).join(",")}${devices ? `&on=${devices.map(encoded).join(",")}` : ""}`;

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // a lone % is part of the name
}

/** What an address names: the nodes to cut after, the devices of the parts, and a link to one thing. */
export function readAddress(address) {
  const [, cuts, on, link] = /^#(?:cuts=([^&]+)(?:&on=([^&]+))?&?)?(.*)$/s.exec(address) ?? [];
  const list = (text) => (text ? text.split(",").map(decoded) : []);
  return { cuts: list(cuts), on: list(on), link: link ?? "" };
}

/** The thing that a link names; null if it names nothing. */
export function thingAt(link, cards, tensors, nodes) {
  const [, word, rest] = /^(part|tensor|node|at)=(.+)$/s.exec(link) ?? [];
  if (!word) return null;
  const name = decoded(rest);
  const number = /^\d+$/.test(name) ? Number(name) : -1;
  const [kind, index, all] = {
    part: () => ["card", number, cards],
    tensor: () => ["tensor", tensors.findIndex(({ tensor }) => tensor === name), tensors],
    node: () => ["node", nodes.indexOf(name), nodes],
    at: () => ["node", number - 1, nodes],
  }[word]();
  return index >= 0 && index < all.length ? { kind, index } : null;
}
