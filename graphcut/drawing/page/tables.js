/* Tables. */

import { $, button, html } from "./elements.js";
import { profile, select, when } from "./shown.js";
import { againstMean, duration, flop, grouped, isKnown, isOver, leastOf, needOf, percent, shortened, size, sizeOf, sumOf, visible } from "./words.js";

export const MAX_ROWS = 1000;

/** A table; `columns` are [title, class, row → text or element], or null. It has roles, since one that is shown as blocks loses its own. */
export function table(title, columns, rows) {
  const shown = columns.filter((column) => column !== null);
  const row = (cells) => html("tr", { role: "row" }, ...cells);
  const group = (tag, ...content) => html(tag, { role: "rowgroup" }, ...content);
  const head = row(shown.map(([name, css]) => html("th", { role: "columnheader", scope: "col", class: css, text: name })));
  const short = shown.map(([, css, cell]) => (css.includes("clip") ? shortened(rows.map((one) => visible(cell(one))), 24) : null));
  const body = rows.map((one, i) => row(shown.map(([name, css, cell], column) => {
    const content = cell(one);
    const attributes = { role: "cell", class: css, "data-title": name || null, title: short[column] ? content : null };
    return content instanceof Element ? html("td", attributes, content) : html("td", { ...attributes, text: short[column]?.[i] ?? content });
  })));
  return html("table", { role: "table", "aria-label": title }, ...shown.some(([name]) => name) ? [group("thead", head)] : [], group("tbody", ...body));
}

/** Gives a chart its tables, made when they are opened, and anew for other cuts; gives what makes them anew. */
export function asTable(id, make) {
  const place = html("div", { class: "scroll", tabindex: 0 });
  const fill = () => place.replaceChildren(...details.open ? make() : []);
  const details = html("details", { class: "table", on: { toggle: fill } }, html("summary", {}, "As a table"), place);
  ($(`#${id} .folds`) ?? $(`#${id}`)).append(details);
  when("cut", () => { if (details.open) fill(); });
  return fill;
}

/** A number with a bar below it; `tick` is where the budget ends, as a share of the bar. */
function meter(number, share, isBad = false, tick = null) {
  const bar = html("i", { class: isBad ? "bad" : "", style: { left: 0, width: `${share * 100}%` } });
  const end = tick === null ? [] : [html("i", { class: "tick", style: { left: `${tick * 100}%` } })];
  number.classList.toggle("bad", isBad);
  return html("span", {}, number, html("span", { "aria-hidden": "true" }, bar, ...end));
}

export const exactly = (text, number, unit = "B") => html("span", { text, title: `${unit === "s" ? number : grouped(number)} ${unit}` });

/** A table of parts, with columns `before` and `after` those that all have; what is not known of any part has none. */
export function partTable(title, parts, before, after = []) {
  const known = (...names) => names.flatMap((name) => parts.map((one) => one[name]).filter(isKnown));
  const load = ["busy_s", "flops", "need_bytes", "weight_bytes", "nodes"].find((name) => known(name).length === parts.length && known(name).some((value) => value > 0));
  const mean = sumOf(parts, (one) => one[load]) / parts.length;
  const scale = Math.max(1, ...known("need_bytes", "budget_bytes"));
  const most = Math.max(1, ...known("flops"));
  const optional = (name, word, css, cell) => (known(name).length ? [word, css, (one) => (isKnown(one[name]) ? cell(one) : "–")] : null);
  const need = (one) => {
    const text = one.budget_bytes ? `${needOf(one)}, ${percent(one.need_bytes / one.budget_bytes)}` : needOf(one);
    return meter(exactly(text, one.need_bytes), one.need_bytes / scale, isOver(one), one.budget_bytes ? one.budget_bytes / scale : null);
  };
  const ofSeveral = (column) => (parts.length > 1 ? column : null);
  return table(title, [
    ...before,
    ["nodes", "number", (one) => grouped(one.nodes)],
    parts.some((one) => one.replicas) ? ["replicas", "number", (one) => grouped(one.replicas)] : null,
    ["weights", "number", (one) => exactly(size(one.weight_bytes), one.weight_bytes)],
    optional("activation_bytes", "activations", "number", (one) => exactly(leastOf(one) + size(one.activation_bytes), one.activation_bytes)),
    optional("need_bytes", parts[0].measure + (known("budget_bytes").length ? ", of budget" : ""), "meter", need),
    optional("flops", "compute", "meter", (one) => meter(html("span", { text: leastOf(one) + flop(one.flops) }), one.flops / most)),
    optional("busy_s", "time", "number", (one) => exactly(leastOf(one) + duration(one.busy_s), one.busy_s, "s")),
    ofSeveral(["vs. mean", "number", (one) => againstMean(one[load], mean)]),
    ofSeveral(["sends", "number", (one) => (one.sent.tensors ? exactly(sizeOf(one.sent), one.sent.bytes) : "–")]),
    ...after,
  ], parts);
}

/** A node of the profile that a click chooses; the arrow keys step from there. */
export const nodeLink = (index, text) => button({ class: "link", text, title: profile.nodes[index] }, () => {
  select(index);
  $("#profile .plot").focus({ preventScroll: true });
  $("#profile").scrollIntoView({ block: "nearest" });
});
