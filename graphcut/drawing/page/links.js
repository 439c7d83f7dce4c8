/* What one can take away from the page: its address, and the command that cuts as it does. After #, an address has `cut=NODE` for
   each cut, `on=DEVICE` for each part, and one thing: `part=2`, `tensor=NAME`, `node=NAME` or `at=1234`, the number of a node, from 1.
   A thing has a `kind` (card, tensor, node) and an `index` in the list of its kind. */

/** The words of an address for a thing; none if it has no address. A node with an ambiguous name is linked by its number. */
export function linkTo({ kind, index }, tensors, nodes) {
  const isNamed = nodes[index] && nodes.indexOf(nodes[index]) === index;
  const node = isNamed ? ["node", nodes[index]] : ["at", index + 1];
  const link = { card: ["part", index], tensor: ["tensor", tensors[index]?.tensor], node }[kind];
  return link ? [link] : [];
}

/** The thing that the words of an address name; undefined if they name nothing. */
export function thingIn(words, cards, tensors, nodes) {
  const number = (key) => (/^\d+$/.test(words.get(key)) ? Number(words.get(key)) : -1);
  const found = [
    ["card", number("part"), cards],
    ["tensor", tensors.findIndex(({ tensor }) => tensor === words.get("tensor")), tensors],
    ["node", nodes.indexOf(words.get("node")), nodes],
    ["node", number("at") - 1, nodes],
  ].find(([, index, all]) => index >= 0 && index < all.length);
  return found && { kind: found[0], index: found[1] };
}

/** A word for a POSIX shell. Control characters are escaped, so that pasting the command is safe. */
export function quoted(word) {
  if (/^[\w@%+=:,.\/-]+$/.test(word)) return word;
  if (!/[\x00-\x1f\x7f-\x9f]/.test(word)) return `'${word.replaceAll("'", "'\"'\"'")}'`;
  const escaped = word.replace(/[\\'\x00-\x1f\x7f-\x9f]/g, (sign) =>
    (sign < "\x80" ? "\\x" : "\\u00") + sign.charCodeAt(0).toString(16).padStart(2, "0"));
  return `$'${escaped}'`;
}

/** The command that cuts `model` after `nodes`, with the sizes `dims`; its parts are for `devices`, if there are any. */
export function command(model, dims, nodes, devices = []) {
  const list = (names) => quoted(names.map((name) => (/[,"]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name)).join(","));
  const sizes = Object.entries(dims).map(([name, number]) => ` --dim ${quoted(`${name}=${number}`)}`);
  return `graphcut split ${quoted(model)} --at-nodes=${list(nodes)}${devices.length ? ` --device=${list(devices)}` : ""}${sizes.join("")}`;
}
