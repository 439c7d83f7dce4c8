/* Numbers in words. Those with units are as core/units.py writes them (a test compares the two). */

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
const DECIMAL = powers(1000, ["B", "kB", "MB", "GB", "TB"]);
const OPERATIONS = powers(1000, ["", "k", "M", "G", "T", "P"]);

const bytesIn = (bytes, units) => (Math.abs(bytes) < 999.5 ? `${bytes} B` : scaled(bytes, units));
const isDecimal = (bytes) => bytes !== null && bytes % 1000 === 0 && Number(bytes.toPrecision(4)) === bytes;

export const size = (bytes) => bytesIn(bytes, BINARY);
export const sizeLike = (bytes, like) => bytesIn(bytes, isDecimal(like) ? DECIMAL : BINARY); // in the units of what it answers
export const flop = (number) => `${scaled(number, OPERATIONS)}FLOP`;

export function duration(seconds) {
  if (Math.abs(seconds) < 99.5) return scaled(seconds, [["µs", 1e-6], ["ms", 1e-3], ["s", 1]]);
  if (Math.abs(seconds) < 99.5 * 3600) return scaled(seconds, [["min", 60], ["h", 3600]], 99.5);
  return `${grouped(Math.round(seconds / 86400))} days`;
}

export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(share * 100)} %`;
export const signed = (text, number) => `${number < 0 ? "−" : "+"}${text(Math.abs(number))}`;

/** How far a number is from another one. */
export function againstMean(load, mean) {
  const off = Math.round((load / mean - 1) * 100);
  return off === 0 ? "0 %" : signed(percent, off / 100);
}

/* An amount is a record with `bytes` and `is_exact`: what is not exact is a lower bound. */

export const leastOf = ({ is_exact: isExact }) => (isExact ? "" : "≥ ");
export const sizeOf = (amount) => leastOf(amount) + size(amount.bytes);
export const sumOf = (items, value) => items.reduce((sum, item) => sum + value(item), 0);

/* What is said of a part. */

export const isKnown = (value) => value !== null && value !== undefined;
export const isOver = (part) => part.budget_bytes !== null && part.need_bytes > part.budget_bytes;
export const needOf = (part) => (part.need_exact ? "" : "≥ ") + sizeLike(part.need_bytes, part.budget_bytes);
export const titleOf = (part) => (part.content ? `${part.name} · ${part.content}` : part.name);

/** Its time and its memory, as far as they are known. */
export const figuresOf = (part) => [
  ...isKnown(part.busy_s) ? [leastOf(part) + duration(part.busy_s)] : [], ...part.need_bytes >= 0 ? [needOf(part)] : []];
