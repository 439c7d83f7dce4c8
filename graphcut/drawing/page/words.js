/* Names and numbers as the page writes them. Names come from models and may be anything. */

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

/** The names without what all of them begin with, up to the last / in it, or the last dot where there is no /. */
export function withoutCommon(names) {
  const common = [...names[0] ?? ""].findIndex((letter, i) => names.some((name) => [...name][i] !== letter));
  const begin = common < 0 ? "" : names[0].slice(0, common);
  const start = begin.lastIndexOf(begin.includes("/") ? "/" : ".") + 1;
  return names.map((name) => (start > 1 ? `…${name.slice(start)}` : name));
}

/* Numbers: those with units are as core/units.py writes them (a test compares the two). */

/** Three significant digits. A tie goes to the even digit, as in Python; toPrecision takes the larger one. */
export function three(value) {
  const [digits, exponent] = value.toExponential(60).split("e");
  const isTieAfterEven = /^-?\d\.\d[02468]50*$/.test(digits);
  return String(isTieAfterEven ? Number(`${digits.slice(0, digits.indexOf(".") + 3)}e${exponent}`) : Number(value.toPrecision(3)));
}

/** A value in the first of some units in which it is below `limit`, else in the last; a unit has a name and a factor. */
function scaled(value, units, limit = 999.5) {
  const [unit, factor] = units.find(([, one]) => Math.abs(value) < limit * one) ?? units.at(-1);
  return `${three(value / factor)} ${unit}`;
}

const powers = (base, units) => units.map((unit, i) => [unit, base ** i]);
const BINARY = powers(1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const OPERATIONS = powers(1000, ["", "k", "M", "G", "T", "P"]);

export const size = (bytes) => (Math.abs(bytes) < 999.5 ? `${bytes} B` : scaled(bytes, BINARY));
export const flop = (number) => `${scaled(number, OPERATIONS)}FLOP`;

export function duration(seconds) {
  if (Math.abs(seconds) < 99.5) return scaled(seconds, [["µs", 1e-6], ["ms", 1e-3], ["s", 1]]);
  if (Math.abs(seconds) < 99.5 * 3600) return scaled(seconds, [["min", 60], ["h", 3600]], 99.5);
  return `${grouped(Math.round(seconds / 86400))} days`;
}

export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(share * 100)} %`;

/** How far a number is from another one. */
export function againstMean(load, mean) {
  const off = Math.round((load / mean - 1) * 100);
  return `${off < 0 ? "−" : off > 0 ? "+" : ""}${Math.abs(off)} %`;
}

/* An amount is a record with `bytes` and `is_exact`: what is not exact is a lower bound. */

export const leastOf = ({ is_exact: isExact }) => (isExact ? "" : "≥ ");
export const sizeOf = (amount) => leastOf(amount) + size(amount.bytes);
export const sumOf = (items, value) => items.reduce((sum, item) => sum + value(item), 0);

/* What is said of a part. */

export const isKnown = (value) => value !== null && value !== undefined;
export const isOver = (part) => part.budget_bytes !== null && part.need_bytes > part.budget_bytes;
export const needOf = (part) => (part.need_exact ? "" : "≥ ") + size(part.need_bytes);
export const titleOf = (part) => (part.content ? `${part.name} · ${part.content}` : part.name);

export const figuresOf = (part) => [
  ...isKnown(part.busy_s) ? [leastOf(part) + duration(part.busy_s)] : [], ...part.need_bytes >= 0 ? [needOf(part)] : []];
