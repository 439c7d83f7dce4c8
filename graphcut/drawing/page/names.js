/* Names of nodes, tensors and parts, which come from models and may be anything. */

import { grouped } from "./number_words.js";

/** Makes characters visible that show nothing or change the direction of text: two names must not look the same. */
export const visible = (text) => String(text).toWellFormed()
  .replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) => `‹U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`)
  .replace(/[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\u2060-\u2065\ufeff]/g, "\ufffd");

export const shortOperator = (name) => name.replace(/^.*[.:]/, ""); // without its domain
export const shortPart = (name) => name.replace(/\.onnx$/, "");

export const listed = (items) =>
  items.length <= 8 ? items.join(", ") : `${items.slice(0, 8).join(", ")} and ${grouped(items.length - 8)} more`;

/** Lists of items by what `keyOf` gives for them. */
export function groupsOf(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(item);
  }
  return found;
}

const PLACES = Array.from({ length: 17 }, (_, i) => i / 16).sort((a, b) => Math.abs(a - 0.5) - Math.abs(b - 0.5));

/** The names without a middle where they have more letters than `room`; different ones stay different. As `shortened` in core/text.py, and a test compares the two. */
export function shortened(names, room) {
  let found = mostApart(names, room);
  for (const isJoined of [false, true]) {
    const groups = alike(found);
    for (const group of isJoined && groups.length ? [groups.flat()] : groups) {
      for (const signs of ["/", "._:"]) {
        const rest = withoutBeginning(group, signs);
        const ends = mostApart(rest, room - 1);
        const made = new Map([...found, ...group.map((name, i) => [name, `…${ends.get(rest[i])}`])]);
        if (alike(made).length < alike(found).length) found = made;
      }
    }
  }
  for (const group of alike(found)) {
    group.forEach((name, i) => found.set(name, `${withoutMiddle(name, room - ` ${i + 1}`.length, 0.5)} ${i + 1}`));
  }
  return names.map((name) => found.get(name));
}

/** The names that have one text, for each such text. */
const alike = (found) => [...groupsOf(found.keys(), (name) => found.get(name))]
  .filter(([text, names]) => text && names.length > 1).map(([, names]) => names);

function withoutBeginning(names, signs) {
  const letters = names.map((name) => [...name]);
  const common = letters[0].findIndex((letter, i) => letters.some((one) => one[i] !== letter));
  const begin = letters[0].slice(0, common < 0 ? undefined : common);
  const start = begin.findLastIndex((letter) => signs.includes(letter)) + 1;
  return letters.map((one) => one.slice(start).join(""));
}

/** The names without their middle, at the first of the places that leave most of them different. */
function mostApart(names, room) {
  let best = new Map();
  const different = (map) => new Set(map.values()).size;
  for (const place of PLACES) {
    const made = new Map(names.map((name) => [name, withoutMiddle(name, room, place)]));
    if (different(made) > different(best)) best = made;
    if (different(best) === made.size) break;
  }
  return best;
}

function withoutMiddle(name, room, place) {
  const letters = [...name];
  if (letters.length <= room) return name;
  if (room < 1) return "";
  const head = Math.floor((room - 1) * place);
  return [...letters.slice(0, head), "…", ...letters.slice(letters.length - (room - 1 - head))].join("");
}
