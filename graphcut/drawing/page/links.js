/* What one can take away from the page: its address, and the command that cuts as it does. Addresses are #part=2, #tensor=NAME,
   #node=NAME, #at=1234 (the number of a node, from 1), and before it #cuts=NAME,NAME&on=DEVICE,DEVICE.
   A thing has a `kind` (card, tensor, node) and an `index` in the list of its kind. */

const encoded = (name) => encodeURIComponent(name.toWellFormed());
const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } }; // a lone % is part of the name

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

/** What an address names: the nodes to cut after, the devices of the parts, and a link to one thing. */
export function readAddress(address) {
  const [, cuts, on, link] = /^#(?:cuts=([^&]+)(?:&on=([^&]+))?&?)?(.*)$/s.exec(address) ?? [];
  const list = (text) => (text ? text.split(",").map(decoded) : []);
  return { cuts: list(cuts), on: list(on), link: link ?? "" };
}

/** The thing that a link names; null if it names nothing. */
export function thingAt(link, cards, tensors, nodes) {
  const [, word, rest] = /^(part|tensor|node|at)=(.+)$/s.exec(link) ?? [];
  const name = decoded(rest);
  const number = /^\d+$/.test(name) ? Number(name) : -1;
  const [kind, index, all] = {
    part: ["card", number, cards],
    tensor: ["tensor", tensors.findIndex(({ tensor }) => tensor === name), tensors],
    node: ["node", nodes.indexOf(name), nodes],
    at: ["node", number - 1, nodes],
  }[word] ?? ["", -1, []];
  return index >= 0 && index < all.length ? { kind, index } : null;
}

const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'" };

/** A word for a POSIX shell. Control characters are escaped, so that pasting the command is safe. */
export function quoted(word) {
  if (/^[\w@%+=:,.\/-]+$/.test(word)) return word;
  if (!/[\x00-\x1f\x7f-\x9f]/.test(word)) return `'${word.replaceAll("'", "'\"'\"'")}'`;
  const escaped = word.replace(/[\\'\x00-\x1f\x7f-\x9f]/g, (sign) =>
    ESCAPES[sign] ?? (sign < "\x80" ? "\\x" : "\\u00") + sign.charCodeAt(0).toString(16).padStart(2, "0"));
  return `$'${escaped}'`;
}

/** The command that cuts `model` after `nodes`, with the sizes `dims`; its parts are for `devices`, if there are any. */
export function command(model, dims, nodes, devices = []) {
  const list = (names) => quoted(names.map((name) => (/[,"]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name)).join(","));
  const sizes = Object.entries(dims).map(([name, number]) => ` --dim ${quoted(`${name}=${number}`)}`);
  return `graphcut split ${quoted(model)} --at-nodes=${list(nodes)}${devices.length ? ` --device=${list(devices)}` : ""}${sizes.join("")}`;
}
