/* The geometry of the cut profile. A view has the nodes `from` to `to`, and `log`, whether its scale is logarithmic. */

export const LEFT = 74; // where the nodes begin, as in page.css; `width` is that of all nodes in sight, in pixels

/** The view from one node to another, at least 8 wide where there are so many. */
export function zoomed(from, to, all) {
  const width = Math.min(all, Math.max(8, to - from));
  const start = Math.max(0, Math.min(all - width, Math.round(from)));
  return { from: start, to: Math.min(all, start + Math.round(width)) };
}

export function envelope(values, view, pixels) {
  const low = new Float64Array(pixels);
  const high = new Float64Array(pixels);
  const each = (view.to - view.from) / pixels;
  for (let x = 0; x < pixels; x += 1) {
    const a = Math.min(view.to - 1, Math.floor(view.from + x * each));
    const b = Math.max(a + 1, Math.min(view.to, Math.floor(view.from + (x + 1) * each)));
    low[x] = Infinity;
    for (let i = a; i < b; i += 1) {
      if (values[i] < low[x]) low[x] = values[i];
      if (values[i] > high[x]) high[x] = values[i];
    }
  }
  return { low, high };
}

/** The scale: for a number of bytes the share of the height. */
export function scaleFor(high, isLog) {
  const most = high.reduce((best, bytes) => Math.max(best, bytes), 1);
  if (!isLog) return { most, heightOf: (bytes) => bytes / (most * 1.05) };
  return { most, heightOf: (bytes) => Math.log2(1 + bytes / 64) / Math.log2(1 + (most * 2) / 64) };
}

/** The bytes at which there are lines: a few powers of two, or of four if the scale is logarithmic. */
export function gridLines(most, isLog) {
  if (isLog) {
    const lines = [];
    for (let bytes = 64; bytes <= most * 2; bytes *= 4) lines.push(bytes);
    const every = Math.ceil(lines.length / 6);
    return lines.filter((_, i) => (lines.length - 1 - i) % every === 0);
  }
  let step = 1;
  while (most / step > 5) step *= 2;
  return Array.from({ length: Math.floor((most * 1.05) / step) }, (_, i) => step * (i + 1));
}

/** The node at an x; the cheapest of those within `reach` pixels, and of equal ones the nearest. */
export function nodeAt(values, view, x, width, reach) {
  const each = (view.to - view.from) / width;
  const exact = view.from + (x - LEFT) * each - 1;
  const inside = (index) => Math.max(view.from, Math.min(view.to - 1, Math.round(index)));
  let best = inside(exact);
  for (let i = inside(exact - reach * each); i <= inside(exact + reach * each); i += 1) {
    if (values[i] < values[best] || (values[i] === values[best] && Math.abs(i - exact) < Math.abs(best - exact))) best = i;
  }
  return best;
}

/** The next node in a direction, 1 or -1, where less is alive than on one side of it and not more than on the other; undefined if there is none. */
export function nextLow(values, at, direction) {
  for (let i = at + direction; i > 0 && i < values.length - 1; i += direction) {
    if (values[i] < values[i - direction] && values[i] <= values[i + direction]) return i;
  }
  return undefined;
}

/** The cut whose line is at most `pixels` from x; null if there is none. */
export function cutNear(cuts, view, x, pixels, width) {
  const off = (cut) => Math.abs(LEFT + ((cut + 1 - view.from) / (view.to - view.from)) * width - x);
  const near = [...cuts].sort((a, b) => off(a) - off(b))[0];
  return near !== undefined && off(near) <= pixels ? near : null;
}
