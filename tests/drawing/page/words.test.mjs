import assert from "node:assert/strict";
import { test } from "node:test";

import { againstMean, count, duration, flop, grouped, listed, percent, shortOperator, shortPart, size, sizeOf, three, visible, withoutCommon } from "../../../graphcut/drawing/page/words.js";

test("three digits are rounded to even where a number is between two", () => {
  assert.deepEqual([1.125, 1.375, 1.126, 112.5, 1125, 0.5, 999.4].map(three), ["1.12", "1.38", "1.13", "112", "1120", "0.5", "999"]);
  assert.equal(three(1.135), "1.14"); // its double is a little more
});

test("sizes, times and operations take the unit that leaves one to three digits before the point", () => {
  assert.deepEqual([0, 999, 1000, 1024, 4325376, 999.4 * 2 ** 20, 2 ** 50].map(size),
    ["0 B", "999 B", "0.977 KiB", "1 KiB", "4.12 MiB", "999 MiB", "1020 TiB"]);
  assert.deepEqual([0, 9.994e-4, 9.996e-4, 0.25, 99.4, 99.5, 3600, 400000, 86400 * 1234].map(duration),
    ["0 µs", "999 µs", "1 ms", "250 ms", "99.4 s", "1.66 min", "60 min", "5 days", "1,234 days"]);
  assert.deepEqual([0, 999, 1000, 2.5e9, 3e15].map(flop), ["0 FLOP", "999 FLOP", "1 kFLOP", "2.5 GFLOP", "3 PFLOP"]);
});

test("long numbers have commas, and nouns their number", () => {
  assert.deepEqual([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
  assert.deepEqual([count(1, "node"), count(0, "node"), count(1000, "node")], ["1 node", "0 nodes", "1,000 nodes"]);
  assert.deepEqual([percent(0.126), againstMean(12, 10), againstMean(8, 10), againstMean(10.01, 10)], ["13 %", "+20 %", "−20 %", "0 %"]);
});

test("an amount that is not exact is a lower bound", () => {
  assert.deepEqual([{ bytes: 5, is_exact: true }, { bytes: 5, is_exact: false }].map(sizeOf), ["5 B", "≥ 5 B"]);
});

test("characters that show nothing or turn the text are visible", () => {
  assert.equal(visible("a\u202eb\u200bc\nd\ud800e"), "a‹U+202E›b\ufffdc\ufffdd\ufffde");
  assert.equal(visible("👩‍👧 é"), "👩‍👧 é"); // what joins an emoji stays
});

test("names are shortened to what tells them apart", () => {
  assert.deepEqual(["com.microsoft.MatMulNBits", "pkg::Swish", "Add"].map(shortOperator), ["MatMulNBits", "Swish", "Add"]);
  assert.deepEqual(["p0.onnx", "p.onnx.1"].map(shortPart), ["p0", "p.onnx.1"]);
  assert.deepEqual(withoutCommon(["/m/layers.0/Add", "/m/layers.1/Add"]), ["…layers.0/Add", "…layers.1/Add"]);
  assert.deepEqual(withoutCommon(["m.layers.0", "m.layers.1"]), ["…0", "…1"]);
  assert.deepEqual(withoutCommon(["/m/a", "/m"]), ["/m/a", "/m"]);
  assert.deepEqual([withoutCommon([]), withoutCommon(["/m/a"]), withoutCommon(["/m/a", "/m/a"])], [[], ["/m/a"], ["/m/a", "/m/a"]]);
  assert.equal(listed([..."abcdefgh"]), "a, b, c, d, e, f, g, h");
  assert.equal(listed([..."abcdefghij"]), "a, b, c, d, e, f, g, h and 2 more");
});
