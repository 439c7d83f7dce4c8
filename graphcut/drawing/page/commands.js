/* The command that cuts as the page does. */

const escapes = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'" };

/** A word for a POSIX shell. Control characters are escaped, so that pasting the command is safe. */
export function quoted(word) {
  if (/^[\w@%+=:,.\/-]+$/.test(word)) return word;
  if (!/[\x00-\x1f\x7f-\x9f]/.test(word)) return `'${word.replaceAll("'", "'\"'\"'")}'`;
  const escaped = word.replace(/[\\'\x00-\x1f\x7f-\x9f]/g, (sign) =>
    escapes[sign] ?? (sign < "\x80" ? "\\x" : "\\u00") + sign.charCodeAt(0).toString(16).padStart(2, "0"));
  return `$'${escaped}'`;
}

/** A name in a list with commas. */
const inList = (name) => (/[,"]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);

/** The command that cuts `model` after `nodes`, with the sizes `dims`; its parts are for `devices`, if there are any. */
export function command(model, dims, nodes, devices = []) {
  const sizes = Object.entries(dims).map(([name, number]) => ` --dim ${quoted(`${name}=${number}`)}`);
  const on = devices.length ? ` --device=${quoted(devices.map(inList).join(","))}` : "";
  return `graphcut split ${quoted(model)} --at-nodes=${quoted(nodes.map(inList).join(","))}${on}${sizes.join("")}`;
}
