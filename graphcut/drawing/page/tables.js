/* Tables. */

import { $, button, html, letKeysScroll } from "./elements.js";
import { shortened, visible } from "./names.js";
import { select } from "./panel.js";
import { isOver, needOf } from "./part_words.js";
import { profile } from "./scene.js";
import { when } from "./state.js";
import { againstMean, duration, flop, grouped, leastOf, percent, size, sizeOf, sumOf } from "./number_words.js";

export const MAX_ROWS = 1000;

/** A table; `columns` are [title, class, row → text or element], or null. */
export function table(title, columns, rows) {
  const shown = columns.filter((column) => column !== null);
  const titles = shown.some(([name]) => name) ? shown : [];
  const head = html("tr", { role: "row" },
    ...titles.map(([name, css]) => html("th", { role: "columnheader", scope: "col", class: css, text: name })));
  const short = shown.map(([, css, cell]) => (css.includes("clip") ? shortened(rows.map((row) => visible(cell(row))), 24) : null));
  const body = rows.map((row, i) => html("tr", { role: "row" }, ...shown.map(([name, css, cell], column) => {
    const content = cell(row);
    const attributes = { role: "cell", class: css, "data-title": name || null, title: short[column] ? content : null };
    return content instanceof Element ? html("td", attributes, content) : html("td", { ...attributes, text: short[column]?.[i] ?? content });
  })));
  // Roles, since a table that is shown as blocks loses its own.
  return html("table", { role: "table", "aria-label": title },
    ...(titles.length ? [html("thead", { role: "rowgroup" }, head)] : []), html("tbody", { role: "rowgroup" }, ...body));
}

/** Gives a chart its tables, made when they are opened, and anew for other cuts. */
export function asTable(id, make) {
  const details = $(`#${id} .table`);
  const fill = () => {
    $(".scroll", details).replaceChildren(...details.open ? make() : []);
    letKeysScroll();
  };
  details.hidden = false;
  details.addEventListener("toggle", fill);
  when("cut", () => { if (details.open) fill(); });
}

/** A number with a bar below it; `tick` is where the budget ends, as a share of the bar. */
function meter(number, share, isBad = false, tick = null) {
  const mark = (css, left, width) => {
    const element = html("i", { class: css });
    element.style.left = `${left * 100}%`;
    if (width !== null) element.style.width = `${width * 100}%`;
    return element;
  };
  const bar = html("span", { "aria-hidden": "true" }, mark(isBad ? "bad" : "", 0, share), ...(tick === null ? [] : [mark("tick", tick, null)]));
  number.classList.toggle("bad", isBad);
  return html("span", {}, number, bar);
}

export const exactly = (text, number, unit = "B") => html("span", { text, title: `${unit === "s" ? number : grouped(number)} ${unit}` });

/** A table of parts, with columns `before` and `after` those that all have; what is not known of any part has none. */
export function partTable(title, parts, before, after = []) {
  const known = (name) => parts.filter((one) => (one[name] ?? null) !== null).map((one) => one[name]);
  const most = (...found) => Math.max(1, ...found.flatMap(known));
  const load = ["busy_s", "flops", "need_bytes", "weight_bytes", "nodes"].find((name) => known(name).length === parts.length && known(name).some((value) => value > 0));
  const mean = sumOf(parts, (one) => one[load]) / parts.length;
  const scale = most("need_bytes", "budget_bytes");
  const column = (name, word, text, unit) => (known(name).length ? [word, "number", (one) => (
    (one[name] ?? null) === null ? "–" : exactly(leastOf(one) + text(one[name]), one[name], unit))] : null);
  const need = (one) => {
    const text = one.budget_bytes ? `${needOf(one)}, ${percent(one.need_bytes / one.budget_bytes)}` : needOf(one);
    return meter(exactly(text, one.need_bytes), one.need_bytes / scale, isOver(one), one.budget_bytes ? one.budget_bytes / scale : null);
  };
  return table(title, [
    ...before,
    ["nodes", "number", (one) => grouped(one.nodes)],
    parts.some((one) => one.replicas) ? ["replicas", "number", (one) => grouped(one.replicas)] : null,
    ["weights", "number", (one) => exactly(size(one.weight_bytes), one.weight_bytes)],
    column("activation_bytes", "activations", size),
    known("need_bytes").length ? [parts[0].measure + (known("budget_bytes").length ? ", of budget" : ""), "meter", need] : null,
    known("flops").length ? ["compute", "meter", (one) => (
      (one.flops ?? null) === null ? "–" : meter(html("span", { text: leastOf(one) + flop(one.flops) }), one.flops / most("flops")))] : null,
    column("busy_s", "time", duration, "s"),
    parts.length > 1 ? ["vs. mean", "number", (one) => againstMean(one[load], mean)] : null,
    parts.length > 1 ? ["sends", "number", (one) => (one.sent.tensors ? exactly(sizeOf(one.sent), one.sent.bytes) : "–")] : null,
    ...after,
  ], parts);
}

/** A node of the profile that a click chooses; the arrow keys step from there. */
export const nodeLink = (index, text) => button({ class: "link", text, title: profile.nodes[index] }, () => {
  select(index);
  $("#profile canvas").focus({ preventScroll: true });
  $("#profile").scrollIntoView({ block: "nearest" });
});
