/* Numbers in words. Those with units are as core/units.py writes them (a test compares the two). */

/** Three significant digits. A tie goes to the even digit, as in Python; toPrecision takes the larger one. */
export function three(value) {
  const [digits, exponent] = value.toExponential(60).split("e");
  const isTieAfterEven = /^-?\d\.\d[02468]50*$/.test(digits);
  return String(isTieAfterEven ? Number(`${digits.slice(0, digits.indexOf(".") + 3)}e${exponent}`) : Number(value.toPrecision(3)));
}

function scaled(bytes, base, units) {
  let value = bytes;
  for (const unit of ["B", ...units]) {
    if (Math.abs(value) < 999.5 || unit === units.at(-1)) return unit === "B" ? `${bytes} B` : `${three(value)} ${unit}`;
    value /= base;
  }
}

export const size = (bytes) => scaled(bytes, 1024, ["KiB", "MiB", "GiB", "TiB"]);

/** In decimal units where the number that it answers is whole in these, as that of 20MB is. */
export function sizeLike(bytes, like) {
  const isDecimal = like !== null && like % 1000 === 0 && Number(like.toPrecision(4)) === like;
  return isDecimal ? scaled(bytes, 1000, ["kB", "MB", "GB", "TB"]) : size(bytes);
}

export function duration(seconds) {
  for (const [unit, factor, limit] of [["µs", 1e-6, 999.5], ["ms", 1e-3, 999.5], ["s", 1, 99.5], ["min", 60, 99.5], ["h", 3600, 99.5]]) {
    if (Math.abs(seconds) < factor * limit) return `${three(seconds / factor)} ${unit}`;
  }
  return `${grouped(Math.round(seconds / 86400))} days`;
}

export function flop(number) {
  let value = number;
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (Math.abs(value) < 999.5) return `${three(value)} ${unit}FLOP`;
    value /= 1000;
  }
  return `${three(value)} PFLOP`;
}

export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(share * 100)} %`;
export const signed = (text, number) => `${number < 0 ? "−" : "+"}${text(Math.abs(number))}`;

/** How far a number is from another one. */
export function againstMean(load, mean) {
  const off = Math.round((load / mean - 1) * 100);
  return off === 0 ? "0 %" : `${off > 0 ? "+" : "−"}${Math.abs(off)} %`;
}

/* An amount is a record with `bytes` and `is_exact`: what is not exact is a lower bound. */

export const leastOf = ({ is_exact: isExact }) => (isExact ? "" : "≥ ");
export const sizeOf = (amount) => leastOf(amount) + size(amount.bytes);
export const sumOf = (items, value) => items.reduce((sum, item) => sum + value(item), 0);
